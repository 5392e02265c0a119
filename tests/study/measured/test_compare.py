"""A run of kvsim beside what vLLM 0.32's own loggers said of the same load, and what is said of a comparison."""

import pytest

from kvsim.study.measured.compare import MeasuredComparison, compare_measured
from kvsim.study.measured.read import read_measured
from tests.study.measurements import (
    FIRST_ARRIVAL_NS,
    GOLDEN,
    like_vllm,
    measured_of,
    scraped,
    series,
    tight_courses,
    tight_run,
)

S = 10**9
STEP_NS = 20_000_000


@pytest.fixture(scope="module")
def against_vllm() -> MeasuredComparison:
    """On the clock that both had."""
    return compare_measured(like_vllm(), read_measured([GOLDEN / "scrapes.prom.gz"]), offset=-FIRST_ARRIVAL_NS)


def test_counters_are_those_of_vllm(against_vllm: MeasuredComparison) -> None:
    in_all = {name: (each.measured_in_all, each.simulated_in_all) for name, each in against_vllm.counters.items()}
    assert in_all == {
        "preemptions": (9, 9),
        "finished": (120, 120),
        "prompt_tokens": (7209, 7209),
        "generation_tokens": (6024, 6024),
        "queried_tokens": (7209, 7209),
        "hit_tokens": (2600, 2600),
    }
    assert {each.difference for name, each in against_vllm.counters.items() if name != "generation_tokens"} == {0}
    assert against_vllm.hit_share is not None
    assert against_vllm.hit_share.measured == against_vllm.hit_share.simulated == 2552 / 7024


def test_levels_are_those_of_vllm_a_step_later(against_vllm: MeasuredComparison) -> None:
    """A step of 20 ms lies between what is left when one has ended and what the next holds."""
    late = compare_measured(like_vllm(), against_vllm.measured, offset=-FIRST_ARRIVAL_NS - STEP_NS)
    for name, most in (("kv_usage", 0.01182), ("running", 0.1891)):
        assert against_vllm.levels[name].mean_absolute_error == pytest.approx(most, rel=0.01)
        assert against_vllm.levels[name].mean_error == pytest.approx(most, rel=0.01), "the run never has less"
        assert late.levels[name].mean_error > 0, "the step before holds what ended with it"


def test_the_best_offset_is_within_two_steps_of_the_true_one(against_vllm: MeasuredComparison) -> None:
    best = compare_measured(like_vllm(), against_vllm.measured, offset="best").alignment
    true = against_vllm.alignment
    assert best is not None
    assert true is not None
    assert abs(best.shift_ns - true.shift_ns) <= 40_000_000
    assert compare_measured(like_vllm(), against_vllm.measured).alignment == best
    assert compare_measured(like_vllm(), against_vllm.measured, offset="first").alignment != true


def test_the_hit_rate_of_the_log_is_that_of_the_run() -> None:
    """A line is written each second of the server's clock, whose beginning is 142 ms before the run's, of what the last
    step that has ended admitted, to 0.1 %."""
    measured = read_measured([GOLDEN / "server.log"])
    found = compare_measured(like_vllm(), measured, offset=S - FIRST_ARRIVAL_NS - STEP_NS)
    assert abs(found.levels["recent_hit_share"].largest_error) < 0.0005 + 1e-9
    assert found.levels["recent_hit_share"].num_moments == 21


def notes(found: MeasuredComparison) -> str:
    return "\n".join(found.notes)


def test_what_is_left_out_is_said() -> None:
    run = tight_courses()
    assert run.duration_ns % S
    truth = scraped(run, range(S, run.duration_ns + 3 * S, S))
    found = compare_measured(tight_run(), measured_of(truth), offset=S)
    assert "Left out: scrapes that lie outside of the run, 3 after it." in notes(found)
    assert "Left out: 1 s of the run (" in notes(found)
    assert found.alignment is not None
    assert found.alignment.end_ns == run.duration_ns


def test_a_restart_is_said() -> None:
    run = tight_courses()
    truth = scraped(run, [0, S, 2 * S]) | {"preemptions": series((0, 4), (S, 1), (2 * S, 2))}
    found = compare_measured(tight_run(), measured_of(truth), offset=0)
    assert found.counters["preemptions"].measured == 2
    assert "preemptions began anew 1 times, as when a server restarts" in notes(found)


def test_one_scrape_alone_is_compared_in_all() -> None:
    run = tight_courses()
    found = compare_measured(tight_run(), measured_of(scraped(run, [run.duration_ns], 5 * S)))
    assert (found.alignment, dict(found.levels)) == (None, {})
    assert {each.difference_in_all for each in found.counters.values()} == {0}
    assert "One scrape alone" in notes(found)
    assert "preemptions" in compare_measured(tight_run(), measured_of(scraped(run, [S])), offset=S).counters


def test_a_run_without_prefix_sharing_has_no_hits_to_compare() -> None:
    from tests.study.measurements import TIGHT

    plain = tight_run(TIGHT.replace("block_size = 4", "block_size = 4\nprefix_sharing = false"))
    found = compare_measured(plain, measured_of(scraped(tight_courses(), [0, S, 2 * S])), offset=0)
    assert found.hit_share is None
    assert {"hit_tokens", "queried_tokens", "recent_hit_share"}.isdisjoint({*found.counters, *found.levels})
