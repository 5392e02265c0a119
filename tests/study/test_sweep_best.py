"""Which value is called the best, and what is said with it."""

from typing import Any

import pytest

from kvsim.study.sweep_best import best_values, first_key, lines, sentence
from kvsim.study.sweep_result import Sweep
from tests.study.sweeps import make_sweep


def best(sweep: Sweep) -> list[Any]:
    return [one.point.parameters[first_key(sweep)] for one in best_values(sweep)]


def said(sweep: Sweep) -> str:
    (one,) = best_values(sweep)
    return sentence(one, first_key(sweep))


def block(size: int, slack: float, hits: float = 0.5, **more: Any) -> dict[str, Any]:
    return {"block_size_tokens": size, "slack_share": slack, "hit_share": hits, "max_model_len": 1000, **more}


def test_the_largest_blocks_within_a_point_of_slack_are_best() -> None:
    sizes = {"memory.block_size": [1, 16, 32, 64]}
    sweep = make_sweep(sizes, block(1, 0.001), block(16, 0.008), block(32, 0.0109), block(64, 0.0111))
    assert said(sweep) == (
        "Best memory.block_size is 32, the largest within one percentage point of the least slack (1.09% of allocated against "
        "0.10% at 1) and of the most hits (50.00% of prompt tokens): prefixes are found again from 32 tokens on, and "
        "the block table of a request of 1,000 tokens has 32 entries against 1,000 at 1. Runner-up: 16, with "
        "0.80% slack, 50.00% hits, 0 lost, 0 refused, 0 preemptions."
    )


def test_blocks_that_lose_hits_are_not_best() -> None:
    sizes = {"memory.block_size": [1, 16, 32]}
    sweep = make_sweep(sizes, block(1, 0.0, 0.53), block(16, 0.0, 0.521), block(32, 0.0, 0.519))
    assert best(sweep) == [16]
    assert "(52.10% of prompt tokens against 53.00% at 1)" in said(sweep)


def test_where_slack_and_hits_disagree_trouble_decides() -> None:
    sizes = {"memory.block_size": [1, 16]}
    assert best(make_sweep(sizes, block(1, 0.0, 0.1, refused=3), block(16, 0.5, 0.9))) == [16]


def test_the_most_traffic_that_troubles_nobody_is_best() -> None:
    runs = [{"pool_used_peak": 0.5}, {"pool_used_peak": 0.75}, {"refused": 1}, {}]
    rates = {"workload.rate": [4, 6, 2, 8]}
    sweep = make_sweep(rates, runs[0], runs[1], {"pool_used_peak": 0.25}, {"preemptions": 2})
    assert said(sweep) == (
        "Best workload.rate is 6, the most at which no request is lost, refused or preempted; at most 75.00% of the "
        "pool is used. Runner-up: 4, with 0.00% slack, 0.00% hits, 0 lost, 0 refused, 0 preemptions."
    )


def test_the_least_memory_that_troubles_nobody_is_best_whatever_its_name() -> None:
    budgets = {"memory.budget": ["1 GiB", "512 MiB", "2 GiB"]}
    pools = ({"pool_bytes": 2**30}, {"pool_bytes": 2**29, "timed_out": 1}, {"pool_bytes": 2**31})
    assert best(make_sweep(budgets, *pools)) == ["1 GiB"]


def test_where_every_value_troubles_somebody_the_calmest_is_best() -> None:
    rates = {"workload.rate": [2, 4]}
    assert best(make_sweep(rates, {"refused": 3}, {"refused": 2})) == [4]


def test_for_other_keys_the_fewest_lost_and_preempted_are_best() -> None:
    runs = [
        {"preemptions": 1266, "refused": 300, "waited_mean_ns": 2_000_000},
        {"preemptions": 160, "refused": 312, "waited_mean_ns": 3_000_000},
        {"preemptions": 0, "rejected": 1, "refused": 400, "waited_mean_ns": 3_000_000},
    ]
    assert said(make_sweep({"memory.watermark": [0.0, 0.1, 0.2]}, *runs)) == (
        "Best memory.watermark is 0.1, with the fewest requests lost (0 against 1 at 0.2), then the fewest preemptions "
        "(160 against 1,266 at 0.0): 312 requests are refused against 300 at 0.0, and the mean wait is 3 ms against 2 ms at 0.0. "
        "Runner-up: 0.0, with 0.00% slack, 0.00% hits, 0 lost, 300 refused, 1,266 preemptions."
    )


def test_what_decides_between_equally_calm_values_is_said() -> None:
    sharing = {"memory.prefix_sharing": [True, False]}
    waits = ({"waited_mean_ns": 2_000_000, "slack_share": 0.5}, {"waited_mean_ns": 3_000_000})
    assert said(make_sweep(sharing, *waits)).startswith(
        "Best memory.prefix_sharing is True, with the fewest requests lost (0), then the fewest preemptions (0), then "
        "the shortest mean wait (2 ms against 3 ms at False): 0 requests are refused, and"
    )
    pools = (
        {"waited_mean_ns": 2_000_000_001, "pool_used_mean": 0.25},
        {"waited_mean_ns": 2_000_000_000, "pool_used_mean": 0.5},
    )
    assert "then the least of the pool allocated on average (25.00% against 50.00% at False):" in said(
        make_sweep(sharing, *pools)
    )
    alike = said(make_sweep(sharing, {"slack_share": 0.5}, {"slack_share": 0.25}))
    assert alike.startswith("Best memory.prefix_sharing is True, ")
    assert "then the first of those that are alike in all this:" in alike
    equal = said(make_sweep(sharing, {"steps": 1}, {"steps": 1}))
    assert equal == "memory.prefix_sharing makes no difference: all figures are equal."


def test_the_mean_over_seeds_decides() -> None:
    runs = [{"refused": 9}, {"refused": 0}, {"refused": 4}, {"refused": 4}]
    assert best(make_sweep({"memory.watermark": [0.0, 0.1]}, *runs, seeds=2)) == [0.1]


def test_every_line_has_its_best() -> None:
    sizes_and_rates = {"memory.block_size": [1, 16], "workload.rate": [2, 8]}
    sweep = make_sweep(sizes_and_rates, block(1, 0.0), block(1, 0.0), block(16, 0.5), block(16, 0.001))
    assert best(sweep) == [1, 16]
    assert [line.parameters for line in lines(sweep)] == [{"workload.rate": 2}, {"workload.rate": 8}]
    assert sentence(best_values(sweep)[1], "memory.block_size").startswith(
        "workload.rate = 8: best memory.block_size is 16, the largest within"
    )


def test_failed_runs_have_no_part_in_it() -> None:
    assert best(make_sweep({"memory.watermark": [0.0, 0.1, 0.2]}, {}, {"refused": 2}, {"refused": 1})) == [0.2]


@pytest.mark.parametrize(
    "sweep", [make_sweep({"a.b": [1]}, {"refused": 1}), make_sweep({"a.b": [1, 2]}, {}, {"steps": 1})]
)
def test_without_a_choice_there_is_no_best(sweep: Sweep) -> None:
    assert best_values(sweep) == []


def test_seeds_alone_are_points_of_one_line() -> None:
    sweep = make_sweep({}, {"refused": 1}, {"refused": 2}, seeds=2)
    assert best_values(sweep) == []
    (line,) = lines(sweep)
    assert first_key(sweep) == "seed"
    assert [(point.parameters, point.mean("refused")) for point in line.points] == [
        ({"seed": 1}, 1.0),
        ({"seed": 2}, 2.0),
    ]
