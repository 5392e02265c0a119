from kvsim.engine.recorder import EVENTS, LEVELS, Pressure, Recorder
from kvsim.engine.scheduler import Sampled, Step
from kvsim.engine.state import RequestState
from kvsim.memory.allocator import Hit, Occupancy, Shortfall
from tests.makers import make_request

EMPTY = Occupancy(0, 0, 9, 0, 0, 0, 0)
SHORT = Shortfall(need=5, blank=1, evictable=2, missing=2, slack_bytes=30, least_change="blocks")
GATED = SHORT._replace(least_change="gate")


def make_recorder(*states: RequestState) -> Recorder:
    """A recorder that has seen these requests arrive at 0."""
    recorder = Recorder()
    for state in states:
        recorder.arrived(state.request)
    recorder.observe(0, EMPTY, 0, len(states))
    return recorder


def make_state(id: int = 0, output: int = 10, max_model_len: int = 100) -> RequestState:
    return RequestState(make_request(id, own=20, output=output), id, max_model_len)


def rows(recorder: Recorder) -> list[tuple[int, ...]]:
    return list(zip(recorder.times, *recorder.levels.values(), strict=True))


def events(recorder: Recorder, name: str) -> list[int]:
    return list(recorder.events[name])


def test_each_instant_has_one_row_with_its_last_levels() -> None:
    recorder = make_recorder()
    recorder.observe(5, Occupancy(1, 2, 6, 4, 0, 8, 0), 1, 3)
    recorder.observe(5, Occupancy(2, 1, 6, 7, 1, 9, 2), 2, 2)
    recorder.observe(8, EMPTY, 0, 0)
    assert (*Occupancy._fields, "running", "waiting") == LEVELS
    assert rows(recorder) == [
        (0, 0, 0, 9, 0, 0, 0, 0, 0, 0),
        (5, 2, 1, 6, 7, 1, 9, 2, 2, 2),
        (8, 0, 0, 9, 0, 0, 0, 0, 0, 0),
    ]


def test_events_are_counted_in_the_row_of_their_instant() -> None:
    first, second = make_state(0), make_state(1)
    recorder = make_recorder(first)
    recorder.arrived(second.request)
    recorder.observe(0, EMPTY, 0, 2)
    recorder.step_began(4, Step(admitted=[(first, Hit(0, ([],)))], refused=second, refusal_shortfall=SHORT))
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
        recorder.step_began(time - 1, Step(preempted=[state], preemption_shortfalls=[SHORT]))
        recorder.step_began(time, Step(resumed=[(state, Hit(tokens, ([],)))]))
    record = recorder.records[0]
    assert (record.admitted_ns, record.hit_tokens, record.resumed_hit_tokens, record.preemptions) == (4, 16, 12, 2)


def test_a_request_is_blocked_from_a_refusal_to_the_next_decision() -> None:
    state = make_state()
    recorder = make_recorder(state)
    for time in (3, 5, 8):
        recorder.step_began(time, Step(refused=state, refusal_shortfall=SHORT))
    recorder.step_began(10, Step(admitted=[(state, Hit(0, ([],)))]))
    assert (recorder.records[0].refusals, recorder.records[0].blocked_ns) == (3, 7)
    recorder.step_began(20, Step(preempted=[state], preemption_shortfalls=[SHORT]))
    recorder.step_began(30, Step(refused=state, refusal_shortfall=SHORT))
    # Not even tried: something else than memory holds it back.
    recorder.step_began(31, Step(held_back="token_budget"))
    recorder.step_began(50, Step(resumed=[(state, Hit(0, ([],)))]))
    assert (recorder.records[0].refusals, recorder.records[0].blocked_ns) == (4, 8)


def test_refusals_in_a_row_for_one_cause_are_one_row_of_pressure() -> None:
    first, second = make_state(0), make_state(1)
    recorder = make_recorder(first, second)
    steps = [(1, first, SHORT), (2, first, SHORT), (3, first, GATED), (4, first, SHORT), (5, second, SHORT)]
    for time, state, shortfall in steps:
        recorder.step_began(time, Step(refused=state, refusal_shortfall=shortfall))
    recorder.step_began(6, Step())
    recorder.step_began(7, Step(refused=second, refusal_shortfall=SHORT))
    assert [(row.time_ns, row.request_id, row.cause, row.steps) for row in recorder.pressure] == [
        (1, 0, "blocks", 2),
        (3, 0, "gate", 1),
        (4, 0, "blocks", 1),
        (5, 1, "blocks", 1),
        (7, 1, "blocks", 1),
    ]
    assert recorder.records[0].refusal_causes == {"blocks": 3, "gate": 1}


def test_each_preemption_is_a_row_of_pressure() -> None:
    first, second = make_state(0), make_state(1)
    recorder = make_recorder(first, second)
    recorder.step_began(4, Step(preempted=[second, first], preemption_shortfalls=[SHORT, SHORT]))
    assert recorder.pressure == [
        Pressure(4, "preempted", id, cause="blocks", steps=1, shortfall=SHORT) for id in (1, 0)
    ]


def test_steps_that_did_not_try_the_head_are_counted_by_cause() -> None:
    recorder = make_recorder()
    for cause in ("max_num_seqs", "max_num_seqs", "preemption", None):
        recorder.step_began(1, Step(held_back=cause))
    assert recorder.held_back_steps == {"preemption": 1, "max_num_seqs": 2, "token_budget": 0}


def test_blocked_time_ends_with_the_request() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(3, Step(refused=state, refusal_shortfall=SHORT))
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
    recorder.step_began(3, Step(refused=state, refusal_shortfall=SHORT))
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


def test_only_steps_that_schedule_tokens_are_counted() -> None:
    state = make_state()
    recorder = make_recorder(state)
    recorder.step_began(1, Step(scheduled={state: 4}))
    recorder.step_began(2, Step(preempted=[state], preemption_shortfalls=[SHORT]))
    recorder.step_began(3, Step(refused=state, refusal_shortfall=SHORT))
    assert recorder.num_steps == 1
