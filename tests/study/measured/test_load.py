"""Whether both sides had the same load, and what of what they counted may be compared."""

import numpy as np

from kvsim.engine.results import Results
from kvsim.study.measured.answer import answer
from kvsim.study.measured.compare import MeasuredComparison, compare_measured
from kvsim.study.measured.series import Series
from tests.study.measurements import TIGHT, measured_of, scraped, tight_courses, tight_run

S = 10**9


def against(results: Results, end_ns: int, **factors: float) -> MeasuredComparison:
    """The tiny run beside a server that did the same, whose counters are multiplied."""
    run = tight_courses()
    truth = scraped(run, [0, *range(S // 2, end_ns, S)])
    some = {name: Series(truth[name].times, truth[name].values * factor) for name, factor in factors.items()}
    return compare_measured(results, measured_of(truth | some), offset=0)


def test_the_whole_load_is_counted_in_all_and_edges_are_said() -> None:
    run = tight_courses()
    early = scraped(run, range(0, run.duration_ns + 2 * S, S // 2))
    found = compare_measured(tight_run(), measured_of(early), offset=S // 2)
    assert found.counted == "in_all"
    assert "an effect of the edges, where a request falls on one side or the other" in "".join(found.notes)
    assert "All 6 counters are equal." in answer(found)
    assert (found.warnings, found.load_differs) == ((), False)


def test_a_part_of_the_load_is_counted_between_scrapes() -> None:
    found = against(tight_run(), tight_courses().duration_ns // 2)
    assert found.counted == "between"
    assert "In all the sides count different spans of time" in "".join(found.notes)
    assert (found.warnings, found.load_differs) == ((), False)


def test_another_load_is_said() -> None:
    more = tight_run(TIGHT.replace("num_requests = 60", "num_requests = 120"))
    found = against(more, tight_courses().duration_ns + S)
    assert found.load_differs
    assert (
        "Not the same load, or scrapes of a part of it: finished requests 60 on the server, 120 in the run;"
        in found.warnings[0]
    )
    assert answer(found)[0] == "This does not say whether the simulation is right: not the same load."
    end_ns = tight_courses().duration_ns
    other = against(tight_run(), end_ns + S, prompt_tokens=2.0)
    assert other.counted == "in_all"
    assert other.warnings[0].startswith("Not the same load: prompt tokens ")
    part = against(tight_run(), end_ns // 2, prompt_tokens=2.0)
    assert part.counted == "between"
    assert part.warnings[0].startswith(
        "Not the same load in the time that both cover, or not the same pace: prompt tokens "
    )


def test_what_the_server_had_after_the_run_is_left_out() -> None:
    run = tight_courses()
    truth = scraped(run, range(0, run.duration_ns + 9 * S, S // 4))
    late = truth["finished"].times > run.duration_ns + 2 * S
    more = {
        name: Series(truth[name].times, truth[name].values * np.where(late, 3.0, 1.0))
        for name in ("finished", "prompt_tokens", "generation_tokens")
    }
    found = compare_measured(tight_run(), measured_of(truth | more), offset=0)
    assert (found.counted, found.warnings) == ("between", ())
    assert "All 5 counters are equal." in answer(found), "all but generated tokens"
    assert "In all the sides count different spans of time" in "".join(found.notes)
