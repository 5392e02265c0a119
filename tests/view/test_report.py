"""The report as a reader has it: one file, opened from disk with no network at hand."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from playwright.sync_api import Browser, Page

from kvsim.errors import OutputError
from kvsim.study.block_maps import BlockMaps
from kvsim.study.diff_effects import ORDER
from kvsim.study.files import TablesInFiles, read_results, tables_of, write_results
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.study.sums import write_sums
from kvsim.view.report import MOST_RUNS, read_run, report_page, run_names, write_report
from tests.study.makers import TINY_TRACE, write_scenario
from tests.view.conftest import opened

FILES = ("summary", "timeline", "requests", "pressure", "blocks")
HOSTILE = """<script>window.hacked = 1</script></script><img src=x onerror="window.hacked=2">'\\"{{ 7 * 7 }}&amp;"""


def write_run(path: Path, out: Path, *overrides: str, files: tuple[str, ...] = FILES) -> Path:
    """A folder as kvsim run leaves it, but for the picture."""
    out.mkdir(parents=True)
    maps = BlockMaps()
    tables = TablesInFiles(out, tables_of(files))
    results = simulate(load_scenario(path, overrides), tables=tables, moments=maps.moments(), on_moment=maps.add)
    write_results(results, out, files, maps)
    return out


def show(page: Page, report: Path) -> None:
    page.goto(report.as_uri())
    page.wait_for_function("window.kvsim?.isReady(0)")


@pytest.fixture(scope="module")
def pressed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose memory is short, and its report beside its files."""
    folder = tmp_path_factory.mktemp("pressed")
    out = write_run(write_scenario(folder), folder / "out", "memory.num_blocks=14")
    write_report([read_run(out, "short of memory")], out / "report.html")
    return out


@pytest.fixture(scope="module")
def two_runs(pressed: Path) -> list[Path]:
    """The same with more memory beside it, and a report of both beside that one's files."""
    roomy = write_run(write_scenario(pressed.parent), pressed.parent / "roomy", "memory.num_blocks=40")
    write_report([read_run(pressed, "short"), read_run(roomy, "roomy")], roomy / "report.html")
    return [pressed, roomy]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_opens_from_disk_with_nothing_else_at_hand(browser: Browser, pressed: Path, width: int, dark: bool) -> None:
    results = read_results(pressed)
    with opened(browser, width=width, dark=dark, offline=True) as tab:
        asked: list[str] = []
        tab.page.on("request", lambda request: asked.append(request.url))
        show(tab.page, pressed / "report.html")
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        last = {name: str(value) for name, value in results.timeline.tail(1).to_dicts()[0].items()}
        assert tab.page.evaluate("window.kvsim.lastDrawn(0)") == last
        assert tab.page.locator("h1").inner_text() == "Does a tiny pool do?"
        assert f"refused {results.metrics['refused']} requests" in tab.page.locator(".answer").inner_text()
        assert tab.page.locator("canvas").count() > 5
        # Nothing is wider than the page.
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)"
        )


def test_all_that_a_reader_asks_for_is_there(pressed: Path) -> None:
    page = (pressed / "report.html").read_text()
    for text in (
        "not an out-of-memory predictor and not a throughput benchmark",
        "2 layers x 1 KV head x (4 K + 4 V) x 2 B = 32 B",
        "4 tokens x 32 B = 128 B",
        "(14 blocks - 1 null block) x 128 B = 1,664 B",
        "assumption: step times",
        "Worst case beside observed",
        "Slack by cause",
        "Slack of each request at its end",
        "Blocks of each request at its end",
        "Waiting time of each request",
        "Prefix hits",
        "Block map",
        "num_blocks = 14",
        "kvsim run scenario.toml",
        "refused: blocks</dt><dd>the pool has too few free blocks",
        "preempted: blocks</dt>",
    ):
        assert text in page, text


def test_what_is_folded_away_is_unfolded_for_print(browser: Browser, pressed: Path) -> None:
    with opened(browser) as tab:
        show(tab.page, pressed / "report.html")
        folded = "document.querySelectorAll('details:not([open])').length"
        before = tab.page.evaluate(folded)
        assert before > 3
        tab.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert tab.page.evaluate(folded) == 0
        tab.page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert tab.page.evaluate(folded) == before


def test_charts_are_as_wide_as_paper_when_they_are_printed(browser: Browser, pressed: Path) -> None:
    with opened(browser) as tab:
        show(tab.page, pressed / "report.html")
        widths = """() => [...Bokeh.index.query((view) => view.canvas_view)].map((view) =>
          [view.canvas_view.primary.canvas.width, view.frame.bbox.right, view.el.getBoundingClientRect().width])"""
        before = tab.page.evaluate(widths)
        tab.page.evaluate(f"addEventListener('beforeprint', () => (window.printed = ({widths})()))")
        tab.page.pdf(format="A4")
        printed = tab.page.evaluate("window.printed")
        assert len(printed) == len(before) > 8
        paper = 180 / 25.4 * 96
        for canvas, frame, chart in printed:
            assert paper - 2 < canvas <= chart + 1 <= paper + 2
            assert frame <= canvas
        tab.page.wait_for_function(f"(before) => JSON.stringify(({widths})()) === JSON.stringify(before)", arg=before)


def test_whatever_can_be_come_to_by_keyboard_has_a_name(browser: Browser, pressed: Path) -> None:
    with opened(browser) as tab:
        show(tab.page, pressed / "report.html")
        stops = tab.page.evaluate(
            """() => {
              const stops = [];
              const collect = (root) => {
                for (const at of root.querySelectorAll("*")) {
                  const isSeen = at.checkVisibility({ visibilityProperty: true });
                  const name = at.getAttribute("aria-label") || at.labels?.[0]?.textContent.trim() || at.textContent.trim();
                  if (at.tabIndex >= 0 && isSeen) stops.push([name, at.className]);
                  if (at.shadowRoot) collect(at.shadowRoot);
                }
              };
              collect(document.querySelector("main"));
              return stops;
            }"""
        )
        names = [name for name, _ in stops]
        assert [stop for stop in stops if not stop[0] or "bk-events" in stop[1] or "marks" in stop[1]] == []
        assert sum(" over time" in name and "Point at" in name for name in names) == 4
        assert {"Box Zoom (x-axis)", "zoom in", "show all of the time"} <= set(names)


def test_nothing_of_a_run_becomes_a_part_of_the_page(browser: Browser, tmp_path: Path) -> None:
    trace = "<img src=x onerror=window.hacked=3>.csv"
    path = write_scenario(tmp_path, TINY_TRACE.replace("trace.csv", trace))
    (tmp_path / "trace.csv").rename(tmp_path / trace)
    out = write_run(path, tmp_path / "<b>out", f"question='''{HOSTILE}'''")
    summary = json.loads((out / "summary.json").read_text())
    summary["versions"]["<s>kvsim"] = HOSTILE
    summary["notes"].append(HOSTILE)
    (out / "summary.json").write_text(json.dumps(summary))
    write_sums(out, (path.name for path in out.iterdir()))
    report = tmp_path / "report.html"
    write_report([read_run(out, HOSTILE), read_run(out, "<u>other")], report)
    with opened(browser, offline=True) as tab:
        show(tab.page, report)
        assert tab.page.evaluate("window.hacked") is None
        assert summary["question"] == HOSTILE
        assert tab.page.locator("h1").text_content() == HOSTILE
        found = tab.page.locator("main img, main script, main s, main u")
        assert found.evaluate_all("found => found.map(one => one.outerHTML)") == []


def test_what_holds_stays_in_sight_of_the_lowest_chart(browser: Browser, pressed: Path) -> None:
    with opened(browser, offline=True) as tab:
        show(tab.page, pressed / "report.html")
        chart = tab.page.locator(".chart.pressure canvas").first
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        assert box is not None
        tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 3)
        panel = tab.page.locator(".chart.readout").bounding_box()
        assert panel is not None
        assert panel["y"] >= 0
        assert panel["y"] + panel["height"] <= box["y"] + box["height"] / 3


def test_runs_stand_side_by_side_and_what_differs_is_explained(browser: Browser, two_runs: list[Path]) -> None:
    with opened(browser, width=1500, offline=True) as tab:
        show(tab.page, two_runs[1] / "report.html")
        tab.page.wait_for_function("window.kvsim.isReady(1)")
        said = tab.page.locator("#differences").inner_text()
        assert "memory.num_blocks 14 -> 40" in said
        assert "short → roomy" in said
        again = tab.page.locator("#reproduce pre").inner_text()
        assert "kvsim run scenario_2.toml --out out_2\nkvsim report out_1 out_2 -o report.html" in again
        assert (
            said.index("Preemptions fell") < said.index("Hardly changed in all, and peaks:") < said.index("at its peak")
        )
        assert ORDER in said
        places = tab.page.locator("#time .run").evaluate_all("runs => runs.map(run => run.getBoundingClientRect().x)")
        assert places[1] > places[0] + 400
        for number, out in enumerate(two_runs):
            last = read_results(out).timeline.tail(1).to_dicts()[0]
            assert tab.page.evaluate(f"window.kvsim.lastDrawn({number}).time_ns") == str(last["time_ns"])


def test_runs_move_together_unless_a_reader_parts_them(browser: Browser, two_runs: list[Path]) -> None:
    timelines = [read_results(out).timeline for out in two_runs]
    last_ns = [int(timeline["time_ns"][-1]) for timeline in timelines]
    assert last_ns[0] != last_ns[1]
    with opened(browser, width=1280, offline=True) as tab:
        page = tab.page
        show(page, two_runs[1] / "report.html")
        page.wait_for_function("window.kvsim.isReady(1)")
        charts = page.locator("[aria-label^='Memory over time']")

        def shown() -> list[int]:
            return [int(page.evaluate(f"window.kvsim.rowShown({number}).time_ns")) for number in (0, 1)]

        def held(time_ns: int) -> list[int]:
            return [int(rows.filter(pl.col("time_ns") <= time_ns)["time_ns"][-1]) for rows in timelines]

        def ranges() -> list[list[float]]:
            ranges: list[list[float]] = page.evaluate(
                """async () => {
                  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
                  return [...document.querySelectorAll(".chart.memory [data-root-id]")].map((place) => {
                    const { start, end } = Bokeh.index.find_one_by_id(place.dataset.rootId).model.x_range;
                    return [start, end];
                  });
                }"""
            )
            return ranges

        def slider_times() -> list[str]:
            return page.locator(".kvsim-blocks .totals").evaluate_all("said => said.map(one => one.textContent)")

        assert shown() == held(shown()[0])
        assert ranges() == [[0, pytest.approx(max(last_ns) / 1e9)]] * 2
        charts.nth(1).focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert shown() == held(timelines[1]["time_ns"][2])
        page.keyboard.press("+")
        one, two = ranges()
        assert one == pytest.approx(two)
        assert one[1] - one[0] == pytest.approx(max(last_ns) / 2e9)
        sliders = page.get_by_label("Moment", exact=True)
        sliders.nth(1).focus()
        page.keyboard.press("Home")
        assert [text.split(" (")[0] for text in slider_times()] == ["At 0 s", "At 0 s"]
        # Its readout takes as many lines whatever it says.
        charts.nth(0).focus()
        tops = set()
        for key in ("Home", "ArrowRight", "ArrowRight", "PageDown", "PageDown", "PageDown", "End"):
            page.keyboard.press(key)
            tops.add(page.evaluate("document.querySelector('.chart.memory').offsetTop"))
        assert len(tops) == 1
        page.keyboard.press("0")
        page.get_by_label("Move all runs together").first.focus()
        page.keyboard.press("Space")
        assert not page.get_by_label("Move all runs together").nth(1).is_checked()
        before = shown()
        charts.nth(1).focus()
        page.keyboard.press("Home")
        assert shown() == [before[0], timelines[1]["time_ns"][0]]
        assert [end for _, end in ranges()] == pytest.approx([ns / 1e9 for ns in last_ns])


def test_a_run_without_block_maps_says_how_to_get_them(tmp_path: Path) -> None:
    out = write_run(write_scenario(tmp_path), tmp_path / "out", files=FILES[:-1])
    page = report_page([read_run(out)])
    assert "has kept no maps of its blocks" in page


def test_names_are_as_short_as_tells_runs_apart(tmp_path: Path) -> None:
    assert run_names([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert run_names([tmp_path / "x" / "a", tmp_path / "y" / "a"]) == [
        str(tmp_path / "x" / "a"),
        str(tmp_path / "y" / "a"),
    ]


def test_a_report_is_of_a_few_runs(pressed: Path) -> None:
    with pytest.raises(OutputError, match=f"of 1 to {MOST_RUNS} runs, got 0"):
        report_page([])
    with pytest.raises(OutputError, match=f"of 1 to {MOST_RUNS} runs, got {MOST_RUNS + 1}"):
        report_page([read_run(pressed)] * (MOST_RUNS + 1))


def kvsim(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kvsim.cli import main; main()", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_writes_the_page_or_nothing(pressed: Path, tmp_path: Path) -> None:
    done = kvsim("report", pressed, "-o", tmp_path / "new" / "report.html")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"wrote {tmp_path / 'new' / 'report.html'}\n"
    assert "<title>Does a tiny pool do? - kvsim</title>" in (tmp_path / "new" / "report.html").read_text()
    for args, message in (
        ((pressed, "-o", tmp_path / "report.pdf"), "report.pdf: must end in .html"),
        ((tmp_path / "none", "-o", tmp_path / "report.html"), "none/summary.json: cannot be read"),
    ):
        done = kvsim("report", *args)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: ")
        assert message in done.stderr
        assert not (tmp_path / "report.html").exists()


def test_without_bokeh_it_says_what_to_install(pressed: Path, tmp_path: Path, monkeypatch: Any) -> None:
    program = (
        "import sys; sys.modules['bokeh'] = None\n"
        "import importlib.util as util; find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'bokeh' else find(name, *rest)\n"
        f"sys.argv = ['kvsim', 'report', {str(pressed)!r}, '-o', {str(tmp_path / 'report.html')!r}]\n"
        "from kvsim.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "error: kvsim report draws with Bokeh, which is not installed: pip install 'kvsim[app]'\n"


def test_a_report_of_an_hour_of_chat_is_small_and_quick_and_exact(
    browser: Browser, shared: Path, tmp_path: Path
) -> None:
    """Azure's conversations of 2023: 19,366 requests, 318,174 rows."""
    trace = shared / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
    scenario = Path(__file__).parents[2] / "scenarios" / "replay_a_trace_of_your_own.toml"
    out = write_run(scenario, tmp_path / "out", f"workload.path={trace}")
    report = tmp_path / "report.html"
    began = time.process_time()
    write_report([read_run(out)], report)
    assert time.process_time() - began < 10
    assert report.stat().st_size < 10_000_000
    timeline = pl.read_parquet(out / "timeline.parquet")
    assert timeline.height > 300_000
    with opened(browser, offline=True) as tab:
        show(tab.page, report)
        chart = tab.page.locator(".chart.memory canvas").first.bounding_box()
        assert chart is not None
        for share in (0.2, 0.5, 0.9):
            tab.page.mouse.move(chart["x"] + share * chart["width"], chart["y"] + chart["height"] / 2)
            tab.page.wait_for_timeout(60)
            row = tab.page.evaluate("window.kvsim.rowShown(0)")
            held = timeline.filter(pl.col("time_ns") <= int(row["time_ns"])).tail(1).to_dicts()[0]
            assert row == {name: str(value) for name, value in held.items()}
        for moment_ns in (0, 1_000_000_007, timeline["time_ns"][123_456], timeline["time_ns"][-1] + 5):
            held = timeline.filter(pl.col("time_ns") <= moment_ns).tail(1).to_dicts()[0]
            row = tab.page.evaluate(f"window.kvsim.rowAt('{moment_ns}', 0)")
            assert row == {name: str(value) for name, value in held.items()}
