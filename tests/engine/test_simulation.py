"""What happens when. A step lasts 10 ns and blocks have 4 slots, unless a test says otherwise."""

from copy import copy
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.config import EngineConfig
from kvsim.engine.latency import LatencyModel
from kvsim.engine.recorder import Pressure, Recorder
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.simulation import FollowUps, Simulation, ticks_until
from kvsim.engine.state import RequestState
from kvsim.engine.step import Sampled, Step
from kvsim.engine.tables import pressure_frame, requests_frame
from kvsim.engine.timeline import Rows
from kvsim.memory.allocator import Occupancy, Shortfall
from kvsim.memory.paged import PagedAllocator
from kvsim.workload.request import Request
from tests.makers import make_request

TEN_NS = LatencyModel(base=10, per_prefill_token=0, per_decode_seq=0, per_context_token=0)


class AlwaysFull(Recorder):
    """Rows are taken out of it before every decision."""

    @property
    def is_full(self) -> bool:
        return True


class Run:
    """A finished run: its requests by id, its timeline, when steps began and what they scheduled."""

    def __init__(
        self,
        *requests: Request,
        blocks: int = 100,
        prefix_sharing: bool = True,
        watermark_blocks: int = 0,
        latency: LatencyModel = TEN_NS,
        until_ns: int | None = None,
        follow_ups: FollowUps | None = None,
        in_pieces: bool = False,
        **config: Any,
    ) -> None:
        self.allocator = PagedAllocator(blocks, 4, prefix_sharing)
        self.steps: list[tuple[int, list[tuple[int, int]]]] = []
        self.finished: list[tuple[int, list[int]]] = []
        scheduler = Scheduler(
            EngineConfig(**{"max_model_len": 1000, "latency": latency, **config}), self.allocator, watermark_blocks
        )
        simulation = Simulation(
            scheduler.config,
            scheduler,
            requests,
            follow_ups=follow_ups,
            on_step=self.on_step,
            on_outputs=self.on_outputs,
            check=True,
        )
        if in_pieces:
            simulation.recorder = AlwaysFull()
        self.recorder = simulation.recorder
        self.pieces: list[Rows] = []
        self.states: dict[int, RequestState] = {}
        self.pressure: list[Pressure] = []
        simulation.run(until_ns, self.on_full)
        self.take(None)
        self.rows = {name: np.concatenate([rows[name] for rows in self.pieces]) for name in self.pieces[0]}
        self.stalled = simulation.stalled
        self.end_ns = simulation.now
        self.allocator.check()

    def on_step(self, now: int, step: Step) -> None:
        assert len(self.steps) < 1000, "these worlds come to an end"
        self.steps.append((now, [(state.request.id, num_tokens) for state, num_tokens in step.scheduled.items()]))

    def on_outputs(self, now: int, sampled: Sampled) -> None:
        if sampled.finished:
            self.finished.append((now, [state.request.id for state in sampled.finished]))

    def on_full(self, now: int) -> None:
        if now:  # before the first instant there is nothing
            self.take(now)

    def take(self, before_ns: int | None) -> None:
        """What is complete, or at the end all of it."""
        at_end = before_ns is None
        self.pieces.append(self.recorder.take_rows(before_ns))
        self.states.update((state.request.id, state) for state in self.recorder.take_states(all=at_end))
        self.pressure += self.recorder.take_pressure(all=at_end)

    def __getitem__(self, id: int) -> RequestState:
        return self.states[id]

    def outcomes(self) -> dict[int, str]:
        return {id: state.outcome for id, state in self.states.items()}

    def levels(self, name: str) -> list[tuple[int, int]]:
        return list(zip(self.rows["time"].tolist(), self.rows[name].tolist(), strict=True))


def make_run(*requests: Request, **options: Any) -> Run:
    return Run(*requests, **options)


# one request, from arrival to end


def test_a_request_alone() -> None:
    run = make_run(make_request(0, own=5, output=4, arrival=7))
    assert run.steps == [(7, [(0, 5)]), (17, [(0, 1)]), (27, [(0, 1)]), (37, [(0, 1)])]
    state = run[0]
    assert (state.admitted_ns, state.first_token_ns, state.ended_ns) == (7, 17, 47)
    assert (state.outcome, state.num_output_tokens) == ("finished", 4)
    assert run.finished == [(47, [0])]
    assert (run.end_ns, run.recorder.num_steps, run.stalled) == (47, 4, None)


def test_prompt_and_output_take_all_slots_but_one() -> None:
    run = make_run(make_request(0, own=5, output=4), blocks=3)
    assert run.outcomes() == {0: "finished"}
    assert max(tokens for _time, tokens in run.levels("live_bytes")) == 5 + 4 - 1
    assert run.levels("allocated_blocks") == [(0, 2), (10, 2), (20, 2), (30, 2), (40, 0)]


def test_levels_hold_from_a_decision_to_the_next_change() -> None:
    run = make_run(make_request(0, own=3, output=3, arrival=4))
    assert run.levels("live_bytes") == [(0, 0), (4, 3), (14, 4), (24, 5), (34, 0)]
    assert run.levels("running") == [(0, 0), (4, 1), (14, 1), (24, 1), (34, 0)]
    # What it leaves: one full block, and one that went back blank.
    assert run.levels("cached_blocks")[-1] == (34, 1)


def test_a_step_lasts_as_long_as_its_work_takes() -> None:
    run = make_run(
        make_request(0, own=6, output=3), make_request(1, own=4, output=1), latency=LatencyModel(1000, 100, 10, 1)
    )
    # 10 prefill tokens and 10 in context; then one decode over 7 and over 8.
    assert [time for time, _scheduled in run.steps] == [0, 2010, 3027]
    assert run.end_ns == 3027 + 1000 + 10 + 8


def test_a_request_that_reaches_max_model_len_is_cut() -> None:
    run = make_run(make_request(0, own=5, output=4), make_request(1, own=5, output=3), max_model_len=8)
    assert run.outcomes() == {0: "cut", 1: "finished"}
    assert (run[0].num_output_tokens, run[0].ended_ns) == (3, run[1].ended_ns)


def test_a_run_changes_nothing_of_its_requests() -> None:
    requests = [make_request(id, own=own) for id, own in enumerate((8, 8, 200))]
    before = [copy(request) for request in requests]
    run = make_run(*requests, blocks=8)
    assert run.outcomes() == {0: "finished", 1: "finished", 2: "rejected"}
    assert run[1].num_preemptions > 0
    assert requests == before


def test_an_engine_without_requests_does_nothing() -> None:
    run = make_run()
    assert (run.steps, run.end_ns, run.stalled) == ([], 0, None)
    assert run.levels("running") == [(0, 0)]


# order at equal times


def test_requests_that_arrive_together_keep_their_order_and_share_a_step() -> None:
    run = make_run(*(make_request(id, own=4, output=1, arrival=30) for id in (3, 1, 2)))
    assert run.steps == [(30, [(3, 4), (1, 4), (2, 4)])]


def test_a_request_that_arrives_at_a_step_boundary_is_seen_by_the_step_that_begins_there() -> None:
    run = make_run(
        make_request(0, own=4, output=4),
        make_request(1, own=4, output=1, arrival=10),
        make_request(2, own=4, output=1, arrival=11),
    )
    assert run.steps == [(0, [(0, 4)]), (10, [(0, 1), (1, 4)]), (20, [(0, 1), (2, 4)]), (30, [(0, 1)])]


def test_what_ends_at_a_boundary_makes_room_for_who_arrives_there() -> None:
    run = make_run(
        make_request(0, own=8, output=1), make_request(1, own=8, output=1, arrival=10), blocks=3, prefix_sharing=False
    )
    assert run.steps == [(0, [(0, 8)]), (10, [(1, 8)])]
    assert run[1].refusals == 0


def test_an_engine_that_slept_wakes_for_all_that_arrive_at_that_time() -> None:
    run = make_run(
        make_request(0, own=4, output=1),
        make_request(1, own=4, output=1, arrival=500),
        make_request(2, own=4, output=1, arrival=500),
    )
    assert run.steps == [(0, [(0, 4)]), (500, [(1, 4), (2, 4)])]


def test_requests_must_come_in_order_of_arrival() -> None:
    with pytest.raises(AssertionError, match="in order of arrival"):
        make_run(make_request(0, own=4, arrival=5), make_request(1, own=4, arrival=4))


# time-outs


def blocked_until(end_step: int) -> Request:
    """Keeps both blocks of a pool of two busy until the given step ends, the fourth at most."""
    assert end_step <= 4
    return make_request(0, own=5, output=end_step)


@pytest.mark.parametrize(("timeout", "outcome"), [(31, "finished"), (30, "timed_out"), (29, "timed_out")])
def test_who_has_waited_exactly_the_timeout_is_gone(timeout: int, outcome: str) -> None:
    """The blocks become free at 30, when the second has waited 30."""
    run = make_run(blocked_until(3), make_request(1, own=5, output=1), blocks=3, timeout=timeout)
    assert run.outcomes() == {0: "finished", 1: outcome}
    assert run[1].ended_ns == (40 if outcome == "finished" else timeout)
    assert run[1].blocked_ns == min(timeout, 30)


def test_a_timeout_counts_from_each_arrival() -> None:
    run = make_run(
        blocked_until(4),
        *(make_request(id, own=5, output=1, arrival=arrival) for id, arrival in ((1, 3), (2, 9), (3, 9))),
        blocks=3,
        timeout=15,
    )
    assert {id: run[id].ended_ns for id in (1, 2, 3)} == {1: 18, 2: 24, 3: 24}
    assert {run[id].outcome for id in (1, 2, 3)} == {"timed_out"}


def test_a_timeout_is_for_the_first_admission_only() -> None:
    """The second is preempted in the second step and waits longer than the timeout after that."""
    run = make_run(
        make_request(0, own=4, output=5), make_request(1, own=4, output=2), blocks=4, timeout=15, prefix_sharing=False
    )
    assert run[1].num_preemptions == 1
    assert run.outcomes() == {0: "finished", 1: "finished"}
    assert run[1].ended_ns == 60


def test_a_request_that_runs_is_not_timed_out() -> None:
    run = make_run(make_request(0, own=4, output=30), timeout=15)
    assert run.outcomes() == {0: "finished"}


def test_timeouts_come_before_arrivals_of_their_time() -> None:
    """A queue of one: the request that is gone at 16 makes place for the one that comes at 16."""
    run = make_run(
        blocked_until(4),
        *(make_request(id, own=5, output=1, arrival=arrival) for id, arrival in ((1, 1), (2, 16))),
        blocks=3,
        timeout=15,
        max_waiting=1,
    )
    assert run.outcomes() == {0: "finished", 1: "timed_out", 2: "timed_out"}
    assert (run[1].ended_ns, run[2].ended_ns) == (16, 31)


def test_who_comes_before_a_timeout_finds_the_queue_full() -> None:
    run = make_run(
        blocked_until(4),
        *(make_request(id, own=5, output=1, arrival=arrival) for id, arrival in ((1, 1), (2, 15))),
        blocks=3,
        timeout=15,
        max_waiting=1,
    )
    assert (run[2].outcome, run[2].reason) == ("rejected", "queue_full")


def test_a_timeout_frees_the_queue_of_an_engine_that_sleeps() -> None:
    run = make_run(
        make_request(0, own=20, output=1, arrival=2),
        make_request(1, own=4, output=1, arrival=5),
        blocks=5,
        timeout=40,
        reject_unservable=False,
    )
    assert run.outcomes() == {0: "timed_out", 1: "finished"}
    assert run.steps[-1] == (42, [(1, 4)])


# turned away on arrival


@pytest.mark.parametrize(("prompt", "outcome"), [(11, "cut"), (12, "rejected"), (13, "rejected")])
def test_a_prompt_of_max_model_len_or_more_is_rejected(prompt: int, outcome: str) -> None:
    run = make_run(make_request(0, own=prompt), max_model_len=12)
    assert run.outcomes() == {0: outcome}
    assert run[0].reason == ("prompt_too_long" if outcome == "rejected" else None)


@pytest.mark.parametrize(
    ("prompt", "output", "outcome"),
    [(5, 4, "finished"), (5, 5, "rejected"), (8, 1, "finished"), (9, 1, "rejected"), (5, 100, "rejected")],
)
def test_what_two_blocks_can_never_hold_is_rejected(prompt: int, output: int, outcome: str) -> None:
    run = make_run(make_request(0, own=prompt, output=output), blocks=3)
    assert run.outcomes() == {0: outcome}
    assert run[0].reason == ("never_fits" if outcome == "rejected" else None)


def test_what_max_model_len_cuts_off_need_not_fit() -> None:
    run = make_run(make_request(0, own=5, output=100), blocks=3, max_model_len=9)
    assert run.outcomes() == {0: "cut"}


def test_of_several_reasons_the_first_is_given() -> None:
    run = make_run(
        make_request(0, own=4, output=1),
        make_request(1, own=400),
        make_request(2, own=100),
        make_request(3, own=4, output=1),
        blocks=3,
        max_waiting=1,
        max_model_len=200,
    )
    assert [run[id].reason for id in range(4)] == [None, "prompt_too_long", "never_fits", "queue_full"]


def test_a_rejected_request_leaves_no_trace_in_the_engine() -> None:
    run = make_run(make_request(0, own=400, arrival=5), blocks=3)
    assert (run.steps, run[0].ended_ns, run[0].admitted_ns) == ([], 5, None)


def test_who_finds_the_queue_full_is_rejected() -> None:
    run = make_run(
        make_request(0, own=4, output=3),
        *(make_request(id, own=4, output=1, arrival=1) for id in (1, 2, 3)),
        make_request(4, own=4, output=1, arrival=31),
        max_num_seqs=1,
        max_waiting=2,
    )
    assert run.outcomes() == {0: "finished", 1: "finished", 2: "finished", 3: "rejected", 4: "finished"}
    assert run[3].reason == "queue_full"


def test_the_queue_bound_holds_between_requests_of_one_instant() -> None:
    """All wait until the step that begins after the last arrival of this time."""
    run = make_run(*(make_request(id, own=4, output=1) for id in range(3)), max_waiting=2)
    assert run.outcomes() == {0: "finished", 1: "finished", 2: "rejected"}


# no way forward


def test_an_unservable_request_blocks_the_queue_if_it_is_not_rejected() -> None:
    run = make_run(
        make_request(0, own=4, output=2),
        make_request(7, own=20, output=3),
        make_request(2, own=1),
        blocks=5,
        reject_unservable=False,
    )
    assert run.outcomes() == {0: "finished", 7: "unfinished", 2: "unfinished"}
    assert run.stalled == (
        "request 7 (20 prompt and 3 output tokens) blocks the queue for ever: "
        "its 20 known tokens do not fit in 4 usable blocks; 2 requests were left waiting"
    )
    assert run[7].blocked_ns == run.end_ns
    assert run[7].refusals == 3


def test_a_request_that_outgrows_the_pool_is_named_with_its_known_tokens() -> None:
    run = make_run(make_request(5, own=6, output=9), blocks=3, reject_unservable=False)
    assert run.stalled is not None
    assert run.stalled.startswith("request 5 (6 prompt and 9 output tokens) blocks the queue for ever: its 9 known")
    assert (run[5].num_output_tokens, run[5].num_preemptions) == (3, 1)


def test_a_prompt_beyond_the_token_budget_is_named_with_chunked_prefill_off() -> None:
    run = make_run(make_request(5, own=6), max_num_batched_tokens=5, enable_chunked_prefill=False)
    assert run.stalled is not None
    assert "its 6 known tokens exceed max_num_batched_tokens = 5 and chunked prefill is off" in run.stalled


def test_a_futile_cycle_is_stopped() -> None:
    """Gate off and no cache: admitted in chunks, preempted by itself, admitted again, for ever."""
    run = make_run(
        make_request(0, own=12, output=1),
        blocks=3,
        prefix_sharing=False,
        max_num_batched_tokens=4,
        scheduler_reserve_full_isl=False,
        reject_unservable=False,
    )
    assert run[0].num_preemptions == 2
    assert run.steps == [(time, [(0, 4)] if time % 30 < 20 else []) for time in range(0, 60, 10)]
    assert run.stalled is not None
    assert "its 12 known tokens do not fit in 2 usable blocks" in run.stalled


def test_outgrowing_the_pool_now_and_then_is_not_futile() -> None:
    """The first outgrows the pool in every turn, but each time it comes back the second has got a token."""
    run = make_run(
        make_request(0, own=7, output=1),
        make_request(1, own=7, output=1),
        blocks=4,
        prefix_sharing=False,
        max_num_batched_tokens=4,
        scheduler_reserve_full_isl=False,
    )
    assert run.outcomes() == {0: "finished", 1: "finished"}
    assert run.stalled is None


def test_a_futile_cycle_goes_on_when_somebody_comes_or_leaves() -> None:
    run = make_run(
        make_request(0, own=12, output=1, abort=500),
        make_request(1, own=4, output=1, arrival=700),
        blocks=3,
        prefix_sharing=False,
        max_num_batched_tokens=4,
        scheduler_reserve_full_isl=False,
        reject_unservable=False,
    )
    assert run.outcomes() == {0: "aborted", 1: "finished"}
    assert run.stalled is None


def test_who_is_blocked_for_ever_is_so_until_nothing_moves_any_more() -> None:
    """That a client hangs up long after its request has finished is no part of the run."""
    run = make_run(
        make_request(0, own=4, output=3, abort=5000), make_request(1, own=20), blocks=5, reject_unservable=False
    )
    assert run.levels("waiting")[-1] == (30, 1)
    assert run[1].blocked_ns == 30


def test_a_run_may_end_before_its_requests_do() -> None:
    run = make_run(make_request(0, own=4, output=9), make_request(1, own=4, arrival=60), until_ns=25)
    assert run.outcomes() == {0: "unfinished"}
    assert (run[0].num_output_tokens, run[0].ended_ns, run.end_ns, run.stalled) == (2, None, 25, None)


# hang-ups


@pytest.mark.parametrize(("abort", "left"), [(0, 0), (15, 20), (20, 20), (21, 30)])
def test_who_hangs_up_leaves_at_the_next_step_boundary(abort: int, left: int) -> None:
    run = make_run(make_request(0, own=4, output=9, abort=abort))
    assert (run[0].outcome, run[0].ended_ns) == ("aborted", left)
    assert run.levels("allocated_blocks")[-1] == (left, 0)
    assert run[0].num_output_tokens == left // 10


def test_the_blocks_of_who_hangs_up_are_there_for_the_step_that_begins() -> None:
    run = make_run(
        make_request(0, own=8, output=5, abort=15), make_request(1, own=8, output=1), blocks=4, prefix_sharing=False
    )
    assert run.steps == [(0, [(0, 8)]), (10, [(0, 1)]), (20, [(1, 8)])]


def test_who_hangs_up_while_waiting_is_not_admitted_any_more() -> None:
    run = make_run(make_request(0, own=5, output=3), make_request(1, own=5, output=1, abort=30), blocks=3)
    assert run.outcomes() == {0: "finished", 1: "aborted"}
    assert (run[1].ended_ns, run[1].admitted_ns) == (30, None)


def test_who_hangs_up_in_the_middle_of_a_prompt_leaves_its_full_blocks_cached() -> None:
    run = make_run(make_request(0, own=30, abort=15), max_num_batched_tokens=5)
    assert run.outcomes() == {0: "aborted"}
    assert run.levels("cached_blocks")[-1] == (20, 2)
    assert run[0].first_token_ns is None


def test_who_hangs_up_after_a_preemption_leaves_the_queue() -> None:
    run = make_run(make_request(0, own=4, output=9), make_request(1, own=4, output=9, abort=25), blocks=4)
    assert run[1].num_preemptions == 1
    assert (run[1].outcome, run[1].ended_ns) == ("aborted", 30)


def test_who_hangs_up_when_the_last_token_comes_has_finished() -> None:
    run = make_run(make_request(0, own=4, output=2, abort=20))
    assert (run[0].outcome, run[0].ended_ns) == ("finished", 20)


def test_who_hangs_up_before_arriving_is_gone_at_once() -> None:
    run = make_run(make_request(0, own=4, arrival=33, abort=12))
    assert (run[0].outcome, run[0].ended_ns, run.steps) == ("aborted", 33, [])


def test_hanging_up_wakes_an_engine_that_sleeps() -> None:
    run = make_run(
        make_request(0, own=20, output=1, abort=77), make_request(1, own=4, output=1), blocks=5, reject_unservable=False
    )
    assert run.outcomes() == {0: "aborted", 1: "finished"}
    assert run.steps[-1] == (77, [(1, 4)])


def test_hanging_up_after_the_end_changes_nothing() -> None:
    requests = make_request(0, own=4, output=1, abort=500), make_request(1, own=20), make_request(2, own=1)
    run = make_run(*requests, blocks=5, reject_unservable=False)
    assert run[0].outcome == "finished"
    # Looked at in the first step and in the one after it.
    assert run[1].refusals == 2


def test_who_is_rejected_or_timed_out_cannot_hang_up() -> None:
    run = make_run(
        blocked_until(4),
        make_request(1, own=5, output=1, abort=25),
        make_request(2, own=500, abort=25),
        blocks=3,
        timeout=20,
    )
    assert {id: run[id].outcome for id in (1, 2)} == {1: "timed_out", 2: "rejected"}


# what is counted


def test_refusals_are_counted_per_step_and_blocked_from_each_to_the_next_decision() -> None:
    run = make_run(blocked_until(3), make_request(1, own=5, output=1, arrival=4), blocks=3)
    state = run[1]
    assert (state.refusals, state.blocked_ns, state.admitted_ns) == (2, 20, 30)
    assert run.rows["refused"].tolist() == [0, 0, 1, 1, 0, 0]


def test_refusals_in_a_row_are_one_row_of_pressure_until_the_cause_changes() -> None:
    """The last needs 3 of 4 blocks and one to spare. 1 is free until the first leaves at 20, then 3, then 2 when the
    other takes its second block at 40; that one leaves at 90.
    """
    run = make_run(
        make_request(0, own=5, output=2),
        make_request(1, own=1, output=9),
        make_request(2, own=9, output=1, arrival=1),
        blocks=5,
        watermark_blocks=1,
    )
    rows = [(row.time_ns, row.event, row.request_id, row.cause, row.steps) for row in run.pressure]
    assert rows == [
        (10, "refused", 2, "blocks", 1),
        (20, "refused", 2, "watermark", 2),
        (40, "refused", 2, "blocks", 5),
    ]
    assert run.pressure[0].shortfall == Shortfall(4, 1, 0, 3, 8 - 6 + 4 - 2, "blocks")
    assert run.pressure[1].shortfall == Shortfall(4, 2, 1, 1, 1, "watermark")
    assert (run[2].refusal_causes, run[2].admitted_ns) == ({"blocks": 6, "watermark": 2}, 90)


def test_waiting_behind_a_blocked_head_is_not_being_refused() -> None:
    """The last one is refused only when it has become the head itself."""
    run = make_run(blocked_until(3), make_request(1, own=5, output=1), make_request(2, own=1, output=1), blocks=3)
    assert (run[1].refusals, run[2].refusals) == (3, 1)
    assert (run[2].blocked_ns, run[2].admitted_ns) == (10, 40)


def test_a_resumed_request_counts_its_hit_apart() -> None:
    run = make_run(make_request(0, own=4, output=3), make_request(1, own=5, output=3), blocks=4)
    state = run[1]
    assert (state.num_preemptions, state.num_recomputed_tokens) == (1, 1)
    assert (state.hit_tokens, state.resumed_hit_tokens) == (0, 4)
    assert state.admitted_ns == 0


def test_occupancy_is_empty_at_the_end() -> None:
    run = make_run(*(make_request(id, shared=8, own=id + 1, arrival=7 * id) for id in range(5)))
    cached, blank = run.allocator.pool.num_cached, run.allocator.pool.num_blank
    assert run.allocator.occupancy() == Occupancy(0, cached, blank, 0, 0, 0, 0)
    assert cached + blank == 99


requests = st.lists(
    st.builds(
        dict,
        own=st.integers(1, 12),
        shared=st.sampled_from([0, 0, 4, 6]),
        output=st.integers(1, 8),
        arrival=st.integers(0, 12).map(lambda tens: 5 * tens),
        abort=st.none() | st.integers(0, 30).map(lambda fives: 5 * fives),
        priority=st.integers(0, 2),
    ),
    max_size=10,
)


# requests that follow the end of another


class Chain:
    """Requests that each follow the end of the one before; remembers what it was told."""

    def __init__(self, *requests: Request, wait_ns: int = 0) -> None:
        self.requests = list(requests)
        self.wait_ns = wait_ns
        self.told: list[tuple[int, int, bool]] = []

    def __call__(self, now: int, ended: Request, complete: bool) -> list[Request]:
        self.told.append((now, ended.id, complete))
        return [self.requests.pop(0).but(arrival_ns=now + self.wait_ns)] if self.requests else []


def test_what_follows_at_once_is_seen_by_the_step_that_begins_there() -> None:
    chain = Chain(make_request(2, own=3, output=1))
    run = make_run(make_request(0, own=5, output=1), make_request(1, own=4, output=3), follow_ups=chain)
    assert run.steps == [(0, [(0, 5), (1, 4)]), (10, [(1, 1), (2, 3)]), (20, [(1, 1)])]
    assert chain.told == [(10, 0, True), (20, 2, True), (30, 1, True)]


def test_what_follows_later_arrives_then() -> None:
    run = make_run(
        make_request(0, own=5, output=1), follow_ups=Chain(make_request(1, own=3, output=1), wait_ns=7), timeout=100
    )
    assert run.steps == [(0, [(0, 5)]), (17, [(1, 3)])]
    assert run[1].request.arrival_ns == 17


def test_a_follow_up_arrives_before_the_end_of_a_step_of_its_time() -> None:
    """At 20 the step of request 1 ends; what follows request 0, which ended at 10, arrives at 20 too."""
    run = make_run(
        make_request(0, own=5, output=1),
        make_request(1, own=4, output=3),
        follow_ups=Chain(make_request(2, own=3, output=1), wait_ns=10),
    )
    assert run.steps == [(0, [(0, 5), (1, 4)]), (10, [(1, 1)]), (20, [(1, 1), (2, 3)])]


def test_every_way_to_end_is_told_once() -> None:
    chain = Chain()
    run = make_run(
        make_request(0, own=5, output=9),
        make_request(1, own=50, output=1),
        make_request(2, own=5, output=1),
        make_request(3, own=5, output=1, abort=25),
        make_request(4, own=5, output=30, arrival=60),
        follow_ups=chain,
        max_num_seqs=1,
        max_model_len=20,
        timeout=40,
    )
    assert run.outcomes() == {0: "finished", 1: "rejected", 2: "timed_out", 3: "aborted", 4: "cut"}
    assert chain.told == [(0, 1, False), (30, 3, False), (40, 2, False), (90, 0, True), (240, 4, False)]


def test_a_chain_of_rejections_ends_where_its_requests_do() -> None:
    chain = Chain(*(make_request(id, own=50) for id in range(1, 3000)))
    run = make_run(make_request(0, own=50), follow_ups=chain, max_model_len=20)
    assert set(run.outcomes().values()) == {"rejected"}
    assert [id for _now, id, _complete in chain.told] == list(range(3000))
    assert run.end_ns == 0


@given(
    requests,
    st.integers(2, 10),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 3),
    st.sampled_from(["fcfs", "priority"]),
    st.integers(1, 20),
    st.booleans(),
)
def test_every_request_has_one_outcome_and_nothing_is_left_behind(
    drawn: list[dict[str, Any]],
    blocks: int,
    timeout: int | None,
    max_waiting: int | None,
    policy: str,
    budget: int,
    reject_unservable: bool,
) -> None:
    drawn.sort(key=lambda values: values["arrival"])
    made = [make_request(id, **values) for id, values in enumerate(drawn)]
    run = make_run(
        *made,
        blocks=blocks,
        timeout=timeout,
        max_waiting=max_waiting,
        policy=policy,
        max_num_batched_tokens=budget,
        reject_unservable=reject_unservable,
        max_model_len=30,
    )
    assert list(run.outcomes()) == [request.id for request in made]
    for request in made:
        state = run[request.id]
        generated = state.num_output_tokens
        assert (state.reason is not None) == (state.outcome == "rejected")
        assert (state.ended_ns is None) == (state.outcome == "unfinished")
        assert (generated == request.output_tokens) >= (state.outcome == "finished")
        assert generated <= min(request.output_tokens, 30 - min(30, request.prompt_tokens))
        if state.outcome == "timed_out":
            assert timeout is not None
            assert (state.ended_ns, state.admitted_ns) == (request.arrival_ns + timeout, None)
        elif timeout is not None and state.admitted_ns is not None:
            assert state.admitted_ns < request.arrival_ns + timeout
        if state.outcome == "aborted":
            assert request.abort_ns is not None
            assert state.ended_ns is not None
            assert max(request.abort_ns, request.arrival_ns) <= state.ended_ns
    assert (run.stalled is not None) == ("unfinished" in run.outcomes().values())
    assert run.stalled is None or not reject_unservable
    occupancy = run.allocator.occupancy()
    assert (occupancy.allocated_blocks, occupancy.live_bytes, occupancy.logical_bytes) == (0, 0, 0)
    assert run.rows["arrived"].sum() == len(made)


# what is handed over while the run goes on


def said(run: Run) -> dict[str, Any]:
    """All that a run leaves."""
    return {
        "rows": {name: column.tolist() for name, column in run.rows.items()},
        "requests": requests_frame(list(run.states.values())).rows(),
        "pressure": pressure_frame(run.pressure).rows(),
        "figures": (run.recorder.num_steps, run.recorder.num_ended, run.recorder.held_back_steps, run.stalled),
    }


def test_rows_are_handed_over_before_every_decision_of_a_recorder_that_is_full() -> None:
    requests = make_request(0, own=5, output=4), make_request(1, own=5, output=1, arrival=12)
    run = make_run(*requests, blocks=4, in_pieces=True)
    assert [rows["time"].tolist() for rows in run.pieces] == [[0], [10, 12], [20], [30], [40, 50]]


@given(
    requests, st.integers(2, 10), st.none() | st.integers(1, 60), st.sampled_from(["fcfs", "priority"]), st.booleans()
)
def test_a_run_whose_rows_are_taken_in_pieces_leaves_what_it_does_whole(
    drawn: list[dict[str, Any]], blocks: int, timeout: int | None, policy: str, reject_unservable: bool
) -> None:
    drawn.sort(key=lambda values: values["arrival"])
    made = [make_request(id, **values) for id, values in enumerate(drawn)]
    options = {"blocks": blocks, "timeout": timeout, "policy": policy, "reject_unservable": reject_unservable}
    chains = [Chain(*(make_request(id, own=5, output=2) for id in range(100, 103)), wait_ns=5) for _ in range(2)]
    pieces, whole = (
        make_run(*made, in_pieces=in_pieces, follow_ups=chain, max_num_batched_tokens=12, **options)
        for in_pieces, chain in zip((True, False), chains, strict=True)
    )
    assert said(pieces) == said(whole)


# steps until an instant


@given(st.integers(-5, 400), st.integers(1, 20), st.integers(0, 5), st.integers(1, 30))
def test_steps_until_an_instant_are_the_fewest_that_reach_it(
    delay_ns: int, tick_ns: int, longer_ns: int, most: int
) -> None:
    ends = accumulate(tick_ns + longer_ns * tick for tick in range(most))
    reached = [ticks for ticks, end_ns in enumerate(ends, 1) if end_ns >= delay_ns]
    assert ticks_until(delay_ns, tick_ns, longer_ns, most) == min(reached, default=most)
