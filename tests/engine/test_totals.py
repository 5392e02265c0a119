"""Sums, peaks and counts do not depend on how the rows come, and are exact however large they are."""

from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pytest
from attrs import asdict
from hypothesis import example, given
from hypothesis import strategies as st

from kvsim.engine.tables import SCHEMAS, MemoryShape, TablesInMemory
from kvsim.engine.totals import LEVEL_COLUMNS, Totals, exact_dot

MOST = 2**63 - 1
HUGE = st.integers(0, MOST) | st.integers(0, 100) | st.sampled_from([2**21 - 1, 2**21, 2**31, 2**42, MOST])


def make_totals() -> Totals:
    return Totals(MemoryShape(num_blocks=11, block_size=4, block_bytes=400, token_bytes=100), worst_case_bytes=0)


def make_timeline(times: list[int], **levels: list[int]) -> pl.DataFrame:
    """Levels that are not named are 0 throughout."""
    nothing = [0] * len(times)
    columns = {"time_ns": times, **{name: levels.get(name, nothing) for name in LEVEL_COLUMNS}}
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int64))


def make_request_row(**values: Any) -> dict[str, Any]:
    """All that is not named is 0, or null where it is no number."""
    row = {name: 0 if dtype == pl.Int64() else None for name, dtype in SCHEMAS["requests"].items()}
    return {**row, "outcome": "finished", **values}


def make_requests(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMAS["requests"])


def make_pressure(rows: list[tuple[str, str, int]]) -> pl.DataFrame:
    """Event, cause and steps of each."""
    return pl.DataFrame(
        [
            {**dict.fromkeys(SCHEMAS["pressure"], 0), "event": event, "cause": cause, "steps": n}
            for event, cause, n in rows
        ],
        schema=SCHEMAS["pressure"],
    )


def all_of(totals: Totals) -> dict[str, Any]:
    """Everything that was added up, waits as one list."""
    said = asdict(totals, recurse=False, filter=lambda attribute, _value: attribute.name != "_waits")
    return {**said, "waits": totals.waits.to_list()}


def parts(frame: pl.DataFrame, cuts: list[int]) -> list[pl.DataFrame]:
    """The frame cut at these rows; equal cuts make empty parts."""
    ends = [0, *sorted(min(cut, frame.height) for cut in cuts), frame.height]
    return [frame[start:end] for start, end in pairwise(ends)]


# sums of products


@example([(MOST, MOST)] * 3)
@example([(0, MOST), (MOST, 0)])
@example([(2**31, 2**30), (2**31, 2**30)])
@given(st.lists(st.tuples(HUGE, HUGE), max_size=30))
def test_a_sum_of_products_is_exact(pairs: list[tuple[int, int]]) -> None:
    levels, lasted = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    assert exact_dot(levels, lasted) == sum(level * lasting for level, lasting in pairs)


@pytest.mark.parametrize("num_rows", [2**20, 2**20 + 1, 2**22 + 5])
def test_a_sum_of_millions_of_the_largest_products_is_exact(num_rows: int) -> None:
    """More than fit in 64 bits, even when every factor is cut into three."""
    largest = np.full(num_rows, MOST)
    assert exact_dot(largest, largest) == num_rows * MOST**2


def test_a_sum_over_no_rows_is_0() -> None:
    assert exact_dot(np.array([], dtype=np.int64), np.array([], dtype=np.int64)) == 0


# the timeline


def test_a_level_holds_until_the_next_row_also_over_parts() -> None:
    totals = make_totals()
    for times, running in (([0, 10], [1, 2]), ([40], [5]), ([50, 51], [7, 0])):
        totals.add_timeline(make_timeline(times, running=running))
    assert totals.integrals["running"] == 1 * 10 + 2 * 30 + 5 * 10 + 7 * 1
    assert (totals.peaks["running"], totals.duration_ns) == (7, 51)


def test_a_run_without_rows_has_no_timeline() -> None:
    totals = make_totals()
    totals.add_timeline(make_timeline([]))
    assert not totals.has_timeline
    totals.add_timeline(make_timeline([0]))
    assert totals.has_timeline


@pytest.mark.parametrize("cuts", [[], [2], [3], [1, 2, 3, 4]])
def test_the_peak_is_its_first_moment_be_it_in_an_earlier_part(cuts: list[int]) -> None:
    timeline = make_timeline(
        [0, 10, 20, 30, 40], allocated_bytes=[0, 400, 800, 800, 800], live_bytes=[0, 399, 600, 800, 500]
    )
    totals = make_totals()
    for part in parts(timeline, cuts):
        totals.add_timeline(part)
    assert (totals.peaks["allocated_bytes"], totals.peaks["live_bytes"]) == (800, 800)
    assert (totals.at_peak["allocated_bytes"], totals.at_peak["live_bytes"]) == (800, 600)


def test_a_higher_peak_in_a_later_part_takes_its_place() -> None:
    totals = make_totals()
    totals.add_timeline(make_timeline([0, 10], allocated_bytes=[400, 800], live_bytes=[1, 2]))
    totals.add_timeline(make_timeline([20, 30], allocated_bytes=[100, 1200], live_bytes=[3, 4]))
    assert (totals.at_peak["allocated_bytes"], totals.at_peak["live_bytes"]) == (1200, 4)


@st.composite
def timelines(draw: st.DrawFn) -> pl.DataFrame:
    """Few different levels, so that peaks are reached more than once, or any that a column can hold."""
    times = sorted(draw(st.sets(HUGE, min_size=1, max_size=12)))
    level = draw(st.sampled_from([st.integers(0, 3), HUGE]))
    columns = {name: draw(st.lists(level, min_size=len(times), max_size=len(times))) for name in LEVEL_COLUMNS}
    return make_timeline(times, **columns)


@given(timelines(), st.lists(st.integers(0, 12), max_size=6))
def test_a_timeline_in_pieces_adds_up_to_what_it_does_whole(timeline: pl.DataFrame, cuts: list[int]) -> None:
    whole, pieces = make_totals(), make_totals()
    whole.add_timeline(timeline)
    for part in parts(timeline, cuts):
        pieces.add_timeline(part)
    assert all_of(pieces) == all_of(whole)


@given(timelines())
def test_what_a_timeline_adds_up_to_is_what_whole_numbers_of_python_do(timeline: pl.DataFrame) -> None:
    totals = make_totals()
    totals.add_timeline(timeline)
    rows = timeline.rows(named=True)
    lasted = [after["time_ns"] - row["time_ns"] for row, after in pairwise(rows)]
    assert totals.integrals == {
        name: sum(row[name] * ns for row, ns in zip(rows, lasted, strict=False)) for name in LEVEL_COLUMNS
    }
    assert totals.peaks == {name: max(row[name] for row in rows) for name in LEVEL_COLUMNS}
    peak = max(rows, key=lambda row: row["allocated_bytes"])
    if peak["allocated_bytes"]:
        assert totals.at_peak == {name: peak[name] for name in LEVEL_COLUMNS}
    assert totals.duration_ns == rows[-1]["time_ns"]


# requests and pressure


REQUESTS = make_requests(
    [
        make_request_row(arrival_ns=2, admitted_ns=9, prompt_tokens=10, output_tokens=3, hit_tokens=4),
        make_request_row(arrival_ns=3, admitted_ns=3, prompt_tokens=20, refusals=2, blocked_ns=7, preemptions=1),
        make_request_row(admitted_ns=None, prompt_tokens=40, outcome="rejected", reason="never_fits"),
        make_request_row(arrival_ns=5, admitted_ns=6, prompt_tokens=80, preemptions=3, recomputed_tokens=60),
        make_request_row(preemptions=2, swaps=1, swap_fallbacks=1, swapped_out_bytes=70, swapped_in_bytes=50),
        make_request_row(admitted_ns=None, prompt_tokens=160, outcome="rejected", reason="queue_full"),
        make_request_row(admitted_ns=None, prompt_tokens=320, outcome="timed_out", refusals=1, blocked_ns=11),
    ]
)
PRESSURE = make_pressure(
    [("refused", "gate", 3), ("preempted", "blocks", 1), ("refused", "blocks", 4), ("refused", "gate", 2)]
)


def test_requests_are_counted_and_added_up() -> None:
    totals = make_totals()
    totals.add_requests(REQUESTS)
    assert totals.sums == {
        "prompt_tokens": 630,
        "output_tokens": 3,
        "hit_tokens": 4,
        "resumed_hit_tokens": 0,
        "refusals": 3,
        "blocked_ns": 18,
        "preemptions": 6,
        "recomputed_tokens": 60,
        "swaps": 1,
        "swap_fallbacks": 1,
        "swapped_out_bytes": 70,
        "swapped_in_bytes": 50,
        "swap_dropped_bytes": 0,
    }
    assert (totals.num_requests, totals.num_refused, totals.num_preempted) == (7, 2, 3)
    assert totals.outcomes == {"finished": 4, "rejected": 2, "timed_out": 1}
    assert totals.reasons == {"never_fits": 1, "queue_full": 1}
    assert (totals.admitted_prompt_tokens, totals.waits.to_list()) == (110, [7, 0, 1, 0])


def test_steps_that_refused_are_added_up_by_cause_and_preemptions_are_none_of_them() -> None:
    totals = make_totals()
    totals.add_pressure(PRESSURE)
    assert totals.refusals_for == {"gate": 5, "blocks": 4}


@given(st.lists(st.integers(0, 6), max_size=4), st.lists(st.integers(0, 4), max_size=4))
def test_requests_and_pressure_in_pieces_add_up_to_what_they_do_whole(cuts: list[int], others: list[int]) -> None:
    whole, pieces = make_totals(), make_totals()
    whole.add_requests(REQUESTS)
    whole.add_pressure(PRESSURE)
    for part in parts(REQUESTS, cuts):
        pieces.add_requests(part)
    for part in parts(PRESSURE, others):
        pieces.add_pressure(part)
    assert all_of(pieces) == all_of(whole)


def test_all_rows_of_all_tables_are_added() -> None:
    timeline = make_timeline([0, 10], running=[3, 0])
    tables, expected = TablesInMemory(), make_totals()
    for part in parts(timeline, [1]):
        tables.add("timeline", part)
    tables.add("requests", REQUESTS)
    tables.add("pressure", PRESSURE)
    expected.add_timeline(timeline)
    expected.add_requests(REQUESTS)
    expected.add_pressure(PRESSURE)
    totals = make_totals()
    totals.add_all(tables)
    assert all_of(totals) == all_of(expected)


def test_where_nobody_was_admitted_nobody_waited() -> None:
    assert make_totals().waits.to_list() == []
