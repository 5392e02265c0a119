"""The picture of a run beside what a server measured. It only draws; the numbers are those of `MeasuredComparison`."""

import warnings
from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.rules import printable
from kvsim.study.colours import COLOURS
from kvsim.study.measured.compare import MeasuredComparison
from kvsim.study.measured.series import Course, Series, Times, Values
from kvsim.units import TIME_UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

_MEASURED = "#333333"
_MOST_DRAWN = 4_000
"""Points of the run's line; beyond it a point stands for the mean of the time until the next."""

_MOST_DOTS = 300
"""Scrapes that are drawn as rings on a broken line; more would run into one."""

_NO_ONE_COLOUR = "#9a9a9a"


class Panel(NamedTuple):
    """What is drawn on one axis: a figure, what the axis says, a colour of COLOURS, a scale."""

    figure: str
    label: str
    colour: str
    scale: float = 1.0


PANELS = (
    Panel("kv_usage", "KV cache used\n(% of blocks)", "live", 100.0),
    Panel("running", "running\n(requests)", "running"),
    Panel("waiting", "waiting\n(requests)", "waiting"),
    Panel("preemptions", "preemptions\n(in all so far)", "preempted"),
    Panel("hit_share", "prefix hits\n(% of tokens so far)", "cached_line", 100.0),
    Panel("recent_hit_share", "prefix hits\n(% of last 1,000)", "cached_line", 100.0),
)

_COLOURS = COLOURS | {"cached_line": "#56a0c4"}


def panels_of(comparison: MeasuredComparison) -> tuple[Panel, ...]:
    """Those for which both sides have something."""
    if comparison.alignment is None:
        return ()
    has = {
        **dict.fromkeys(comparison.levels, True),
        **dict.fromkeys(comparison.counters, True),
        "hit_share": comparison.hit_share is not None,
    }
    return tuple(panel for panel in PANELS if has.get(panel.figure))


def plot_panel(comparison: MeasuredComparison, panel: Panel, *, ax: "Axes | None" = None) -> "Axes":
    """One figure of the run as a coloured line above a filled area, and the server's scrapes as rings on a dark, broken
    line, which is level until the next scrape. So they are told apart without colours.
    """
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(layout="constrained").subplots()
    course, series = _lines(comparison, panel.figure)
    scale, unit = _time_scale(comparison)
    times, values = _thinned(course, comparison.run.duration_ns)
    colour = _COLOURS[panel.colour]
    ax.step(times / scale, panel.scale * values, where="post", color=colour, linewidth=1.3, label="run")
    end = comparison.run.duration_ns / scale
    ax.fill_between(
        np.append(times / scale, end),
        panel.scale * np.append(values, values[-1:]),
        step="post",
        color=colour,
        alpha=0.25,
        linewidth=0,
    )
    ax.step(
        series.times / scale,
        panel.scale * series.values,
        where="post",
        color=_MEASURED,
        linewidth=0.9,
        linestyle=(0, (4, 1.5)) if len(series.times) <= _MOST_DOTS else "-",
        marker="o" if len(series.times) <= _MOST_DOTS else None,
        markersize=3.5,
        markerfacecolor="white",
        markeredgewidth=0.9,
        label="server",
    )
    if "requests" in panel.label or "in all" in panel.label:
        from matplotlib.ticker import MaxNLocator

        ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    ax.set(ylabel=panel.label, xlabel=f"time of the run ({unit})")
    ax.set_ylim(bottom=0)
    ax.grid(axis="y", alpha=0.25)
    return ax


def save_measured_plot(comparison: MeasuredComparison, path: Path) -> None:
    """A panel a figure, one below the other, into a file whose name says the format; equal numbers give equal bytes."""
    import matplotlib.style
    from matplotlib.figure import Figure

    panels = panels_of(comparison)
    assert panels, "there is something to draw"
    with matplotlib.style.context(["default", {"font.size": 12, "svg.hashsalt": "kvsim"}]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        figure = Figure(figsize=(15, 1.8 + 2.0 * len(panels)), dpi=100, layout="constrained")
        _draw_all(comparison, panels, figure)
        dated = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, metadata=dated.get(path.suffix))


def _draw_all(comparison: MeasuredComparison, panels: tuple[Panel, ...], figure: "Figure") -> None:
    alignment = comparison.alignment
    assert alignment is not None, "there are panels"
    scale, _unit = _time_scale(comparison)
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for panel, ax in zip(panels, axes, strict=True):
        plot_panel(comparison, panel, ax=ax)
        ax.label_outer()
        left, right = min(0, _bound(comparison, min)), max(comparison.run.duration_ns, _bound(comparison, max))
        for start, end in ((left, alignment.start_ns), (alignment.end_ns, right)):
            if end > start:
                ax.axvspan(start / scale, end / scale, color="#eeeeee", zorder=0, label="not compared")
        ax.set_xlim(left / scale, right / scale)
    handles, labels = axes[0].get_legend_handles_labels()
    kept = dict(zip(labels, handles, strict=True))
    kept["run"] = _run_of_any_colour()
    figure.legend(kept.values(), kept.keys(), loc="outside upper right", ncols=3, frameon=False)
    question = shorten(str(comparison.results.description["question"]), 100, placeholder=" ...")
    # Escaped, as what stands between two dollars would be read as a formula.
    title = printable(f"{question}\n{_below(comparison)}").replace("$", r"\$")
    figure.suptitle(title, fontsize=13, x=0.01, horizontalalignment="left")
    figure.align_ylabels()


def _run_of_any_colour() -> "Patch":
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    return Patch(facecolor=to_rgba(_NO_ONE_COLOUR, 0.4), edgecolor=_NO_ONE_COLOUR, linewidth=1.3)


def _below(comparison: MeasuredComparison) -> str:
    """What was compared, and where the first scrape was put."""
    alignment = comparison.alignment
    assert alignment is not None, "there are panels"
    files = shorten(", ".join(str(file["name"]) for file in comparison.measured.files), 70, placeholder=" ...")
    first_ns = min(int(each.times[0]) for each in comparison.series.values())
    how = ", the best fit" if alignment.fit is not None else ""
    return f"{files}: first scrape at {first_ns / 1e9:,.2f} s{how}"


def _bound(comparison: MeasuredComparison, which: Callable[[list[int]], int]) -> int:
    return which([int(each.times[end]) for each in comparison.series.values() for end in (0, -1)])


def _lines(comparison: MeasuredComparison, figure: str) -> tuple[Course, Series]:
    """Both sides of a figure. Counters are drawn as what they grew since the first moment that both cover."""
    alignment = comparison.alignment
    assert alignment is not None, "there are panels"
    if figure in comparison.levels:
        return comparison.run.courses[figure], comparison.series[figure]
    if figure != "hit_share":
        return _since_start(comparison, figure)
    hit_course, hits = _since_start(comparison, "hit_tokens")
    query_course, queries = _since_start(comparison, "queried_tokens")
    moments = np.union1d(hit_course.times, query_course.times)
    course = Course(moments, _ratio(hit_course.at(moments), query_course.at(moments)))
    held = Course(queries.times, queries.values)
    return course, Series(hits.times, _ratio(hits.values, held.at(hits.times)))


def _since_start(comparison: MeasuredComparison, figure: str) -> tuple[Course, Series]:
    alignment = comparison.alignment
    assert alignment is not None, "there are panels"
    course, grown = comparison.run.courses[figure], comparison.series[figure].grown()
    covered = grown.within(alignment.start_ns, alignment.end_ns)
    first = grown if covered is None else covered
    before = course.at(first.times[:1])[0]
    moved = Course(course.times, np.maximum(0.0, course.values - before))
    return moved, Series(grown.times, np.maximum(0.0, grown.values - first.values[0]))


def _ratio(hits: Values, queries: Values) -> Values:
    return np.divide(hits, queries, out=np.zeros_like(hits), where=queries > 0)


def _thinned(course: Course, end_ns: int) -> tuple[Times, Values]:
    """Few enough points to draw: the mean over equal times, each level weighted by how long it held."""
    if len(course.times) <= _MOST_DRAWN:
        return course.times, course.values
    edges = np.linspace(course.times[0], end_ns, _MOST_DRAWN + 1)
    summed = np.concatenate([[0.0], np.cumsum(course.values[:-1] * np.diff(course.times))])
    last = summed[-1] + course.values[-1] * max(0.0, float(end_ns - course.times[-1]))
    known = np.append(course.times, max(end_ns, int(course.times[-1]) + 1))
    means = np.diff(np.interp(edges, known, np.append(summed, last))) / np.diff(edges)
    return edges[:-1].astype(np.int64), means


def _time_scale(comparison: MeasuredComparison) -> tuple[float, str]:
    end_ns = max(comparison.run.duration_ns, _bound(comparison, max))
    unit = next((unit for unit in ("h", "min") if end_ns >= 3 * TIME_UNITS[unit]), "s")
    return float(TIME_UNITS[unit]), unit
