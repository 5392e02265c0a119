"""Bytes against context length, a line for each number of sequences, and where the budget ends them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from kvsim.errors import ModelError
from kvsim.model.deployment import Deployment
from kvsim.model.geometry import ModelGeometry
from kvsim.model.pools import Pool
from kvsim.model.sizing import length_asked, pools_of
from kvsim.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEQUENCES = (1, 4, 16, 64)
"""Numbers of sequences where none are asked for."""

SHORTEST = 128
"""Tokens at the left end of the picture, unless the longest length is shorter."""

STEPS_PER_DOUBLING = 8


@frozen
class ScalingLine:
    """What `num_sequences` requests of equal length can hold at each length."""

    num_sequences: int
    num_bytes: tuple[int, ...]
    longest_model_len: int | None
    """Tokens up to which they fit; 0 if not at all, None if at any length."""
    bytes_at_longest: int


@frozen
class Scaling:
    """Lines over one list of lengths; `name` says whose accounting it is."""

    model: str
    name: str
    memory_bytes: int
    lengths: tuple[int, ...]
    lines: tuple[ScalingLine, ...]


def scaling(
    geometry: ModelGeometry,
    kv_bytes: int | Sequence[int],
    deployment: Deployment | None = None,
    *,
    max_model_len: int | None = None,
    sequences: Sequence[int] = SEQUENCES,
) -> Scaling:
    """Bytes by the engine's accounting, or by the ideal one where the engine's layout is not described."""
    if not sequences or min(sequences) < 1:
        raise ModelError(f"numbers of sequences must be > 0, got {list(sequences)}")
    length = length_asked(geometry, max_model_len)
    pools = pools_of(geometry, kv_bytes, deployment or Deployment(), length)
    pool = pools.ideal if pools.engine is None else pools.engine.pool
    lengths = lengths_up_to(length)
    lines = tuple(_line(pool, num_sequences, lengths) for num_sequences in sequences)
    return Scaling(geometry.name, pool.name, pool.memory_bytes, lengths, lines)


def lengths_up_to(longest: int) -> tuple[int, ...]:
    """Lengths in steps that double with the length, and the longest itself."""
    lengths = {longest}
    base = SHORTEST
    while base < longest:
        lengths |= {base + base * step // STEPS_PER_DOUBLING for step in range(STEPS_PER_DOUBLING)}
        base *= 2
    return tuple(sorted(length for length in lengths if length <= longest))


def _line(pool: Pool, num_sequences: int, lengths: Sequence[int]) -> ScalingLine:
    def num_bytes(num_tokens: int) -> int:
        return num_sequences * pool.units_of_request(num_tokens) * pool.unit_bytes

    longest = pool.longest(num_sequences)
    return ScalingLine(
        num_sequences,
        tuple(num_bytes(length) for length in lengths),
        longest,
        num_bytes(longest) if longest else 0,
    )


def plot_scaling(scaling: Scaling, *, ax: "Axes | None" = None) -> "Axes":
    """The lines, the budget, and a mark where each line ends inside it; both axes double."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(layout="constrained").subplots()
    for line in scaling.lines:
        (drawn,) = ax.plot(scaling.lengths, [size / 2**30 for size in line.num_bytes], label=_label(line))
        if line.longest_model_len and line.longest_model_len <= scaling.lengths[-1]:
            ax.plot([line.longest_model_len], [line.bytes_at_longest / 2**30], "o", color=drawn.get_color())
    budget = scaling.memory_bytes / 2**30
    ax.axhline(budget, color="black", linestyle="--", label=f"budget {format_bytes(scaling.memory_bytes)}")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda tokens, _: f"{tokens:,.0f}")
    ax.yaxis.set_major_formatter(lambda gib, _: f"{gib:g}")
    ax.set_xlabel("context length (tokens)")
    ax.set_ylabel("KV cache (GiB on the rank that fills first)")
    ax.set_title(f"{scaling.model}: what requests can hold, {scaling.name}")
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def save_scaling_plot(scaling: Scaling, path: Path) -> None:
    """Draw into a file, whose name says the format; equal numbers give equal bytes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), dpi=120, layout="constrained")
    plot_scaling(scaling, ax=figure.subplots())
    figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)


def _label(line: ScalingLine) -> str:
    what = "1 sequence" if line.num_sequences == 1 else f"{line.num_sequences:,} sequences"
    if line.longest_model_len is None:
        return f"{what}: at any length"
    if line.longest_model_len == 0:
        return f"{what}: at no length"
    return f"{what}: up to {line.longest_model_len:,} tokens"
