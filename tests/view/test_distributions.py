"""Distributions per request: every request is in a bin, and the quantiles are said and marked."""

from collections import Counter
from pathlib import Path

from bokeh.embed import components
from bokeh.models import Quad, Segment
from bokeh.resources import INLINE
from playwright.sync_api import Browser

from kvsim.engine.results import Results
from kvsim.study.per_request import held_at_end, spread
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.view.bars import prefix_hits_bars, slack_by_cause, worst_case_beside_observed
from kvsim.view.chart import Chart
from kvsim.view.distributions import distributions, prefix_hits_of_each
from tests.study.makers import write_scenario
from tests.study.test_plots import NOTHING
from tests.view.conftest import opened


def run(folder: Path, *overrides: str) -> Results:
    return simulate(load_scenario(write_scenario(folder), overrides))


def counts(chart: Chart) -> list[int]:
    assert chart.figure is not None
    (bars,) = (one for one in chart.figure.renderers if isinstance(one.glyph, Quad))
    return list(bars.data_source.data["top"])


def test_every_request_that_got_to_its_end_is_in_a_bin(tmp_path: Path) -> None:
    results = run(tmp_path)
    slack, blocks, waits = distributions(results)
    ended = held_at_end(results).requests
    assert sum(counts(slack)) == sum(counts(blocks)) == ended.height == 40
    assert sum(counts(waits)) == results.requests["admitted_ns"].count()
    by_slots = ended["slack_bytes"].value_counts().sort("slack_bytes")["count"].to_list()
    assert [number for number in counts(slack) if number] == by_slots
    measured = spread(ended["num_blocks"])
    assert measured is not None
    assert blocks.rows == (
        ("requests", "40"),
        ("median", f"{measured.median} blocks"),
        ("90 % up to", f"{measured.p90} blocks"),
        ("99 % up to", f"{measured.p99} blocks"),
        ("the most", f"{measured.maximum} blocks"),
    )
    assert blocks.sentences[0].endswith(
        "(in the last step of those that finished or were cut; a shared block counts for each who holds it)."
    )


def test_quantiles_are_marked_in_the_picture(tmp_path: Path) -> None:
    for chart in distributions(run(tmp_path)):
        assert chart.figure is not None
        marks = [one for one in chart.figure.renderers if isinstance(one.glyph, Segment)]
        places = [one.data_source.data["x0"][0] for one in marks]
        assert len(places) == 4
        assert places == sorted(places)
        assert 0 <= places[0] <= places[3] <= len(counts(chart))
        names = [item.label.value for item in chart.figure.legend[0].items]
        assert [name.rsplit(" ", 1)[0].split(" ")[0] for name in names] == ["median", "90", "99", "the"]


def test_requests_of_which_nothing_is_known_are_said_to_be_missing(tmp_path: Path) -> None:
    overrides = ("memory.allocator='predicted'", "memory.prediction_error=0.5", "memory.num_blocks=133")
    results = run(tmp_path, *overrides)
    slack, _blocks, _waits = distributions(results)
    missing = held_at_end(results).num_not_known
    assert missing
    assert sum(counts(slack)) == 40 - missing
    assert f"but for {missing} of which it is not known: they outgrew" in slack.sentences[0]


def test_shares_of_prompts_found_with_none_apart(tmp_path: Path) -> None:
    results = run(tmp_path, "workload.prefixes={count=2,tokens=12}", "memory.num_blocks=200")
    chart = prefix_hits_of_each(results)
    each = results.requests.select("hit_tokens", "prompt_tokens").rows()
    nothing = sum(hit == 0 for hit, _prompt in each)
    assert counts(chart)[0] == nothing > 0
    bins = Counter(20 * hit // prompt for hit, prompt in each if hit)
    assert counts(chart)[1:] == [bins[low] for low in range(20)]
    assert chart.rows[:2] == (("requests", "40"), ("found nothing", f"{nothing}"))


def test_nothing_to_count_is_said(tmp_path: Path) -> None:
    rejecting = run(tmp_path, "engine.max_model_len=2", "workload.prompt={kind='fixed',value=5}")
    charts = [*distributions(rejecting), prefix_hits_of_each(rejecting)]
    assert [chart.figure for chart in charts] == [None] * 4
    assert charts[2].sentences == ("No request to count: from arrival to first admission.",)
    assert charts[3].sentences == ("No request was admitted.",)
    assert prefix_hits_bars(NOTHING).figure is None


def test_all_charts_of_a_run_are_drawn_by_a_browser(browser: Browser, tmp_path: Path) -> None:
    results = run(tmp_path, "workload.prefixes={count=2,tokens=12}", "memory.num_blocks=24")
    charts = [
        slack_by_cause(results),
        *distributions(results),
        prefix_hits_bars(results),
        prefix_hits_of_each(results),
        worst_case_beside_observed(results),
    ]
    figures = [chart.figure for chart in charts if chart.figure is not None]
    assert len(figures) == 7
    script, divs = components(figures)
    html = f"<!doctype html><meta charset=utf-8>{INLINE.render()}{script}{''.join(divs)}"
    path = tmp_path / "charts.html"
    path.write_text(html, encoding="utf-8")
    with opened(browser, offline=True, width=390) as tab:
        tab.page.goto(path.as_uri())
        tab.page.wait_for_function("Bokeh.documents.length === 1 && Bokeh.documents[0].is_idle")
        drawn = tab.page.get_by_role("img")
        assert drawn.count() == 7
        assert charts[0].sentences[0] in [one.get_attribute("aria-label") for one in drawn.all()]
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 390
