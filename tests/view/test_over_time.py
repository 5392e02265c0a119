from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from bokeh.document import Document
from bokeh.embed import components
from bokeh.resources import INLINE
from jinja2 import Template
from playwright.sync_api import Browser, Locator, Page

from kvsim.engine.tables import PRESSURE_COLUMNS, TIMELINE_COLUMNS, MemoryShape
from kvsim.units import format_moment
from kvsim.view.over_time import SCRIPTS, OverTime
from kvsim.view.pages import static_text
from kvsim.view.run_rows import lanes_of
from tests.view.conftest import opened
from tests.view.live import live
from tests.view.test_packing import unpack

SHAPE = MemoryShape(num_blocks=101, block_size=4, block_bytes=4096, token_bytes=1024)
NAME = "<script>document.title = 'wrong'</script>"


def timeline_of(
    num_rows: int, *, first_ns: int = 0, step_ns: int = 10**7, seed: int = 1, scale: int = 1
) -> pl.DataFrame:
    """Blocks that come and go at random; all of the slack is tail."""
    rng = np.random.default_rng(seed)
    allocated = rng.integers(0, 81, num_rows) * SHAPE.block_bytes * scale
    columns: dict[str, Any] = {
        "time_ns": first_ns + np.cumsum(rng.integers(1, 2 * step_ns, num_rows)),
        "pool_bytes": np.full(num_rows, SHAPE.pool_bytes * scale),
        "allocated_bytes": allocated,
        "live_bytes": allocated * 3 // 4,
        "slack_bytes": allocated - allocated * 3 // 4,
        "tail_bytes": allocated - allocated * 3 // 4,
        "cached_bytes": np.full(num_rows, 10 * SHAPE.block_bytes * scale),
        "blank_bytes": SHAPE.pool_bytes * scale - allocated - 10 * SHAPE.block_bytes * scale,
        "logical_bytes": allocated * 3 // 4,
        "running": rng.integers(0, 9, num_rows),
        "waiting": rng.integers(0, 99, num_rows),
        "admitted": rng.integers(0, 2, num_rows),
    }
    nothing = np.zeros(num_rows, dtype=np.int64)
    return pl.DataFrame({name: columns.get(name, nothing) for name in TIMELINE_COLUMNS})


def pressure_of(*rows: tuple[int, str, int, str, int]) -> pl.DataFrame:
    """Of time, event, request, cause and steps; of what was missing, each row has other numbers."""
    return pl.DataFrame(
        [(*row, 10 * i, 9 * i, 8 * i, 1000 + i, 4096 * i) for i, row in enumerate(rows)],
        schema=PRESSURE_COLUMNS,
        orient="row",
    )


NO_PRESSURE = pressure_of()


def head() -> str:
    """What a page needs of kvsim's own."""
    code = "".join(f"<script>{static_text(name)}</script>" for name in SCRIPTS)
    return f"<style>{static_text('page.css')}</style>{code}"


def page_of(*charts: OverTime) -> str:
    figures = {f"{i}_{name}": model for i, chart in enumerate(charts) for name, model in chart.figures.items()}
    script, places = components(figures)
    start = f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>right</title>{INLINE.render()}{head()}</head>"
    return f"{start}<body><main>{''.join(places.values())}</main>{script}</body></html>"


class Look(NamedTuple):
    """Charts of a run on a page."""

    page: Page
    chart: OverTime
    timeline: pl.DataFrame
    pressure: pl.DataFrame
    number: int = 0

    def js(self, code: str, *args: object) -> Any:
        return self.page.evaluate(code, list(args))

    def row(self, ns: int) -> dict[str, str] | None:
        """The row of the table that holds at a time, as text."""
        row = int(np.searchsorted(self.timeline["time_ns"].to_numpy(), ns, side="right")) - 1
        return None if row < 0 else {name: str(value) for name, value in self.timeline.row(row, named=True).items()}

    def shown(self) -> dict[str, str] | None:
        shown: dict[str, str] | None = self.js("([number]) => kvsim.rowShown(number)", self.number)
        return shown

    def element(self, name: str) -> Locator:
        return self.page.locator(f"#{self.places[name]}")

    @property
    def places(self) -> dict[str, str]:
        ids = {name: model.id for name, model in self.chart.figures.items()}
        places: dict[str, str] = self.js(
            "([ids]) => Object.fromEntries(Object.entries(ids).map(([name, id]) =>"
            " { const view = Bokeh.index.find_one_by_id(id); view.el.id = `at_${id}`; return [name, view.el.id]; }))",
            ids,
        )
        return places

    @property
    def panel(self) -> Locator:
        return self.element("readout")

    def level(self, name: str) -> str:
        return self.panel.locator(f"[data-level={name}]").inner_text()

    def time_at(self, name: str, across: float, y: float = 0.5) -> tuple[int, float, float]:
        """The time in ns that a chart has at a share of its width, and where that is on the page, on whole pixels."""
        x_ns, left, top = self.js(
            """([id, across, y, id_range]) => {
              const view = Bokeh.index.find_one_by_id(id);
              const { left, top, width, height } = view.frame.bbox;
              const box = view.el.getBoundingClientRect();
              const px = Math.round(box.left + left + across * width);
              const py = Math.round(box.top + top + y * height);
              return [view.frame.x_scale.invert(px - box.left), px, py];
            }""",
            self.chart.figures[name].id,
            across,
            y,
            None,
        )
        return int(np.floor(x_ns * self.unit_ns)), left, top

    @property
    def unit_ns(self) -> int:
        note = unpack(self.chart._packed.data["packed"].tobytes())[1]
        return int(note["time"]["ns"])  # type: ignore[index]

    def range(self, start_ns: float | None = None, end_ns: float | None = None) -> tuple[float, float]:
        """Of the time shown, in ns; set first if it is given."""
        start, end = self.js(
            """async ([id, start, end]) => {
              const range = Bokeh.index.find_one_by_id(id).model.x_range;
              if (start !== null) range.setv({ start, end });
              await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
              return [range.start, range.end];
            }""",
            self.chart.figures["memory"].id,
            None if start_ns is None else start_ns / self.unit_ns,
            None if end_ns is None else end_ns / self.unit_ns,
        )
        return start * self.unit_ns, end * self.unit_ns

    def drawn(self) -> dict[str, list[int]]:
        drawn: dict[str, list[int]] = self.js(
            """([number]) => Object.fromEntries(Object.entries(kvsim.drawn(number)).map(([k, v]) => [k, [...v]]))""",
            self.number,
        )
        return drawn


def times(timeline: pl.DataFrame, *rows: int) -> list[int]:
    return [timeline["time_ns"][row] for row in rows]


@pytest.fixture(scope="module")
def looks(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Look]]:
    """Two runs on a page: a long one, and one whose times and bytes are beyond what a browser's numbers tell apart."""
    long, far = timeline_of(8_000), timeline_of(50, first_ns=2**61, seed=2, scale=2**43)
    at = times(long, 100, 100, 5000, 5001)
    pressure = pressure_of(
        (at[0], "refused", 7, "blocks", 3),
        (at[1], "preempted", 8, "blocks", 1),
        (at[2], "refused", 9, "gate", 2000),
        (at[3], "refused", 10, "blocks", 1),
    )
    # Row 5002 refuses as the last mark before it does.
    long = long.with_columns(refused=pl.Series([int(row in (100, 5000, 5001, 5002)) for row in range(long.height)]))
    shapes = (SHAPE, MemoryShape(101, 4, 4096 * 2**43, 1024 * 2**43))
    charts = [OverTime(NAME), OverTime("far")]
    for chart, shape, rows, marks in zip(charts, shapes, (long, far), (pressure, NO_PRESSURE), strict=True):
        chart.show(shape, rows, marks)
    path = tmp_path_factory.mktemp("over_time") / "page.html"
    path.write_text(page_of(*charts), encoding="utf-8")
    with opened(browser, offline=True) as tab:
        tab.page.goto(path.as_uri())
        tab.page.wait_for_function("window.kvsim?.isReady(0) && kvsim.isReady(1)")
        yield [
            Look(tab.page, charts[0], long, pressure, 0),
            Look(tab.page, charts[1], far, NO_PRESSURE, 1),
        ]


@pytest.fixture
def look(looks: list[Look]) -> Look:
    looks[0].range(0, looks[0].timeline["time_ns"][-1])
    return looks[0]


def test_rows_at_random_times_are_those_of_the_table(looks: list[Look]) -> None:
    for look in looks:
        column = look.timeline["time_ns"].to_numpy()
        exactly = column[:: max(1, len(column) // 20)]
        inside = np.random.default_rng(3).integers(column[0], column[-1], 50)
        asked = [0, int(column[0]) - 1, *exactly.tolist(), *(exactly - 1).tolist(), *inside.tolist(), 2**63 - 1]
        found = look.js(
            "([times, number]) => times.map((ns) => kvsim.rowAt(ns, number))", [str(ns) for ns in asked], look.number
        )
        assert found == [look.row(ns) for ns in asked]
    assert look.timeline["pool_bytes"][0] > 2**53 < look.timeline["time_ns"][0]


def test_pointing_at_a_chart_tells_the_row_that_holds_there(look: Look) -> None:
    for name in ("memory", "requests"):
        look.element(name).scroll_into_view_if_needed()
        for across in (0.1, 0.37, 0.5, 0.93):
            ns, x, y = look.time_at(name, across)
            look.page.mouse.move(x, y)
            look.page.wait_for_function(
                "([want, number]) => kvsim.rowShown(number)?.time_ns === want", arg=[look.row(ns)["time_ns"], 0]
            )  # type: ignore[index]
            assert look.shown() == look.row(ns)
    row = {name: int(value) for name, value in (look.shown() or {}).items()}
    moment = look.panel.locator(".moment")
    assert moment.get_attribute("aria-live") == "polite"
    admitted = f"; {row['admitted']} admitted" if row["admitted"] else ""
    refused = f"{', ' if admitted else '; '}{row['refused']} refused" if row["refused"] else ""
    assert moment.inner_text().split("\n") == [
        f"{format_moment(row['time_ns'])} = {row['time_ns']:,} ns: ".rstrip(),
        f"{row['running']} running, {row['waiting']} waiting{admitted}{refused}",
    ]
    allocated, pool = row["allocated_bytes"], row["pool_bytes"]
    blocks = allocated // SHAPE.block_bytes
    assert look.level("allocated").split("\n") == [
        "allocated",
        f"{allocated / 1024:.2f} KiB {100 * allocated / pool:.2f} %",
        f"{allocated:,} B",
        f"{blocks} blocks",
    ]
    assert f"{row['live_bytes']:,} B" in look.level("live")
    assert look.level("running").split("\n") == ["running", str(row["running"]), "requests"]
    share = f"{100 * row['slack_bytes'] / allocated:.2f} % of allocated" if allocated else ""
    assert look.level("slack").split("\n")[3:] == [share]


def test_only_levels_that_there_are_can_be_shown_and_hidden(look: Look) -> None:
    labels = [text.split("\n")[0] for text in look.panel.locator("label").all_inner_texts()]
    assert labels == ["pool", "allocated", "live", "slack: tail", "cached", "blank", "running", "waiting"]
    visible = "([id]) => Bokeh.documents[0].get_model_by_id(id).visible"
    area = look.chart._toggled["cached"].id
    box = look.panel.get_by_label("cached")
    assert look.js(visible, area)
    box.focus()
    look.page.keyboard.press("Space")
    assert not look.js(visible, area)
    look.page.keyboard.press("Space")
    assert look.js(visible, area)
    assert not look.js(visible, look.chart._toggled["padding"].id)


def test_zooming_in_draws_every_row_and_out_the_extremes_of_each_column(look: Look) -> None:
    allocated = look.timeline["allocated_bytes"].to_numpy()
    whole = look.drawn()["levels"]
    assert 1000 < len(whole) < look.timeline.height
    assert whole == sorted(set(whole))
    assert {0, look.timeline.height - 1, int(allocated.argmax()), int(allocated.argmin())} <= set(whole)
    start, end = times(look.timeline, 700, 1900)
    look.range(start, end)
    # And the one that holds before the range is over, and the one after it.
    assert look.drawn()["levels"] == look.drawn()["counts"] == list(range(700, 1902))
    last = look.js("() => kvsim.lastDrawn(0)")
    assert last == look.row(times(look.timeline, 1901)[0])
    look.panel.get_by_role("button", name="show all of the time").click()
    look.page.wait_for_function("(count) => kvsim.drawn(0).levels.length === count", arg=len(whole))
    assert look.range() == pytest.approx((0, look.timeline["time_ns"][-1]))


def test_what_is_drawn_is_the_rows_themselves_in_the_units_of_the_axes(look: Look) -> None:
    start, end = times(look.timeline, 40, 60)
    look.range(start, end)
    rows = look.timeline[40:62]
    source = look.js("([id]) => Bokeh.documents[0].get_model_by_id(id).data", look.chart._levels.id)
    drawn = {
        name: [float(source[name][str(i)] if isinstance(source[name], dict) else source[name][i]) for i in range(22)]
        for name in ("time", "live_bytes", "blank_bytes")
    }
    assert drawn == {
        "time": [ns / look.unit_ns for ns in rows["time_ns"]],
        "live_bytes": (rows["live_bytes"] / 1024).to_list(),
        "blank_bytes": (rows["blank_bytes"] / 1024).to_list(),
    }


def test_buttons_drag_and_wheel_zoom_in_time_alone(look: Look) -> None:
    whole = look.range()
    look.panel.get_by_role("button", name="zoom in").click()
    start, end = look.range()
    assert end - start == pytest.approx((whole[1] - whole[0]) / 2)
    look.panel.get_by_role("button", name="zoom out").click()
    assert look.range() == pytest.approx(whole)
    look.element("memory").scroll_into_view_if_needed()
    from_ns, x1, y = look.time_at("memory", 0.2)
    to_ns, x2, _ = look.time_at("memory", 0.4)
    look.page.mouse.move(x1, y)
    look.page.mouse.down()
    look.page.mouse.move((x1 + x2) / 2, y + 3)
    look.page.mouse.move(x2, y + 5)
    look.page.mouse.up()
    assert look.range() == pytest.approx((from_ns, to_ns), rel=0.02)
    look.page.keyboard.down("Control")
    look.page.mouse.wheel(0, -100)
    look.page.keyboard.up("Control")
    look.page.wait_for_timeout(100)
    start, end = look.range()
    assert from_ns < start < end < to_ns * 1.02
    assert end - start < 0.95 * (to_ns - from_ns)


def test_keys_move_by_rows_by_tenths_and_to_the_ends(look: Look) -> None:
    charts = look.element("memory")
    assert (charts.get_attribute("aria-label") or "").startswith("Memory over time, <script>")
    charts.focus()

    def press(key: str) -> int:
        look.page.keyboard.press(key)
        return int((look.shown() or {})["time_ns"])

    column = look.timeline["time_ns"]
    assert press("Home") == column[0]
    assert press("ArrowLeft") == column[0]
    assert [press("ArrowRight"), press("ArrowRight")] == column[1:3].to_list()
    assert press("ArrowLeft") == column[1]
    tenth = (column[-1] - 0) / 10
    assert press("PageDown") == int((look.row(int(column[1] + tenth)) or {})["time_ns"])
    assert press("PageUp") == column[1]
    assert press("End") == column[-1]
    assert press("ArrowRight") == column[-1]
    press("Home")
    press("+")
    start, end = look.range()
    assert end - start == pytest.approx(column[-1] / 2)
    press("End")  # the view follows
    assert look.range()[1] == pytest.approx(column[-1])
    press("0")
    assert look.range() == pytest.approx((0, column[-1]))


def test_refusals_and_preemptions_have_lanes_and_are_named(look: Look) -> None:
    marks = look.panel.locator(".marks li")
    look.element("pressure").scroll_into_view_if_needed()
    # The second of three lanes: refused by the gate.
    at = look.pressure["time_ns"][2]
    _, x, y = look.time_at("pressure", at / look.timeline["time_ns"][-1], 0.5)
    look.page.mouse.move(x + 3, y)
    look.page.wait_for_function("(want) => kvsim.rowShown(0)?.time_ns === want", arg=str(at))
    assert marks.all_inner_texts() == [
        f"request 9 refused: gate, for 2,000 steps from {format_moment(at)}, when it needed 20 blocks; "
        "blank 18, evictable 16, missing 1,002; slack 8.00 KiB (8,192 B)"
    ]
    look.element("pressure").focus()
    look.page.keyboard.press("ArrowRight")
    assert "request 10 refused: blocks" in marks.all_inner_texts()[0]
    look.element("memory").focus()
    look.page.keyboard.press("ArrowRight")  # a row that refuses, with no mark of its own
    assert (look.shown() or {})["time_ns"] == str(times(look.timeline, 5002)[0])
    assert "request 10 refused: blocks" in marks.all_inner_texts()[0]
    look.page.keyboard.press("ArrowRight")
    assert marks.all_inner_texts() == []
    look.element("pressure").focus()
    look.page.keyboard.press("Home")
    look.page.keyboard.press("ArrowRight")
    assert [text.split(",")[0] for text in marks.all_inner_texts()] == [
        "request 7 refused: blocks",
        "request 8 preempted: blocks",
    ]
    assert len(look.drawn()["marks"]) == 4


def test_slack_is_drawn_as_its_share_of_what_is_allocated(look: Look) -> None:
    start, end = times(look.timeline, 40, 60)
    look.range(start, end)
    rows = look.timeline[40:62]
    drawn = look.js("([id]) => [...Bokeh.documents[0].get_model_by_id(id).data.tail_bytes]", look.chart._shares.id)
    held = zip(rows["tail_bytes"], rows["allocated_bytes"], strict=True)
    assert drawn == [100 * tail / allocated if allocated else 0 for tail, allocated in held]
    top = look.js("([id]) => Bokeh.documents[0].get_model_by_id(id).y_range.end", look.chart._slack.id)
    assert top == pytest.approx(1.05 * 25)


def test_causes_of_slack_are_stacked() -> None:
    fields = {
        cause: (area.glyph.y1.expr.fields, area.glyph.y2.expr.fields)  # type: ignore[attr-defined]
        for cause, area in OverTime()._areas_of_slack.items()
    }
    assert fields["tail"] == ([], ["tail_bytes"])
    assert fields["reserved"] == (["tail_bytes"], ["tail_bytes", "reserved_bytes"])
    assert fields["padding"][0] == fields["unused"][1]


def test_what_is_allocated_is_outlined_where_every_row_is_drawn(look: Look) -> None:
    visible = "([id]) => Bokeh.documents[0].get_model_by_id(id).visible"
    outline = look.chart._toggled["allocated"].id
    assert not look.js(visible, outline)
    look.range(*times(look.timeline, 40, 60))
    assert look.js(visible, outline)


def test_moments_are_told_alike_by_page_and_python(look: Look) -> None:
    asked = [0, 999, 2_379_800, 999_000_000, 20_795_400_000, 59_994_000_000, 59_995_000_000, 252_340_000_000]
    asked += [3_599_949_999_999, 3_599_950_000_000, 3_855_000_000_000, 10**16]
    told = look.js("([times]) => times.map((ns) => kvsimMoment.readableTime(BigInt(ns)))", [str(ns) for ns in asked])
    assert told == [format_moment(ns) for ns in asked]
    assert told[4:8] == ["20.80 s", "59.99 s", "1 min 0.0 s", "4 min 12.3 s"]
    assert told[-3:] == ["1 h 0 min 0.0 s", "1 h 4 min 15.0 s", "2,777 h 46 min 40.0 s"]


def test_names_are_text(look: Look) -> None:
    assert look.page.title() == "right"
    assert look.panel.locator("section").get_attribute("aria-label") == f"Values at a moment, {NAME}"


def test_a_run_without_pressure_says_so(looks: list[Look]) -> None:
    chart = looks[1].chart
    assert chart._nothing.visible
    assert chart._nothing.text == "nothing was refused or preempted"
    assert not chart._pressure.xaxis.visible
    assert not looks[1].panel.locator(".marks").is_visible()


def test_lanes_are_in_a_fixed_order_and_count_steps() -> None:
    pressure = pressure_of(
        (1, "preempted", 1, "blocks", 1),
        (2, "refused", 1, "gate", 5),
        (3, "refused", 2, "blocks", 2),
        (9, "refused", 1, "gate", 6),
    )
    assert lanes_of(pressure) == {("refused", "blocks"): 2, ("refused", "gate"): 11, ("preempted", "blocks"): 1}
    assert list(lanes_of(pressure)) == [("refused", "blocks"), ("refused", "gate"), ("preempted", "blocks")]
    chart = OverTime()
    chart.show(SHAPE, timeline_of(3), pressure)
    assert chart._lane_names.data["text"] == [
        "refused: blocks (2 times)",
        "refused: gate (11 times)",
        "preempted: blocks (1 times)",
    ]


def test_those_that_wait_have_an_axis_of_their_own_where_they_are_many_more() -> None:
    chart = OverTime()
    few = timeline_of(100).with_columns(waiting=pl.col("running") * 4)
    chart.show(SHAPE, few, NO_PRESSURE)
    assert not chart._waiting_axis.visible
    assert chart._requests.y_range.end == chart._waiting_range.end == pytest.approx(1.1 * 32)
    chart.show(SHAPE, few.with_columns(waiting=pl.col("running") * 4 + 1), NO_PRESSURE)
    assert chart._waiting_axis.visible
    assert (chart._requests.y_range.end, chart._waiting_range.end) == pytest.approx((8.8, 36.3))
    assert {chart.figures[name].min_border_right for name in ("memory", "requests", "pressure")} == {72}


def test_axes_have_the_units_of_the_pictures() -> None:
    chart = OverTime()
    for end_ns, unit in ((10**9, "s"), (180 * 10**9, "min"), (3 * 3600 * 10**9, "h")):
        rows = timeline_of(2).with_columns(time_ns=pl.Series([0, end_ns]))
        chart.show(SHAPE, rows, NO_PRESSURE)
        assert chart._memory.xaxis.axis_label == f"time ({unit})"
    assert chart._memory.yaxis.axis_label == "KV cache, one device (KiB)"
    assert chart._pool.location == SHAPE.pool_bytes / 1024


def test_all_rows_are_packed_or_a_choice_that_says_so() -> None:
    rows, pressure = timeline_of(1000), pressure_of(*((i, "refused", i, "blocks", 1) for i in range(50)))
    chart = OverTime()
    chart.show(SHAPE, rows, pressure)
    tables, note = unpack(chart._packed.data["packed"].tobytes())
    assert tables["timeline"] == {name: rows[name].to_list() for name in TIMELINE_COLUMNS}
    assert tables["pressure"]["missing_blocks"] == pressure["missing_blocks"].to_list()
    chart.show(SHAPE, rows, pressure, most_rows=40)
    tables, note = unpack(chart._packed.data["packed"].tobytes())
    held = [
        dict(zip(tables["timeline"], values, strict=True)) for values in zip(*tables["timeline"].values(), strict=True)
    ]
    assert 20 < len(held) <= 40
    assert all(row in rows.to_dicts() for row in held)
    assert 20 < len(tables["pressure"]["time_ns"]) <= 40
    assert (note["num_rows"], note["num_marks"]) == (1000, 50)  # type: ignore[index]


def test_charts_follow_the_colours_of_the_page_and_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    chart = OverTime()
    chart.show(SHAPE, timeline_of(3000), NO_PRESSURE, most_rows=4)
    path = tmp_path / "page.html"
    path.write_text(page_of(chart), encoding="utf-8")
    has_colour = """([axis, pool, colour]) => [axis, pool].map((id) => Bokeh.documents[0].get_model_by_id(id))
      .every((model) => (model.major_label_text_color ?? model.line_color) === colour)"""
    ids = [chart._memory.xaxis[0].id, chart._pool.id]
    with opened(browser, width=390, dark=True, offline=True) as tab:
        tab.page.goto(path.as_uri())
        tab.page.wait_for_function("window.kvsim?.isReady()")
        assert tab.page.evaluate(has_colour, [*ids, "#e8eaed"])
        # Nothing is wider than a phone.
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.page.get_by_text("4 of 3,000 instants are held.").is_visible()
        tab.page.emulate_media(color_scheme="light")
        tab.page.wait_for_function(has_colour, arg=[*ids, "#1b1f24"])
        tab.page.emulate_media(color_scheme="dark", media="print")
        tab.page.wait_for_function(has_colour, arg=[*ids, "#000000"])


def test_a_live_document_shows_rows_as_they_come(browser: Browser) -> None:
    rows, pressure = timeline_of(400), pressure_of((10**9, "refused", 1, "blocks", 2))
    far = rows.with_columns(time_ns=pl.col("time_ns") * 1000)  # over an hour, so in other units
    charts: list[OverTime] = []

    def fill(document: Document) -> None:
        charts.append(OverTime())
        charts[0].show(SHAPE, rows[:0], NO_PRESSURE)
        for model in charts[0].figures.values():
            document.add_root(model)
        document.template = Template("{% extends base %}{% block preamble %}{{ head }}{% endblock %}")
        document.template_variables["head"] = head()

    with live(fill) as (address, call), opened(browser) as tab:
        tab.page.goto(address)
        tab.page.wait_for_function("window.kvsim?.isReady()")

        def show(shown: pl.DataFrame, marks: pl.DataFrame) -> None:
            document = charts[0]._memory.document
            assert document is not None
            document.add_next_tick_callback(lambda: charts[0].show(SHAPE, shown, marks))

        def come(shown: pl.DataFrame, marks: pl.DataFrame = NO_PRESSURE) -> None:
            call(lambda: show(shown, marks))
            last = str(shown["time_ns"][-1])
            tab.page.wait_for_function("(ns) => kvsim.rowAt(2 ** 62)?.time_ns === ns", arg=last)

        look = Look(tab.page, charts[0], rows, pressure)
        assert look.panel.locator(".moment").inner_text() == "no instants yet"
        assert look.shown() is None
        come(rows[:100])
        assert look.drawn()["levels"] == list(range(100))
        assert look.shown() == look.row(rows["time_ns"][int(rows["allocated_bytes"][:100].to_numpy().argmax())])
        come(rows[:300])
        # The axis goes on, until a reader looks at a part of it; to this it keeps.
        assert look.range() == pytest.approx((0, rows["time_ns"][299]))
        look.panel.get_by_label("cached").click()
        look.range(*times(rows, 40, 60))
        come(rows, pressure)
        assert look.range() == pytest.approx(times(rows, 40, 60))
        assert look.drawn()["levels"] == list(range(40, 62))
        assert not look.panel.get_by_label("cached").is_checked()
        tab.page.locator(".marks").wait_for()
        look.panel.get_by_role("button", name="show all of the time").click()
        assert look.drawn()["marks"] == [0]
        come(far)
        assert look.range() == pytest.approx((0, far["time_ns"][-1]))
        look.range(*times(rows, 40, 60))
        come(rows[:10])  # of another run
        assert look.range() == pytest.approx((0, rows["time_ns"][9]))
        # What is drawn does not come back to the server.
        assert charts[0]._levels.data["time"] == [0]
