"""Bars show the figures of a summary, in the picture and in words."""

from pathlib import Path

from attrs import evolve
from bokeh.models import HBar

from kvsim.engine.results import Results
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.view.bars import prefix_hits_bars, slack_by_cause, worst_case_beside_observed
from kvsim.view.chart import Chart
from tests.study.makers import write_scenario
from tests.study.test_plots import NOTHING


def run(folder: Path, *overrides: str) -> Results:
    return simulate(load_scenario(write_scenario(folder), overrides))


def lengths(chart: Chart) -> list[list[float]]:
    """Where the bars of each renderer end."""
    assert chart.figure is not None
    bars = [one for one in chart.figure.renderers if isinstance(one.glyph, HBar)]
    return [
        [float(value) for value in one.data_source.data["right"]] for one in bars if "right" in one.data_source.data
    ]


def test_slack_of_blocks_is_their_tail(tmp_path: Path) -> None:
    results = run(tmp_path)
    metrics = results.metrics
    chart = slack_by_cause(results)
    assert lengths(chart) == [[metrics["tail_peak_bytes"]], [metrics["tail_mean_bytes"]]]
    ((cause, _meaning, share, mean, most, _at_peak),) = chart.rows
    assert (cause, share) == ("tail", f"{metrics['slack_share']:.2%}")
    assert mean == f"{round(metrics['tail_mean_bytes'] or 0)} B"
    assert most == f"{metrics['tail_peak_bytes']} B"
    assert chart.sentences == (
        f"{metrics['slack_share']:.2%} of what was allocated was slack, weighted by time; most of it was tail: slots of "
        "partly filled blocks.",
    )


def test_reservations_are_split_into_what_will_be_used_and_what_never_is(tmp_path: Path) -> None:
    results = run(tmp_path, "memory.allocator='max'", "memory.num_blocks=200")
    chart = slack_by_cause(results)
    assert [row[0] for row in chart.rows] == ["reserved", "unused"]
    at_peak = results.totals.at_peak
    assert [row[5] for row in chart.rows] == [
        f"{at_peak[name] / at_peak['allocated_bytes']:.2%}" for name in ("reserved_bytes", "unused_bytes")
    ]
    assert "most of it was unused: reserved and never used" in chart.sentences[0]


def test_without_slack_there_is_nothing_to_draw(tmp_path: Path) -> None:
    assert slack_by_cause(run(tmp_path, "memory.block_size=1")).figure is None
    idle = run(tmp_path, "engine.max_model_len=2", "workload.prompt={kind='fixed',value=5}")
    assert slack_by_cause(idle).sentences == ("Nothing that was allocated was slack.",)
    assert len(worst_case_beside_observed(idle).sentences) == 1, "nothing was ever allocated"


def test_the_worst_case_beside_what_was_observed(tmp_path: Path) -> None:
    results = run(tmp_path, "memory.num_blocks=1000")
    metrics = results.metrics
    chart = worst_case_beside_observed(results)
    values = {name: text for name, text, _share in chart.rows}
    assert list(values) == [
        "worst case",
        "pool",
        "allocated at most",
        "allocated on average",
        "live at most",
        "logical at most",
    ]
    assert f"({metrics['worst_case_bytes']:,} B)" in values["worst case"]
    assert f"({metrics['allocated_peak_bytes']:,} B)" in values["allocated at most"]
    assert results.worst_case_bytes < results.shape.pool_bytes
    assert f"{results.worst_case_bytes / results.shape.pool_bytes:.2%} of the pool" in chart.sentences[0]
    assert lengths(chart)[2] == [results.worst_case_bytes / 1024]
    assert len(chart.sentences) == 2


def test_a_worst_case_that_dwarfs_all_else_is_cut_and_the_factor_said(tmp_path: Path) -> None:
    results = run(tmp_path)
    totals = results.totals
    results = evolve(results, totals=evolve(totals, worst_case_bytes=134 * results.shape.pool_bytes))
    chart = worst_case_beside_observed(results)
    assert chart.sentences[0].endswith(": 134.00 x the pool.")
    assert chart.sentences[2] == "Its bar is cut (hatched), so that the others can be seen."
    pool, observed, (worst,) = lengths(chart)
    assert worst < 1.2 * max(*pool, *observed), "the others can be seen"
    assert chart.rows[0][2] == "13400.00%"


def test_hits_and_misses_at_admission_and_after_preemptions(tmp_path: Path) -> None:
    results = run(tmp_path, "workload.prefixes={count=1,tokens=12}", "memory.num_blocks=24")
    metrics = results.metrics
    chart = prefix_hits_bars(results)
    first, after = chart.rows
    assert first == (
        "at first admission",
        f"{metrics['hit_tokens']:,}",
        f"{results.totals.admitted_prompt_tokens - (metrics['hit_tokens'] or 0):,}",
        f"{metrics['hit_share']:.2%}",
    )
    assert after[:3] == (
        "after preemptions",
        f"{metrics['resumed_hit_tokens']:,}",
        f"{metrics['recomputed_tokens']:,}",
    )
    assert lengths(chart)[0][0] == metrics["hit_share"]
    assert prefix_hits_bars(run(tmp_path)).rows[0][1] == "0"
    assert prefix_hits_bars(NOTHING).figure is None
