"""Pictures of a run. They only draw, on axes they are given; the numbers are those of `Results`.

A run with more instants than the picture has columns is drawn by columns of equal time: areas and lines are the
time-weighted mean of the column, and a thin line shows the most that was allocated in it.
"""

import warnings
from collections.abc import Callable, Iterable
from itertools import chain, islice
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
from attrs import frozen

from kvsim.engine.results import Results
from kvsim.units import BYTE_UNITS, TIME_UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]

_COLUMNS = 1200
_COLOURS = {
    "live": "#0072b2",
    "slack": "#e69f00",
    "cached": "#bcd9e8",
    "pool": "#333333",
    "refused": "#a6408c",
    "preempted": "#c8102e",
    "running": "#0072b2",
    "waiting": "#7f7f7f",
}


_MEANS = ("live_bytes", "allocated_bytes", "cached_bytes", "slack_bytes", "running", "waiting")
_PEAKS = ("allocated_bytes",)
_MOMENTS = ("refused", "preempted")


@frozen(eq=False)
class TimeColumns:
    """A timeline cut for drawing: each level holds from `times[i]` to `times[i + 1]` seconds.

    `mean` is the level of each column weighted by time, `peak` the highest within it, that with which it begins
    included, and `moments` the times of the columns in which an event happened.
    """

    times: Array
    mean: dict[str, Array]
    peak: dict[str, Array]
    moments: dict[str, Array]

    @classmethod
    def of(cls, results: Results) -> "TimeColumns":
        names = ("time_ns", *_MEANS, *_MOMENTS)
        parts = (_Part(part) for part in results.tables.parts("timeline", names) if not part.is_empty())
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
    """Live, slack and cached bytes stacked up to the pool, with refusals and preemptions marked above it."""
    ax = ax or _new_axes()
    columns = TimeColumns.of(results)
    scale, time_unit = _time_scale(columns)
    unit, size = _byte_scale(results.shape.pool_bytes)
    times = columns.times / scale
    live = columns.mean["live_bytes"] / size
    allocated = columns.mean["allocated_bytes"] / size
    cached = columns.mean["cached_bytes"] / size
    pool = results.shape.pool_bytes / size
    share = results.metrics["slack_share"]
    slack_label = "slack" if share is None else f"slack ({share:.2%} of allocated)"
    for low, high, name, label in (
        (np.zeros_like(live), live, "live", "live"),
        (live, allocated, "slack", slack_label),
        (allocated, allocated + cached, "cached", "cached for hits only"),
    ):
        ax.stairs(high, times, baseline=low, fill=True, color=_COLOURS[name], label=label)
    peak = columns.peak["allocated_bytes"] / size
    ax.stairs(peak, times, baseline=None, color=_COLOURS["pool"], linewidth=0.7, label="most allocated")
    ax.axhline(pool, color=_COLOURS["pool"], linestyle="--", linewidth=1.5, label=f"pool ({pool:,.4g} {unit})")
    for height, event in ((1.04, "refused"), (1.08, "preempted")):
        moments = columns.moments[event] / scale
        if len(moments):
            heights = np.full_like(moments, pool * height)
            label = f"{event} ({results.metrics[event]:,} requests)"
            ax.plot(moments, heights, "|", color=_COLOURS[event], markersize=9, label=label)
    ax.set(ylabel=f"KV cache on one device ({unit})", ylim=(0, pool * 1.12), xlabel=f"time ({time_unit})")
    ax.set_xlim(0, times[-1])
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 1.11), ncols=7, frameon=False)
    return ax


def plot_slack(results: Results, *, ax: "Axes | None" = None) -> "Axes":
    """Slack as a share of what is allocated."""
    ax = ax or _new_axes()
    columns = TimeColumns.of(results)
    scale, time_unit = _time_scale(columns)
    slack, allocated = columns.mean["slack_bytes"], columns.mean["allocated_bytes"]
    percent = 100 * np.divide(slack, allocated, out=np.full_like(slack, np.nan), where=allocated > 0)
    ax.stairs(percent, columns.times / scale, baseline=None, color=_COLOURS["slack"], linewidth=1.5)
    top = np.nanpercentile(percent, 99) if np.isfinite(percent).any() else 1.0
    ax.set(ylabel="slack (% of allocated)", xlabel=f"time ({time_unit})", ylim=(0, max(top * 1.3, 0.1)))
    ax.set_xlim(0, columns.times[-1] / scale)
    return ax


def plot_requests(results: Results, *, ax: "Axes | None" = None) -> "Axes":
    """Running and waiting requests."""
    ax = ax or _new_axes()
    columns = TimeColumns.of(results)
    scale, time_unit = _time_scale(columns)
    for name in ("waiting", "running"):
        level = columns.mean[name]
        ax.stairs(level, columns.times / scale, baseline=None, color=_COLOURS[name], linewidth=1.5, label=name)
    ax.set(ylabel="requests", xlabel=f"time ({time_unit})")
    ax.set_ylim(0, 1.25 * max(1.0, *(columns.mean[name].max() for name in ("waiting", "running"))))
    ax.set_xlim(0, columns.times[-1] / scale)
    ax.legend(loc="upper left", frameon=False, ncols=2)
    return ax


PLOTS: dict[str, Callable[..., "Axes"]] = {"memory": plot_memory, "slack": plot_slack, "requests": plot_requests}


def save_memory_plot(results: Results, path: Path) -> None:
    """The question above memory, slack and requests over the same time, as a PNG of 1600 x 1100 pixels.

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
    question = shorten(str(results.description["question"]), 200, placeholder=" ...")
    # Escaped, as what stands between two dollars would be read as a formula.
    figure.suptitle(question.replace("$", r"\$"), fontsize=18, wrap=True)
    figure.align_ylabels()


def _new_axes() -> "Axes":
    from matplotlib.figure import Figure

    return Figure(layout="constrained").subplots()


def _time_scale(columns: TimeColumns) -> tuple[float, str]:
    """Seconds per unit of the time axis, and the unit's name."""
    end_ns = columns.times[-1] * 1e9
    unit = next((unit for unit in ("h", "min") if end_ns >= 3 * TIME_UNITS[unit]), "s")
    return TIME_UNITS[unit] / 1e9, unit


def _byte_scale(num_bytes: int) -> tuple[str, int]:
    unit = next((unit for unit in ("TiB", "GiB", "MiB", "KiB") if num_bytes >= BYTE_UNITS[unit]), "B")
    return unit, BYTE_UNITS[unit]
