"""The scheduler over memory that is reserved: what is external and when, in worlds that can be drawn.

Every step takes 10 ns and a token is 100 bytes.
"""

import pytest

from kvsim.engine.config import EngineConfig
from kvsim.engine.latency import LatencyModel
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.simulation import Simulation
from kvsim.engine.tables import MemoryShape, pressure_frame, requests_frame, timeline_frame
from kvsim.memory.allocator import Hit
from kvsim.memory.contiguous import Prediction, ReservingAllocator
from kvsim.workload.request import Request
from tests.makers import make_request

TEN_NS = LatencyModel(base=10, per_prefill_token=0, per_decode_seq=0, per_context_token=0)


def simulation(
    num_slots: int, *requests: Request, reserve: str = "oracle", watermark: int = 0, error: float = 0.0, **engine: int
) -> Simulation:
    memory = ReservingAllocator(num_slots, reserve, "first_fit", 64, token_bytes=100, prediction=Prediction(error))
    config = EngineConfig(max_model_len=64, latency=TEN_NS, **engine)
    return Simulation(config, Scheduler(config, memory, watermark), requests, check=True)


def rows(run: Simulation, num_slots: int, *columns: str) -> list[tuple[int, ...]]:
    shape = MemoryShape(num_slots, 1, 100, 100, num_null_blocks=0)
    return timeline_frame(run.recorder.take_rows(), shape).select("time_ns", *columns).rows()


THREE = (
    make_request(0, own=7, output=3),
    make_request(1, own=6, output=4),
    make_request(2, own=5, output=5),
)
"""10 slots each, for 3, 4 and 5 steps."""


def test_free_bytes_are_external_from_the_step_that_refuses_the_head_until_the_next_decision() -> None:
    """At 30 the first leaves 0 ... 9, and 2 more are free at the end: 12, and no 11 of them in a row until 40.

    slots    0 ....... 9  10 ...... 19  20 ...... 29  30 31
    at 20    0            1             2             free
    at 30    free         1             2             free
    at 40    3            |- 1 has gone
    """
    run = simulation(32, *THREE, make_request(3, own=10, output=1, arrival=15))
    run.run()
    assert rows(run, 32, "allocated_bytes", "external_bytes", "refused", "running", "waiting") == [
        (0, 3000, 0, 0, 3, 0),
        (10, 3000, 0, 0, 3, 0),
        # It has come, and nobody has looked at it yet.
        (15, 3000, 0, 0, 3, 1),
        # Too few are free, and of no use either.
        (20, 3000, 200, 1, 3, 1),
        (30, 2000, 1200, 1, 2, 1),
        (40, 1000 + 1100, 0, 0, 2, 0),
        (50, 0, 0, 0, 0, 0),
    ]
    pressure = pressure_frame(run.recorder.take_pressure(all=True))
    assert pressure.select("time_ns", "cause", "need_blocks", "blank_blocks", "missing_blocks").rows() == [
        (20, "blocks", 11, 2, 9),
        (30, "extent", 11, 12, 0),
    ]
    last = requests_frame(run.recorder.take_states(all=True)).row(3, named=True)
    assert (last["refusals"], last["blocked_ns"], last["admitted_ns"]) == (2, 20, 40)


def test_what_only_the_watermark_or_no_seat_holds_back_is_not_external() -> None:
    spared = simulation(30, *THREE[:2], make_request(2, own=5, output=5, arrival=5), watermark=1)
    spared.run()
    assert {row[1] for row in rows(spared, 30, "external_bytes")} == {0}
    assert pressure_frame(spared.recorder.take_pressure(all=True))["cause"].to_list() == ["watermark"]
    seated = simulation(20, *THREE, max_num_seqs=2)
    seated.run()
    assert {row[1] for row in rows(seated, 20, "external_bytes")} == {0}
    assert seated.recorder.held_back_steps["max_num_seqs"] > 0


def test_nothing_is_external_to_a_head_that_has_hung_up() -> None:
    run = simulation(20, make_request(0, own=10, output=5), make_request(1, own=10, output=9, abort=15))
    run.run()
    external = rows(run, 20, "external_bytes", "waiting")
    assert external[:3] == [(0, 500, 1), (10, 500, 1), (20, 0, 0)]


@pytest.mark.parametrize(("prompt", "output", "outcome"), [(10, 11, "rejected"), (10, 10, "finished")])
def test_what_can_never_be_placed_is_rejected(prompt: int, output: int, outcome: str) -> None:
    run = simulation(20, make_request(0, own=prompt, output=output))
    run.run()
    assert run.recorder.states[0].outcome == outcome


def test_what_blocks_the_queue_for_ever_is_told_by_what_it_asks_for() -> None:
    run = simulation(20, make_request(0, own=5, output=2), reserve="max", reject_unservable=False)
    run.run()
    assert run.stalled == (
        "request 0 (5 prompt and 2 output tokens) blocks the queue for ever: no extent of the 20 usable blocks can hold "
        "the 64 that it asks for; 1 requests were left waiting"
    )


def test_a_long_request_is_turned_away_though_a_short_one_was_welcome() -> None:
    """2 + 9 tokens reserve 18 slots by powers of two, and 10 + 1 only 11."""
    run = simulation(
        16, make_request(0, own=10, output=1), make_request(1, own=2, output=9, arrival=50), reserve="pow2"
    )
    run.run()
    assert [state.outcome for state in run.recorder.states] == ["finished", "rejected"]


def test_all_are_served_whose_outputs_are_misjudged() -> None:
    """They outgrow their extents, move, and preempt each other where there is nowhere to move."""
    requests = [make_request(id, own=3 + id % 5, output=4 + 3 * id % 17) for id in range(60)]
    run = simulation(50, *requests, reserve="predicted", error=0.9)
    run.run()
    states = run.recorder.states
    assert {state.outcome for state in states} == {"finished"}
    assert run.memory.moved_bytes > 0
    assert sum(state.num_preemptions for state in states) > 0
    preempted = [row for row in run.recorder.pressure if row.event == "preempted"]
    assert {row.shortfall.least_change for row in preempted} <= {"blocks", "extent"}


def test_one_at_the_end_of_the_pool_moves_to_where_there_is_room() -> None:
    """20 slots are zones of 16 and 4, and it lies in the second."""
    memory = ReservingAllocator(20, "oracle", "buddy", 64)
    assert memory.admit(make_request(0, own=3, output=1), Hit(0, ([],)), 3, 3, 0)
    assert memory.reservations[0].extent == (16, 4)
    assert memory.grow(make_request(0, own=3, output=1), 4)
    assert memory.grow(make_request(0, own=3, output=1), 5)
    assert memory.reservations[0].extent == (0, 7)
