"""Groups of sequences in the scheduler. Blocks have 4 slots."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.config import EngineConfig
from kvsim.engine.latency import LatencyModel
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.sequences import ONE_SEQUENCE, Sequences
from kvsim.engine.simulation import Simulation
from kvsim.engine.state import RequestState
from kvsim.engine.step import Step
from kvsim.engine.unshared import UnsharedLevel
from kvsim.memory.beams import Beams
from kvsim.memory.paged import PagedAllocator
from kvsim.memory.samples import SampleAllocator
from kvsim.workload.request import Request
from tests.makers import make_request
from tests.memory.makers import Chosen

ONE_NS = LatencyModel(base=1, per_prefill_token=0, per_decode_seq=0, per_context_token=0)


def make_scheduler(num_seqs: int = 2, blocks: int = 100, beams: Beams | None = None, **config: Any) -> Scheduler:
    memory = SampleAllocator(blocks, 4, num_seqs, beams=beams)
    sequences = Sequences(num_seqs, None if beams is None else memory.choose_beams)
    return Scheduler(EngineConfig(max_model_len=1000, **config), memory, sequences=sequences)


def submit(scheduler: Scheduler, *requests: Request) -> list[RequestState]:
    states = [RequestState(request, order, 1000) for order, request in enumerate(requests)]
    for state in states:
        scheduler.submit(state)
    return states


def step(scheduler: Scheduler) -> Step:
    decided = scheduler.schedule()
    scheduler.check()
    return decided


def work(decided: Step) -> tuple[int, int, int]:
    return decided.prefill_tokens, decided.decode_seqs, decided.context_tokens


def scheduled(decided: Step) -> list[tuple[int, int]]:
    return [(state.request.id, num_new) for state, num_new in decided.scheduled.items()]


# what it costs


def test_the_prompt_is_computed_once_and_the_rest_for_every_sequence() -> None:
    three, request = Sequences(3), make_request(own=6)
    assert three.num_tokens(request, 0, 4) == 4
    assert three.num_tokens(request, 4, 8) == 2 + 3 * 2
    assert three.num_tokens(request, 8, 9) == 3
    assert [three.context_tokens(request, num_tokens) for num_tokens in (4, 6, 7)] == [4, 6, 21]
    assert ONE_SEQUENCE.num_tokens(request, 4, 8) == 4


@given(
    num_seqs=st.integers(1, 5),
    prompt=st.integers(1, 20),
    start=st.integers(0, 30),
    wanted=st.integers(0, 30),
    budget=st.integers(0, 60),
)
def test_what_is_affordable_fits_the_budget_and_one_more_does_not(
    num_seqs: int, prompt: int, start: int, wanted: int, budget: int
) -> None:
    sequences, request = Sequences(num_seqs), make_request(own=prompt)
    affordable = sequences.affordable(request, start, wanted, budget)
    assert 0 <= affordable <= wanted
    assert sequences.num_tokens(request, start, start + affordable) <= budget
    if affordable < wanted:
        assert sequences.num_tokens(request, start, start + affordable + 1) > budget


# in the scheduler


def test_a_group_decodes_a_token_of_each_sequence() -> None:
    scheduler = make_scheduler(num_seqs=3)
    submit(scheduler, make_request(own=6, output=3))
    first = step(scheduler)
    assert work(first) == (6, 0, 6)
    assert scheduler.complete(first).num_tokens == 3
    second = step(scheduler)
    assert (scheduled(second), work(second)) == ([(0, 1)], (0, 3, 21))
    scheduler.complete(second)
    assert len(scheduler.complete(step(scheduler)).finished) == 1
    assert scheduler.allocator.held_tokens() == {}


def test_each_sequence_takes_a_seat() -> None:
    scheduler = make_scheduler(num_seqs=2, max_num_seqs=5)
    submit(scheduler, *(make_request(id, own=2) for id in range(3)))
    decided = step(scheduler)
    assert (scheduled(decided), decided.held_back) == ([(0, 2), (1, 2)], "max_num_seqs")


def test_sequences_of_a_request_go_together_and_nobody_overtakes_them() -> None:
    """Seven tokens a step: two groups of three decode, the third has to wait for three, and so has who is behind it."""
    scheduler = make_scheduler(num_seqs=3, max_num_seqs=20, max_num_batched_tokens=7)
    submit(scheduler, *(make_request(id, own=2) for id in range(3)))
    scheduler.complete(step(scheduler))
    submit(scheduler, make_request(3, own=2))
    second = step(scheduler)
    assert (scheduled(second), work(second)[:2]) == ([(0, 1), (1, 1)], (0, 6))
    assert second.held_back == "token_budget"


def test_a_group_is_preempted_as_a_whole_and_computed_again() -> None:
    """Eight usable blocks: two groups of two with 4 prompt tokens each need 10 for their ninth tokens."""
    scheduler = make_scheduler(blocks=9, max_num_batched_tokens=100)
    first, second = submit(scheduler, *(make_request(id, own=4, output=6) for id in range(2)))
    for _ in range(5):  # the prompt, then tokens 5 to 8
        scheduler.complete(step(scheduler))
    decided = step(scheduler)
    assert (decided.preempted, scheduled(decided)) == ([second], [(0, 1)])
    assert scheduler.allocator.held_tokens() == {0: 9}
    assert scheduler.complete(decided).finished == [first]
    again = step(scheduler)
    assert ([state for state, _hit in again.resumed], work(again)) == ([second], (4 + 2 * 5, 0, 2 * 9))
    assert second.num_recomputed_tokens == 4 + 2 * 4
    assert scheduler.complete(again).finished == [second]


def test_tokens_taken_back_from_a_victim_are_those_of_all_its_sequences() -> None:
    """Four tokens a step, for two groups. The second takes the blocks of the first, and its tokens go to the third."""
    scheduler = make_scheduler(blocks=8, max_num_seqs=6, max_num_batched_tokens=4, policy="priority")
    (idle,) = submit(scheduler, make_request(0, own=4, priority=5))
    scheduler.complete(step(scheduler))
    submit(scheduler, make_request(1, own=3, priority=1), make_request(2, own=1, priority=2))
    steps = []
    for _ in range(3):
        steps.append(scheduled(decided := step(scheduler)))
        scheduler.complete(decided)
    assert steps == [[(0, 1), (1, 2)], [(0, 1), (1, 1), (2, 1)], [(0, 1), (1, 1)]]
    # They hold 3, 2 and 1 of seven blocks, and the second wants two more.
    decided = step(scheduler)
    assert (decided.preempted, scheduled(decided)) == ([idle], [(1, 1), (2, 1)])


def test_beams_are_chosen_at_the_end_of_the_step_that_sampled_them() -> None:
    scheduler = make_scheduler(beams=Chosen([1, 1]))
    memory = scheduler.allocator
    assert isinstance(memory, SampleAllocator)
    request = make_request(own=4, output=3)
    submit(scheduler, request)
    scheduler.complete(step(scheduler))
    second = step(scheduler)
    assert memory.tables(request) == [[1, 2], [1, 3]]
    scheduler.complete(second)
    scheduler.check()
    assert memory.tables(request) == [[1, 3], [1, 3]]


def test_one_sequence_a_request_decides_as_the_paged_allocator_without_prefix_sharing() -> None:
    config = {"max_num_batched_tokens": 13, "max_num_seqs": 5}
    requests = [make_request(id, own=3 + id * 5 % 17, output=1 + id * 7 % 19, arrival=id * 3) for id in range(40)]

    def rows(scheduler: Scheduler) -> tuple[list[tuple[int, list[tuple[int, int]], int]], int]:
        seen: list[tuple[int, list[tuple[int, int]], int]] = []
        simulation = Simulation(
            scheduler.config,
            scheduler,
            requests,
            check=True,
            on_step=lambda now, step: seen.append((now, scheduled(step), scheduler.memory.occupancy().blank_blocks)),
        )
        recorder = simulation.run()
        return seen, sum(state.num_preemptions for state in recorder.states)

    paged = Scheduler(EngineConfig(max_model_len=1000, latency=ONE_NS, **config), PagedAllocator(14, 4, False))
    found = rows(make_scheduler(num_seqs=1, blocks=14, latency=ONE_NS, **config))
    assert found == rows(paged)
    assert found[1] > 0


# beside what there would be without sharing


def test_the_level_without_sharing_holds_while_steps_last() -> None:
    """Two samples of 4 + 3 tokens: 2 blocks for the prompt, then 4 and 4, in steps of 1 ns; idle from 3 to 10."""
    scheduler = make_scheduler(latency=ONE_NS)
    memory = scheduler.allocator
    assert isinstance(memory, SampleAllocator)
    level = UnsharedLevel(memory)
    requests = [make_request(id, own=4, output=3, arrival=10 * id) for id in range(2)]
    Simulation(
        scheduler.config, scheduler, requests, on_step=level.step_began, on_outputs=level.step_ended, check=True
    ).run()
    assert (level.totals.byte_ns, level.totals.peak_bytes) == (2 * (2 + 4 + 4) * 4, 4 * 4)
    assert level.totals.num_copies == 0


def test_a_request_that_memory_would_turn_away_for_its_outputs_is_not_welcome_for_its_length() -> None:
    """Twelve tokens fit if 11 of them are the prompt, and not if it has only one; that is seen in any order."""
    scheduler = make_scheduler(num_seqs=4, blocks=9, latency=ONE_NS)
    simulation = Simulation(
        scheduler.config, scheduler, [make_request(0, own=11, output=1), make_request(1, own=1, output=11, arrival=1)]
    )
    outcomes = [state.outcome for state in simulation.run().states]
    assert outcomes == ["finished", "rejected"]
