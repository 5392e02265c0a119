import polars as pl
import pytest

from kvsim.engine.recorder import Pressure, Recorder
from kvsim.engine.state import RequestState
from kvsim.engine.step import Step
from kvsim.engine.tables import (
    PRESSURE_COLUMNS,
    REQUEST_COLUMNS,
    SCHEMAS,
    TIMELINE_COLUMNS,
    MemoryShape,
    NoTables,
    TablesInMemory,
    pressure_frame,
    requests_frame,
    timeline_frame,
    whole,
)
from kvsim.engine.timeline import EVENTS
from kvsim.memory.allocator import Hit, Occupancy, Shortfall
from tests.makers import make_request

SHAPE = MemoryShape(num_blocks=11, block_size=4, block_bytes=400, token_bytes=100)


def make_state(id: int, own: int = 4, **request: int) -> RequestState:
    return RequestState(make_request(id, own, **request), id, max_model_len=100)


def test_the_pool_is_what_is_usable() -> None:
    assert (SHAPE.block_bytes, SHAPE.usable_blocks, SHAPE.pool_bytes) == (400, 10, 4000)
    slots = MemoryShape(num_blocks=40, block_size=1, block_bytes=100, token_bytes=100, num_null_blocks=0)
    assert (slots.usable_blocks, slots.pool_bytes) == (40, 4000)


def test_levels_become_bytes() -> None:
    recorder = Recorder()
    recorder.observe(0, Occupancy(0, 0, 10, 0, 0, 0, 0), 0)
    recorder.arrived(7, make_state(0))
    recorder.observe(7, Occupancy(5, 2, 3, 1700, 100, 2900, 400, 50, 30, external_bytes=70, host_blocks=6), 2)
    row = timeline_frame(recorder.take_rows(), SHAPE).row(1, named=True)
    assert {name: value for name, value in row.items() if name not in EVENTS} == {
        "time_ns": 7,
        "pool_bytes": 4000,
        "allocated_bytes": 2000,
        "live_bytes": 1700,
        "slack_bytes": 300,
        "tail_bytes": 120,
        "reserved_bytes": 50,
        "unused_bytes": 30,
        "padding_bytes": 100,
        "external_bytes": 70,
        "cached_bytes": 800,
        "blank_bytes": 1200,
        "logical_bytes": 2900,
        "window_saving_bytes": 400,
        "shared_saving_bytes": 800,
        "host_bytes": 2400,
        "running": 2,
        "waiting": 1,
    }


def test_all_of_the_timeline_are_whole_numbers() -> None:
    recorder = Recorder()
    recorder.observe(0, Occupancy(0, 0, 10, 0, 0, 0, 0), 0)
    frame = timeline_frame(recorder.take_rows(), SHAPE)
    assert set(frame.dtypes) == {pl.Int64}
    assert tuple(frame.columns) == TIMELINE_COLUMNS
    assert frame.columns[-len(EVENTS) :] == list(EVENTS)


def test_levels_beyond_32_bits_are_exact() -> None:
    shape = MemoryShape(num_blocks=2**24, block_size=16, block_bytes=2**21, token_bytes=2**17)
    recorder = Recorder()
    recorder.observe(2**62, Occupancy(2**24 - 1, 0, 0, (2**24 - 1) * 2**21, 0, 2**47, 0), 1)
    row = timeline_frame(recorder.take_rows(), shape).row(0, named=True)
    assert row["time_ns"] == 2**62
    assert row["allocated_bytes"] == row["live_bytes"] == (2**24 - 1) * 2**21
    assert row["logical_bytes"] == 2**47


def test_requests_stand_in_order_of_arrival_and_unknown_times_are_null() -> None:
    recorder = Recorder()
    first, second = (make_state(id, own=20, output=7, arrival=1, priority=id) for id in (5, 3))
    recorder.arrived(1, first)
    recorder.arrived(1, second)
    recorder.step_began(4, Step(admitted=[(second, Hit(16, ([],)))]))
    recorder.rejected(1, first, "never_fits")
    frame = requests_frame(recorder.take_states(all=True))
    assert frame.columns == list(REQUEST_COLUMNS)
    assert frame["request_id"].to_list() == [5, 3]
    assert frame["priority"].to_list() == [5, 3]
    assert frame["outcome"].to_list() == ["rejected", "unfinished"]
    assert frame["reason"].to_list() == ["never_fits", None]
    assert frame["admitted_ns"].to_list() == [None, 4]
    assert frame["ended_ns"].to_list() == [1, None]
    assert frame["hit_tokens"].to_list() == [0, 16]


def test_a_request_is_told_the_cause_that_refused_it_most_often_and_of_equals_the_first() -> None:
    causes = [None, {"gate": 1}, {"gate": 1, "blocks": 2}, {"watermark": 2, "gate": 2, "blocks": 1}]
    states = [make_state(id, own=4) for id in range(4)]
    for state, counts in zip(states, causes, strict=True):
        state.refusal_causes = counts
    assert requests_frame(states)["refusal_cause"].to_list() == [None, "gate", "blocks", "watermark"]


def test_pressure_keeps_its_order_and_says_need_blank_evictable_and_missing() -> None:
    pressure = [
        Pressure(5, "preempted", 3, "blocks", 1, Shortfall(7, 2, 1, 4, 2**40, "blocks")),
        Pressure(5, "refused", 4, "gate", 12, Shortfall(9, 0, 3, 6, 0, "gate")),
    ]
    frame = pressure_frame(pressure)
    assert frame.columns == list(PRESSURE_COLUMNS)
    assert frame.rows() == [
        (5, "preempted", 3, "blocks", 1, 7, 2, 1, 4, 2**40),
        (5, "refused", 4, "gate", 12, 9, 0, 3, 6, 0),
    ]


def test_no_pressure_makes_an_empty_table_with_its_columns() -> None:
    frame = pressure_frame([])
    assert (frame.height, frame.columns) == (0, list(PRESSURE_COLUMNS))
    assert frame.schema["cause"] == pl.String


def test_no_requests_make_an_empty_table_with_its_columns() -> None:
    frame = requests_frame([])
    assert (frame.height, frame.columns) == (0, list(REQUEST_COLUMNS))
    assert frame.schema["admitted_ns"] == pl.Int64


def test_pressure_keeps_need_and_what_was_there() -> None:
    recorder = Recorder()
    state = make_state(3, own=20)
    recorder.arrived(0, state)
    shortfall = Shortfall(need=5, blank=1, evictable=2, missing=2, slack_bytes=30, least_change="gate")
    for time in (4, 5):
        recorder.step_began(time, Step(refused=state, refusal_shortfall=shortfall))
    frame = pressure_frame(recorder.take_pressure(all=True))
    assert frame.columns == list(PRESSURE_COLUMNS)
    assert frame.rows() == [(4, "refused", 3, "gate", 2, 5, 1, 2, 2, 30)]
    assert requests_frame(recorder.take_states(all=True))["refusal_cause"].to_list() == ["gate"]


def test_the_schemas_are_those_of_the_tables() -> None:
    recorder = Recorder()
    recorder.observe(0, Occupancy(0, 0, 10, 0, 0, 0, 0), 0)
    recorder.step_began(0, Step(preempted=[make_state(0)], preemption_shortfalls=[Shortfall(1, 0, 0, 1, 0, "blocks")]))
    frames = {
        "timeline": timeline_frame(recorder.take_rows(), SHAPE),
        "requests": requests_frame([make_state(0)]),
        "pressure": pressure_frame(recorder.take_pressure()),
    }
    assert {name: list(frame.schema.items()) for name, frame in frames.items()} == {
        name: list(schema.items()) for name, schema in SCHEMAS.items()
    }


def test_tables_in_memory_give_back_what_came_in_its_order_and_columns_where_they_are_named() -> None:
    tables = TablesInMemory()
    first, second = requests_frame([make_state(0), make_state(1)]), requests_frame([make_state(2)])
    tables.add("requests", first)
    tables.add("requests", second)
    tables.close()
    assert [part["request_id"].to_list() for part in tables.parts("requests")] == [[0, 1], [2]]
    assert [part.columns for part in tables.parts("requests", ["reason", "request_id"])] == [
        ["reason", "request_id"]
    ] * 2
    assert whole(tables, "requests").equals(pl.concat([first, second]))


def test_a_table_to_which_nothing_came_is_empty_and_has_its_columns() -> None:
    empty = whole(TablesInMemory(), "pressure")
    assert (empty.height, empty.schema) == (0, SCHEMAS["pressure"])


def test_rows_that_were_not_kept_are_not_taken_for_none() -> None:
    tables = NoTables()
    tables.add("requests", requests_frame([make_state(0)]))
    tables.close()
    with pytest.raises(ValueError, match="the rows of this run were not kept"):
        whole(tables, "requests")
