"""Block maps as cells: what is sent is what there is, and what is drawn and said of a cell is what its block is."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from bokeh.document import Document
from bokeh.embed import components
from bokeh.resources import INLINE
from hypothesis import given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Locator, Page

from kvsim.memory.block_map import BlockMap
from kvsim.study.colours import COLOURS, OWNERS
from kvsim.view import block_chart
from kvsim.view.block_chart import BlockChart, blocks_per_cell, moment_of
from tests.view.conftest import opened
from tests.view.live import live
from tests.view.maps import SLOT_BYTES, block_maps, cells, map_of

CSS = (Path(block_chart.__file__).parent / "static" / "page.css").read_text(encoding="utf-8")


def sent(chart: BlockChart) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a page gets: its words and its columns."""
    data = {name: column[0] for name, column in chart._source.data.items()}
    return json.loads(data.pop("page")), data


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40).flatmap(lambda size: st.lists(block_maps(size, 16), min_size=1, max_size=3)))
def test_what_is_sent_are_all_runs(maps: list[BlockMap]) -> None:
    chart = BlockChart()
    chart.show(maps)
    page, data = sent(chart)
    assert data["runs_of"].tolist() == [len(some.runs) for some in maps]
    runs = [run for some in maps for run in some.runs]
    assert data["num_blocks"].tolist() == [run.num_blocks for run in runs]
    assert data["written"].tolist() == [run.written_tokens for run in runs]
    kinds = [page["kinds"][number] for number in data["kind"]]
    assert [kind["state"] for kind in kinds] == [run.state for run in runs]
    for kind, run in zip(kinds, runs, strict=True):
        assert (kind["look"] == "shared") == (run.state == "held" and len(run.request_ids) > 1)
        assert all(f"{id}" in kind["text"] for id in run.request_ids[:4])


@given(block_maps())
def test_totals_are_counted_block_by_block(some: BlockMap) -> None:
    moment = moment_of(some)
    blocks = Counter(cell.state for cell in cells(some))
    assert {state: number for state, number in moment.blocks.items() if number} == blocks
    assert sum(moment.blocks.values()) == moment.num_blocks == some.num_blocks
    taken = [cell for cell in cells(some) if cell.state in ("held", "reserved", "unused")]
    assert moment.slack_bytes == SLOT_BYTES * sum(some.block_size - cell.written for cell in taken)
    assert moment.shared_blocks == sum(len(cell.request_ids) > 1 for cell in taken)


def test_totals_in_a_sentence() -> None:
    some = map_of((2, "held", (1,), 29), (1, "held", (1, 2), 16), (3, "cached", (), 48), (1_000, "blank", (), 0))
    assert moment_of(some).totals == (
        "3 held (1 by several requests), 3 cached, 1,000 blank of 1,006 blocks; slack 384 KiB (393,216 B)"
    )
    extents = map_of(
        (2, "held", (1,), 2), (1, "reserved", (1,), 0), (1, "unused", (1,), 0), block_size=1, slot_bytes=10
    )
    assert moment_of(extents).totals == "2 held, 1 reserved, 1 unused of 4 blocks; slack 20 B"


def test_moments_in_a_table() -> None:
    maps = [map_of((2, "blank", (), 0)), map_of((1, "held", (1, 2), 15), (1, "blank", (), 0), time_ns=1_500_000_000)]
    table = block_chart.moments_in_words(maps)
    assert table.columns == ("time", "held blocks", "blank blocks", "held by several", "slack")
    assert table.rows == (
        ("0 s", "0", "2", "0", "0 B"),
        ("1.50 s", "1", "1", "1", "128 KiB (131,072 B)"),
    )


def test_the_fullest_moment_is_shown_first_and_of_equals_the_last() -> None:
    def held(blocks: int, time_ns: int) -> BlockMap:
        return map_of((blocks, "held", (1,), blocks * 16), (9 - blocks, "blank", (), 0), time_ns=time_ns)

    chart = BlockChart()
    chart.show([held(3, 0), held(5, 1), held(5, 2), held(1, 3)])
    assert sent(chart)[0]["chosen"] == 2
    chart.show([held(3, 0), held(5, 1)], chosen=-2)
    assert sent(chart)[0]["chosen"] == 0
    chart.show([])
    assert chart._source.data["page"] == [None]


def test_very_many_blocks_share_cells() -> None:
    assert [blocks_per_cell(number) for number in (10, 50_000, 50_001, 1_000_000)] == [1, 1, 5, 84]


def test_columns_take_the_bytes_that_their_numbers_need() -> None:
    def kind(highest: int) -> type:
        return block_chart._narrow([0, highest]).dtype.type

    limits = {255: np.uint8, 256: np.uint16, 65_535: np.uint16, 65_536: np.uint32, 2**32: np.float64}
    assert {highest: kind(highest) for highest in limits} == limits


# in a browser


def page_of(chart: BlockChart, before: str = "", after: str = "") -> str:
    script, div = components(chart.figures["blocks"])
    head = f"<meta charset=utf-8><style>{CSS}</style>{INLINE.render()}{script}"
    return f"<!doctype html><html lang=en><head>{head}</head><body><main>{before}{div}{after}</main></body></html>"


@contextmanager
def seen(browser: Browser, tmp_path: Path, html: str, **size: Any) -> Iterator[tuple[Page, Locator]]:
    """A page from disk, without a network, once its map is drawn."""
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    with opened(browser, offline=True, **size) as tab:
        tab.page.goto(path.as_uri())
        root = tab.page.locator(".kvsim-blocks")
        root.wait_for(state="attached")
        tab.page.wait_for_function(drawn(), timeout=10_000)
        yield tab.page, root


def drawn() -> str:
    """Whether the map stands, wherever in the page it is."""
    return """() => {
        const find = (under) => [...under.querySelectorAll("*")].flatMap((one) => [
            ...(one.matches(".kvsim-blocks") ? [one] : []), ...(one.shadowRoot ? find(one.shadowRoot) : [])]);
        return find(document).some((root) => root.blocks && root.blocks.page !== undefined);
    }"""


PIXELS = """root => { const { canvas, pitch, gap, columns, num_cells } = root.blocks;
    const { width, height } = canvas, copy = Object.assign(document.createElement("canvas"), { width, height });
    const context = copy.getContext("2d", { willReadFrequently: true }), size = pitch - gap, cells = [];
    context.drawImage(canvas, 0, 0);
    const { data } = context.getImageData(0, 0, width, height);
    for (let cell = 0; cell < num_cells; cell++) {
        const left = (cell % columns) * pitch + gap, top = Math.floor(cell / columns) * pitch + gap, counts = {};
        for (let y = top; y < top + size; y++) for (let x = left; x < left + size; x++) {
            const at = 4 * (y * width + x);
            const colour = "#" + [0, 1, 2].map((i) => data[at + i].toString(16).padStart(2, "0")).join("");
            counts[colour] = (counts[colour] || 0) + 1;
        }
        cells.push(counts);
    }
    return [size, cells]; }"""
"""How many pixels of each colour every cell has, but for the lines around it."""


def some_maps() -> list[BlockMap]:
    """Of one pool of 30 blocks of 16 tokens, each unlike the others."""
    first = map_of(
        (1, "held", (3,), 13), (2, "held", (3, 4, 5, 6, 7), 32), (2, "held", (4,), 17), (20, "cached", (), 320),
        (5, "blank", (), 0),
    )  # fmt: skip
    reserved = map_of(
        (7, "held", (12,), 112), (4, "reserved", (12,), 0), (9, "unused", (12,), 0), (4, "held", (18,), 52),
        (6, "blank", (), 0), time_ns=2_500_000_000,
    )  # fmt: skip
    full = map_of(*((1, "held", (owner,), 16 - owner % 16) for owner in range(30)), time_ns=9_000_000_000)
    return [first, reserved, full]


def expected_words(some: BlockMap) -> list[str]:
    said = []
    for number, cell in enumerate(cells(some), 1):
        words = {"held": "held by", "reserved": "reserved for", "unused": "reserved and never used, of"}
        text: str = cell.state
        if cell.request_ids:
            named = ", ".join(map(str, cell.request_ids[:4]))
            who = f"request {named}" if len(cell.request_ids) == 1 else f"{len(cell.request_ids)} requests: {named}"
            if len(cell.request_ids) > 4:
                who += f" and {len(cell.request_ids) - 4} more"
            empty = some.block_size - cell.written
            slots = "slot" if empty == 1 else "slots"
            left = f"{empty} {slots} ({empty * SLOT_BYTES:,} B) empty" if empty else "no slot empty"
            text = f"{words[cell.state]} {who}, {cell.written} of {some.block_size} tokens written, {left}"
        said.append(f"Block {number} of {some.num_blocks}: {text}.")
    return said


def test_every_cell_looks_like_its_block_and_says_what_it_is(browser: Browser, tmp_path: Path) -> None:
    chart = BlockChart()
    maps = some_maps()
    chart.show(maps)
    with seen(browser, tmp_path, page_of(chart)) as (_page, root):
        for index, some in enumerate(maps):
            root.locator("input").fill(str(index))
            said = root.evaluate(
                "root => Array.from({ length: root.blocks.num_cells }, (_, cell) => root.blocks.said(cell))"
            )
            assert said == expected_words(some)
            size, pixels = root.evaluate(PIXELS)
            for cell, counts in zip(cells(some), pixels, strict=True):
                empty = 16 - cell.written if cell.state == "held" else 0
                slack = counts.get(COLOURS["slack"], 0)
                assert slack % size == 0, "whole columns"
                assert abs(slack - size * size * empty / 16) <= size
                assert (slack > 0) == (empty > 0), "however little"
                rest = {colour for colour in counts if colour != COLOURS["slack"]}
                if cell.state == "blank":
                    assert rest == {"#ffffff"}
                elif cell.state != "held":
                    assert rest == {COLOURS[cell.state]}
                elif len(cell.request_ids) == 1:
                    assert rest == {OWNERS[cell.request_ids[0] % len(OWNERS)]}
                else:
                    assert COLOURS["shared"] in rest
                    assert len(rest) > 3, "hatched"
            assert moment_of(some).totals in root.locator(".totals").inner_text()


def test_pointer_keys_and_slider(browser: Browser, tmp_path: Path) -> None:
    chart = BlockChart()
    chart.show(some_maps())
    with seen(browser, tmp_path, page_of(chart)) as (page, root):
        totals, readout, slider = root.locator(".totals"), root.locator(".readout"), root.get_by_label("Moment")
        assert totals.inner_text().startswith("At 9.00 s (moment 3 of 3): 30 held of 30 blocks; slack")
        slider.focus()
        for _ in range(2):
            page.keyboard.press("ArrowLeft")
        assert totals.inner_text().startswith("At 0 s (moment 1 of 3): 5 held (2 by several requests), 20 cached, ")
        assert slider.get_attribute("aria-valuetext") == "at 0 s: " + moment_of(some_maps()[0]).totals
        page.keyboard.press("Tab")
        page.keyboard.press("ArrowRight")
        assert readout.inner_text() == (
            "Block 1 of 30: held by request 3, 13 of 16 tokens written, 3 slots (393,216 B) empty."
        )
        page.keyboard.press("ArrowRight")
        assert readout.inner_text().startswith("Block 2 of 30: held by 5 requests: 3, 4, 5, 6 and 1 more, 16 of 16")
        page.keyboard.press("End")
        assert readout.inner_text() == "Block 30 of 30: blank."
        pitch = root.evaluate("root => root.blocks.pitch")
        root.locator("canvas").hover(position={"x": 4.5 * pitch, "y": 0.5 * pitch})
        assert readout.inner_text().startswith("Block 5 of 30: held by request 4, 1 of 16 tokens written, 15 slots")
        legend = [item for item in root.locator(".legend li").all() if item.is_visible()]
        assert [item.get_attribute("data-look") for item in legend] == [
            "owner", "shared", "reserved", "unused", "cached", "blank",
        ]  # fmt: skip


def soon(page: Page, holds: Callable[[], bool]) -> None:
    """The page has been told, and draws with its next frame."""
    for _ in range(100):
        if holds():
            return
        page.wait_for_timeout(30)
    raise AssertionError("the page has not changed in 3 s")


def test_narrow_dark_and_printed(browser: Browser, tmp_path: Path) -> None:
    chart = BlockChart()
    blank = map_of((500, "held", (1,), 8_000), (1_500, "blank", (), 0), numbered=False)
    chart.show([blank])
    with seen(browser, tmp_path, page_of(chart), width=1280) as (page, root):
        assert not root.get_by_label("Moment").is_visible()
        wide = root.evaluate("root => root.blocks.columns")
        page.set_viewport_size({"width": 390, "height": 800})
        soon(page, lambda: root.evaluate("root => root.blocks.width") < 390)
        narrow = root.evaluate("root => root.blocks.columns")
        assert 20 <= narrow < wide
        assert narrow % 10 == wide % 10 == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert "counted off by who holds them" in root.locator(".notes").inner_text()
        assert f"A row is {narrow} blocks." in root.locator(".notes").inner_text()

        def last_is(colour: str) -> bool:
            return set(root.evaluate(PIXELS)[1][-1]) == {colour}

        assert last_is("#ffffff")
        page.emulate_media(color_scheme="dark")
        soon(page, lambda: last_is("#14171c"))
        page.emulate_media(color_scheme="dark", media="print")
        soon(page, lambda: last_is("#ffffff"))


def test_many_blocks_are_drawn_by_their_parts(browser: Browser, tmp_path: Path) -> None:
    chart = BlockChart()
    cell = [(2, "held", (1,), 31), (1, "held", (2,), 1), (1, "cached", (), 16), (1, "blank", (), 0)]
    chart.show([map_of(*(piece for _ in range(12_000) for piece in cell), slot_bytes=10)])  # type: ignore[arg-type]
    with seen(browser, tmp_path, page_of(chart)) as (_page, root):
        assert "A cell is 5 blocks of 16 tokens each" in root.locator(".notes").inner_text()
        assert root.evaluate("root => root.blocks.said(11_999)") == (
            "Blocks 59,996 to 60,000 of 60,000: 2 held by request 1, 31 of 32 tokens written, 1 slot (10 B) empty; "
            "1 held by request 2, 1 of 16 tokens written, 15 slots (150 B) empty; 1 cached; 1 blank."
        )
        size, pixels = root.evaluate(PIXELS)
        shares = {OWNERS[1]: 31, OWNERS[2]: 1, COLOURS["slack"]: 16, COLOURS["cached"]: 16, "#ffffff": 16}
        for colour, tokens in shares.items():
            assert abs(pixels[0].get(colour, 0) - size * size * tokens / 80) <= 1
        assert pixels[11_999] == pixels[0]


def test_a_map_that_is_not_to_be_seen_is_drawn_when_it_is(browser: Browser, tmp_path: Path) -> None:
    chart = BlockChart()
    chart.show(some_maps())
    html = page_of(chart, "<div id=tab style='display: none'>", "</div>")
    path = tmp_path / "page.html"
    path.write_text(html, encoding="utf-8")
    with opened(browser, offline=True) as tab:
        tab.page.goto(path.as_uri())
        tab.page.wait_for_timeout(300)
        tab.page.evaluate("document.getElementById('tab').style.display = ''")
        tab.page.wait_for_function(drawn(), timeout=5_000)
        assert tab.page.locator(".totals").inner_text().startswith("At 9.00 s")
        assert tab.page.locator("canvas[role=application]").bounding_box() is not None


def test_a_live_page_follows_and_stays_at_the_moment_that_was_chosen(browser: Browser) -> None:
    charts: list[BlockChart] = []
    documents: list[Document] = []
    maps = some_maps()

    def fill(document: Document) -> None:
        charts.append(BlockChart())
        documents.append(document)
        document.add_root(charts[-1].figures["blocks"])

    def show(some: list[BlockMap]) -> None:
        documents[0].add_next_tick_callback(lambda: charts[0].show(some, chosen=-1))

    with live(fill) as (address, _call), opened(browser) as tab:
        tab.page.goto(address)
        tab.page.wait_for_function(drawn())
        root = tab.page.locator(".kvsim-blocks")
        assert not root.is_visible(), "there is nothing to see yet"
        totals = root.locator(".totals")
        show(maps[:1])
        totals.get_by_text("At 0 s:").wait_for()
        show(maps[:2])
        totals.get_by_text("At 2.50 s (moment 2 of 2)").wait_for()
        root.locator("input").fill("0")
        totals.get_by_text("At 0 s (moment 1 of 2)").wait_for()
        show(maps)
        totals.get_by_text("At 0 s (moment 1 of 3)").wait_for()
