"""What a comparison comes to, in words."""

from pathlib import Path
from typing import Any

from kvsim.study.compare_answer import TOLD, answer
from kvsim.study.sweep_record import FIGURES
from tests.study.comparisons import SAME, make_comparison

SECOND = 10**9


def said(folder: Path, allocators: str | None, *runs: dict[str, Any], vary: Any = None) -> str:
    return answer(make_comparison(folder, allocators, *runs, vary=vary))


def test_how_many_times_as_many_run_at_once_and_what_else_is_different(tmp_path: Path) -> None:
    paged = {"batched_mean": 30.0, "utilization": 0.98, "waited_p50_ns": 2 * SECOND, "waited_mean_ns": 3 * SECOND}
    most = {"batched_mean": 7.5, "utilization": 0.2, "waited_p50_ns": 60 * SECOND, "waited_mean_ns": 90 * SECOND}
    known = {"batched_mean": 13.0, "utilization": 0.6, "waited_mean_ns": 9 * SECOND}
    assert said(tmp_path, "max,paged:4,oracle", most | {"refused": 3}, paged | {"refused": 1}, known) == (
        "On the same traffic and bytes, paged:4 holds 4.00 times as many requests at once as max: 30.00 against 7.50. "
        "With paged:4 98.00% of what is allocated is live, the median wait is 2 s, 1 requests are refused; with max "
        "20.00% of what is allocated is live, the median wait is 1 min, 3 requests are refused."
    )


def test_more_at_once_is_no_merit_by_itself(tmp_path: Path) -> None:
    """Whoever serves sooner has fewer at a time."""
    sooner, later = {"batched_mean": 3.0, "refused": 0}, {"batched_mean": 9.0, "refused": 5}
    assert said(tmp_path, "paged:4,max", sooner, later) == (
        "On the same traffic and bytes, paged:4 troubles requests least and max most, with 3.00 and 9.00 of them at "
        "once. With paged:4 0 requests are refused; with max 5 requests are refused."
    )


def test_lost_requests_count_before_waits_and_waits_before_all_else(tmp_path: Path) -> None:
    lost = {"rejected": 1, "batched_mean": 9.0}
    slow = {"waited_mean_ns": 2 * SECOND, "batched_mean": 3.0}
    preempts = {"waited_mean_ns": SECOND, "preempted": 2, "batched_mean": 4.0}
    words = said(tmp_path, "paged:4,max,oracle", lost, slow, preempts)
    assert words.startswith("On the same traffic and bytes, oracle troubles requests least and paged:4 most")
    words = said(tmp_path, "paged:4,max,oracle", preempts, slow, preempts)
    assert words.startswith("On the same traffic and bytes, paged:4 holds 1.33 times as many requests at once as max")


def test_what_serves_alike_may_still_waste_more(tmp_path: Path) -> None:
    assert said(tmp_path, "paged:4,max", {"utilization": 0.25}, {"utilization": 0.5}) == (
        "On the same traffic and bytes, all serve requests alike, 1.00 at once. With max 50.00% of what is allocated "
        "is live; with paged:4 25.00% of what is allocated is live."
    )
    assert said(tmp_path, "paged:4,max", {}, {"refused": 1}).startswith("max runs 1.00 requests at once")


def test_what_makes_no_difference_is_said(tmp_path: Path) -> None:
    assert said(tmp_path, None, {"steps": 1}, {"steps": 1}, vary="memory.eviction=lru,fifo") == (
        "On the same traffic and bytes, it makes no difference: all figures are equal."
    )
    assert said(tmp_path, "max", {"utilization": 0.5}) == (
        "max runs 1.00 requests at once; 50.00% of what is allocated is live."
    )
    assert said(tmp_path, "max,oracle", {}, {"batched_mean": None}) == "No request ran in any run."


def test_the_ground_is_named_as_it_is(tmp_path: Path) -> None:
    other = {"digests": SAME | {"arrivals": "z"}}
    one, two = {"refused": 0}, {"refused": 1, "pool_bytes": 2**31}
    assert said(tmp_path, "paged:4,max", one, two).startswith("On the same traffic, in pools of different size, paged")
    assert said(tmp_path, "paged:4,max", one, two | other).startswith("From the same seed, in pools of different size,")
    near = {"refused": 1, "pool_bytes": 2**30 - 2**11}
    assert said(tmp_path, "paged:4,max", one, near | other).startswith("From the same seed, paged:4")
    assert said(tmp_path, "paged:4,max", one, near).startswith("On the same traffic and bytes, paged:4")


def test_what_is_told_are_figures_of_a_run() -> None:
    assert {told.name for told in TOLD} <= set(FIGURES)
