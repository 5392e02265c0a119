"""Memory, slack, requests, refusals and preemptions of a run over time, with every row of its tables at hand.

The page holds the rows, packed (`run_rows.py`), and `static/timeline.js` draws those that can be seen: of each column
two pixels wide the first row, the last, and those with the most and the least. Zooming in therefore shows every row,
and what is read off at a moment is the row itself, never what is drawn.
"""

import numpy as np
import polars as pl
from bokeh.core.property.vectorization import Expr
from bokeh.model import Model
from bokeh.models.annotations import Label, LabelSet, Span
from bokeh.models.axes import LinearAxis
from bokeh.models.callbacks import CustomJS
from bokeh.models.expressions import Stack
from bokeh.models.formatters import BasicTickFormatter
from bokeh.models.glyphs import VAreaStep
from bokeh.models.ranges import Range1d
from bokeh.models.renderers import GlyphRenderer
from bokeh.models.sources import ColumnDataSource
from bokeh.models.tickers import BasicTicker
from bokeh.models.tools import BoxZoomTool, PanTool, SaveTool, WheelZoomTool
from bokeh.models.ui import UIElement
from bokeh.models.widgets import Div
from bokeh.plotting import figure

from kvsim.engine.tables import MemoryShape
from kvsim.study.colours import COLOURS
from kvsim.study.plots import MUCH_MORE
from kvsim.units import BYTE_UNITS
from kvsim.view.bars import CAUSES
from kvsim.view.pages import static_text
from kvsim.view.run_rows import AREAS, COUNTS, MOST_ROWS, Lane, Units, lanes_of, packed_rows

SCRIPTS = ("theme.js", "packed.js", "drawing.js", "moment.js", "timeline.js")
"""Of `static/`: a page loads them once, in this order, before any chart is embedded."""

_DRAWN = (*(f"{name}_bytes" for name in AREAS), "allocated_bytes")

_LEFT, _RIGHT, _RIGHT_OF_AN_AXIS = 64, 12, 72
"""Pixels beside the charts, the same for all, so that a moment stands at one place."""

_MEMORY_HEIGHT, _SLACK_HEIGHT, _REQUESTS_HEIGHT = 330, 170, 190
_LANE_HEIGHT, _TIME_AXIS_HEIGHT, _NOTHING_HEIGHT = 38, 56, 40

_NAME_AT, _MARKS_AT = 0.45, 0.75
"""Of the height of a lane, from its top: where its name stands, and the middle of its marks."""

_INK = {"theme": {"line_color": "--text"}}
_GROUND = {"theme": {"line_color": "--page"}}
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
        self._moment = Span(dimension="height", level="overlay", visible=False, line_width=1.5, tags=[_INK])
        # Around it, so that it is seen on every colour.
        self._halo = Span(
            dimension="height", level="overlay", visible=False, line_width=4, line_alpha=0.7, tags=[_GROUND]
        )
        self._drag = BoxZoomTool(dimensions="width")
        # Two fingers on a touchpad are a wheel with this key; without it the wheel is the page's.
        self._wheel = WheelZoomTool(dimensions="width", modifiers="ctrl")
        self._pan = PanTool(dimensions="width")
        # Never without a row: Bokeh 3.9 does not come to an end with an area of steps that has none.
        self._levels = ColumnDataSource(data={name: [0] for name in ("time", *_DRAWN)})
        self._shares = ColumnDataSource(data={name: [0] for name in ("time", *(f"{name}_bytes" for name in CAUSES))})
        self._counts = ColumnDataSource(data={name: [0] for name in ("time", *COUNTS)})
        self._marks = ColumnDataSource(data={name: [] for name in ("time", "y", "colour")})
        self._lane_names = ColumnDataSource(data={"y": [], "text": []})
        self._toggled: dict[str, Model] = {}
        self._memory = self._new_memory()
        self._areas_of_slack: dict[str, Model] = {}
        self._slack = self._new_slack()
        self._requests = self._new_requests()
        self._pressure = self._new_pressure()
        self._readout = Div(
            sizing_mode="stretch_width",
            stylesheets=[static_text("timeline.css")],
            margin=0,
            min_height=150,
        )
        self.figures: dict[str, UIElement] = {
            "readout": self._readout,
            "memory": self._memory,
            "slack": self._slack,
            "requests": self._requests,
            "pressure": self._pressure,
        }
        self._call_script()

    def show(
        self, shape: MemoryShape, timeline: pl.DataFrame, pressure: pl.DataFrame, most_rows: int = MOST_ROWS
    ) -> None:
        """These rows from now on: of `timeline.parquet` and `pressure.parquet`, in order of time.

        Of more than `most_rows` (at least 4) a choice is held.
        """
        self._label(shape, Units.of(shape, timeline))
        self._fit_requests(timeline)
        self._fit_lanes(lanes_of(pressure))
        packed = packed_rows(shape, timeline, pressure, name=self._name, marks_at=_MARKS_AT, most_rows=most_rows)
        self._packed.data = {"packed": np.frombuffer(packed, dtype=np.uint8)}

    @property
    def _charts(self) -> tuple[figure, ...]:
        """On the same axis of time, from above."""
        return self._memory, self._slack, self._requests, self._pressure

    def _call_script(self) -> None:
        """Whatever happens to the charts, the script is told; it knows which of them by the models it is given."""
        models: dict[str, Model] = {
            "packed": self._packed,
            "time": self._time,
            "readout": self._readout,
            "memory": self._memory,
            "slack": self._slack,
            "requests": self._requests,
            "pressure": self._pressure,
            "drawn_levels": self._levels,
            "drawn_slack": self._shares,
            "drawn_counts": self._counts,
            "drawn_marks": self._marks,
            "moment": self._moment,
            "halo": self._halo,
            "most_slack": self._most_slack,
            **{f"share_{name}": model for name, model in self._areas_of_slack.items()},
            **{f"toggled_{name}": model for name, model in self._toggled.items()},
        }
        callback = CustomJS(args=models, code=f"kvsimOverTime({{{', '.join(models)}}}, cb_obj)")
        self._packed.js_on_change("data", callback)
        self._time.js_on_change("start", callback)
        self._time.js_on_change("end", callback)
        # Set when a chart is first laid out, so this is also what begins it all.
        self._memory.js_on_change("inner_width", callback)
        for chart in self._charts:
            chart.js_on_event("mousemove", callback)
            chart.js_on_event("tap", callback)

    def _new_figure(self, height: int) -> figure:
        chart = figure(
            height=height,
            sizing_mode="stretch_width",
            x_range=self._time,
            y_range=Range1d(start=0, end=1),
            tools=[self._drag, self._wheel, self._pan],
            active_drag=self._drag,
            active_scroll=self._wheel,
            toolbar_location=None,
            background_fill_color=None,
            border_fill_color=None,
            outline_line_color=None,
            min_border_left=_LEFT,
            min_border_right=_RIGHT,
            min_border_top=6,
        )
        chart.toolbar.logo = None
        chart.xgrid.visible = False
        chart.xaxis.formatter = BasicTickFormatter(use_scientific=False)
        chart.xaxis.ticker = BasicTicker(desired_num_ticks=6)
        chart.yaxis.minor_tick_line_color = None
        chart.add_layout(self._halo)
        chart.add_layout(self._moment)
        return chart

    def _new_memory(self) -> figure:
        chart = self._new_figure(_MEMORY_HEIGHT)
        chart.toolbar_location = "above"
        chart.add_tools(SaveTool())
        below: list[str] = []
        for name in AREAS:
            # What is external lies over what is blank.
            under = [column for column in below if not (name == "external" and column == "blank_bytes")]
            self._toggled[name] = self._area(chart, name, under)
            below.append(f"{name}_bytes")
        allocated = chart.step(
            "time", "allocated_bytes", source=self._levels, mode="after", line_width=1, line_color=COLOURS["pool"]
        )
        self._pool = Span(dimension="width", line_dash="dashed", line_width=1.5, tags=[_INK])
        chart.add_layout(self._pool)
        self._toggled |= {"allocated": allocated, "pool": self._pool}
        return chart

    def _area(
        self, chart: figure, name: str, below: list[str], source: ColumnDataSource | None = None
    ) -> "GlyphRenderer[VAreaStep]":
        area = chart.varea_step(
            x="time",
            y1=Expr(Stack(fields=below)),
            y2=Expr(Stack(fields=[*below, f"{name}_bytes"])),
            source=source or self._levels,
            step_mode="after",
            fill_color=COLOURS[name],
        )
        if name == "blank":
            area.glyph.update(hatch_pattern=".", hatch_scale=8)
            area.glyph.tags = [{"theme": {"fill_color": "--page", "hatch_color": "--line"}}]
        return area

    def _new_slack(self) -> figure:
        """In percent of what is allocated, as it is too little of the pool to be seen there."""
        chart = self._new_figure(_SLACK_HEIGHT)
        chart.yaxis.axis_label = "slack (% of allocated)"
        chart.yaxis.ticker = BasicTicker(desired_num_ticks=4)
        below: list[str] = []
        for cause in CAUSES:
            self._areas_of_slack[cause] = self._area(chart, cause, [*below], self._shares)
            below.append(f"{cause}_bytes")
        self._most_slack = Label(
            x=4,
            y=90,
            x_units="screen",
            y_units="screen",
            text="",
            visible=False,
            text_font_size="12px",
            background_fill_color="white",
            background_fill_alpha=0.8,
        )
        self._most_slack.tags = [{"theme": {"text_color": "--text", "background_fill_color": "--page"}}]
        chart.add_layout(self._most_slack)
        return chart

    def _new_requests(self) -> figure:
        chart = self._new_figure(_REQUESTS_HEIGHT)
        self._waiting_range = Range1d(start=0, end=1)
        chart.extra_y_ranges = {"waiting": self._waiting_range}
        self._waiting_axis = LinearAxis(y_range_name="waiting", axis_label="waiting (requests)", visible=False)
        self._waiting_axis.minor_tick_line_color = None
        chart.add_layout(self._waiting_axis, "right")
        chart.yaxis.formatter = BasicTickFormatter(use_scientific=False)
        chart.yaxis.ticker = BasicTicker(desired_num_ticks=4, min_interval=1)
        for name in reversed(COUNTS):
            self._toggled[name] = chart.step(
                "time",
                name,
                source=self._counts,
                mode="after",
                line_color=COLOURS[name],
                line_width=1.5,
                y_range_name="waiting" if name == "waiting" else "default",
            )
        return chart

    def _new_pressure(self) -> figure:
        chart = self._new_figure(_NOTHING_HEIGHT)
        chart.yaxis.visible = False
        chart.ygrid.visible = False
        chart.scatter("time", "y", source=self._marks, marker="dash", angle=np.pi / 2, size=14, line_color="colour")
        chart.add_layout(
            LabelSet(
                x=4, x_units="screen", y="y", text="text", source=self._lane_names, text_font_size="12px", tags=[_TEXT]
            )
        )
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

    def _label(self, shape: MemoryShape, units: Units) -> None:
        pool = shape.pool_bytes / BYTE_UNITS[units.bytes]
        self._memory.yaxis.axis_label = f"KV cache, one device ({units.bytes})"
        self._memory.y_range.update(end=1.04 * pool)
        self._pool.location = pool
        for chart in self._charts:
            chart.xaxis.axis_label = f"time ({units.time})"

    def _fit_requests(self, timeline: pl.DataFrame) -> None:
        """Those that wait have an axis of their own where they are many more."""
        most = {name: max(1, *timeline.select(pl.col(name).max().fill_null(0)).row(0)) for name in COUNTS}
        has_own_axis = most["waiting"] > MUCH_MORE * most["running"]
        if not has_own_axis:
            most = dict.fromkeys(most, max(most.values()))
        self._waiting_axis.visible = has_own_axis
        self._requests.yaxis[0].axis_label = "running (requests)" if has_own_axis else "requests"
        self._requests.y_range.update(end=1.1 * most["running"])
        self._waiting_range.end = 1.1 * most["waiting"]
        for chart in self._charts:
            chart.min_border_right = _RIGHT_OF_AN_AXIS if has_own_axis else _RIGHT

    def _fit_lanes(self, lanes: dict[Lane, int]) -> None:
        """Or say that there are none."""
        self._nothing.visible = not lanes
        self._pressure.xaxis.visible = bool(lanes)
        self._pressure.height = _TIME_AXIS_HEIGHT + _LANE_HEIGHT * len(lanes) if lanes else _NOTHING_HEIGHT
        self._pressure.y_range.update(start=max(1, len(lanes)), end=0)
        names = [f"{lane.event}: {lane.cause} ({times:,} times)" for lane, times in lanes.items()]
        self._lane_names.data = {"y": [lane + _NAME_AT for lane in range(len(names))], "text": names}
