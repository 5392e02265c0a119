"""Figures of a timeline small enough for mental arithmetic.

time_ns     0 ...... 10 ................ 40 .. 50
allocated   0        400                 800   0       bytes
live        0        300                 800   0
cached      0        0                   100   200
"""

from typing import Any

import polars as pl
import pytest

from kvsim.engine.metrics import METRICS, Number
from kvsim.engine.tables import SCHEMAS, MemoryShape
from kvsim.engine.totals import Totals

LEVELS = {
    "time_ns": [0, 10, 40, 50],
    "allocated_bytes": [0, 400, 800, 0],
    "live_bytes": [0, 300, 800, 0],
    "slack_bytes": [0, 100, 0, 0],
    "cached_bytes": [0, 0, 100, 200],
    "logical_bytes": [0, 300, 1000, 0],
    "window_saving_bytes": [0, 0, 100, 0],
    "shared_saving_bytes": [0, 0, 100, 0],
    "tail_bytes": [0, 30, 0, 0],
    "reserved_bytes": [0, 40, 0, 0],
    "unused_bytes": [0, 10, 0, 0],
    "padding_bytes": [0, 20, 0, 0],
    "external_bytes": [0, 200, 0, 0],
    "host_bytes": [0, 0, 500, 0],
    "running": [0, 1, 3, 0],
    "waiting": [2, 1, 0, 0],
}


def request_row(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "request_id": 0,
        "arrival_ns": 0,
        "priority": 0,
        "prompt_tokens": 100,
        "output_tokens": 10,
        "generated_tokens": 10,
        "outcome": "finished",
        "reason": None,
        "admitted_ns": 10,
        "first_token_ns": 20,
        "ended_ns": 50,
        "hit_tokens": 0,
        "resumed_hit_tokens": 0,
        "refusals": 0,
        "refusal_cause": None,
        "blocked_ns": 0,
        "preemptions": 0,
        "recomputed_tokens": 0,
        "swaps": 0,
        "swap_fallbacks": 0,
        "swapped_out_bytes": 0,
        "swapped_in_bytes": 0,
        "swap_dropped_bytes": 0,
    }
    return {**row, **changes}


REQUESTS = [
    request_row(),
    request_row(admitted_ns=40, hit_tokens=64, preemptions=2, recomputed_tokens=70, resumed_hit_tokens=32),
    request_row(outcome="cut", arrival_ns=3, admitted_ns=10, refusals=5, blocked_ns=5, preemptions=1, swap_fallbacks=1),
    request_row(outcome="timed_out", admitted_ns=None, refusals=1, blocked_ns=30),
    request_row(
        outcome="aborted",
        admitted_ns=None,
        prompt_tokens=160,
        output_tokens=5,
        generated_tokens=0,
        swap_dropped_bytes=400,
    ),
    request_row(outcome="unfinished", admitted_ns=40, swaps=2, swapped_out_bytes=900, swapped_in_bytes=500),
    *(
        request_row(outcome="rejected", reason=reason, admitted_ns=None)
        for reason in ("prompt_too_long", "never_fits", "never_fits", "queue_full")
    ),
]


def pressure_row(event: str, cause: str, steps: int) -> dict[str, Any]:
    return {**dict.fromkeys(SCHEMAS["pressure"], 0), "event": event, "cause": cause, "steps": steps}


PRESSURE = [
    pressure_row("refused", "gate", 1),
    pressure_row("refused", "blocks", 2),
    *(pressure_row("preempted", "blocks", 1) for _ in range(3)),
    pressure_row("refused", "watermark", 2),
    pressure_row("refused", "extent", 4),
    pressure_row("refused", "blocks", 1),
    pressure_row("refused", "reservation", 4),
]
HELD_BACK = {"preemption": 2, "max_num_seqs": 7, "token_budget": 4}


def make_totals(
    levels: dict[str, list[int]] = LEVELS,
    requests: list[dict[str, Any]] = REQUESTS,
    pressure: list[dict[str, Any]] = PRESSURE,
) -> Totals:
    totals = Totals(
        shape=MemoryShape(num_blocks=11, block_size=4, block_bytes=400, token_bytes=150),
        worst_case_bytes=12_345,
        num_steps=17,
        held_back_steps=HELD_BACK,
        moved_bytes=77,
    )
    totals.add_timeline(pl.DataFrame(levels))
    totals.add_requests(pl.DataFrame(requests, schema=SCHEMAS["requests"]))
    totals.add_pressure(pl.DataFrame(pressure, schema=SCHEMAS["pressure"]))
    return totals


def measure(totals: Totals) -> dict[str, Number]:
    return {metric.name: metric.of(totals) for metric in METRICS}


EXPECTED: dict[str, Number] = {
    "duration_ns": 50,
    "steps": 17,
    "pool_bytes": 4000,
    "null_block_bytes": 400,
    "worst_case_bytes": 12_345,
    "allocated_peak_bytes": 800,
    "live_peak_bytes": 800,
    "slack_peak_bytes": 100,
    "cached_peak_bytes": 200,
    "logical_peak_bytes": 1000,
    "window_saving_peak_bytes": 100,
    "shared_saving_peak_bytes": 100,
    "tail_peak_bytes": 30,
    "reserved_peak_bytes": 40,
    "unused_peak_bytes": 10,
    "padding_peak_bytes": 20,
    "external_peak_bytes": 200,
    "host_peak_bytes": 500,
    # A level holds until the next row: 400 for 30 ns and 800 for 10 ns are 20,000 byte ns in 50 ns.
    "allocated_mean_bytes": 20_000 / 50,
    "live_mean_bytes": 17_000 / 50,
    "slack_mean_bytes": 3_000 / 50,
    "cached_mean_bytes": 1_000 / 50,
    "logical_mean_bytes": 19_000 / 50,
    "window_saving_mean_bytes": 1_000 / 50,
    "shared_saving_mean_bytes": 1_000 / 50,
    "tail_mean_bytes": 900 / 50,
    "reserved_mean_bytes": 1_200 / 50,
    "unused_mean_bytes": 300 / 50,
    "padding_mean_bytes": 600 / 50,
    "external_mean_bytes": 6_000 / 50,
    "host_mean_bytes": 5_000 / 50,
    "pool_used_peak": 800 / 4000,
    "pool_used_mean": 400 / 4000,
    "utilization": 17 / 20,
    "utilization_at_peak": 1.0,
    "slack_share": 3 / 20,
    "slack_share_at_peak": 0.0,
    "tail_share": 900 / 20_000,
    "reserved_share": 1_200 / 20_000,
    "unused_share": 300 / 20_000,
    "padding_share": 600 / 20_000,
    "external_share": 6_000 / 50 / 4000,
    "requests": 10,
    "prompt_mean_tokens": 1060 / 10,
    "output_mean_tokens": 95 / 10,
    "finished": 2,
    "cut": 1,
    "rejected": 4,
    "rejected_prompt_too_long": 1,
    "rejected_never_fits": 2,
    "rejected_queue_full": 1,
    "timed_out": 1,
    "aborted": 1,
    "unfinished": 1,
    "refused": 2,
    "refusals": 6,
    "refusals_for_blocks": 3,
    "refusals_for_gate": 1,
    "refusals_for_watermark": 2,
    "refusals_for_extent": 4,
    "refusals_for_reservation": 4,
    "blocked_ns": 35,
    "held_back_by_max_num_seqs": 7,
    "held_back_by_token_budget": 4,
    "held_back_by_preemption": 2,
    "preempted": 2,
    "preemptions": 3,
    "recomputed_tokens": 70,
    "moved_bytes": 77,
    "swaps": 2,
    "swap_fallbacks": 1,
    "swapped_out_bytes": 900,
    "swapped_in_bytes": 500,
    "swap_dropped_bytes": 400,
    "hit_tokens": 64,
    # Four of them were admitted, with 100 prompt tokens each.
    "hit_share": 64 / 400,
    "resumed_hit_tokens": 32,
    "running_mean": 60 / 50,
    # Some run for 40 of the 50 ns.
    "batched_mean": 60 / 40,
    "running_peak": 3,
    "waiting_mean": (20 + 30) / 50,
    "waiting_peak": 2,
    # Waits of 10, 40, 7 and 40 ns.
    "waited_mean_ns": 24,
    "waited_p50_ns": 25,
    "waited_p95_ns": 40,
    "waited_p99_ns": 40,
    "waited_max_ns": 40,
}


def test_every_figure_is_in_the_table_of_expectations() -> None:
    assert {metric.name for metric in METRICS} == set(EXPECTED)
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_figure_is_what_mental_arithmetic_says(name: str) -> None:
    assert measure(make_totals())[name] == EXPECTED[name]


def test_figures_are_the_same_when_every_row_comes_by_itself() -> None:
    totals = make_totals({name: levels[:1] for name, levels in LEVELS.items()}, REQUESTS[:1], PRESSURE[:1])
    for row in range(1, len(LEVELS["time_ns"])):
        totals.add_timeline(pl.DataFrame({name: levels[row : row + 1] for name, levels in LEVELS.items()}))
    for request in REQUESTS[1:]:
        totals.add_requests(pl.DataFrame([request], schema=SCHEMAS["requests"]))
    for pressure in PRESSURE[1:]:
        totals.add_pressure(pl.DataFrame([pressure], schema=SCHEMAS["pressure"]))
    assert measure(totals) == EXPECTED


def test_the_share_at_the_peak_is_that_of_its_first_moment() -> None:
    levels = {**LEVELS, "allocated_bytes": [0, 800, 800, 0]}
    assert measure(make_totals(levels))["utilization_at_peak"] == 300 / 800


def test_integrals_beyond_64_bits_are_exact() -> None:
    """Terabytes for years: 2^62 ns x 2^40 bytes, of which one byte is slack."""
    levels = {name: [0, 0] for name in LEVELS}
    levels |= {"time_ns": [0, 2**62], "allocated_bytes": [2**40, 0], "live_bytes": [2**40 - 1, 0]}
    levels |= {"slack_bytes": [1, 0]}
    figures = measure(make_totals(levels))
    assert figures["allocated_mean_bytes"] == 2**40
    assert figures["slack_share"] == 2**-40


def test_where_there_is_nothing_to_divide_by_there_is_no_figure() -> None:
    figures = measure(make_totals({name: [0] for name in LEVELS}, [], []))
    nothing = {name for name, value in figures.items() if value is None}
    assert nothing == {
        "utilization",
        "utilization_at_peak",
        "slack_share",
        "slack_share_at_peak",
        "tail_share",
        "reserved_share",
        "unused_share",
        "padding_share",
        "external_share",
        "batched_mean",
        "hit_share",
        "prompt_mean_tokens",
        "output_mean_tokens",
        "pool_used_mean",
        "running_mean",
        "waiting_mean",
        *(name for name in EXPECTED if name.endswith("_mean_bytes")),
        *(name for name in EXPECTED if name.startswith("waited_")),
    }


def test_only_what_a_scenario_says_does_not_depend_on_step_times() -> None:
    """All else can change when a step takes longer: who meets whom in memory does."""
    assert [metric.name for metric in METRICS if not metric.depends_on_step_times] == [
        "pool_bytes",
        "null_block_bytes",
        "worst_case_bytes",
        "requests",
        "prompt_mean_tokens",
        "output_mean_tokens",
    ]


def test_units_are_the_known_ones_and_stand_in_the_name_where_it_has_one() -> None:
    assert {metric.unit for metric in METRICS} == {"bytes", "ns", "tokens", "requests", "times", "steps", "share"}
    for metric in METRICS:
        for unit in ("bytes", "ns", "tokens"):
            assert metric.name.endswith(f"_{unit}") == (metric.unit == unit), metric.name
