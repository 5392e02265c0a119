"""Memory, requests, refusals and preemptions of a run over time, with every row of its tables at hand.

The page holds the rows, packed (`packing.py`), and `static/timeline.js` draws those that can be seen: of each column of
pixels the first row, the last, and those with the most and the least. Zooming in therefore shows every row, and what is
read off at a moment is the row itself, never what is drawn.
"""

from pathlib import Path

import numpy as np
import polars as pl
from bokeh.models import (
    BasicTicker,
    BasicTickFormatter,
    BoxZoomTool,
    ColumnDataSource,
    CustomJS,
    Div,
    GlyphRenderer,
    Label,
    LabelSet,
    LinearAxis,
    Model,
    PanTool,
    Range1d,
    SaveTool,
    Span,
    Tool,
    UIElement,
    WheelZoomTool,
)
from bokeh.models.expressions import Stack
from bokeh.plotting import figure

from kvsim.engine.tables import PRESSURE_COLUMNS, TIMELINE_COLUMNS, MemoryShape
from kvsim.engine.timeline import EVENTS
from kvsim.study.colours import COLOURS
from kvsim.study.plots import MUCH_MORE
from kvsim.units import BYTE_UNITS, TIME_UNITS, byte_axis_unit, time_axis_unit
from kvsim.view.packing import Integers, chosen_rows, pack

MOST_ROWS = 600_000
"""Rows of a timeline that a page holds; of longer ones it holds a choice, and says so."""

STATIC = Path(__file__).parent / "static"

SCRIPTS = ("theme.js", "timeline.js")
"""Of `static/`: a page loads them once, after Bokeh's own and before any chart is embedded."""

AREAS = {
    "live": "live",
    "tail": "slack: tail",
    "reserved": "slack: reserved",
    "unused": "slack: unused",
    "padding": "slack: padding",
    "cached": "cached",
    "blank": "blank",
    "external": "external",
}
"""Levels that are stacked, from below, and what they are called. What is external is a part of what is blank."""

_BESIDE = ("logical", "window_saving", "shared_saving", "host")
"""Levels that are read off and not drawn."""

_COUNTS = ("running", "waiting")

_OF_THE_PAGE = ("pool", "allocated", "blank")
"""What has the colours of the page's text and ground."""

_DRAWN = (*(f"{name}_bytes" for name in AREAS), "allocated_bytes")

_LANES = (
    ("refused", "blocks"),
    ("refused", "gate"),
    ("refused", "watermark"),
    ("refused", "extent"),
    ("refused", "reservation"),
    ("preempted", "blocks"),
)
"""In this order from above; other causes follow."""

_LEFT, _RIGHT, _RIGHT_OF_AN_AXIS = 64, 12, 58
"""Pixels beside the charts, the same for all, so that a moment stands at one place."""

_MEMORY_HEIGHT, _REQUESTS_HEIGHT, _LANE_HEIGHT, _TIME_AXIS_HEIGHT, _NOTHING_HEIGHT = 330, 190, 38, 56, 40

_NAME_AT, _MARKS_AT = 0.45, 0.75
"""Of the height of a lane, from its top: where its name stands, and the middle of its marks."""

_INK = {"theme": {"line_color": "--text"}}
_TEXT = {"theme": {"text_color": "--text"}}
"""Tags that `static/theme.js` reads: this property has the colour of that variable of the page's style."""


class OverTime:
    """Charts on one time axis, and a panel beside them that tells what holds at the moment pointed at.

    `figures` are the models to embed, in their order from above. `show` may be called before they are embedded or on a
    live document, any number of times. `name` says whose run it is, where a page has several.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._packed = ColumnDataSource(data={"packed": np.zeros(0, dtype=np.uint8)})
        self._time = Range1d(start=0, end=1)
        self._tools: list[Tool] = [
            BoxZoomTool(dimensions="width"),
            PanTool(dimensions="width"),
            # Two fingers on a touchpad are a wheel with this key; without it the wheel is the page's.
            WheelZoomTool(dimensions="width", modifiers="ctrl"),
        ]
        # Never without a row: Bokeh 3.9 does not come to an end with an area of steps that has none.
        self._levels = ColumnDataSource(data={name: [0] for name in ("time", *_DRAWN)})
        self._counts = ColumnDataSource(data={name: [0] for name in ("time", *_COUNTS)})
        self._marks = ColumnDataSource(data={name: [] for name in ("time", "y", "colour")})
        self._lane_names = ColumnDataSource(data={"y": [], "text": []})
        self._memory, areas = self._new_memory()
        self._requests, counts = self._new_requests()
        self._pressure = self._new_pressure()
        self._readout = Div(
            sizing_mode="stretch_width",
            stylesheets=[(STATIC / "timeline.css").read_text(encoding="utf-8")],
            min_height=150,
        )
        self.figures: dict[str, UIElement] = {
            "readout": self._readout,
            "memory": self._memory,
            "requests": self._requests,
            "pressure": self._pressure,
        }
        self._call_script(areas | counts)

    def show(
        self, shape: MemoryShape, timeline: pl.DataFrame, pressure: pl.DataFrame, most_rows: int = MOST_ROWS
    ) -> None:
        """These rows from now on: of `timeline.parquet` and `pressure.parquet`, in order of time.

        Of more than `most_rows` (at least 4) a choice is held.
        """
        time_unit = time_axis_unit(int(timeline["time_ns"][-1]) if len(timeline) else 0)
        byte_unit = byte_axis_unit(shape.pool_bytes)
        lanes = _lanes(pressure)
        self._label(shape, time_unit, byte_unit)
        self._fit_requests(timeline)
        self._fit_lanes(lanes)
        columns = {name: timeline[name].to_numpy() for name in TIMELINE_COLUMNS}
        held = chosen_rows(columns["time_ns"], [columns["allocated_bytes"]], most_rows)
        marks = _chosen_pressure(pressure, most_rows)
        note = {
            "name": self._name,
            "num_rows": timeline.height,
            "num_marks": pressure.height,
            "block_bytes": str(shape.block_bytes),
            "time": {"unit": time_unit, "ns": TIME_UNITS[time_unit]},
            "axis_bytes": BYTE_UNITS[byte_unit],
            "byte_units": [(unit, BYTE_UNITS[unit]) for unit in ("TiB", "GiB", "MiB", "KiB")],
            "levels": _levels(timeline),
            "beside": [name for name in _BESIDE if _happens(timeline, f"{name}_bytes")],
            "events": EVENTS,
            "lanes": [{"event": event, "cause": cause, "colour": COLOURS[event]} for event, cause in lanes],
            "marks_at": _MARKS_AT,
        }
        tables = {
            "timeline": {name: column[held] for name, column in columns.items()},
            "pressure": _pressure_columns(marks, list(lanes)),
        }
        self._packed.data = {"packed": np.frombuffer(pack(tables, note), dtype=np.uint8)}

    def _call_script(self, areas: dict[str, GlyphRenderer | Span]) -> None:
        """Whatever happens to the charts, the script is told; it knows which of them by the models it is given."""
        models: dict[str, Model] = {
            "packed": self._packed,
            "time": self._time,
            "readout": self._readout,
            "memory": self._memory,
            "requests": self._requests,
            "pressure": self._pressure,
            "drawn_levels": self._levels,
            "drawn_counts": self._counts,
            "drawn_marks": self._marks,
            "moment": self._moment,
            **{f"toggled_{name}": renderer for name, renderer in areas.items()},
        }
        code = f"kvsimOverTime({{{', '.join(models)}}}, cb_obj)"
        callback = CustomJS(args=models, code=code)
        self._packed.js_on_change("data", callback)
        self._time.js_on_change("start", callback)
        self._time.js_on_change("end", callback)
        # Set when a chart is first laid out, so this is also what begins it all.
        self._memory.js_on_change("inner_width", callback)
        for chart in (self._memory, self._requests, self._pressure):
            for event in ("mousemove", "tap"):
                chart.js_on_event(event, callback)

    def _new_figure(self, height: int) -> figure:
        chart = figure(
            height=height,
            sizing_mode="stretch_width",
            x_range=self._time,
            y_range=Range1d(start=0, end=1),
            tools=[*self._tools],
            toolbar_location=None,
            background_fill_color=None,
            border_fill_color=None,
            outline_line_color=None,
            min_border_left=_LEFT,
            min_border_right=_RIGHT,
            min_border_top=6,
        )
        chart.toolbar.logo = None
        chart.toolbar.active_drag = self._tools[0]
        chart.toolbar.active_scroll = self._tools[2]
        chart.xgrid.visible = False
        chart.xaxis.formatter = BasicTickFormatter(use_scientific=False)
        chart.xaxis.ticker = BasicTicker(desired_num_ticks=6)
        chart.yaxis.minor_tick_line_color = None
        chart.add_layout(self._moment)
        return chart

    def _new_memory(self) -> tuple[figure, dict[str, GlyphRenderer | Span]]:
        """The chart, and what a reader may show and hide of it."""
        self._moment = Span(dimension="height", line_width=1.5, level="overlay", visible=False, tags=[_INK])
        chart = self._new_figure(_MEMORY_HEIGHT)
        chart.toolbar_location = "above"
        chart.toolbar.tools.append(SaveTool())
        shown: dict[str, GlyphRenderer | Span] = {}
        below: list[str] = []
        for name in AREAS:
            # What is external lies over what is blank.
            under = [column for column in below if not (name == "external" and column == "blank_bytes")]
            shown[name] = self._area(chart, name, under)
            below.append(f"{name}_bytes")
        shown["allocated"] = chart.step("time", "allocated_bytes", source=self._levels, mode="after", line_width=1.2)
        shown["allocated"].glyph.tags = [_INK]
        shown["pool"] = Span(dimension="width", line_dash="dashed", line_width=1.5, tags=[_INK])
        chart.add_layout(shown["pool"])
        return chart, shown

    def _area(self, chart: figure, name: str, below: list[str]) -> GlyphRenderer:
        column = f"{name}_bytes"
        area = chart.varea_step(
            x="time",
            y1=Stack(fields=below),
            y2=Stack(fields=[*below, column]),
            source=self._levels,
            step_mode="after",
            fill_color=COLOURS[name],
        )
        if name == "blank":
            area.glyph.update(hatch_pattern=".", hatch_scale=8)
            area.glyph.tags = [{"theme": {"fill_color": "--page", "hatch_color": "--line"}}]
        return area

    def _new_requests(self) -> tuple[figure, dict[str, GlyphRenderer | Span]]:
        chart = self._new_figure(_REQUESTS_HEIGHT)
        self._waiting_range = Range1d(start=0, end=1)
        chart.extra_y_ranges = {"waiting": self._waiting_range}
        self._waiting_axis = LinearAxis(y_range_name="waiting", axis_label="waiting (requests)", visible=False)
        self._waiting_axis.minor_tick_line_color = None
        chart.add_layout(self._waiting_axis, "right")
        for axis in (*chart.yaxis,):
            axis.formatter = BasicTickFormatter(use_scientific=False)
            axis.ticker = BasicTicker(desired_num_ticks=4, min_interval=1)
        shown: dict[str, GlyphRenderer | Span] = {
            name: chart.step(
                "time",
                name,
                source=self._counts,
                mode="after",
                line_color=COLOURS[name],
                line_width=1.5,
                y_range_name="waiting" if name == "waiting" else "default",
            )
            for name in reversed(_COUNTS)
        }
        return chart, shown

    def _new_pressure(self) -> figure:
        chart = self._new_figure(_NOTHING_HEIGHT)
        chart.yaxis.visible = False
        chart.ygrid.visible = False
        chart.scatter("time", "y", source=self._marks, marker="dash", angle=np.pi / 2, size=14, line_color="colour")
        names = LabelSet(
            x=4, x_units="screen", y="y", text="text", source=self._lane_names, text_font_size="12px", tags=[_TEXT]
        )
        chart.add_layout(names)
        self._nothing = Label(
            x=4,
            y=8,
            x_units="screen",
            y_units="screen",
            text="nothing was refused or preempted",
            text_font_size="13px",
            tags=[_TEXT],
        )
        chart.add_layout(self._nothing)
        return chart

    def _label(self, shape: MemoryShape, time_unit: str, byte_unit: str) -> None:
        pool = shape.pool_bytes / BYTE_UNITS[byte_unit]
        self._memory.yaxis.axis_label = f"KV cache, one device ({byte_unit})"
        self._memory.y_range.end = 1.04 * pool
        self._memory.select_one({"type": Span, "dimension": "width"}).location = pool
        for chart in (self._memory, self._requests, self._pressure):
            chart.xaxis.axis_label = f"time ({time_unit})"

    def _fit_requests(self, timeline: pl.DataFrame) -> None:
        """Those that wait have an axis of their own where they are many more."""
        most = {name: max(1, timeline[name].max() or 0) for name in ("running", "waiting")}
        has_own_axis = most["waiting"] > MUCH_MORE * most["running"]
        if not has_own_axis:
            most = dict.fromkeys(most, max(most.values()))
        self._waiting_axis.visible = has_own_axis
        self._requests.yaxis[0].axis_label = "running (requests)" if has_own_axis else "requests"
        self._requests.y_range.end = 1.1 * most["running"]
        self._waiting_range.end = 1.1 * most["waiting"]
        for chart in (self._memory, self._requests, self._pressure):
            chart.min_border_right = _RIGHT_OF_AN_AXIS if has_own_axis else _RIGHT

    def _fit_lanes(self, lanes: dict[tuple[str, str], int]) -> None:
        """Or say that there are none."""
        self._nothing.visible = not lanes
        self._pressure.xaxis.visible = bool(lanes)
        self._pressure.height = _TIME_AXIS_HEIGHT + _LANE_HEIGHT * len(lanes) if lanes else _NOTHING_HEIGHT
        self._pressure.y_range.update(start=max(1, len(lanes)), end=0)
        names = [f"{event}: {cause} ({times:,} times)" for (event, cause), times in lanes.items()]
        self._lane_names.data = {"y": [lane + _NAME_AT for lane in range(len(names))], "text": names}


def _happens(timeline: pl.DataFrame, column: str) -> bool:
    return bool((timeline[column] > 0).any())


def _levels(timeline: pl.DataFrame) -> list[dict[str, object]]:
    """What a reader may show and hide: lines, and the areas that are anywhere more than nothing."""
    areas = [name for name in AREAS if name == "live" or _happens(timeline, f"{name}_bytes")]
    levels = [
        {
            "name": name,
            "column": name if name in _COUNTS else f"{name}_bytes",
            "label": AREAS.get(name, name),
            "colour": None if name in _OF_THE_PAGE else COLOURS[name],
            "is_line": name not in AREAS,
            "has_blocks": name in ("pool", "allocated", "cached", "blank"),
        }
        for name in ("pool", "allocated", *areas, *_COUNTS)
    ]
    return levels


def _lanes(pressure: pl.DataFrame) -> dict[tuple[str, str], int]:
    """How often memory said no, by event and cause, as the figures of a run count it."""
    counts = pressure.group_by("event", "cause", maintain_order=True).agg(pl.col("steps").sum())
    times = {(event, cause): int(steps) for event, cause, steps in counts.iter_rows()}
    return {lane: times[lane] for lane in sorted(times, key=lambda lane: (*_place(lane), *lane))}


def _place(lane: tuple[str, str]) -> tuple[int]:
    return (_LANES.index(lane) if lane in _LANES else len(_LANES),)


def _chosen_pressure(pressure: pl.DataFrame, most_rows: int) -> pl.DataFrame:
    """All rows, or the first of each lane in equal parts of time if they are more than `most_rows`."""
    num_lanes = len(_lanes(pressure))
    if pressure.height <= most_rows:
        return pressure
    first, last = pressure["time_ns"][0], pressure["time_ns"][-1]
    part_ns = (last - first) // max(1, most_rows // num_lanes) + 1
    part = (pl.col("time_ns") - first) // part_ns
    return pressure.group_by(part.alias("part"), "event", "cause", maintain_order=True).first().select(pressure.columns)


def _pressure_columns(pressure: pl.DataFrame, lanes: list[tuple[str, str]]) -> dict[str, Integers]:
    numbers = {lane: number for number, lane in enumerate(lanes)}
    columns = {name: pressure[name].to_numpy() for name, dtype in PRESSURE_COLUMNS.items() if dtype == pl.Int64}
    lane = [numbers[row] for row in zip(pressure["event"], pressure["cause"], strict=True)]
    return columns | {"lane": np.array(lane, dtype=np.int64)}
