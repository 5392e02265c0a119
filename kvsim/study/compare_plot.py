"""The picture of a comparison: what the pool consisted of, and beside it how many requests ran, were refused and
preempted. It only draws; the numbers are those of `Comparison`.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from textwrap import fill, shorten
from typing import TYPE_CHECKING, NamedTuple

from kvsim.engine.metrics import Number
from kvsim.study.colours import COLOURS
from kvsim.study.compare import PERIOD, Comparison, Row
from kvsim.study.compare_answer import answer
from kvsim.study.compare_record import POOL_PARTS
from kvsim.study.scenario import named_overrides

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEANINGS = {
    "live": "live (written)",
    "tail": "tail (rest of last blocks)",
    "reserved": "reserved (for later tokens)",
    "unused": "unused (never written)",
    "padding": "padding (smaller groups of layers)",
    "external": "external (free, no extent large enough)",
    "cached": "cached (for hits only)",
    "blank": "blank (free)",
}

_HATCHES = {"external": "//"}
"""Free, and yet not for the asking."""

_WRITTEN_FROM = 4.0
"""Per cent of the pool: a narrower part has no room for its number."""

_TALLEST = 100.0
"""Inches of a figure, beyond which bars get thinner."""


class Panel(NamedTuple):
    """A figure of the runs, what its axis says, how a bar is labelled."""

    figure: str
    label: str
    colour: str
    written: Callable[[float], str]


PANELS = (
    Panel("batched_mean", "batched\n(requests at once)", "running", "{:,.2f}".format),
    Panel("refused", "refused\n(requests)", "refused", "{:,}".format),
    Panel("preempted", "preempted\n(requests)", "preempted", "{:,}".format),
)


def plot_pools(comparison: Comparison, *, ax: "Axes | None" = None) -> "Axes":
    """A bar a run, in their order, of all that its pool consisted of; a failed run has none."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(layout="constrained").subplots()
    places = range(len(comparison.rows))
    left = [0.0] * len(places)
    for part in POOL_PARTS:
        widths = [100 * (row.pool_share(part) or 0.0) for row in comparison.rows]
        if any(widths):
            bars = ax.barh(
                places,
                widths,
                left=left,
                color=COLOURS[part],
                label=MEANINGS[part],
                hatch=_HATCHES.get(part),
                edgecolor="#a6a6a6",
                linewidth=0.5,
            )
            labels = [f"{width:.1f}" if width >= _WRITTEN_FROM else "" for width in widths]
            ax.bar_label(bars, labels, label_type="center", fontsize=8.5, color="white" if part == "live" else "black")
            if part in _HATCHES:
                for text in ax.texts[-len(widths) :]:
                    text.set_bbox({"facecolor": COLOURS[part], "edgecolor": "none", "pad": 1.5})
        left = [start + width for start, width in zip(left, widths, strict=True)]
    ax.set_yticks(places, [_name(row) for row in comparison.rows])
    ax.invert_yaxis()
    ax.set(xlim=(0, 100), xlabel="share of the pool, by time (%)")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=9)
    return ax


def plot_requests(comparison: Comparison, panel: Panel, *, ax: "Axes | None" = None) -> "Axes":
    """A bar a run of one figure, with its number; "-" where there is none."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(layout="constrained").subplots()
    values: list[Number] = [row.figure(panel.figure) for row in comparison.rows]
    bars = ax.barh(range(len(values)), [value or 0 for value in values], color=COLOURS[panel.colour])
    ax.bar_label(bars, ["-" if value is None else panel.written(value) for value in values], padding=3, fontsize=9)
    ax.set(xlabel=panel.label, xlim=(0, 1.45 * max((value or 0 for value in values), default=0) or 1))
    if any(values):
        ax.locator_params(axis="x", nbins=3)
    else:
        ax.set_xticks([0])
    return ax


def save_comparison_plot(comparison: Comparison, path: Path) -> None:
    """Draw into a file, whose name says the format; equal numbers give equal bytes."""
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", {"svg.hashsalt": "kvsim"}]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        height = min(_TALLEST, 3.6 + 0.55 * len(comparison.rows))
        figure = Figure(figsize=(15, height), dpi=110, layout="constrained")
        _draw_all(comparison, figure)
        dated = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, metadata=dated.get(path.suffix))


def _draw_all(comparison: Comparison, figure: "Figure") -> None:
    pools, *others = figure.subplots(1, 1 + len(PANELS), sharey=True, width_ratios=(4, 1, 1, 1))
    plot_pools(comparison, ax=pools)
    for panel, ax in zip(PANELS, others, strict=True):
        plot_requests(comparison, panel, ax=ax)
        ax.tick_params(axis="y", left=False)
        ax.spines[["top", "right"]].set_visible(False)
    about = [comparison.question, named_overrides(comparison.overrides)]
    figure.suptitle("\n".join(_plain(shorten(line, 150, placeholder=" ...")) for line in about if line), fontsize=14)
    figure.supxlabel("\n".join(_plain(fill(line, 170)) for line in (answer(comparison), PERIOD)), fontsize=9.5)


def _name(row: Row) -> str:
    """In lines: the allocator, and each key with its value."""
    if row.has_failed:
        return _plain(f"{row.label}\n(failed)".replace(", ", "\n"))
    return _plain("\n".join(shorten(line, 40, placeholder=" ...") for line in row.label.split(", ")))


def _plain(text: str) -> str:
    """Escaped, as what stands between two dollars would be read as a formula."""
    return text.replace("$", r"\$")
