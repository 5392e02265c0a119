"""Series on one clock, and errors that can be worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import MeasuredError
from kvsim.study.measured.clocks import BEST_FIT, FIRST_RUNNING, align, best_fit
from kvsim.study.measured.compare import compare_measured
from kvsim.study.measured.series import Series, counter_error, level_error, longest_hold_ns
from tests.study.measurements import course, measured_of, run_of, scraped, series, tight_courses, tight_run

S = 10**9


def test_values_are_put_in_order_the_last_of_a_moment_counts_and_what_is_no_number_goes() -> None:
    made = Series.of([30, 10, 20, 10, 40], [3.0, 1.0, float("nan"), 9.0, float("inf")])
    assert (made.times.tolist(), made.values.tolist()) == ([10, 30], [9.0, 3.0])
    assert Series.of([], []).times.tolist() == []


def test_a_counter_that_begins_anew_goes_on_from_what_it_had() -> None:
    counter = series((0, 5), (10, 9), (20, 2), (30, 4))
    assert counter.resets.tolist() == [20]
    assert counter.grown().values.tolist() == [0, 4, 6, 8]


def test_a_level_holds_until_the_next_row() -> None:
    held = course((10, 3), (20, 7))
    assert held.at(np.array([9, 10, 19, 20, 99])).tolist() == [0, 3, 3, 7, 7]


def test_clocks_are_set_by_the_first_moment_at_which_anything_runs() -> None:
    run = run_of(course((0, 0), (2 * S, 1), (9 * S, 0)))
    found = align({"running": series((100 * S, 0), (105 * S, 1), (110 * S, 0))}, run, "first")
    assert (found.shift_ns, found.how, found.doubt_ns) == (-103 * S, FIRST_RUNNING, 5 * S)
    assert (found.start_ns, found.end_ns, found.run_not_covered_ns) == (0, 7 * S, 2 * S)
    assert (found.num_moments, found.num_before, found.num_after) == (2, 1, 0)


def test_what_ran_in_the_first_scrape_leaves_no_doubt_that_is_known() -> None:
    run = run_of(course((0, 0), (2 * S, 1), (9 * S, 0)))
    found = align({"running": series((100 * S, 4), (101 * S, 1))}, run, "first")
    assert (found.shift_ns, found.doubt_ns) == (-98 * S, None)


@pytest.mark.parametrize(
    ("measured", "shift_s"),
    [
        ({"kv_usage": series((50 * S, 0), (51 * S, 0.5))}, 1 - 51),
        ({"hit_tokens": series((50 * S, 70), (60 * S, 70), (70 * S, 71))}, 1 - 70),
        ({"running": series((50 * S, 0), (60 * S, 0))}, -50),
    ],
)
def test_without_running_requests_other_series_say_when_it_began(measured: dict[str, Series], shift_s: int) -> None:
    run = run_of(course((0, 0), (1 * S, 1), (100 * S, 0)))
    assert align(measured, run, "first").shift_ns == shift_s * S


def test_an_offset_says_where_the_first_scrape_lies() -> None:
    run = run_of(course((0, 1), (30 * S, 0)))
    found = align({"running": series((100 * S, 0), (110 * S, 1))}, run, -4 * S)
    assert (found.shift_ns, found.how) == (-104 * S, "the first scrape lies -4 s into the run, as was said")


def test_scrapes_of_another_time_are_refused() -> None:
    run = run_of(course((0, 1), (30 * S, 0)))
    with pytest.raises(MeasuredError) as refused:
        align({"running": series((100 * S, 0), (110 * S, 1))}, run, 40 * S)
    assert str(refused.value) == (
        "no scrape lies in the run: it lasts from 0 s to 30.000 s, the scrapes from 40.000 s to 50.000 s of it; "
        "--offset says where the first of them lies"
    )


def test_means_are_weighted_by_how_long_a_scrape_holds() -> None:
    error = level_error(series((0, 2), (10, 4), (40, 0)), course((0, 1), (5, 8), (40, 1)), 40)
    assert (error.measured_mean, error.simulated_mean) == ((20 + 120) / 40, (10 + 240) / 40)
    assert (error.mean_error, error.mean_absolute_error) == ((-10 + 120) / 40, (10 + 120) / 40)
    assert (error.largest_error, error.largest_ns, error.measured_then, error.simulated_then) == (4, 10, 4, 8)
    assert (error.measured_peak, error.simulated_peak) == (4, 8)


def test_one_moment_alone_has_the_whole_weight() -> None:
    assert level_error(series((7, 2)), course((0, 5)), 7).mean_error == 3


def test_counters_are_compared_by_what_they_grew() -> None:
    run = run_of(course((0, 1), (30 * S, 0)))
    counted = series((0, 100), (10 * S, 103), (20 * S, 1), (50 * S, 2))
    found = counter_error(counted, course((0, 1), (5 * S, 2), (25 * S, 9)), align({"running": counted}, run, 0).common)
    assert (found.from_ns, found.to_ns, found.measured, found.simulated, found.difference) == (0, 20 * S, 4, 1, -3)
    assert (found.measured_in_all, found.simulated_in_all, found.difference_in_all) == (5, 9, 4)


def test_a_counter_seen_once_counts_from_the_start_of_the_server() -> None:
    found = counter_error(series((0, 7)), course((0, 1), (5, 9)), None)
    assert (found.measured, found.difference, found.measured_in_all, found.difference_in_all) == (None, None, 7, 2)


moments = st.lists(st.integers(0, tight_courses().duration_ns), min_size=2, max_size=40, unique=True).map(sorted)


@given(moments, st.integers(-(10**18), 10**18))
def test_a_run_scraped_is_itself(at: list[int], began_ns: int) -> None:
    run = tight_courses()
    found = compare_measured(tight_run(), measured_of(scraped(run, at, began_ns)), offset=at[0])
    assert set(found.levels) == {"kv_usage", "running", "waiting", "recent_hit_share"}
    assert {each.num_moments for each in found.levels.values()} == {len(at)}
    assert all(each.mean_absolute_error == each.largest_error == 0 for each in found.levels.values())
    assert len(found.counters) == 6
    assert {each.difference for name, each in found.counters.items() if name != "generation_tokens"} == {0}
    assert found.counters["generation_tokens"].difference in (0, None)
    assert found.hit_share is not None
    assert found.hit_share.measured == found.hit_share.simulated


@given(moments, st.data(), st.integers(1, 9))
def test_what_is_added_to_a_scrape_is_the_error(at: list[int], data: st.DataObject, more: int) -> None:
    """In requests, so that sums are exact: one scrape has `more`, and the counter ends by as much too high."""
    run = tight_courses()
    where = data.draw(st.integers(0, len(at) - 1))
    truth = scraped(run, at)
    wrong = truth["waiting"].values.copy()
    wrong[where] += more
    late = truth["preemptions"].values.copy()
    late[-1] += more
    given_series = truth | {
        "waiting": Series(truth["waiting"].times, wrong),
        "preemptions": Series(truth["preemptions"].times, late),
    }
    found = compare_measured(tight_run(), measured_of(given_series), offset=at[0])
    error = found.levels["waiting"]
    assert (error.largest_error, error.largest_ns) == (-more, at[where])
    longest = longest_hold_ns(truth["waiting"])
    held = np.array([*np.diff(at), 0]) if len(at) > 1 else np.array([1])
    held = held if longest is None else np.minimum(held, longest)
    assert error.mean_absolute_error == pytest.approx(more * held[where] / held.sum(), rel=1e-12)
    assert error.mean_error == -error.mean_absolute_error
    assert found.levels["running"].largest_error == 0
    assert found.counters["preemptions"].difference == -more


def test_the_best_offset_finds_a_scrape_back() -> None:
    """The scrape came 0.3 s into its gap; the offset that is found is one of those at which nothing differs."""
    run = tight_courses()
    assert run.began_ns is not None
    gap = S // 2
    at = list(range(run.began_ns + 3 * gap // 5 - gap, run.duration_ns, gap))
    at = [max(0, each) for each in at]
    measured = scraped(run, at, 77 * S)
    plain = align(measured, run, "first")
    fit = best_fit(measured, run)
    assert fit is not None
    tried = align(measured, run, "best")
    assert (tried.how, tried.fit) == (BEST_FIT, fit)
    covered = measured["kv_usage"].shifted(tried.shift_ns).within(tried.start_ns, tried.end_ns)
    assert covered is not None
    assert level_error(covered, run.courses["kv_usage"], tried.end_ns).mean_absolute_error < 0.02
    assert abs(tried.shift_ns + 77 * S) < 40_000_000 < abs(plain.shift_ns + 77 * S)
    assert fit.latest_ns - fit.earliest_ns == at[1] - at[0]
    assert fit.error < fit.worst_end
    assert compare_measured(tight_run(), measured_of(measured)).alignment == tried


def test_a_server_that_never_ran_has_no_best_fit() -> None:
    run = run_of(course((0, 1), (30 * S, 0)))
    assert best_fit({"running": series((0, 0), (S, 0))}, run) is None
    assert best_fit({"hit_tokens": series((0, 0), (S, 9))}, run) is None


def test_an_earlier_warm_up_is_passed_over_where_the_run_fits_better_to_what_came_later() -> None:
    run = tight_courses()
    truth = scraped(run, range(0, run.duration_ns + S, S // 4), 100 * S)
    idle = [at * S for at in range(60, 99)]
    early = {
        name: Series(np.array(idle), np.where(np.array(idle) == 70 * S, 0.3, 0.0)) for name in ("kv_usage", "running")
    }
    measured = {
        name: Series(np.concatenate([each.times, truth[name].times]), np.concatenate([each.values, truth[name].values]))
        for name, each in early.items()
    }
    found = compare_measured(tight_run(), measured_of(measured))
    assert found.alignment is not None
    assert found.alignment.fit is not None
    assert found.alignment.fit.passed_over_ns == 30 * S + S // 4
    assert abs(found.alignment.shift_ns + 100 * S) < S // 4
    assert "What the server ran in the first 30.25 s was taken for a warm-up" in "".join(found.notes)
    old = compare_measured(tight_run(), measured_of(measured), offset="first")
    assert "The server idled again after what it ran first." in "".join(old.notes)
    assert old.levels["kv_usage"].mean_absolute_error > 4 * found.levels["kv_usage"].mean_absolute_error


def test_a_value_does_not_hold_over_scrapes_that_are_missing() -> None:
    at = [0, 10, 20, 30, 90]
    gappy = series(*((moment, 1.0) for moment in at))
    assert longest_hold_ns(gappy) == 30
    assert longest_hold_ns(series((0, 1), (100, 1), (900, 1))) is None, "too few to say what is usual"
    error = level_error(gappy, course((0, 1), (30, 5)), 100, 30)
    assert (error.left_out_ns, error.simulated_mean) == (30, (30 * 1 + 40 * 5) / 70)
    many = {"running": Series(np.array([0, 1, 2, 3, 10]) * S, np.array([1.0, 2, 2, 2, 1]))}
    found = compare_measured(tight_run(), measured_of(many), offset=-S)
    assert "in which scrapes are missing. A scrape holds for 3 times the usual interval at most." in "".join(
        found.notes
    )
