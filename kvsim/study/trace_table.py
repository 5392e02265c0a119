"""Statistics of a trace as a person reads them: a table, and a figure of lengths, arrivals and sharing."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.study.hits_table import finer_sizes
from kvsim.study.servegen import LengthWindows, RateWindows
from kvsim.study.trace_info import Spread, TraceInfo

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def info_page(info: TraceInfo, name: str, block_tokens: int | None = None) -> RenderableType:
    """Lengths, arrivals, sharing; then what the file lacks and what is odd in it.

    `block_tokens` is what an id of the trace stands for, if it has any.
    """
    lengths = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    lengths.add_column("")
    for column in ("mean", "median", "p99", "min", "max"):
        lengths.add_column(column, justify="right", no_wrap=True)
    for what, spread in (("prompt", info.prompt), ("output", info.output)):
        if spread is not None:
            lengths.add_row(f"{what} tokens", *_figures(spread))
    if info.reuse_distance is not None:
        lengths.add_section()
        lengths.add_row(f"blocks ({info.reuse_block_size:,} tokens) between two uses", *_figures(info.reuse_distance))
    figures = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    figures.add_column(no_wrap=True)
    figures.add_column(justify="right", no_wrap=True)
    figures.add_column(style="dim", overflow="fold")
    for row in (*_arrival_rows(info), *_sharing_rows(info)):
        figures.add_row(*row)
    finer = finer_sizes(block_tokens, list(info.ideal_hit_tokens or ()))
    notes = [f"Missing in this format: {', '.join(info.missing)}."] if info.missing else []
    notes += [f"Odd rows: {count:,} with {what}." for what, count in info.odd_rows.items()]
    return Group(
        Text(f"{name}: format {info.format}, {info.rows:,} requests", style="bold"),
        Padding(lengths, (1, 0)),
        figures,
        *([Text(finer, style="dim")] if finer else []),
        *(Text(note, style="yellow") for note in notes),
    )


def _figures(spread: Spread) -> list[str]:
    return [
        f"{spread.mean:,.1f}",
        f"{spread.median:,.0f}",
        f"{spread.p99:,.0f}",
        f"{spread.min:,}",
        f"{spread.max:,}",
    ]


def _arrival_rows(info: TraceInfo) -> list[tuple[str, str, str]]:
    arrivals = info.arrivals
    rows = [
        ("duration", arrivals.duration_s, ",.1f", " s", "from the first arrival to the last"),
        ("rate", arrivals.rate_per_s, ",.4g", "/s", "gaps over duration"),
        ("CV of gaps", arrivals.gap_cv, ",.2f", "", "1 if arrivals know nothing of each other, more in bursts"),
        ("dispersion", arrivals.iod, ",.2f", "", "variance over mean of the arrivals in each second"),
        ("sessions", info.sessions, ",", "", ""),
    ]
    return [(name, f"{value:{form}}{unit}", why) for name, value, form, unit, why in rows if value is not None]


def _sharing_rows(info: TraceInfo) -> list[tuple[str, str, str]]:
    return [
        (f"shared at block size {size:,}", f"{tokens / max(1, info.prompt_tokens):.2%}", f"{tokens:,} prompt tokens")
        for size, tokens in (info.ideal_hit_tokens or {}).items()
    ]


def save_info_plot(info: TraceInfo, path: Path) -> None:
    """Draw lengths, arrivals and sharing into a file, whose name says the format."""
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context("default"):
        figure = Figure(figsize=(12, 4.5), dpi=120, layout="constrained")
        panels: list[Callable[..., Axes]] = [plot_lengths]
        panels += [plot_arrivals] if info.arrivals.rate_per_s else []
        panels += [plot_sharing] if info.ideal_hit_tokens else []
        for draw, ax in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
            draw(info, ax=ax)
            ax.grid(alpha=0.3)
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)


def plot_lengths(info: TraceInfo, *, ax: "Axes") -> "Axes":
    """The share of requests that are at most so long."""
    for name, lengths in (("prompt", info.prompt_lengths), ("output", info.output_lengths)):
        if len(lengths):
            ax.ecdf(lengths, label=name)
    ax.set_xscale("symlog")
    ax.set(xlabel="length (tokens)", ylabel="share of requests at most so long")
    ax.legend()
    return ax


def plot_arrivals(info: TraceInfo, *, ax: "Axes") -> "Axes":
    """Arrivals per second over time, in a hundred columns."""
    duration = info.arrivals.duration_s or 1.0
    times = info.arrival_times_s
    ax.hist(times, bins=100, range=(0, duration), weights=[100 / duration] * len(times), histtype="step")
    ax.set(xlabel="time (s)", ylabel="arrivals (requests/s)")
    return ax


def plot_sharing(info: TraceInfo, *, ax: "Axes") -> "Axes":
    """What a cache that never evicts would hit, by block size."""
    shares = {size: 100 * hit / max(1, info.prompt_tokens) for size, hit in (info.ideal_hit_tokens or {}).items()}
    ax.bar([f"{size:,}" for size in shares], list(shares.values()))
    ax.set(xlabel="block size (tokens)", ylabel="shared with an earlier prompt (% of prompt tokens)")
    return ax


def windows_page(windows: RateWindows | LengthWindows, name: str) -> RenderableType:
    """What a file of rates or lengths by window says, a line a figure."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    rows = _rate_rows(windows) if isinstance(windows, RateWindows) else _length_rows(windows)
    for row in (("windows", f"{windows.windows:,}"), ("idle windows", f"{windows.idle_windows:,}"), *rows):
        table.add_row(*row)
    return Group(
        Text(f"{name}: {windows.format}, {windows.windows:,} windows of {windows.window_s:,.0f} s", style="bold"),
        Padding(table, (1, 0)),
        Text(f"Figures of windows, not requests: nothing to replay. A [workload] draws from it: {windows.how_to_draw}"),
    )


def _rate_rows(windows: RateWindows) -> list[tuple[str, str]]:
    return [
        ("duration", f"{windows.duration_s:,.0f} s"),
        ("requests", f"{windows.requests:,.0f} to be expected"),
        ("rate", f"{windows.rate_per_s:,.4f}/s on average, {windows.most_per_s:,.4f}/s at most"),
        ("CV of gaps", "" if windows.gap_cv is None else f"{windows.gap_cv:,.2f} on average"),
        ("gaps", ", ".join(f"{name} in {count:,} windows" for name, count in windows.gaps.items())),
    ]


def _length_rows(windows: LengthWindows) -> list[tuple[str, str]]:
    spreads = (("prompt", windows.prompt), ("output", windows.output))
    return [
        (
            f"{name} tokens",
            f"mean {spread.mean:,.1f}, median {spread.median:,}, p99 {spread.p99:,}, {spread.min:,} to {spread.max:,}",
        )
        for name, spread in spreads
        if spread is not None
    ]
