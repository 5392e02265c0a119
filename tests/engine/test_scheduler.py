"""Rules 1 to 15, one world each. Blocks have 4 slots; the null block counts as one of `blocks`."""

from typing import Any

import pytest

from kvsim.engine.config import EngineConfig
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.state import RequestState
from kvsim.engine.step import Sampled, Step
from kvsim.errors import InvariantError
from kvsim.memory.allocator import Shortfall
from kvsim.memory.paged import PagedAllocator
from kvsim.workload.request import Request
from tests.makers import make_request


class World:
    """A scheduler with its memory, and a clock that is only a count of steps."""

    def __init__(
        self, *, blocks: int = 100, watermark_blocks: int = 0, prefix_sharing: bool = True, **config: Any
    ) -> None:
        self.allocator = PagedAllocator(blocks, 4, prefix_sharing)
        self.config = EngineConfig(**{"max_model_len": 1000, **config})
        self.scheduler = Scheduler(self.config, self.allocator, watermark_blocks)
        self.states: dict[int, RequestState] = {}

    def submit(self, *requests: Request) -> None:
        for request in requests:
            assert self.config.max_model_len is not None
            state = RequestState(request, len(self.states), self.config.max_model_len)
            self.states[request.id] = state
            self.scheduler.submit(state)

    def decide(self) -> Step:
        step = self.scheduler.schedule()
        self.allocator.check()
        return step

    def complete(self, step: Step) -> Sampled:
        sampled = self.scheduler.complete(step)
        self.allocator.check()
        return sampled

    def step(self) -> list[tuple[int, int]]:
        """One whole step; what it scheduled."""
        step = self.decide()
        self.complete(step)
        return scheduled(step)

    def table(self, id: int) -> list[int]:
        return self.allocator.holdings[id].tables[0].blocks

    @property
    def running(self) -> list[int]:
        return [state.request.id for state in self.scheduler.running]

    @property
    def waiting(self) -> list[int]:
        return [state.request.id for state in self.scheduler.waiting]

    @property
    def free(self) -> int:
        return self.allocator.pool.num_free


def make_world(**options: Any) -> World:
    return World(**options)


def scheduled(step: Step) -> list[tuple[int, int]]:
    return [(state.request.id, num_tokens) for state, num_tokens in step.scheduled.items()]


def ids(states: list[RequestState]) -> list[int]:
    return [state.request.id for state in states]


# rules 1 to 3: from prompt to end


def test_a_prompt_is_computed_whole_then_one_token_a_step() -> None:
    world = make_world()
    world.submit(make_request(0, own=10, output=4))
    assert [world.step() for _ in range(4)] == [[(0, 10)], [(0, 1)], [(0, 1)], [(0, 1)]]
    assert (world.running, world.waiting) == ([], [])


def test_prompt_and_output_take_all_slots_but_one() -> None:
    """5 prompt and 4 output tokens: 8 slots in 2 blocks, although 9 tokens are known in the end."""
    world = make_world(blocks=3)
    request = make_request(0, own=5, output=4)
    world.submit(request)
    for _ in range(4):
        step = world.decide()
        in_memory = world.allocator.holdings[0].num_tokens
        world.complete(step)
    assert in_memory == 8
    assert world.states[0].num_tokens == 9


def test_the_first_token_comes_with_the_last_chunk_of_the_prompt() -> None:
    world = make_world(max_num_batched_tokens=4)
    world.submit(make_request(0, own=10, output=2))
    first_tokens = []
    for _ in range(4):
        sampled = world.complete(world.decide())
        first_tokens.append((ids(sampled.first_tokens), sampled.num_tokens, ids(sampled.finished)))
    assert first_tokens == [([], 0, []), ([], 0, []), ([0], 1, []), ([], 1, [0])]


def test_a_single_output_token_finishes_with_the_prompt() -> None:
    world = make_world()
    world.submit(make_request(0, own=10, output=1))
    sampled = world.complete(world.decide())
    assert (ids(sampled.first_tokens), ids(sampled.finished)) == ([0], [0])


def test_a_request_ends_at_max_model_len() -> None:
    world = make_world(max_model_len=12)
    world.submit(make_request(0, own=10, output=50))
    assert [world.step() for _ in range(2)] == [[(0, 10)], [(0, 1)]]
    assert (world.running, world.waiting) == ([], [])
    assert world.states[0].num_output_tokens == 2


def test_finished_requests_are_freed_in_the_order_of_scheduling() -> None:
    world = make_world(blocks=5, prefix_sharing=False)
    world.submit(make_request(0, own=8, output=1), make_request(1, own=8, output=1))
    sampled = world.complete(world.decide())
    assert ids(sampled.finished) == [0, 1]
    # Each puts its last block foremost, the second request after the first.
    assert list(world.allocator.pool.free_queue()) == [4, 3, 2, 1]


# rule 5: the long-prefill cap


def test_a_request_alone_is_never_capped() -> None:
    world = make_world(long_prefill_token_threshold=3)
    world.submit(make_request(0, own=10))
    assert world.step() == [(0, 10)]


def test_the_cap_holds_for_all_while_there_is_company() -> None:
    world = make_world(long_prefill_token_threshold=3)
    world.submit(make_request(0, own=10), make_request(1, own=2))
    assert world.step() == [(0, 3), (1, 2)]
    assert world.step() == [(0, 3), (1, 1)]


def test_company_is_counted_at_the_start_of_the_step_and_waiting_counts() -> None:
    world = make_world(long_prefill_token_threshold=3, max_num_seqs=1)
    world.submit(make_request(0, own=7), make_request(1, own=5, output=1))
    assert [world.step() for _ in range(3)] == [[(0, 3)], [(0, 3)], [(0, 1)]]


def test_the_cap_makes_a_prompt_fit_the_budget_with_chunked_prefill_off() -> None:
    world = make_world(long_prefill_token_threshold=3, enable_chunked_prefill=False, max_num_batched_tokens=6)
    world.submit(make_request(0, own=10), make_request(1, own=4))
    assert world.step() == [(0, 3), (1, 3)]


# rules 6 and 9: running first, then the head of the queue


def test_running_requests_come_before_waiting_ones() -> None:
    world = make_world(max_num_batched_tokens=8)
    world.submit(make_request(0, own=4))
    world.step()
    world.submit(make_request(1, own=20))
    assert world.step() == [(0, 1), (1, 7)]
    assert world.step() == [(0, 1), (1, 7)]
    assert world.step() == [(0, 1), (1, 6)]


def test_several_prefills_under_way_share_the_budget_in_running_order() -> None:
    world = make_world(long_prefill_token_threshold=4, max_num_batched_tokens=6)
    world.submit(make_request(0, own=9), make_request(1, own=9))
    assert world.step() == [(0, 4), (1, 2)]
    assert world.step() == [(0, 4), (1, 2)]
    assert world.step() == [(0, 1), (1, 4)]
    assert world.step() == [(0, 1), (1, 1)]


def test_nobody_is_admitted_without_budget() -> None:
    world = make_world(max_num_batched_tokens=2)
    world.submit(*(make_request(id, own=1) for id in range(3)))
    assert world.step() == [(0, 1), (1, 1)]
    assert world.step() == [(0, 1), (1, 1)]
    assert (world.running, world.waiting) == ([0, 1], [2])


def test_a_prefill_under_way_is_cut_by_the_budget_also_with_chunked_prefill_off() -> None:
    world = make_world(long_prefill_token_threshold=6, enable_chunked_prefill=False, max_num_batched_tokens=8)
    world.submit(make_request(0, own=10), make_request(1, own=2))
    assert world.step() == [(0, 6), (1, 2)]
    world.submit(*(make_request(id, own=6, output=9) for id in (2, 3)))
    # Four more of the first, one of the second, and the third does not fit in three.
    assert world.step() == [(0, 4), (1, 1)]
    assert world.waiting == [2, 3]


def test_with_chunked_prefill_off_a_prompt_waits_for_a_budget_that_holds_it_whole() -> None:
    world = make_world(enable_chunked_prefill=False, max_num_batched_tokens=10)
    world.submit(make_request(0, own=6, output=2), make_request(1, own=10, output=2), make_request(2, own=1))
    assert world.step() == [(0, 6)]
    assert world.step() == [(0, 1)]
    assert world.step() == [(1, 10)]


def test_with_chunked_prefill_off_a_prompt_longer_than_the_whole_budget_is_never_admitted() -> None:
    world = make_world(enable_chunked_prefill=False, max_num_batched_tokens=10)
    world.submit(make_request(0, own=11))
    step = world.decide()
    assert step.is_empty
    assert step.refused is None  # not for want of memory


def test_with_chunked_prefill_off_the_hit_counts_as_done() -> None:
    world = make_world(enable_chunked_prefill=False, max_num_batched_tokens=10)
    world.submit(make_request(0, shared=8, own=2, output=1))
    world.step()
    world.submit(make_request(1, shared=8, own=10))
    assert world.step() == [(1, 10)]


def test_the_head_is_never_skipped() -> None:
    world = make_world(blocks=6)
    world.submit(make_request(0, own=12, output=3), make_request(1, own=12), make_request(2, own=4))
    step = world.decide()
    assert scheduled(step) == [(0, 12)]
    assert step.refused is world.states[1]
    assert world.waiting == [1, 2]
    assert world.free == 2


@pytest.mark.parametrize(
    ("limits", "admitted"),
    [
        ({"max_num_seqs": 2}, [0, 1]),
        ({"max_num_seqs": 3, "max_num_active_seqs": 1}, [0]),
        ({"max_num_seqs": 3}, [0, 1, 2]),
    ],
)
def test_no_more_run_than_are_allowed(limits: dict[str, int], admitted: list[int]) -> None:
    world = make_world(**limits)
    world.submit(*(make_request(id, own=4) for id in range(3)))
    step = world.decide()
    assert ids([state for state, _hit in step.admitted]) == admitted
    assert step.refused is None


def test_a_request_admitted_later_in_the_step_hits_what_was_allocated_before() -> None:
    world = make_world()
    world.submit(make_request(0, shared=8, own=2), make_request(1, shared=8, own=2))
    step = world.decide()
    assert [(state.request.id, hit.num_tokens) for state, hit in step.admitted] == [(0, 0), (1, 8)]
    assert scheduled(step) == [(0, 10), (1, 2)]


def test_of_a_chunk_only_what_is_scheduled_can_be_hit() -> None:
    world = make_world(long_prefill_token_threshold=6)
    world.submit(make_request(0, shared=12), make_request(1, shared=12))
    step = world.decide()
    assert [hit.num_tokens for _state, hit in step.admitted] == [0, 4]


def test_a_refusal_touches_nothing_and_the_hit_is_looked_up_again() -> None:
    """21 tokens need 6 blocks. Of 6 usable ones 2 are free: 3 hits in use are not enough, 3 idle ones are."""
    world = make_world(blocks=7)
    world.submit(make_request(0, shared=12, own=4, output=1), make_request(1, shared=12, own=9))
    step = world.decide()
    assert step.refused is world.states[1]
    assert world.allocator.pool.ref_count(1) == 1
    world.complete(step)
    step = world.decide()
    assert [(state.request.id, hit.num_tokens) for state, hit in step.admitted] == [(1, 12)]
    assert world.free == 0


# rules 7 and 8: preemption


def test_fcfs_takes_the_last_of_the_running_list_be_it_the_one_that_asks() -> None:
    world = make_world(blocks=4)
    world.submit(make_request(0, own=4), make_request(1, own=4), make_request(2, own=4))
    assert world.step() == [(0, 4), (1, 4), (2, 4)]
    # The first takes the block of the third; then the second is the last.
    step = world.decide()
    assert ids(step.preempted) == [2, 1]
    assert scheduled(step) == [(0, 1)]
    assert (world.running, world.waiting) == ([0], [1, 2])


def test_a_request_that_preempts_itself_ends_the_pass() -> None:
    world = make_world(blocks=4, policy="priority")
    world.submit(make_request(0, own=3, priority=5))
    world.step()
    world.submit(make_request(1, own=6, priority=0))
    assert world.step() == [(0, 1), (1, 6)]
    table = list(world.table(1))
    step = world.decide()
    # The first needs a second block and is itself the least urgent; the other, which needs none, is not tried.
    assert (ids(step.preempted), scheduled(step)) == ([0], [])
    assert (world.running, world.table(1)) == ([1], table)
    world.complete(step)
    assert world.step() == [(1, 1)]


def test_a_request_alone_that_outgrows_the_pool_preempts_itself() -> None:
    world = make_world(blocks=3)
    world.submit(make_request(0, own=8))
    world.step()
    step = world.decide()
    assert (ids(step.preempted), scheduled(step)) == ([0], [])
    assert not step.is_empty
    assert (world.running, world.waiting, world.free) == ([], [0], 2)
    assert world.decide().is_empty


def test_what_a_victim_computes_again_is_counted_as_recomputed() -> None:
    world = make_world(blocks=4, prefix_sharing=False)
    world.submit(make_request(0, own=4, output=3), make_request(1, own=5, output=3))
    assert world.step() == [(0, 4), (1, 5)]
    # The first needs a second block: the last one goes with 5 computed tokens.
    step = world.decide()
    assert ids(step.preempted) == [1]
    assert (world.states[1].num_preemptions, world.states[1].high_water_tokens) == (1, 5)
    assert world.states[1].num_tokens == 6
    world.complete(step)
    world.step()
    # Alone again: 5 tokens a second time, and the one it had sampled for the first time.
    assert world.step() == [(1, 6)]
    assert world.states[1].num_recomputed_tokens == 5


def test_what_the_cache_still_holds_of_a_victim_is_not_recomputed() -> None:
    world = make_world(blocks=4)
    world.submit(make_request(0, own=4, output=3), make_request(1, own=5, output=3))
    world.step()
    world.complete(world.decide())
    world.step()
    step = world.decide()
    assert [(state.request.id, hit.num_tokens) for state, hit in step.resumed] == [(1, 4)]
    assert scheduled(step) == [(1, 2)]
    assert world.states[1].num_recomputed_tokens == 1


def test_of_several_victims_the_last_taken_stands_first_in_the_queue() -> None:
    world = make_world(blocks=4)
    world.submit(*(make_request(id, own=4) for id in range(3)))
    world.step()
    world.submit(make_request(3, own=4))
    step = world.decide()
    assert ids(step.preempted) == [2, 1]
    assert world.waiting == [1, 2, 3]


def test_nobody_is_admitted_in_a_step_that_preempted() -> None:
    world = make_world(blocks=5)
    world.submit(make_request(0, own=4), make_request(1, own=12, output=9))
    world.step()
    world.submit(make_request(2, own=1))
    step = world.decide()
    assert ids(step.preempted) == [1]
    assert world.free == 2
    assert (step.admitted, world.waiting) == ([], [1, 2])


def test_priority_takes_the_least_urgent_and_of_equals_the_last_submitted() -> None:
    world = make_world(blocks=5, policy="priority")
    world.submit(
        make_request(0, own=4, priority=1),
        make_request(1, own=4, priority=0),
        make_request(2, own=4, priority=1),
        make_request(3, own=3, priority=0),
    )
    # Admitted in order of urgency.
    assert world.step() == [(1, 4), (3, 3), (0, 4), (2, 4)]
    step = world.decide()
    assert ids(step.preempted) == [2, 0]
    assert scheduled(step) == [(1, 1), (3, 1)]
    assert world.waiting == [0, 2]


def test_a_victim_that_was_scheduled_already_gives_its_tokens_back() -> None:
    """7 usable blocks. In the seventh step 0 is given a token, 1 needs a block and takes those of 0, and the prefill
    of 2, cut by the budget, finds 4 tokens left where it had found 3.
    """
    world = make_world(
        blocks=8, policy="priority", max_num_batched_tokens=5, scheduler_reserve_full_isl=False, prefix_sharing=False
    )
    world.submit(make_request(0, own=1, priority=9))
    assert world.step() == [(0, 1)]
    world.submit(make_request(1, own=4))
    assert world.step() == [(0, 1), (1, 4)]
    world.submit(make_request(2, own=20))
    assert [world.step() for _ in range(4)] == [[(0, 1), (1, 1), (2, 3)]] * 4
    assert (world.free, [len(world.table(id)) for id in range(3)]) == (0, [2, 2, 3])
    step = world.decide()
    assert (ids(step.preempted), scheduled(step)) == ([0], [(1, 1), (2, 4)])
    # What it was given in this step was not computed.
    assert world.states[0].high_water_tokens == 6


# rules 12, 13 and 15: what an admission must leave


def test_the_gate_asks_for_all_known_tokens_at_once() -> None:
    world = make_world(blocks=4, max_num_batched_tokens=4)
    world.submit(make_request(0, own=13))
    step = world.decide()
    assert step.is_empty
    assert step.refused is world.states[0]


def test_with_the_gate_off_the_first_chunk_is_enough() -> None:
    world = make_world(blocks=4, max_num_batched_tokens=4, scheduler_reserve_full_isl=False, prefix_sharing=False)
    world.submit(make_request(0, own=13))
    assert [world.step() for _ in range(3)] == [[(0, 4)]] * 3
    step = world.decide()
    assert ids(step.preempted) == [0]


def test_the_gate_reserves_nothing() -> None:
    """Two prompts of 3 blocks each pass the gate of a pool of 5, since only a block each is taken at first."""
    world = make_world(blocks=6, max_num_batched_tokens=8, long_prefill_token_threshold=4)
    world.submit(make_request(0, own=12), make_request(1, own=12))
    assert world.step() == [(0, 4), (1, 4)]
    assert world.step() == [(0, 4), (1, 4)]
    step = world.decide()
    assert (ids(step.preempted), scheduled(step)) == ([1], [(0, 4)])


def test_the_gate_does_not_count_output_to_come() -> None:
    world = make_world(blocks=4)
    world.submit(make_request(0, own=12, output=100))
    assert world.step() == [(0, 12)]


def test_the_gate_counts_what_a_victim_has_generated() -> None:
    world = make_world(blocks=3)
    world.submit(make_request(0, own=8, output=9))
    world.step()
    world.decide()
    step = world.decide()
    assert step.refused is world.states[0]  # 9 known tokens, 8 slots


def test_the_watermark_must_be_left_over() -> None:
    world = make_world(blocks=6, watermark_blocks=2)
    world.submit(make_request(0, own=4), make_request(1, own=12), make_request(2, own=4))
    step = world.decide()
    # 4 blocks are free: 3 for the second would leave one.
    assert scheduled(step) == [(0, 4)]
    assert step.refused is world.states[1]


def test_the_watermark_is_waived_when_nothing_runs() -> None:
    world = make_world(blocks=6, watermark_blocks=3)
    world.submit(make_request(0, own=20, output=2))
    assert world.step() == [(0, 20)]


def test_a_request_admitted_in_this_step_runs_as_far_as_the_watermark_is_concerned() -> None:
    world = make_world(blocks=6, watermark_blocks=3)
    world.submit(make_request(0, own=4), make_request(1, own=8))
    assert world.decide().refused is world.states[1]


def test_running_requests_may_use_the_last_block() -> None:
    world = make_world(blocks=3, watermark_blocks=2)
    world.submit(make_request(0, own=4))
    assert world.step() == [(0, 4)]
    assert world.step() == [(0, 1)]
    assert world.free == 0


@pytest.mark.parametrize(("watermark", "resumed"), [(1, [2]), (2, [])])
def test_the_watermark_holds_for_preempted_requests_as_well(watermark: int, resumed: list[int]) -> None:
    """The third is preempted in the second step, at the end of which the second leaves: 3 of 5 blocks are free then,
    2 of which it needs.
    """
    world = make_world(blocks=6, watermark_blocks=watermark, prefix_sharing=False)
    world.submit(make_request(0, own=4), make_request(1, own=4, output=2), make_request(2, own=4))
    assert world.step() == [(0, 4), (1, 4), (2, 4)]
    step = world.decide()
    assert ids(step.preempted) == [2]
    world.complete(step)
    assert world.free == 3
    assert ids([state for state, _hit in world.decide().resumed]) == resumed


# why the head was not admitted, why somebody was preempted


def test_a_refusal_for_blocks() -> None:
    """The first holds 3 of 5 blocks, 9 of 12 slots written; 12 tokens need 3."""
    world = make_world(blocks=6)
    world.submit(make_request(0, own=9), make_request(1, own=12))
    step = world.decide()
    assert step.refused is world.states[1]
    assert step.refusal_shortfall == Shortfall(3, 2, 0, 1, 3, "blocks")
    assert (step.held_back, step.preemption_shortfalls) == (None, [])


def test_a_refusal_for_the_gate() -> None:
    """The budget leaves the second 4 tokens, for which a block is there, but not 3 for all of them."""
    world = make_world(blocks=6, max_num_batched_tokens=13)
    world.submit(make_request(0, own=9), make_request(1, own=12))
    assert world.decide().refusal_shortfall == Shortfall(3, 2, 0, 1, 3, "gate")
    without = make_world(blocks=6, max_num_batched_tokens=13, scheduler_reserve_full_isl=False)
    without.submit(make_request(0, own=9), make_request(1, own=12))
    assert scheduled(without.decide()) == [(0, 9), (1, 4)]


def test_a_refusal_for_the_watermark() -> None:
    world = make_world(blocks=6, watermark_blocks=1)
    world.submit(make_request(0, own=9), make_request(1, own=8))
    assert world.decide().refusal_shortfall == Shortfall(3, 2, 0, 1, 3, "watermark")


def test_a_refusal_counts_what_could_be_evicted() -> None:
    world = make_world(blocks=6)
    world.submit(make_request(0, own=8, output=1), make_request(1, own=9))
    world.step()
    world.submit(make_request(2, own=12))
    assert world.decide().refusal_shortfall == Shortfall(3, 0, 2, 1, 2, "blocks")


def test_alone_a_request_is_never_refused_for_the_watermark() -> None:
    world = make_world(blocks=4, watermark_blocks=3)
    world.submit(make_request(0, own=13))
    assert world.decide().refusal_shortfall == Shortfall(4, 3, 0, 1, 0, "blocks")


def test_each_victim_has_the_shortfall_that_cost_it_its_blocks() -> None:
    world = make_world(blocks=4)
    world.submit(make_request(0, own=4), make_request(1, own=4), make_request(2, own=4))
    world.step()
    step = world.decide()
    assert ids(step.preempted) == [2, 1]
    # First 0 asks; it takes the block of 2. Then 1 asks, when 0 has written one slot of its second block.
    assert step.preemption_shortfalls == [Shortfall(1, 0, 0, 1, 0, "blocks"), Shortfall(1, 0, 0, 1, 3, "blocks")]


def test_several_victims_of_one_demand_see_it_shrink() -> None:
    """The first needs two blocks for its next chunk, and has to take both others' one."""
    world = make_world(
        blocks=5, max_num_batched_tokens=16, long_prefill_token_threshold=8, scheduler_reserve_full_isl=False
    )
    world.submit(make_request(0, own=16), make_request(1, own=4), make_request(2, own=4))
    assert world.step() == [(0, 8), (1, 4), (2, 4)]
    step = world.decide()
    assert (ids(step.preempted), scheduled(step)) == ([2, 1], [(0, 8)])
    assert step.preemption_shortfalls == [Shortfall(2, 0, 0, 2, 0, "blocks"), Shortfall(2, 0, 1, 1, 0, "blocks")]


def test_a_request_alone_that_outgrows_the_pool_is_short_of_one_block() -> None:
    world = make_world(blocks=3)
    world.submit(make_request(0, own=8))
    world.step()
    step = world.decide()
    assert step.preemption_shortfalls == [Shortfall(1, 0, 0, 1, 0, "blocks")]
    assert (step.held_back, step.refused, step.refusal_shortfall) == ("preemption", None, None)


@pytest.mark.parametrize("limits", [{"max_num_seqs": 2}, {"max_num_seqs": 3, "max_num_active_seqs": 2}])
def test_the_head_is_held_back_where_all_seats_are_taken(limits: dict[str, int]) -> None:
    world = make_world(**limits)
    world.submit(*(make_request(id, own=4) for id in range(3)))
    assert [world.decide().held_back, world.decide().held_back] == ["max_num_seqs", "max_num_seqs"]


def test_the_head_is_held_back_where_the_tokens_of_the_step_are_used_up() -> None:
    world = make_world(max_num_batched_tokens=8)
    world.submit(make_request(0, own=9), make_request(1, own=4))
    step = world.decide()
    assert (scheduled(step), step.held_back, step.refused) == ([(0, 8)], "token_budget", None)
    world.complete(step)
    assert world.decide().held_back is None


def test_with_chunked_prefill_off_the_head_is_held_back_by_a_budget_too_small_for_it() -> None:
    world = make_world(enable_chunked_prefill=False, max_num_batched_tokens=10)
    world.submit(make_request(0, own=6), make_request(1, own=5))
    step = world.decide()
    assert (scheduled(step), step.held_back, step.refused) == ([(0, 6)], "token_budget", None)
    # Memory is not even asked.
    tight = make_world(blocks=3, enable_chunked_prefill=False, max_num_batched_tokens=10)
    tight.submit(make_request(0, own=6), make_request(1, own=5))
    assert tight.decide().held_back == "token_budget"


def test_a_step_that_preempts_holds_the_head_back() -> None:
    world = make_world(blocks=5)
    world.submit(make_request(0, own=4), make_request(1, own=12, output=9))
    world.step()
    step = world.decide()
    assert (ids(step.preempted), step.held_back, step.refused) == ([1], "preemption", None)


def test_of_seats_and_tokens_the_seats_are_named() -> None:
    world = make_world(max_num_seqs=1, max_num_batched_tokens=4)
    world.submit(make_request(0, own=4), make_request(1, own=4))
    assert world.decide().held_back == "max_num_seqs"


def test_nobody_is_held_back_where_nobody_waits() -> None:
    world = make_world(max_num_seqs=1, max_num_batched_tokens=4)
    world.submit(make_request(0, own=4))
    assert world.decide().held_back is None


# departures


def test_an_aborted_request_that_runs_gives_its_blocks_back() -> None:
    world = make_world(blocks=6)
    world.submit(make_request(0, own=8), make_request(1, own=8))
    world.step()
    world.scheduler.abort(world.states[0])
    world.allocator.check()
    assert (world.running, world.free) == ([1], 3)


def test_an_aborted_request_that_waits_leaves_the_queue() -> None:
    world = make_world(max_num_seqs=1)
    world.submit(*(make_request(id, own=8) for id in range(3)))
    world.step()
    world.scheduler.abort(world.states[1])
    assert world.waiting == [2]


# the work of a step


def test_the_work_of_a_step_is_told_apart() -> None:
    world = make_world(max_num_batched_tokens=12)
    world.submit(make_request(0, own=6))
    world.step()
    world.submit(make_request(1, own=20))
    step = world.decide()
    # One token for the first, which has 7 then; 11 of 20 for the second.
    assert (step.decode_seqs, step.prefill_tokens, step.context_tokens) == (1, 11, 7 + 11)


def test_the_one_token_that_is_lacking_is_a_decode_also_at_the_end_of_a_prompt() -> None:
    world = make_world(max_num_batched_tokens=4)
    world.submit(make_request(0, own=5))
    assert (world.decide().prefill_tokens, world.scheduler.running[0].num_computed_tokens) == (4, 4)
    step = world.decide()
    assert (step.decode_seqs, step.prefill_tokens, step.context_tokens) == (1, 0, 5)


def test_a_hit_is_context_but_not_work() -> None:
    world = make_world()
    world.submit(make_request(0, shared=8, own=4), make_request(1, shared=8, own=4))
    step = world.decide()
    assert (step.prefill_tokens, step.context_tokens) == (12 + 4, 12 + 12)


def test_a_chunk_of_one_token_in_the_middle_of_a_prompt_is_prefill() -> None:
    world = make_world(max_num_batched_tokens=1)
    world.submit(make_request(0, own=3))
    work = []
    for _ in range(4):
        step = world.decide()
        work.append((step.prefill_tokens, step.decode_seqs))
        world.complete(step)
    assert work == [(1, 0), (1, 0), (0, 1), (0, 1)]


def test_a_victim_taken_again_before_it_has_caught_up_recomputes_from_its_farthest_point() -> None:
    """4 usable blocks and chunks of a block. The second has computed 8 tokens when it is first preempted, and comes
    back twice for a block before it can have three.
    """
    world = make_world(blocks=5, prefix_sharing=False, long_prefill_token_threshold=4, scheduler_reserve_full_isl=False)
    world.submit(make_request(0, own=4, output=10), make_request(1, own=4, output=9))
    recomputed = []
    for _ in range(11):
        world.step()
        recomputed.append(world.states[1].num_recomputed_tokens)
    assert recomputed == [0, 0, 0, 0, 0, 0, 4, 4, 8, 8, 16]
    assert (world.states[1].num_preemptions, world.states[1].high_water_tokens) == (3, 8)
    assert world.states[1].num_tokens == 4 + 5 + 1


def test_what_a_request_holds_is_what_it_has_computed() -> None:
    world = make_world()
    world.submit(make_request(0, own=8))
    world.decide()
    world.states[0].num_computed_tokens = 7
    with pytest.raises(InvariantError, match="invariant 11 does not hold"):
        world.scheduler.check()


def test_nobody_runs_and_waits() -> None:
    world = make_world()
    world.submit(make_request(0, own=8))
    world.decide()
    world.scheduler.waiting.submit(world.states[0])
    with pytest.raises(InvariantError, match="invariant 12 does not hold"):
        world.scheduler.check()


@pytest.mark.parametrize("num_tokens", [7, 18])
def test_what_is_computed_is_known_and_the_end_is_not_passed(num_tokens: int) -> None:
    world = make_world()
    world.submit(make_request(0, own=8, output=10))
    world.decide()
    world.states[0].num_tokens = num_tokens
    with pytest.raises(InvariantError, match="invariant 13 does not hold"):
        world.scheduler.check()
