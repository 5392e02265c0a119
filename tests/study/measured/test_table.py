"""The page and the JSON of a comparison."""

import json

import pytest
from rich.console import Console

from kvsim.study.measured.compare import compare_measured
from kvsim.study.measured.read import Fact, read_measured
from kvsim.study.measured.table import measured_json, measured_page
from tests.study.measurements import FIRST_ARRIVAL_NS, GOLDEN, like_vllm, measured_of, scraped, tight_courses, tight_run


def page(comparison: object, width: int = 100) -> str:
    console = Console(width=width, file=None, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(measured_page(comparison))  # type: ignore[arg-type]
    return captured.get()


@pytest.mark.parametrize("width", [80, 200])
def test_both_sides_of_every_figure_and_what_is_missing(width: int) -> None:
    measured = read_measured([GOLDEN / "scrapes.prom.gz", GOLDEN / "server.log"])
    text = page(compare_measured(like_vllm(), measured, offset=-FIRST_ARRIVAL_NS), width)
    lines = [line.split() for line in text.splitlines()]
    assert ["preemptions", "9", "9", "0"] in lines
    assert ["prefix", "hits", "36.07%", "36.07%", "0", "pt"] in lines
    assert [
        "KV",
        "cache",
        "used",
        "45.78%",
        "46.96%",
        "+1.18",
        "pt",
        "1.18",
        "pt",
        "+12.50",
        "pt",
        "19.86",
        "s",
    ] in lines
    assert ["max", "concurrency", "(requests)", "1.89", "1.89", "0.00", "agrees"] in lines
    told = " ".join(text.split())
    assert "Not known, and needed to repeat it: model_revision, gpu, peak_memory (--fact NAME=VALUE)." in told
    assert "the first scrape lies -142 ms into the run, as was said." in told
    assert "not a throughput benchmark" in told
    assert all(len(line) <= width for line in text.splitlines())


def test_json_has_all_and_nothing_that_is_no_number() -> None:
    run = tight_courses()
    truth = scraped(run, range(0, run.duration_ns, 10**9))
    facts = {"gpu": Fact("H100 <b>", "--fact"), "block_size": Fact(8, "log")}
    found = compare_measured(tight_run(), measured_of(truth, facts), offset=0)
    written = json.loads(json.dumps(measured_json(found), allow_nan=False))
    assert list(written["levels"]) == ["kv_usage", "running", "waiting", "recent_hit_share"]
    assert written["levels"]["running"]["mean_absolute_error"] == 0
    assert written["levels"]["kv_usage"]["unit"] == "share"
    assert written["counters"]["preemptions"]["difference"] == 0
    assert written["sizes"]["block_size"] == {
        "name": "block_size", "unit": "tokens", "measured": 8, "simulated": 4, "agrees": False, "difference": -4,
    }  # fmt: skip
    assert written["known"]["gpu"] == {"value": "H100 <b>", "source": "--fact"}
    assert "model_revision" in written["missing"]
    assert written["alignment"]["shift_ns"] == 0


def test_markup_in_names_is_text() -> None:
    facts = {"gpu": Fact("[bold]H100[/bold] <script>", "--fact")}
    assert "[bold]H100[/bold] <script>" in page(compare_measured(tight_run(), measured_of({}, facts)))
