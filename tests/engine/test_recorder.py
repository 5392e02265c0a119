from typing import Any

from kvsim.engine.recorder import EVENTS, LEVELS, Pressure, Recorder
from kvsim.engine.scheduler import Sampled, Step
from kvsim.engine.state import RequestState
from kvsim.memory.allocator import Hit, LeastChange, Occupancy, Shortfall
from tests.makers import make_request

EMPTY = Occupancy(0, 0, 9, 0, 0, 0, 0)


def make_recorder(*states: RequestState) -> Recorder:
    """A recorder that has seen these requests arrive at 0."""
    recorder = Recorder()
    for state in states:
        recorder.arrived(state.request)
    recorder.observe(0, EMPTY, 0, len(states))
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


def rows(recorder: Recorder) -> list[tuple[int, ...]]:
    return list(zip(recorder.times, *recorder.levels.values(), strict=True))


def events(recorder: Recorder, name: str) -> list[int]:
    return list(recorder.events[name])


def test_each_instant_has_one_row_with_its_last_levels() -> None:
    recorder = make_recorder()
    recorder.observe(5, Occupancy(1, 2, 6, 4, 1, 8, 3), 1, 3)
    recorder.observe(5, Occupancy(2, 1, 6, 7, 2, 9, 5), 2, 2)
    recorder.observe(8, EMPTY, 0, 0)
    assert (*Occupancy._fields, "running", "waiting") == LEVELS
    assert rows(recorder) == [
        (0, 0, 0, 9, 0, 0, 0, 0, 0, 0),
        (5, 2, 1, 6, 7, 2, 9, 5, 2, 2),
        (8, 0, 0, 9, 0, 0, 0, 0, 0, 0),
    ]


def test_events_are_counted_in_the_row_of_their_instant() -> None:
    first, second = make_state(0), make_state(1)
    recorder = make_recorder(first)
    recorder.arrived(second.request)
    recorder.observe(0, EMPTY, 0, 2)
    recorder.step_began(4, refusal(second, admitted=[(first, Hit(0, ([],)))]))
    recorder.observe(4, EMPTY, 1, 1)
    recorder.observe(9, EMPTY, 1, 1)
    assert events(recorder, "arrived") == [2, 0, 0]
    assert events(recorder, "admitted") == [0, 1, 0]
    assert events(recorder, "refused") == [0, 1, 0]
    assert all(len(column) == 3 for column in recorder.events.values())
    assert tuple(recorder.events) == EVENTS


def test_an_admission_keeps_its_time_and_its_hit() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(4, Step(scheduled={state: 4}, admitted=[(state, Hit(16, ([1],)))]))
    record = recorder.records[0]
    assert (record.admitted_ns, record.hit_tokens, record.resumed_hit_tokens) == (4, 16, 0)
    assert (record.refusals, record.blocked_ns) == (0, 0)


def test_hits_of_all_resumptions_are_added_up_and_admission_stays_the_first() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(4, Step(admitted=[(state, Hit(16, ([1],)))]))
    for time, tokens in ((8, 4), (12, 8)):
        recorder.step_began(time - 1, preemption(state))
        recorder.step_began(time, Step(resumed=[(state, Hit(tokens, ([],)))]))
    record = recorder.records[0]
    assert (record.admitted_ns, record.hit_tokens, record.resumed_hit_tokens, record.preemptions) == (4, 16, 12, 2)


def test_blocked_time_runs_from_a_refusal_to_the_next_decision_and_adds_up() -> None:
    state = make_state()
    recorder = make_recorder(state)
    for time in (3, 5, 8):
        recorder.step_began(time, refusal(state))
    recorder.step_began(10, Step(admitted=[(state, Hit(0, ([],)))]))
    assert (recorder.records[0].refusals, recorder.records[0].blocked_ns) == (3, 7)
    recorder.step_began(20, preemption(state))
    recorder.step_began(30, refusal(state))
    recorder.step_began(31, Step(resumed=[(state, Hit(0, ([],)))]))
    assert (recorder.records[0].refusals, recorder.records[0].blocked_ns) == (4, 8)


def test_a_head_that_is_not_refused_is_not_blocked() -> None:
    """Refused at 3 and 20; at 5 the step had no place or no budget left for it, so memory did not hold it back."""
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(3, refusal(state))
    recorder.step_began(5, Step())
    recorder.step_began(20, refusal(state))
    recorder.step_began(21, Step(admitted=[(state, Hit(0, ([],)))]))
    assert (recorder.records[0].refusals, recorder.records[0].blocked_ns) == (2, 2 + 1)


def test_one_request_is_blocked_at_a_time() -> None:
    """The second, more urgent, comes to the head of the queue at 5."""
    first, second = make_state(0), make_state(1)
    recorder = make_recorder(first, second)
    recorder.step_began(3, refusal(first))
    recorder.step_began(5, refusal(second))
    recorder.step_began(9, refusal(first, admitted=[(second, Hit(0, ([],)))]))
    recorder.step_began(10, Step(admitted=[(first, Hit(0, ([],)))]))
    assert [recorder.records[id].blocked_ns for id in (0, 1)] == [2 + 1, 4]


def test_another_that_leaves_does_not_end_the_blocked_time() -> None:
    head, other = make_state(0), make_state(1)
    recorder = make_recorder(head, other)
    recorder.step_began(3, refusal(head))
    recorder.gone(5, other, "aborted")
    recorder.step_began(10, Step(admitted=[(head, Hit(0, ([],)))]))
    assert (recorder.records[0].blocked_ns, recorder.records[1].blocked_ns) == (7, 0)


def test_blocked_time_ends_with_the_request() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(3, refusal(state))
    recorder.gone(9, state, "timed_out")
    record = recorder.records[0]
    assert (record.blocked_ns, record.ended_ns, record.outcome) == (6, 9, "timed_out")


def test_a_request_that_has_all_its_output_is_finished_and_any_other_is_cut() -> None:
    whole, short = make_state(0, output=2), make_state(1, output=30, max_model_len=22)
    recorder = make_recorder(whole, short)
    whole.num_tokens = short.num_tokens = 22
    recorder.step_ended(7, Sampled(num_tokens=2, first_tokens=[short], finished=[whole, short]))
    recorder.observe(7, EMPTY, 0, 0)
    records = recorder.records
    assert (records[0].outcome, records[1].outcome) == ("finished", "cut")
    assert (records[0].first_token_ns, records[1].first_token_ns) == (None, 7)
    assert (records[0].generated_tokens, records[1].generated_tokens) == (2, 2)
    # The timeline counts both as finished.
    assert events(recorder, "finished") == [0, 2]
    assert recorder.num_ended == 2


def test_an_unfinished_request_has_no_end() -> None:
    state = make_state()
    state.num_tokens = 23
    state.num_recomputed_tokens = 5
    recorder = make_recorder(state)
    recorder.step_began(3, refusal(state))
    recorder.gone(9, state, "unfinished")
    record = recorder.records[0]
    assert (record.outcome, record.ended_ns, record.generated_tokens) == ("unfinished", None, 3)
    assert (record.blocked_ns, record.recomputed_tokens, recorder.num_ended) == (6, 5, 0)


def test_a_rejected_request_has_a_reason_and_ends_at_once() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.rejected(0, state.request, "queue_full")
    recorder.observe(0, EMPTY, 0, 0)
    record = recorder.records[0]
    assert (record.outcome, record.reason, record.ended_ns) == ("rejected", "queue_full", 0)
    assert events(recorder, "rejected") == [1]


def pressure(recorder: Recorder) -> list[tuple[int, str, int, str, int]]:
    return [(row.time_ns, row.event, row.request_id, row.cause, row.steps) for row in recorder.pressure]


def test_a_run_of_refusals_of_one_request_for_one_cause_is_one_row_with_the_figures_of_its_first_step() -> None:
    state = make_state()
    recorder = make_recorder(state)
    for time, need in ((3, 6), (5, 7), (8, 5)):
        recorder.step_began(time, refusal(state, need=need))
    assert recorder.pressure == [Pressure(3, "refused", 0, "blocks", 3, Shortfall(6, 1, 1, 4, 70, "blocks"))]
    assert recorder.records[0].refusal_causes == {"blocks": 3}


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
    assert recorder.records[0].refusal_causes == {"blocks": 2, "gate": 3, "watermark": 1}
    assert recorder.records[1].refusal_causes == {"gate": 1}
    assert sum(row.steps for row in recorder.pressure) == sum(r.refusals for r in recorder.records.values()) == 7


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
    recorder.step_began(1, Step(scheduled={state: 4}))
    recorder.step_began(2, preemption(state))
    recorder.step_began(3, refusal(state))
    assert recorder.num_steps == 1
