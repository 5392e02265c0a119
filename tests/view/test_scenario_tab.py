import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from bokeh.document import Document
from playwright.sync_api import Browser, Page, expect

from kvsim.study.results_table import sections
from kvsim.study.run import simulate
from kvsim.study.scenario import WORKLOADS, load_scenario
from kvsim.view.draft import MOST_BYTES, READY_MADE, Draft
from kvsim.view.scenario_tab import ScenarioTab
from tests.study.makers import TINY, TINY_TRACE, write_scenario
from tests.view.conftest import opened
from tests.view.served import served

HOSTILE = "<script>document.title = 'harmed'</script><img src=x onerror=\"document.title = 'harmed'\">"


class Tab:
    """A tab without a page: what scenario.js would say, and what it would be shown."""

    def __init__(self, folder: Path) -> None:
        self.tab = ScenarioTab(folder)
        self.told = 0
        self._count = 0
        self.tab.on_state = self._tell

    def _tell(self) -> None:
        self.told += 1

    def say(self, kind: str, **message: str) -> None:
        self._count += 1
        self.tab._page.said = json.dumps({"kind": kind, "count": self._count, **message})  # type: ignore[assignment]

    def run_to_its_end(self) -> None:
        """As a session does, but at once."""
        if self.tab._page.document is None:
            Document().add_root(self.tab._page)
        self.say("run")
        assert self.tab._run is not None
        self.tab._run.wait()
        self.tab._look()

    @property
    def draft(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(str(self.tab._page.draft))
        return shown

    @property
    def run(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(str(self.tab._page.run))
        return shown


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    write_scenario(tmp_path)
    tab = Tab(tmp_path)
    tab.say("file", value="scenario.toml")
    yield tab
    tab.tab.close()


def test_a_problem_is_shown_beside_its_field_until_it_is_gone(tab: Tab) -> None:
    assert tab.draft["problems"] == {"beside": {}, "loose": [], "all": []}
    assert tab.run["can_run"]
    tab.say("field", key="memory.block_size", value="0")
    sentence = "memory.block_size must be between 1 and 1,000,000,000, got 0"
    assert tab.draft["problems"]["beside"] == {"f6": [sentence]}
    assert tab.draft["problems"]["all"] == [{"sentence": sentence, "line": 12}]
    assert not tab.run["can_run"]
    assert tab.run["status"] == "one problem is to be solved before it can run"
    tab.say("field", key="memory.num_blocks", value="")
    assert tab.draft["problems"]["beside"]["t2"] == ["memory: one of budget and num_blocks must be given, and not both"]
    tab.say("field", key="memory.num_blocks", value="33")
    tab.say("field", key="memory.block_size", value="4")
    assert tab.run["can_run"]


def test_what_is_said_in_another_way_is_passed_over(tab: Tab) -> None:
    before, told = tab.draft, tab.told
    for said in ("{", "[1]", '"run"', '{"kind": 3}', '{"kind": "fly"}', '{"kind": ["run"]}', "[" * 10_000):
        tab.tab._page.said = said  # type: ignore[assignment]
    assert (tab.draft, tab.told) == (before, told)
    tab.say("field", key="question", value="half of a pair: \ud800")
    assert tab.draft["text"].startswith('\nquestion = "half of a pair: ?"')
    tab.say("file", value="../elsewhere.toml")
    assert tab.draft["problems"]["loose"] == ["'../elsewhere.toml' is not one of the scenarios of this folder"]
    assert tab.draft["file"] == "scenario.toml"


def test_the_state_is_the_file_and_what_was_typed(tab: Tab, tmp_path: Path) -> None:
    assert tab.tab.state() == {"file": "scenario.toml"}
    tab.say("field", key="memory.block_size", value="8")
    tab.say("field", key="workload.rate", value="")
    assert tab.tab.state() == {"file": "scenario.toml", "set": "memory.block_size=8\nworkload.rate="}
    again = ScenarioTab(tmp_path)
    again.restore(tab.tab.state())
    assert again.state() == tab.tab.state()
    tab.say("file", value=READY_MADE)
    assert tab.tab.state() == {}
    assert tab.told == 4


def test_a_whole_text_is_part_of_the_state_up_to_a_length(tab: Tab, tmp_path: Path) -> None:
    tab.say("mode", value="text")
    tab.say("text", value=TINY + 'timeout = "3 s"\n')
    state = tab.tab.state()
    assert set(state) == {"file", "text"}
    assert re.fullmatch(r"[A-Za-z0-9_-]+", state["text"])
    again = Tab(tmp_path)
    again.tab.restore(state)
    assert again.draft["text"] == TINY + 'timeout = "3 s"\n'
    assert again.draft["mode"] == "fields"
    random = "".join(f"# {number**7:x}\n" for number in range(1500))
    tab.say("text", value=TINY + random)
    assert tab.tab.state() == {"file": "scenario.toml"}
    assert not tab.draft["fits_address"]
    tab.say("text", value="#" * (MOST_BYTES + 1))
    assert tab.draft["problems"]["all"][-1]["sentence"] == "the text must be at most 65,536 bytes, got 65,537"
    assert tab.draft["text"] == TINY + random


@pytest.mark.parametrize(
    "state",
    [
        {"file": "../scenario.toml"},
        {"file": "/etc/passwd"},
        {"file": "scenario.toml", "set": "memory.nothing=3"},
        {"text": "!"},
        {"text": "eJwrzs9N"},
        {"text": "eJztwTEBAAAAwqD1T20JT6AAAAAAAAAA"},
    ],
)
def test_an_address_that_says_nothing_sensible_is_told(tmp_path: Path, state: dict[str, str]) -> None:
    write_scenario(tmp_path)
    tab = Tab(tmp_path)
    tab.tab.restore({**state, "run": "1"})
    assert tab.draft["problems"]["loose"][0].startswith("This address cannot be shown as it was: ")
    assert tab.tab._run is None


def test_only_fields_of_toml_are_shown_as_fields(tab: Tab) -> None:
    tab.say("mode", value="text")
    tab.say("text", value="question =")
    tab.say("mode", value="fields")
    assert tab.draft["mode"] == "text"
    assert tab.draft["problems"]["all"] == [
        {"sentence": "not TOML: Invalid value (at end of document)", "line": 1},
        {"sentence": "only a text that is TOML can be shown as fields", "line": None},
    ]
    assert not tab.run["can_run"]


def test_results_of_what_is_not_edited_any_more_are_said_to_be_of_an_earlier_run(tab: Tab) -> None:
    tab.run_to_its_end()
    own = tab.run
    assert own["status"].startswith("done: 40 requests in ")
    assert own["earlier"] == ""
    tab.say("file", value=READY_MADE)
    assert tab.run["earlier"] == "Figures and charts of an earlier run: scenario.toml"
    assert tab.run["status"] == f"run of scenario.toml: {own['status']}"
    tab.say("file", value="scenario.toml")
    assert tab.run == own
    tab.say("field", key="memory.block_size", value="8")
    assert tab.run["earlier"] == "Figures and charts of an earlier run: scenario.toml"
    tab.run_to_its_end()
    assert tab.run["earlier"] == ""
    tab.say("text", value="question =")
    named = "scenario.toml with memory.block_size = 8"
    assert tab.run["earlier"] == f"Figures and charts of an earlier run: {named}"
    assert tab.run["status"].endswith(" simulated; one problem is to be solved before it can run")


def test_what_a_run_has_refused_is_said_until_it_is_edited(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE.replace("trace.csv", "lost.csv"))
    tab = Tab(tmp_path)
    tab.say("file", value=path.name)
    tab.run_to_its_end()
    assert tab.run["status"] == "not run to its end"
    sentence = f"{tmp_path / 'lost.csv'}: cannot be read: No such file or directory"
    assert tab.run["problem"] == {"sentence": sentence, "to": "f7", "line": 15}
    tab.say("mode", value="text")
    assert tab.run["problem"] == {"sentence": sentence, "to": "text", "line": 15}
    tab.say("field", key="workload.path", value="trace.csv")
    assert (tab.run["status"], tab.run["problem"]) == ("", None)
    tab.say("field", key="memory.block_size", value="0")
    tab.say("field", key="memory.num_blocks", value="1")
    tab.say("mode", value="fields")
    first = "memory.num_blocks must be between 2 and 16,777,216, got 1, and 1 more"
    assert tab.run["problem"] == {"sentence": first, "to": "f4", "line": 10}
    tab.tab.close()


def test_an_error_that_nobody_foresaw_is_shown(tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such thing")

    with monkeypatch.context() as patched:
        patched.setattr(Draft, "type", fail)
        tab.say("field", key="seed", value="4")
    sentence = "an error of kvsim itself, RuntimeError: 'no such thing'; where it happened stands in the terminal of"
    assert str(tab.tab._page.fault).startswith(sentence)
    tab.say("files")
    assert tab.tab._page.fault
    tab.say("field", key="seed", value="4")
    assert tab.tab._page.fault == ""
    with monkeypatch.context() as patched:
        patched.setattr(tab.tab._over_time, "show", fail)
        tab.run_to_its_end()
    assert str(tab.tab._page.fault).startswith(sentence)


def test_files_are_looked_for_again_when_one_is_to_be_chosen(tab: Tab, tmp_path: Path) -> None:
    begin = ["", [[READY_MADE, "a scenario to begin with"], ["scenario.toml", "scenario.toml"]]]
    assert tab.draft["files"] == [begin]
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a.toml").write_text(TINY)
    (tmp_path / "scenario.toml").unlink()
    tab.say("files")
    assert tab.draft["files"] == [begin, ["deep/er", [["deep/er/a.toml", "a.toml"]]]]
    (tmp_path / "b.toml").write_text(TINY)
    tab.say("file", value="b.toml")
    assert tab.draft["file"] == "b.toml"


def test_words_are_offered_where_there_are_no_others(tab: Tab) -> None:
    form = str(tab.tab._page.form)
    (kind,) = re.findall(r'<select id="\S+" data-key="workload.kind".*?</select>', form, re.DOTALL)
    options = re.findall(r"<option(?: value=\"\")?( selected)?>(.*?)</option>", kind)
    assert options == [(" selected" if word == "poisson" else "", word) for word in (*WORKLOADS, "(left out)")]
    assert re.findall(r'<select id="\S+" data-key="(.*?)"', form) == ["workload.kind"]
    tab.say("field", key="workload.kind", value="<b>")
    tab.say("mode", value="fields")
    assert "<option selected>&lt;b&gt;</option>" in str(tab.tab._page.form)


def test_markup_of_a_scenario_is_text(tmp_path: Path) -> None:
    write_scenario(
        tmp_path,
        TINY.replace("Does a tiny pool do?", HOSTILE.replace('"', '\\"')).replace("seed = 3", "'<b>' = 3 # <i>"),
    )
    tab = Tab(tmp_path)
    tab.say("file", value="scenario.toml")
    form = str(tab.tab._page.form)
    assert not re.search(r"<(script|img|b|i)\b", form)
    assert "&lt;script&gt;" in form


# in a browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("folder")
    write_scenario(folder)
    (folder / "long.toml").write_text(TINY.replace("num_requests = 40", "num_requests = 2_000_000"))
    (folder / "lost.toml").write_text(TINY_TRACE.replace("trace.csv", "lost.csv"))
    (folder / "endless.toml").write_text(TINY.replace("max_model_len = 128\n", ""))
    question, key = HOSTILE.replace('"', '\\"'), "'<script>document.title = 1</script>' = 3"
    (folder / "hostile.toml").write_text(TINY.replace("Does a tiny pool do?", question))
    (folder / "hostile_key.toml").write_text(TINY.replace("block_size = 4", f"block_size = 4\n{key} # {HOSTILE}"))
    with served(folder) as address:
        yield address


def open_tab(page: Page, address: str, **state: str) -> None:
    page.goto(f"{address}?{urlencode({'tab': 'scenario', **state})}")
    expect(page.locator("#scenario-fields [data-key]").first).to_be_visible(timeout=10_000)


def status(page: Page, text: str) -> None:
    expect(page.locator("#scenario-status")).to_contain_text(text, timeout=20_000)


def test_an_error_is_beside_its_field_and_run_waits_for_it_to_be_fixed(browser: Browser, address: str) -> None:
    with opened(browser) as tab:
        page = tab.page
        open_tab(page, address, file="scenario.toml")
        expect(page.locator("#scenario-run")).to_be_enabled()
        page.get_by_label("kind").select_option("trace")
        expect(page.locator("#scenario-problem")).to_have_text("workload.path is missing, and 4 more")
        page.get_by_role("button", name="go to it").click()
        expect(page.locator("#scenario-t3-problem")).to_be_focused()
        page.get_by_label("kind").select_option("poisson")
        box = page.get_by_label("block_size")
        box.fill("four")
        expect(box).to_have_attribute("aria-invalid", "true")
        described = str(box.get_attribute("aria-describedby")).split()
        said = " ".join(page.locator(f"#{id}").inner_text() for id in described)
        assert said == " memory.block_size must be a whole number, got 'four'"
        expect(page.locator("#scenario-run")).to_be_disabled()
        page.get_by_label("whole text").check()
        expect(page.get_by_label("Text (TOML")).to_have_attribute("aria-invalid", "true")
        page.get_by_role("button", name="line 12: memory.block_size").click()
        assert page.evaluate("getSelection().toString()") == 'block_size = "four"'
        page.get_by_label("Text (TOML").fill(TINY.replace("block_size = 4", "block_size = 8"))
        expect(page.locator("#scenario-run")).to_be_enabled()
        page.get_by_label("fields").check()
        expect(page.get_by_label("block_size")).to_have_value("8")
        expect(page.get_by_label("block_size")).to_have_attribute("aria-invalid", "false")
        expect(page.locator("#scenario-command")).to_have_text("kvsim run scenario.toml --set memory.block_size=8")
        with page.expect_download() as download:
            page.get_by_text("save the text").click()
        assert download.value.suggested_filename == "scenario.toml"
        assert download.value.path().read_text() == TINY.replace("block_size = 4", "block_size = 8")


def test_a_run_ends_with_the_figures_of_the_command_line_and_its_address_shows_it_again(
    browser: Browser, address: str, tmp_path: Path
) -> None:
    results = simulate(load_scenario(write_scenario(tmp_path), ["memory.block_size=8", "workload.num_requests=300"]))
    rows = [[row.name, row.figure, row.most, row.meaning] for section in sections(results) for row in section.rows]
    with opened(browser) as tab:
        page = tab.page
        open_tab(page, address, file="scenario.toml")
        page.get_by_label("block_size").fill("8")
        page.get_by_label("num_requests").fill("300")
        page.get_by_role("button", name="Run").click()
        status(page, "done: 300 requests")
        assert shown_rows(page) == rows
        expect(page.locator("#scenario-results h3")).to_have_text("Does a tiny pool do?")
        expect(page.locator("#scenario-results")).to_contain_text(
            "with memory.block_size = 8, workload.num_requests = 300"
        )
        expect(page.locator("#scenario-results")).to_contain_text("A sizing model of KV-cache memory, not an")
        last = page.evaluate("Bokeh.documents[0].get_model_by_name('scenario-page').run")
        assert json.loads(last)["status"].startswith("done")
        expect(page.locator("#scenario-memory canvas").first).to_be_visible()
        expect(page.locator("#scenario-blocks")).to_contain_text("of 32 blocks")
        copied = page.url
        page.get_by_label("block_size").fill("4")
        expect(page.locator("#scenario-earlier")).to_have_text(
            "Figures and charts of an earlier run: "
            "scenario.toml with memory.block_size = 8, workload.num_requests = 300"
        )
        for part in ("charts", "results"):
            expect(page.locator(f"#scenario-{part}")).to_have_css("opacity", "0.55")
        page.get_by_label("block_size").fill("8")
        expect(page.locator("#scenario-earlier")).to_be_hidden()
        page.emulate_media(media="print")
        for part, is_printed in {"run": False, "edit": False, "results": True, "charts": True, "printed": True}.items():
            expect(page.locator(f"#scenario-{part}")).to_be_visible(visible=is_printed)
        expect(page.locator("#scenario-printed")).to_contain_text("block_size = 8")
        assert page.evaluate(
            "[...document.querySelectorAll('#scenario-charts > div')]"
            ".every((chart) => getComputedStyle(chart).breakInside === 'avoid')"
        )
    with opened(browser, width=390, height=844, dark=True) as tab:
        tab.page.goto(copied)
        status(tab.page, "done: 300 requests")
        assert shown_rows(tab.page) == rows
        expect(tab.page.get_by_label("block_size")).to_have_value("8")
        # Nothing is wider than the page, and nothing in it is cut.
        assert (
            tab.page.evaluate(
                "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.getElementById('scenario-results'))"
            )
            == 0
        )
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390


def shown_rows(page: Page) -> list[list[str]]:
    expect(page.locator("#scenario-results table")).to_be_visible()
    rows: list[list[str]] = page.evaluate(
        "[...document.querySelectorAll('#scenario-results tr:has(td)')]"
        ".map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return rows


def test_a_long_run_is_seen_as_it_goes_on_and_stops_at_once(browser: Browser, address: str) -> None:
    with opened(browser) as tab:
        page = tab.page
        open_tab(page, address, file="long.toml")
        page.get_by_role("button", name="Run").click()
        status(page, "of 2,000,000 requests have ended")
        expect(page.locator("#scenario-memory canvas").first).to_be_visible()
        expect(page.locator("#scenario-run")).to_be_disabled()
        # The page stays alive.
        page.get_by_label("block_size").fill("0")
        expect(page.get_by_label("block_size")).to_have_attribute("aria-invalid", "true")
        page.get_by_role("button", name="Stop").click()
        status(page, "stopped: ")
        said = page.locator("#scenario-status").inner_text()
        time.sleep(1)
        assert page.locator("#scenario-status").inner_text() == said
        expect(page.locator("#scenario-stop")).to_be_disabled()


@pytest.mark.parametrize(
    ("file", "place", "sentence"),
    [
        ("lost.toml", "#scenario-f7-problem", "lost.csv: cannot be read: No such file or directory"),
        ("endless.toml", "#scenario-t4-problem", "engine.max_model_len is missing, and the model does not say its"),
    ],
)
def test_what_a_run_refuses_is_shown_where_it_belongs(
    browser: Browser, address: str, file: str, place: str, sentence: str
) -> None:
    with opened(browser) as tab:
        page = tab.page
        open_tab(page, address, file=file)
        page.get_by_role("button", name="Run").click()
        status(page, "not run to its end")
        expect(page.locator(place)).to_contain_text(sentence)
        expect(page.locator("#scenario-problem")).to_contain_text(sentence)
        page.get_by_role("button", name="go to it").click()
        expect(page.locator(place.replace("f7-problem", "f7"))).to_be_focused()
        expect(page.locator("#scenario-run")).to_be_enabled()


@pytest.mark.parametrize("file", ["hostile.toml", "hostile_key.toml"])
def test_nothing_of_a_scenario_is_markup(browser: Browser, address: str, file: str) -> None:
    with opened(browser) as tab:
        page = tab.page
        open_tab(page, address, file=file, set=f"workload.kind={HOSTILE}" if file == "hostile_key.toml" else "")
        if file == "hostile.toml":
            page.get_by_role("button", name="Run").click()
            status(page, "done: 40 requests")
            expect(page.locator("#scenario-results h3")).to_have_text(HOSTILE)
        else:
            expect(page.locator("#scenario-fields")).to_contain_text(
                "memory.<script>document.title = 1</script>: unknown key"
            )
            assert (
                page.locator("#scenario-fields [aria-invalid=true]").count() == 2
            )  # the key, and its kind of workload
        assert page.title() == "kvsim"
        assert page.locator("#scenario script, #scenario img").count() == 0
