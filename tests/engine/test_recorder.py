from typing import Any

from kvsim.engine.recorder import Pressure, Recorder
from kvsim.engine.state import RequestState
from kvsim.engine.step import Sampled, Step
from kvsim.engine.timeline import EVENTS, LEVELS, ROWS_AT_ONCE, Decoding, Rows
from kvsim.memory.allocator import Hit, LeastChange, Occupancy, Shortfall
from tests.makers import make_request

EMPTY = Occupancy(0, 0, 9, 0, 0, 0, 0)


def make_recorder(*states: RequestState) -> Recorder:
    """A recorder that has seen these requests arrive at 0."""
    recorder = Recorder()
    for state in states:
        recorder.arrived(0, state)
    recorder.observe(0, EMPTY, 0)
    return recorder


def make_state(id: int = 0, output: int = 10, max_model_len: int = 100) -> RequestState:
    return RequestState(make_request(id, own=20, output=output), id, max_model_len)


def short(cause: LeastChange = "blocks", need: int = 5) -> Shortfall:
    """`need` blocks where two are free."""
    return Shortfall(need, 1, 1, need - 2, 70, cause)


def refusal(state: RequestState, cause: LeastChange = "blocks", need: int = 5, **more: Any) -> Step:
    return Step(refused=state, refusal_shortfall=short(cause, need), **more)


def preemption(*states: RequestState, **more: Any) -> Step:
    return Step(preempted=list(states), preemption_shortfalls=[short() for _ in states], **more)


def levels(rows: Rows) -> list[tuple[int, ...]]:
    return list(zip(*(rows[name].tolist() for name in ("time", *LEVELS)), strict=True))


def test_each_instant_has_one_row_with_its_last_levels() -> None:
    """Three arrive at 5, where the first of them is admitted; the other two hang up at 8."""
    states = [make_state(id) for id in range(3)]
    recorder = make_recorder()
    for state in states:
        recorder.arrived(5, state)
    recorder.observe(5, Occupancy(1, 2, 6, 4, 1, 8, 3), 1)
    recorder.step_began(5, Step(admitted=[(states[0], Hit(0, ([],)))]))
    recorder.observe(5, Occupancy(2, 1, 6, 7, 2, 9, 5, 11, 12, 13, 14), 2)
    for state in states[1:]:
        recorder.left(8, state, "aborted", was_running=False)
    recorder.observe(8, EMPTY, 0)
    assert (*Occupancy._fields, "running", "waiting") == LEVELS
    assert levels(recorder.take_rows()) == [
        (0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (5, 2, 1, 6, 7, 2, 9, 5, 11, 12, 13, 14, 2, 2),
        (8, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    ]


def test_events_are_counted_in_the_row_of_their_instant() -> None:
    first, second = make_state(0), make_state(1)
    recorder = make_recorder(first)
    recorder.arrived(0, second)
    recorder.observe(0, EMPTY, 0)
    recorder.step_began(4, refusal(second, admitted=[(first, Hit(0, ([],)))]))
    recorder.observe(4, EMPTY, 1)
    recorder.observe(9, EMPTY, 1)
    rows = recorder.take_rows()
    assert rows["waiting"].tolist() == [2, 1, 1]
    assert {name: rows[name].tolist() for name in EVENTS if rows[name].any()} == {
        "arrived": [2, 0, 0],
        "admitted": [0, 1, 0],
        "refused": [0, 1, 0],
    }
    assert tuple(rows) == ("time", *LEVELS, *EVENTS)


def test_an_admission_keeps_its_time_and_its_hit() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(4, Step(scheduled={state: 4}, admitted=[(state, Hit(16, ([1],)))]))
    assert (state.admitted_ns, state.hit_tokens, state.resumed_hit_tokens) == (4, 16, 0)
    assert (state.refusals, state.blocked_ns) == (0, 0)


def test_hits_of_all_resumptions_are_added_up_and_admission_stays_the_first() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(4, Step(admitted=[(state, Hit(16, ([1],)))]))
    for time, tokens in ((8, 4), (12, 8)):
        recorder.step_began(time - 1, preemption(state))
        recorder.step_began(time, Step(resumed=[(state, Hit(tokens, ([],)))]))
    recorder.observe(12, EMPTY, 1)
    assert (state.admitted_ns, state.hit_tokens, state.resumed_hit_tokens) == (4, 16, 12)
    rows = recorder.take_rows()
    assert (rows["preempted"].tolist(), rows["resumed"].tolist()) == ([0, 2], [0, 2])


def test_blocked_time_runs_from_a_refusal_to_the_next_decision_and_adds_up() -> None:
    state = make_state()
    recorder = make_recorder(state)
    for time in (3, 5, 8):
        recorder.step_began(time, refusal(state))
    recorder.step_began(10, Step(admitted=[(state, Hit(0, ([],)))]))
    assert (state.refusals, state.blocked_ns) == (3, 7)
    recorder.step_began(20, preemption(state))
    recorder.step_began(30, refusal(state))
    recorder.step_began(31, Step(resumed=[(state, Hit(0, ([],)))]))
    assert (state.refusals, state.blocked_ns) == (4, 8)


def test_a_head_that_is_not_refused_is_not_blocked() -> None:
    """Refused at 3 and 20; at 5 the step had no place or no budget left for it, so memory did not hold it back."""
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(3, refusal(state))
    recorder.step_began(5, Step())
    recorder.step_began(20, refusal(state))
    recorder.step_began(21, Step(admitted=[(state, Hit(0, ([],)))]))
    assert (state.refusals, state.blocked_ns) == (2, 2 + 1)


def test_one_request_is_blocked_at_a_time() -> None:
    """The second, more urgent, comes to the head of the queue at 5."""
    first, second = make_state(0), make_state(1)
    recorder = make_recorder(first, second)
    recorder.step_began(3, refusal(first))
    recorder.step_began(5, refusal(second))
    recorder.step_began(9, refusal(first, admitted=[(second, Hit(0, ([],)))]))
    recorder.step_began(10, Step(admitted=[(first, Hit(0, ([],)))]))
    assert (first.blocked_ns, second.blocked_ns) == (2 + 1, 4)


def test_another_that_leaves_does_not_end_the_blocked_time() -> None:
    head, other = make_state(0), make_state(1)
    recorder = make_recorder(head, other)
    recorder.step_began(3, refusal(head))
    recorder.left(5, other, "aborted", was_running=True)
    recorder.step_began(10, Step(admitted=[(head, Hit(0, ([],)))]))
    assert (head.blocked_ns, other.blocked_ns) == (7, 0)


def test_blocked_time_ends_with_the_request() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(3, refusal(state))
    recorder.left(9, state, "timed_out", was_running=False)
    assert (state.blocked_ns, state.ended_ns, state.outcome) == (6, 9, "timed_out")


def test_a_request_that_has_all_its_output_is_finished_and_any_other_is_cut() -> None:
    whole, short = make_state(0, output=2), make_state(1, output=30, max_model_len=22)
    recorder = make_recorder(whole, short)
    whole.num_tokens = short.num_tokens = 22
    recorder.step_ended(7, Sampled(num_tokens=2, first_tokens=[short], finished=[whole, short]))
    recorder.observe(7, EMPTY, 0)
    assert (whole.outcome, short.outcome) == ("finished", "cut")
    assert (whole.first_token_ns, short.first_token_ns) == (None, 7)
    assert (whole.ended_ns, short.ended_ns) == (7, 7)
    assert (whole.num_output_tokens, short.num_output_tokens) == (2, 2)
    # The timeline counts both as finished.
    assert recorder.take_rows()["finished"].tolist() == [0, 2]
    assert recorder.num_ended == 2


def test_an_unfinished_request_has_no_end() -> None:
    state = make_state()
    state.num_tokens = 23
    state.num_recomputed_tokens = 5
    recorder = make_recorder(state)
    recorder.step_began(3, refusal(state))
    recorder.stopped(9)
    assert (state.outcome, state.ended_ns, state.num_output_tokens) == ("unfinished", None, 3)
    assert (state.blocked_ns, state.num_recomputed_tokens, recorder.num_ended) == (6, 5, 0)


def test_a_rejected_request_has_a_reason_and_ends_at_once() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.rejected(0, state, "queue_full")
    recorder.observe(0, EMPTY, 0)
    assert (state.outcome, state.reason, state.ended_ns) == ("rejected", "queue_full", 0)
    rows = recorder.take_rows()
    assert (rows["rejected"].tolist(), rows["waiting"].tolist()) == ([1], [0])


def pressure(recorder: Recorder) -> list[tuple[int, str, int, str, int]]:
    return [(row.time_ns, row.event, row.request_id, row.cause, row.steps) for row in recorder.pressure]


def test_a_run_of_refusals_of_one_request_for_one_cause_is_one_row_with_the_figures_of_its_first_step() -> None:
    state = make_state()
    recorder = make_recorder(state)
    for time, need in ((3, 6), (5, 7), (8, 5)):
        recorder.step_began(time, refusal(state, need=need))
    assert recorder.pressure == [Pressure(3, "refused", 0, "blocks", 3, Shortfall(6, 1, 1, 4, 70, "blocks"))]
    assert state.refusal_causes == {"blocks": 3}


def test_another_cause_or_another_request_begins_another_row() -> None:
    first, second = make_state(0), make_state(1)
    recorder = make_recorder(first, second)
    recorder.step_began(1, refusal(first))
    recorder.step_began(2, refusal(first, "gate"))
    recorder.step_began(3, refusal(first, "gate"))
    recorder.step_began(4, refusal(second, "gate"))
    recorder.step_began(5, refusal(first, "gate"))
    recorder.step_began(6, refusal(first, "watermark"))
    recorder.step_began(7, refusal(first))
    assert pressure(recorder) == [
        (1, "refused", 0, "blocks", 1),
        (2, "refused", 0, "gate", 2),
        (4, "refused", 1, "gate", 1),
        (5, "refused", 0, "gate", 1),
        (6, "refused", 0, "watermark", 1),
        (7, "refused", 0, "blocks", 1),
    ]
    assert first.refusal_causes == {"blocks": 2, "gate": 3, "watermark": 1}
    assert second.refusal_causes == {"gate": 1}
    assert sum(row.steps for row in recorder.pressure) == first.refusals + second.refusals == 7


def test_a_step_that_refuses_nobody_ends_a_run_of_refusals() -> None:
    state = make_state()
    recorder = make_recorder(state)
    for time, step in enumerate([refusal(state), Step(held_back="token_budget"), refusal(state), refusal(state)]):
        recorder.step_began(time, step)
    assert pressure(recorder) == [(0, "refused", 0, "blocks", 1), (2, "refused", 0, "blocks", 2)]


def test_a_preemption_is_a_row_of_the_victim_and_ends_a_run_of_refusals() -> None:
    states = [make_state(id) for id in range(3)]
    recorder = make_recorder(*states)
    recorder.step_began(1, refusal(states[2]))
    shortfalls = [Shortfall(2, 0, 0, 2, 7, "blocks"), Shortfall(2, 0, 1, 1, 3, "blocks")]
    recorder.step_began(2, Step(preempted=[states[1], states[0]], preemption_shortfalls=shortfalls))
    recorder.step_began(3, refusal(states[2]))
    assert recorder.pressure[1:3] == [
        Pressure(2, "preempted", 1, "blocks", 1, shortfalls[0]),
        Pressure(2, "preempted", 0, "blocks", 1, shortfalls[1]),
    ]
    assert pressure(recorder)[0::3] == [(1, "refused", 2, "blocks", 1), (3, "refused", 2, "blocks", 1)]


def test_steps_that_held_the_head_back_are_counted_by_cause() -> None:
    recorder = make_recorder()
    for time, cause in enumerate(["max_num_seqs", "token_budget", "max_num_seqs", None, "preemption", "max_num_seqs"]):
        recorder.step_began(time, Step(held_back=cause))
    assert recorder.held_back_steps == {"preemption": 1, "max_num_seqs": 3, "token_budget": 1}


def test_only_steps_that_schedule_tokens_are_counted() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(1, Step(scheduled={state: 4}, prefill_tokens=4))
    recorder.step_began(2, preemption(state))
    recorder.step_began(3, refusal(state))
    recorder.step_began(4, Step(scheduled={state: 1}, decode_seqs=1))
    assert recorder.num_steps == 2


# windows: many steps that are all alike


def test_every_step_of_a_window_is_counted() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(1, Step(decode_seqs=2, num_ticks=30, held_back="max_num_seqs"))
    recorder.step_began(31, Step(decode_seqs=2))
    assert (recorder.num_steps, recorder.held_back_steps["max_num_seqs"]) == (31, 30)


def test_a_window_that_refuses_the_head_refuses_it_in_every_step() -> None:
    """Of 30 steps of 2 ns; the one after it, of two steps, refuses the same for the same cause."""
    head = make_state()
    recorder = make_recorder(head)
    recorder.step_began(10, refusal(head, decode_seqs=2, num_ticks=30))
    recorder.observe(10, Occupancy(1, 0, 8, 5, 0, 5, 0), 2, Decoding(30, 2, 0, 2, [], 0))
    recorder.step_began(70, refusal(head, decode_seqs=2, num_ticks=2))
    recorder.observe(70, Occupancy(1, 0, 8, 65, 0, 65, 0), 2, Decoding(2, 2, 0, 2, [], 0))
    recorder.step_began(74, Step(admitted=[(head, Hit(0, ([],)))]))
    assert pressure(recorder) == [(10, "refused", 0, "blocks", 32)]
    assert (head.refusals, head.refusal_causes, head.blocked_ns) == (32, {"blocks": 32}, 64)
    rows = recorder.take_rows()
    assert rows["time"].tolist() == [0, *range(10, 73, 2)]
    assert rows["refused"].tolist() == [0] + [1] * 32


# what is taken out while the run goes on


def test_rows_before_an_instant_are_taken_and_what_comes_at_it_stays() -> None:
    first, second = make_state(0), make_state(1)
    recorder = make_recorder(first)
    recorder.arrived(3, second)
    recorder.step_began(4, Step(admitted=[(first, Hit(0, ([],)))]))
    recorder.observe(4, EMPTY, 1)
    recorder.left(6, second, "timed_out", was_running=False)
    recorder.step_ended(6, Sampled(num_tokens=1, finished=[first]))
    assert levels(recorder.take_rows(6)) == [(0, *EMPTY, 0, 1), (3, *EMPTY, 0, 2), (4, *EMPTY, 1, 1)]
    recorder.observe(6, EMPTY, 0)
    rows = recorder.take_rows()
    assert levels(rows) == [(6, *EMPTY, 0, 0)]
    assert (rows["timed_out"].tolist(), rows["finished"].tolist()) == ([1], [1])


def test_requests_are_taken_in_order_of_arrival_up_to_the_first_that_has_not_ended() -> None:
    states = [make_state(id) for id in range(4)]
    recorder = make_recorder(*states)
    for id in (1, 3, 0):
        recorder.left(5, states[id], "aborted", was_running=False)
    assert recorder.take_states() == states[:2]
    assert recorder.take_states() == []
    assert recorder.take_states(all=True) == states[2:]
    assert list(recorder.states) == []


def test_a_request_can_end_at_time_0() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.rejected(0, state, "never_fits")
    assert recorder.take_states() == [state]


def test_a_row_of_pressure_that_may_go_on_stays() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(1, refusal(state, "gate"))
    recorder.step_began(2, refusal(state))
    taken = recorder.take_pressure()
    assert [(row.time_ns, row.steps) for row in taken] == [(1, 1)]
    recorder.step_began(3, refusal(state))
    assert recorder.take_pressure() == []
    recorder.step_began(4, preemption(state))
    taken = recorder.take_pressure()
    assert [(row.time_ns, row.event, row.steps) for row in taken] == [(2, "refused", 2), (4, "preempted", 1)]
    recorder.step_began(5, refusal(state))
    taken = recorder.take_pressure(all=True)
    assert [(row.time_ns, row.event, row.steps) for row in taken] == [(5, "refused", 1)]
    assert recorder.pressure == []


def test_a_recorder_is_full_when_rows_enough_to_be_made_together_have_come() -> None:
    recorder = make_recorder()
    recorder.observe(1, EMPTY, 1, Decoding(ROWS_AT_ONCE - 2, 1, 0, 1, [], 0))
    assert not recorder.is_full
    recorder.observe(ROWS_AT_ONCE, EMPTY, 1)
    assert recorder.is_full
    assert len(recorder.take_rows()["time"]) == ROWS_AT_ONCE
    assert not recorder.is_full


def test_a_recorder_is_full_when_as_many_rows_of_pressure_have_come() -> None:
    states = [make_state(id) for id in range(8)]
    recorder = make_recorder(*states)
    for time in range(ROWS_AT_ONCE // len(states)):
        assert not recorder.is_full
        recorder.step_began(time, preemption(*states))
    assert recorder.is_full
    assert len(recorder.take_pressure()) == ROWS_AT_ONCE
    assert not recorder.is_full
