"""Pictures of a run. They only draw, on axes they are given; the numbers are those of `Results`.

A run with more instants than the picture has columns is drawn by columns of equal time: areas and lines are the
time-weighted mean of the column, and a thin line shows the most that was allocated in it. How long memory refused the
head of the queue is drawn as its share of the column, so that many short refusals do not look like a long one.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
from attrs import frozen

from kvsim.engine.results import Results
from kvsim.study.colours import COLOURS
from kvsim.study.scenario import named_overrides
from kvsim.units import TIME_UNITS, byte_scale, time_axis_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]

_COLUMNS = 1200
_LEGEND_COLUMNS, _INCHES_OF_A_LEGEND_COLUMN = 4, 3.2

MUCH_MORE = 4
"""Times as many requests wait as run: beyond it they get an axis of their own."""

_LEVELS = (
    "live_bytes",
    "allocated_bytes",
    "cached_bytes",
    "slack_bytes",
    "reserved_bytes",
    "unused_bytes",
    "external_bytes",
    "running",
    "waiting",
)
_MEANS = (*_LEVELS, "blocked")
_PEAKS = ("allocated_bytes",)
_MOMENTS = ("preempted",)
_READ = ("time_ns", *_LEVELS, "logical_bytes", "refused", *_MOMENTS)


@frozen(eq=False)
class TimeColumns:
    """A timeline cut for drawing: each level holds from `times[i]` to `times[i + 1]` seconds.

    `mean` is the level of each column weighted by time, `peak` the highest within it, that with which it begins
    included, and `moments` the times of the columns in which an event happened. The mean of the level "blocked" is the
    share of the column's time in which memory refused the head of the queue.
    """

    times: Array
    mean: dict[str, Array]
    peak: dict[str, Array]
    moments: dict[str, Array]

    @classmethod
    def of(cls, results: Results) -> "TimeColumns":
        parts = _parts(results)
        end = max(results.totals.duration_ns / 1e9, 1e-9)
        first = list(islice(parts, 1))
        if results.totals.duration_ns == first[0].last_ns and len(first[0].seconds) <= _COLUMNS:
            return cls._exact(first[0], end)
        return cls._cut(chain(first, parts), np.linspace(0, end, _COLUMNS + 1))

    @classmethod
    def _exact(cls, part: "_Part", end: float) -> "TimeColumns":
        """Every instant has a column of its own."""
        level = {name: part.level(name) for name in _MEANS}
        moments = {name: part.seconds[part.level(name) > 0] for name in _MOMENTS}
        return cls(np.append(part.seconds, end), level, {name: level[name] for name in _PEAKS}, moments)

    @classmethod
    def _cut(cls, parts: "Iterable[_Part]", times: Array) -> "TimeColumns":
        """Columns of equal time. The level of a part holds until the next one begins."""
        integral = {name: np.zeros(len(times)) for name in _MEANS}
        peak = {name: np.zeros(len(times) - 1) for name in _PEAKS}
        happened = {name: np.zeros(len(times) - 1, dtype=bool) for name in _MOMENTS}
        before: _Part | None = None
        area = dict.fromkeys(_MEANS, 0.0)
        for part in parts:
            joined = part if before is None else part.after(before)
            inside = (times >= joined.seconds[0]) & (times <= joined.seconds[-1])
            column = np.minimum(np.searchsorted(times, joined.seconds, side="right") - 1, len(times) - 2)
            for name in _MEANS:
                level = joined.level(name)
                summed = area[name] + np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(joined.seconds))])
                integral[name][inside] = np.interp(times[inside], joined.seconds, summed)
                area[name] = summed[-1]
            begun = np.flatnonzero(inside[:-1])
            for name in _PEAKS:
                level = joined.level(name)
                within = joined.seconds < times[-1]
                np.maximum.at(peak[name], column[within], level[within])
                held = level[np.searchsorted(joined.seconds, times[begun], side="right") - 1]
                np.maximum.at(peak[name], begun, held)
            for name in _MOMENTS:
                happened[name][column[len(joined.seconds) - len(part.seconds) :][part.level(name) > 0]] = True
            before = joined
        mean = {name: np.diff(total) / np.diff(times) for name, total in integral.items()}
        return cls(times, mean, peak, {name: times[:-1][some] for name, some in happened.items()})


def _parts(results: Results) -> "Iterator[_Part]":
    last: pl.DataFrame | None = None
    for rows in results.tables.parts("timeline", _READ):
        if not rows.is_empty():
            rows = _with_blocked(rows, last)
            last = rows.tail(1)
            yield _Part(rows)


def _with_blocked(rows: pl.DataFrame, last: pl.DataFrame | None) -> pl.DataFrame:
    """With a level of 1 from a step that refused the head of the queue until the next step, else 0.

    Rows within a step, as of arrivals, refuse nobody either; they are known by the tokens computed, which every step
    changes.
    """
    decided = rows.with_columns((pl.col("refused") > 0).cast(pl.Int64).alias("blocked"))
    joined = decided if last is None else pl.concat([last, decided])
    within = (pl.col("refused") == 0) & pl.all_horizontal(
        pl.col(name) == pl.col(name).shift(1) for name in ("logical_bytes", "running")
    )
    level = pl.when(within).then(None).otherwise(pl.col("blocked")).forward_fill()
    return joined.with_columns(level.alias("blocked")).tail(rows.height)


class _Part:
    """Some rows of a timeline."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows
        self.last_ns = int(rows["time_ns"][-1])
        self.seconds: Array = rows["time_ns"].to_numpy() / 1e9

    def level(self, name: str) -> Array:
        level: Array = self._rows[name].to_numpy().astype(np.float64)
        return level

    def after(self, before: "_Part") -> "_Part":
        """These rows with the last of those before, so that its level goes on."""
        return _Part(pl.concat([before._rows.tail(1), self._rows]))


def plot_memory(results: Results, *, ax: "Axes | None" = None) -> "Axes":
    """Live, slack and cached bytes stacked up to the pool, and above it in what share of the time memory refused the
    head of the queue, and when requests were preempted. Where memory is reserved, slack is drawn by its kinds, and
    above it what is free and in no extent large enough.
    """
    ax = ax or _new_axes()
    columns = TimeColumns.of(results)
    scale, time_unit = _time_scale(columns)
    unit, size = byte_scale(results.shape.pool_bytes)
    times = columns.times / scale
    pool = results.shape.pool_bytes / size
    top = np.zeros_like(columns.mean["live_bytes"])
    for name, label in _areas(results):
        level = columns.mean[f"{name}_bytes"] / size
        ax.stairs(top + level, times, baseline=top, fill=True, color=COLOURS[name], label=label)
        top = top + level
    peak = columns.peak["allocated_bytes"] / size
    ax.stairs(peak, times, baseline=None, color=COLOURS["pool"], linewidth=0.7, label="most allocated")
    ax.axhline(pool, color=COLOURS["pool"], linestyle="--", linewidth=1.5, label=f"pool ({pool:,.4g} {unit})")
    if results.metrics["refused"]:
        bottom, height = pool * 1.02, pool * 0.06
        bars = bottom + height * columns.mean["blocked"]
        ax.stairs(bars, times, baseline=bottom, fill=True, color=COLOURS["refused"], label=_refused_label(results))
    moments = columns.moments["preempted"] / scale
    if len(moments):
        label = f"preempted ({results.metrics['preempted']:,} requests)"
        ax.vlines(moments, pool * 1.10, pool * 1.15, color=COLOURS["preempted"], linewidth=0.6, label=label)
    ax.set(ylabel=f"KV cache on one device ({unit})", ylim=(0, pool * 1.17), xlabel=f"time ({time_unit})")
    ax.set_xlim(0, times[-1])
    fitting = int(ax.get_figure(root=True).get_figwidth() / _INCHES_OF_A_LEGEND_COLUMN)  # type: ignore[union-attr]
    ncols = max(1, min(_LEGEND_COLUMNS, fitting))
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=ncols, frameon=False)
    return ax


def _areas(results: Results) -> list[tuple[str, str]]:
    """The levels that are stacked, from below, and what the legend calls them."""
    metrics = results.metrics

    def label(name: str, share: str, of: str) -> tuple[str, str]:
        value = metrics[share]
        return name, name if value is None else f"{name} ({value:.2%} of {of})"

    if not metrics["reserved_peak_bytes"] and not metrics["unused_peak_bytes"]:
        return [("live", "live"), label("slack", "slack_share", "allocated"), ("cached", "cached for hits only")]
    return [
        ("live", "live"),
        label("reserved", "reserved_share", "allocated"),
        label("unused", "unused_share", "allocated"),
        label("external", "external_share", "the pool"),
    ]


def _refused_label(results: Results) -> str:
    metrics = results.metrics
    share = (metrics["blocked_ns"] or 0) / max(1, results.totals.duration_ns)
    return f"refused ({metrics['refused']:,} requests, {share:.2%} of the time)"


def plot_slack(results: Results, *, ax: "Axes | None" = None) -> "Axes":
    """Slack as a share of what is allocated."""
    ax = ax or _new_axes()
    columns = TimeColumns.of(results)
    scale, time_unit = _time_scale(columns)
    slack, allocated = columns.mean["slack_bytes"], columns.mean["allocated_bytes"]
    percent = 100 * np.divide(slack, allocated, out=np.full_like(slack, np.nan), where=allocated > 0)
    ax.stairs(percent, columns.times / scale, baseline=None, color=COLOURS["slack"], linewidth=1.5)
    top = np.nanpercentile(percent, 99) if np.isfinite(percent).any() else 1.0
    ax.set(ylabel="slack (% of allocated)", xlabel=f"time ({time_unit})", ylim=(0, max(top * 1.3, 0.1)))
    ax.set_xlim(0, columns.times[-1] / scale)
    most = np.nanmax(percent, initial=0.0)
    if most > ax.get_ylim()[1]:
        ax.text(0.99, 0.95, f"cut off here: up to {most:.2f} %", transform=ax.transAxes, ha="right", va="top")
    return ax


def plot_requests(results: Results, *, ax: "Axes | None" = None) -> "Axes":
    """Running and waiting requests; those that wait on an axis of their own where they are many more."""
    ax = ax or _new_axes()
    columns = TimeColumns.of(results)
    scale, time_unit = _time_scale(columns)
    most = {name: max(1.0, columns.mean[name].max()) for name in ("waiting", "running")}
    axes = {"waiting": ax, "running": ax}
    if most["waiting"] > MUCH_MORE * most["running"]:
        axes["waiting"] = ax.twinx()
        axes["waiting"].set_ylabel("waiting (requests)", color=COLOURS["waiting"])
        ax.set_zorder(axes["waiting"].get_zorder() + 1)  # running stays in front
        ax.patch.set_visible(False)
    else:
        most = dict.fromkeys(most, max(most.values()))
    is_shared = axes["waiting"] is ax
    lines = []
    for name, on in axes.items():
        label = name if is_shared else f"{name} ({'left' if on is ax else 'right'})"
        colour = COLOURS[name]
        line = on.stairs(columns.mean[name], columns.times / scale, baseline=None, color=colour, linewidth=1.5)
        line.set_label(label)
        lines.append(line)
        on.set_ylim(0, 1.35 * most[name])
    ax.set(ylabel="requests" if is_shared else "running (requests)", xlabel=f"time ({time_unit})")
    ax.set_xlim(0, columns.times[-1] / scale)
    ax.legend(handles=lines, loc="upper left", frameon=False, ncols=2)
    return ax


PLOTS: dict[str, Callable[..., "Axes"]] = {"memory": plot_memory, "slack": plot_slack, "requests": plot_requests}


def save_memory_plot(results: Results, path: Path) -> None:
    """The question and its overrides above memory, slack and requests over time, as a PNG of 1600 x 1100 pixels.

    Neither the user's own matplotlib settings nor characters that the font lacks may change or stop it.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", {"font.size": 12.5}]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        figure = Figure(figsize=(16, 11), dpi=100, layout="constrained")
        _draw_all(results, figure)
        figure.savefig(path, format="png", metadata={"Software": None})


def _draw_all(results: Results, figure: "Figure") -> None:
    axes = figure.subplots(len(PLOTS), 1, sharex=True, height_ratios=(3.2, 1, 1))
    for draw, ax in zip(PLOTS.values(), axes, strict=True):
        draw(results, ax=ax)
        ax.label_outer()
        ax.grid(axis="y", alpha=0.25)
    title = shorten(str(results.description["question"]), 200, placeholder=" ...")
    if overrides := named_overrides(results.description["overrides"]):
        title += "\n" + shorten(overrides, 120, placeholder=" ...")
    # Escaped, as what stands between two dollars would be read as a formula.
    figure.suptitle(title.replace("$", r"\$"), fontsize=18, wrap=True)
    figure.align_ylabels()


def _new_axes() -> "Axes":
    from matplotlib.figure import Figure

    return Figure(layout="constrained").subplots()


def _time_scale(columns: TimeColumns) -> tuple[float, str]:
    """Seconds per unit of the time axis, and the unit's name."""
    unit = time_axis_unit(columns.times[-1] * 1e9)
    return TIME_UNITS[unit] / 1e9, unit
