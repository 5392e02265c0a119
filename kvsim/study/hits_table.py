"""Hits against capacity as a person reads them: a table a block size, and a figure with a line for each."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import asdict, frozen
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.errors import TraceError
from kvsim.rules import shown
from kvsim.study.hits import MOST_TOUCHES_FOR_OPTIMUM, CapacityHits, HitCurve, Hits
from kvsim.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BLOCKS = 10**12
_MOST_DIGITS = 18
_POINTS = 200
_MARKS = {"fifo": "s", "lfu": "^", "tail_last_lru": "v", "optimum": "*"}


@frozen
class TokenSize:
    """What a token of all layers takes on the device that holds most, in bytes, and by which formula."""

    num_bytes: int
    formula: str


def read_capacity(text: str, block_size: int, token: TokenSize | None) -> int | None:
    """Blocks of "1000" or, with a model, "40 GiB"; None for "inf". Raises TraceError with the rule."""
    if text == "inf":
        return None
    digits = text.strip()
    blocks = int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else None
    num_bytes = None
    if not digits.isdecimal():
        with suppress(ValueError):
            num_bytes = parse_bytes(text)
    if blocks is not None and 1 <= blocks <= MOST_BLOCKS:
        return blocks
    if num_bytes is None:
        raise TraceError(
            f"capacity must be a whole number of blocks from 1 to {MOST_BLOCKS:,}, inf, or a size such as '40 GiB', "
            f"got {shown(text)}"
        )
    if token is None:
        raise TraceError(f"capacity {text!r} is in bytes, which needs a model to be turned into blocks")
    block_bytes = token.num_bytes * block_size
    if not block_bytes <= num_bytes <= MOST_BLOCKS * block_bytes:
        raise TraceError(
            f"capacity must hold from 1 to {MOST_BLOCKS:,} blocks of {block_size:,} tokens, each of {block_bytes:,} B, "
            f"got {shown(text)}"
        )
    return num_bytes // block_bytes


def hits_json(hits: Hits, token: TokenSize | None) -> dict[str, object]:
    """The figures by name; with a model, how many bytes a block takes."""
    return asdict(hits) | {"block_bytes": token and token.num_bytes * hits.block_size}


def hits_page(all_hits: Sequence[Hits], token: TokenSize | None, block_tokens: int | None = None) -> RenderableType:
    """The tables, and what their columns mean; `block_tokens` is what an id of the trace stands for, if it has any."""
    order = all_hits[0].order
    lines = [
        "touch: a prompt asks for one of its blocks. hits: touches that find it; optimum: those of the best evictions "
        "there could be. No clock: requests pass one by one.",
        "content: tokens of all hits, a partial last block counting as its own. engine: tokens of a contiguous prefix "
        "of full blocks, and never a prompt's last token.",
        {
            "head": "order head: the LRU of single blocks, touched from the head of the prompt on.",
            "tail": "order tail: looked up as a whole, released tail first, so that heads are evicted last.",
        }[order],
    ]
    if all_hits[0].policies:
        lines.append(
            "policies: engine share under each order of eviction, and the most that any evictions could give; lru is "
            "vLLM's, the order tail."
        )
    if blank := _why_blank(all_hits):
        lines.insert(1, blank)
    if finer := finer_sizes(block_tokens, [hits.block_size for hits in all_hits]):
        lines.insert(0, finer)
    if token is not None:
        lines.insert(0, f"bytes per token = {token.formula}")
    return Group(*(_one_size(hits, token) for hits in all_hits), *(Text(line, style="dim") for line in lines))


def _why_blank(all_hits: Sequence[Hits]) -> str:
    """Why some optimum is not there; "" where all are."""
    blank = [hits for hits in all_hits if any(result.optimum_hit_blocks is None for result in hits.results)]
    if not blank:
        return ""
    if all(hits.touches > MOST_TOUCHES_FOR_OPTIMUM for hits in blank):
        return f"optimum is blank beyond {MOST_TOUCHES_FOR_OPTIMUM:,} touches: it takes a pass for each capacity."
    return "optimum is blank as it was not asked for."


def finer_sizes(block_tokens: int | None, block_sizes: Sequence[int]) -> str:
    """That block sizes below an id of the trace tell nothing more; "" where there are none."""
    if block_tokens is None or not any(size < block_tokens for size in block_sizes):
        return ""
    return (
        f"An id of this trace stands for {block_tokens:,} tokens: sizes that divide that cannot differ in what is "
        "shared, but for the last block of a prompt."
    )


def _one_size(hits: Hits, token: TokenSize | None) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    sizes = [] if token is None else ["size"]
    counts = ("content\ntokens", "content\nshare", "engine\ntokens", "engine\nshare")
    for name in ("blocks", *sizes, "hits", "optimum", *counts):
        table.add_column(name, justify="right", no_wrap=name.endswith("share"), overflow="fold", vertical="bottom")
    for result in hits.results:
        best = result.optimum_hit_blocks
        table.add_row(
            *_capacity(result, hits, token),
            f"{result.hit_blocks:,}",
            "" if best is None else f"{best:,}",
            f"{result.hit_tokens:,}",
            _share(result.hit_tokens, hits.prompt_tokens),
            f"{result.engine_hit_tokens:,}",
            _share(result.engine_hit_tokens, hits.prompt_tokens),
        )
    by_policy = [_policies(hits, token)] if hits.policies else []
    title = (
        f"Block size {hits.block_size:,}: {hits.touches:,} touches of {hits.distinct_blocks:,} blocks, "
        f"{hits.prompt_tokens:,} prompt tokens"
    )
    shortest = (
        f"No prefix shorter than {hits.smallest_prefix_tokens:,} tokens can be hit in an engine; "
        f"{hits.prompts_too_short:,} of {hits.prompts:,} prompts have no token beyond that."
    )
    return Group(Text(title, style="bold"), Text(shortest), *(Padding(shown, (1, 0)) for shown in (table, *by_policy)))


def _policies(hits: Hits, token: TokenSize | None) -> Table:
    """The policies side by side, and the bound of them all."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("blocks", *([] if token is None else ["size"]), *hits.policies, "optimum"):
        table.add_column(name, justify="right", overflow="fold")
    for result in hits.results:
        best = result.optimum_engine_hit_blocks
        table.add_row(
            *_capacity(result, hits, token),
            *(_share(under.engine_hit_tokens, hits.prompt_tokens) for under in result.policies),
            "" if best is None else _share(best * hits.block_size, hits.prompt_tokens),
        )
    return table


def _capacity(result: CapacityHits, hits: Hits, token: TokenSize | None) -> list[str]:
    """In blocks, and with a model in bytes."""
    capacity = result.capacity_blocks
    blocks = "infinite" if capacity is None else f"{capacity:,}"
    if token is None:
        return [blocks]
    return [blocks, "" if capacity is None else format_bytes(capacity * hits.block_size * token.num_bytes)]


def _share(part: int, whole: int) -> str:
    return "" if not whole else f"{part / whole:.2%}"


def plot_hits(
    curves: Sequence[HitCurve],
    token: TokenSize | None = None,
    of_policies: Sequence[Hits] = (),
    *,
    ax: "Axes | None" = None,
) -> "Axes":
    """Engine hits as a share of prompt tokens over capacity, a line a block size, its ceiling dotted.

    Capacity is in GiB of the model, or in tokens where none is given. The lines are those of LRU; other policies of the
    hits that were counted, and the optimum, have a mark at each of their capacities.
    """
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(layout="constrained").subplots()
    for curve in curves:
        most = max(1, curve.distinct_blocks)
        capacities = sorted({round(capacity) for capacity in np.geomspace(1, most, _POINTS).tolist()})
        unit = curve.block_size * (1.0 if token is None else token.num_bytes / 2**30)
        whole = max(1, curve.prompt_tokens)
        rates = [100 * curve.engine_hit_tokens(capacity) / whole for capacity in capacities]
        ceiling = 100 * curve.engine_hit_tokens(None) / whole
        label = f"block size {curve.block_size:,} (ceiling {ceiling:.2f} %)"
        (line,) = ax.plot([capacity * unit for capacity in capacities], rates, label=label)
        ax.axhline(ceiling, color=line.get_color(), linestyle=":", linewidth=1)
    for hits in of_policies:
        if hits.policies:
            _mark_policies(hits, token, ax)
    where = "tokens" if token is None else "GiB on the device that holds most"
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda size, _: f"{size:,.6g}")
    ax.set(xlabel=f"capacity ({where})", ylabel="hit by an engine (% of prompt tokens)")
    ax.set_ylim(bottom=0)
    ax.set_title(f"What sharing could give, order {curves[0].order}, without a clock")
    ax.grid(alpha=0.3)
    ax.legend()
    return ax


def _mark_policies(hits: Hits, token: TokenSize | None, ax: "Axes") -> None:
    """Those that have no line of their own, and the bound of all."""
    unit = hits.block_size * (1.0 if token is None else token.num_bytes / 2**30)
    marks: dict[str, list[tuple[float, float]]] = {}
    for result in hits.results:
        if result.capacity_blocks is None:
            continue
        tokens = {under.policy: under.engine_hit_tokens for under in result.policies if under.policy != "lru"}
        if result.optimum_engine_hit_blocks is not None:
            tokens["optimum"] = result.optimum_engine_hit_blocks * hits.block_size
        for name, hit in tokens.items():
            point = result.capacity_blocks * unit, 100 * hit / max(1, hits.prompt_tokens)
            marks.setdefault(name, []).append(point)
    for name, points in marks.items():
        ax.plot(*zip(*points, strict=True), _MARKS.get(name, "."), label=f"{name}, block size {hits.block_size:,}")


def save_hits_plot(
    curves: Sequence[HitCurve], token: TokenSize | None, path: Path, of_policies: Sequence[Hits] = ()
) -> None:
    """Draw into a file, whose name says the format; equal numbers give equal bytes."""
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context("default"):
        figure = Figure(figsize=(10, 6), dpi=120, layout="constrained")
        plot_hits(curves, token, of_policies, ax=figure.subplots())
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
