"""What changed between two runs, in exact parts, in order, and in words."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvsim.engine.metrics import METRICS
from kvsim.engine.results import Results
from kvsim.study.diff import Differences, differences
from kvsim.study.diff_effects import ORDER
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import write_scenario
from tests.study.outcomes import DESCRIPTION, REQUESTS, TIMELINE, make_quiet_results, make_results, refusals, request

MORE = DESCRIPTION | {"scenario": {**DESCRIPTION["scenario"], "memory": {"budget": 4400, "block_size": 8}}}
QUIET = make_quiet_results()


def by_name(found: Differences) -> dict[str, Any]:
    return {effect.name: effect for effect in found.effects}


def test_equal_runs_say_so() -> None:
    found = differences(make_results(), make_results())
    assert found.are_equal
    assert found.answer == "The two runs are equal: the same was put in, and all figures and all rows are the same."
    assert (found.inputs, found.effects, found.figures, found.other_rows) == ((), (), (), ())
    assert len(found.same_effects) == 15, "all but outputs that share"
    assert found.traffic_sentence == "Requests came at the same times and had the same lengths in both runs."
    assert found.to_json()["equal"] is True


def test_what_makes_no_difference_is_said() -> None:
    found = differences(make_results(), make_results(description=MORE))
    assert not found.are_equal
    assert found.have_same_outcome
    assert found.answer == (
        "What was put in differs: memory.block_size 4 -> 8. It makes no difference: all figures and all rows are the same."
    )


def test_rows_may_differ_where_no_figure_does() -> None:
    swapped = tuple(reversed(REQUESTS))
    found = differences(make_results(), make_results(requests=swapped))
    assert (found.effects, found.figures, found.other_rows) == ((), (), ("requests",))
    assert found.answer == "The same was put into both runs. All figures are the same; rows of requests differ."


def test_a_run_that_stalls_is_not_equal_to_one_that_does_not() -> None:
    found = differences(make_results(), make_results(stalled="request 1 blocks the queue"))
    assert not found.are_equal
    assert found.stalled == (None, "request 1 blocks the queue")
    assert found.answer == (
        "The same was put into both runs. In the second run the engine stopped for ever before all requests had ended. "
        "All figures are the same."
    )
    both = differences(make_results(stalled="request 1"), make_results(stalled="request 2"))
    assert "In both runs the engine stopped for ever" in both.answer


def test_memory_is_told_by_parts_that_add_up() -> None:
    timeline = TIMELINE | {
        "live_bytes": [0, 300, 450, 0],
        "slack_bytes": [0, 100, 350, 0],
        "tail_bytes": [0, 30, 50, 0],
        "reserved_bytes": [0, 40, 300, 0],
        "logical_bytes": [0, 300, 750, 0],
    }
    found = by_name(differences(make_results(), make_results(timeline=timeline)))
    mean = found["allocated_mean_bytes"]
    assert (mean.before, mean.after, mean.change, mean.relative_change) == (400, 400, 0, 0)
    assert [(part.name, part.change) for part in mean.parts] == [
        ("reserved", 60),
        ("live", -50),
        ("tail", -10),
        ("unused", 0),
        ("padding", 0),
    ]
    assert [part.name for part in mean.changed_parts] == ["reserved", "live", "tail"]
    assert mean.shares == (Fraction(400, 4000), Fraction(400, 4000)), "of the pool"
    assert mean.sentence == (
        "Allocated memory on average: reserved +60 B, live -50 B, tail -10 B; 400 B in all, as before."
    )
    peak = found["allocated_peak_bytes"]
    assert [(part.name, part.change) for part in peak.changed_parts] == [
        ("reserved", 300),
        ("live", -250),
        ("tail", -50),
    ]
    live = found["live_mean_bytes"]
    assert live.sentence == "Live memory on average fell by 50 B (-15.6%), from 320 B to 270 B: logical -50 B."


def test_what_became_of_requests_is_told_before_what_held_them_back() -> None:
    """From nothing: 1 of 2 requests, 64 of 200 tokens; then 20 ns become 50; then steps and time held back."""
    found = differences(QUIET, make_results())
    assert [(effect.name, effect.of_the_larger, effect.of_all) for effect in found.effects] == [
        ("refused", 1, Fraction(1, 2)),
        ("hit_tokens", 1, Fraction(64, 200)),
        ("queued_ns", Fraction(30, 50), Fraction(30, 100)),
        ("held_back_steps", 1, Fraction(3, 20)),
        ("blocked_ns", 1, Fraction(7, 50)),
    ]
    assert found.answer == (
        "The same was put into both runs. Requests refused by memory rose from 0 to 1 (0.00% -> 50.00% of all requests); "
        "prompt tokens found cached rose from 0 to 64 (0.00% -> 32.00% of prompt tokens)."
    )
    assert found.sentences[2:] == tuple(effect.sentence for effect in found.effects)


def test_a_total_whose_parts_cancel_is_not_the_headline() -> None:
    """As where blocks are larger: less is written and more is tail at one peak or the other."""
    timeline = TIMELINE | {
        "live_bytes": [0, 300, 500, 0],
        "slack_bytes": [0, 100, 300, 0],
        "tail_bytes": [0, 30, 300, 0],
        "logical_bytes": [0, 300, 800, 0],
    }
    found = differences(make_results(), make_results(timeline=timeline))
    assert [effect.name for effect in found.effects] == [
        *("slack_mean_bytes", "live_mean_bytes"),
        *("allocated_mean_bytes", "pool_shares"),
        "allocated_peak_bytes",
    ]
    assert found.answer == (
        "The same was put into both runs. Slack on average rose by 50.0%, from 80 B to 120 B (20.00% -> 30.00% of "
        "allocated memory)."
    )


def test_where_little_changed_the_first_of_it_is_said() -> None:
    timeline = TIMELINE | {"cached_bytes": [0, 0, 401, 800], "blank_bytes": [4000, 3600, 2799, 3200]}
    found = differences(make_results(), make_results(timeline=timeline))
    assert [effect.name for effect in found.effects] == ["pool_shares"]
    assert found.answer.startswith(
        "The same was put into both runs. Little changed: what the pool consists of: cached +0.01"
    )


def test_a_request_that_is_lost_is_told_first() -> None:
    gone = request(outcome="timed_out", admitted_ns=None, ended_ns=10)
    found = differences(QUIET, make_results(requests=(request(), gone), pressure=()))
    assert found.effects[0].sentence == (
        "Requests lost rose by 1, from 0 to 1 (0.00% -> 50.00% of all requests): timed out +1."
    )
    arrived = by_name(found)["requests"]
    assert (arrived.change, arrived.hardly_changed, arrived.out_of) == (0, True, "all requests")
    assert arrived.sentence == "Requests that arrived: finished -1, timed out +1; 2 in all, as before."


def test_figures_stand_with_the_largest_relative_change_first() -> None:
    found = differences(QUIET, make_results())
    names = [figure.name for figure in found.figures]
    assert names == [
        # What appears is all new.
        *("refused", "refusals", "refusals_for_blocks", "blocked_ns", "hit_tokens", "hit_share"),
        # Waits of 10 and 10 ns become 10 and 40.
        *("waited_p99_ns", "waited_max_ns", "waited_p95_ns", "waited_mean_ns", "waited_p50_ns", "waiting_mean"),
    ]
    changes = {
        figure.name: (figure.before, figure.after, figure.change, figure.relative_change) for figure in found.figures
    }
    assert changes["waited_mean_ns"] == (10, 25, 15, Fraction(3, 2))
    assert changes["blocked_ns"] == (0, 7, 7, None)


def test_figures_of_peaks_stand_last() -> None:
    timeline = TIMELINE | {"cached_bytes": [0, 0, 500, 820], "blank_bytes": [4000, 3600, 2700, 3180]}
    figures = differences(make_results(), make_results(timeline=timeline)).figures
    assert [figure.name for figure in figures] == ["cached_mean_bytes", "cached_peak_bytes"]
    more = TIMELINE | {"waiting": [9, 1, 0, 0]}
    quiet = (request(), request(admitted_ns=40))
    figures = differences(make_results(requests=quiet, pressure=()), make_results(timeline=more)).figures
    at = [figure.name for figure in figures].index("waiting_peak")
    assert at == len(figures) - 1
    assert figures[at].of_the_larger > figures[at - 1].of_the_larger


def test_a_figure_that_only_one_run_has() -> None:
    never = (request(outcome="rejected", reason="never_fits", admitted_ns=None, ended_ns=0),) * 2
    figures = {figure.name: figure for figure in differences(QUIET, make_results(requests=never, pressure=())).figures}
    assert (figures["hit_share"].before, figures["hit_share"].after) == (0.0, None)
    assert (figures["hit_share"].change, figures["hit_share"].relative_change) == (None, None)


def test_what_does_not_depend_on_step_times_is_marked_as_in_the_summary(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    one, other = simulate(load_scenario(path)), simulate(load_scenario(path, "workload.num_requests=30"))
    found = differences(one, other)
    marked = {figure.name for figure in found.figures if figure.independent_of_step_times}
    assert marked == {"requests", "prompt_mean_tokens", "output_mean_tokens"}
    assert marked <= set(one.summary["independent_of_step_times"])
    assert [effect.name for effect in found.effects if effect.independent_of_step_times] == ["requests"]


def test_whether_the_same_was_asked_is_told(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)

    def asked(*overrides: str) -> Results:
        return simulate(load_scenario(path, overrides))

    faster, longer = asked("workload.rate=101"), asked("workload.output.max=21")
    assert differences(asked(), faster).same_traffic == {"arrivals": False, "lengths": True}
    found = differences(asked(), longer)
    assert found.same_traffic == {"arrivals": True, "lengths": False}
    assert found.traffic_sentence == "The lengths of the requests differ, so that the runs were not asked the same."
    assert differences(asked(), asked("memory.block_size=2")).same_traffic == {"arrivals": True, "lengths": True}


def test_what_was_put_in_is_said_in_short() -> None:
    described = DESCRIPTION | {
        "overrides": ["memory.other=1"],
        "scenario": {"question": "What?", "memory": {f"key{index}": index for index in range(9)}},
    }
    said = differences(make_results(), make_results(description=described)).sentences[0]
    assert said == (
        "What was put in differs: memory.key0 not set -> 0, memory.key1 not set -> 1, memory.key2 not set -> 2, "
        "memory.key3 not set -> 3, memory.key4 not set -> 4, memory.key5 not set -> 5, and 6 keys more."
    )
    other = DESCRIPTION | {"geometry": {"name": "tiny", "bytes_per_token": 200}}
    said = differences(make_results(), make_results(description=other)).sentences[0]
    assert said == (
        "The same was put into both runs, but other files were behind it: geometry.bytes_per_token 100 B -> 200 B."
    )


def test_json_has_whole_numbers_whole_and_all_parts(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    one, other = simulate(load_scenario(path)), simulate(load_scenario(path, "memory.block_size=2"))
    written = json.loads(json.dumps(differences(one, other).to_json(), allow_nan=False))
    effects = {effect["name"]: effect for effect in written["effects"]}
    peak = effects["allocated_peak_bytes"]
    assert (peak["before"], peak["after"]) == tuple(run.metrics["allocated_peak_bytes"] for run in (one, other))
    assert type(peak["change"]) is int
    assert sum(part["change"] for part in peak["parts"]) == peak["change"]
    mean = effects["allocated_mean_bytes"]
    assert mean["before"] == one.metrics["allocated_mean_bytes"]
    assert mean["sentence"] in written["sentences"]
    changed = [metric.name for metric in METRICS if one.metrics[metric.name] != other.metrics[metric.name]]
    assert sorted(figure["name"] for figure in written["figures"]) == sorted(changed)
    assert written["inputs"][0] == {
        "name": "memory.block_size",
        "unit": None,
        "before": 4,
        "after": 2,
        "follows": False,
    }
    assert written["order"] == ORDER
    assert [effect["hardly_changed"] for effect in written["effects"] if effect["kind"] != "peak"] == sorted(
        effect["hardly_changed"] for effect in written["effects"] if effect["kind"] != "peak"
    )
    assert written["claim"].startswith("A sizing model")


def test_notes_that_only_one_run_has() -> None:
    found = differences(make_results(notes=("a", "b")), make_results(notes=("b", "c")))
    assert found.notes == (("a",), ("c",))
    assert found.are_equal, "notes follow from what is compared already"


def test_refusals_change_causes_step_by_step() -> None:
    other = make_results(pressure=(refusals("blocks", 1), refusals("gate", 2)))
    effect = by_name(differences(make_results(), other))["held_back_steps"]
    assert effect.sentence == ("Steps holding back the queue: blocks -2, gate +2; 3 in all, as before.")
