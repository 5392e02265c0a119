"""Swap and admission: what must hold in every world, and small worlds worked by hand. Blocks there have 4 slots."""

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
from attrs import evolve
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from kvsim.engine.admission import ADMISSION, GATES
from kvsim.engine.config import EngineConfig
from kvsim.engine.latency import LatencyModel, transfer_ns
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.simulation import Simulation
from kvsim.engine.state import RequestState
from kvsim.engine.step import Step
from kvsim.memory.groups import LayerGroup
from kvsim.memory.paged import PagedAllocator
from kvsim.workload.request import Request
from tests.engine.test_causes import with_more_blank
from tests.engine.worlds import UNLIMITED, pressed_worlds
from tests.makers import make_request
from tests.oracle import Oracle, World
from tests.replay import case_allocator, case_config, case_requests, replay, watermark_blocks

UNTIL_NS = 150


def play(
    world: World, on_step: Callable[[Scheduler, Step], None] = lambda _scheduler, _step: None, **config: Any
) -> tuple[list[RequestState], PagedAllocator]:
    """The requests of a world after so many steps, and the memory."""
    allocator = case_allocator(world)
    scheduler = Scheduler(evolve(case_config(world), **config), allocator, watermark_blocks(world))
    simulation = Simulation(
        scheduler.config,
        scheduler,
        case_requests(world),
        check=True,
        on_step=lambda _now, step: on_step(scheduler, step),
    )
    simulation.run(UNTIL_NS)
    return list(simulation.recorder.states), allocator


# what must hold


WITH_AND_WITHOUT_WINDOWS = [pytest.param(False, id="full"), pytest.param(True, id="windows")]


@pytest.mark.parametrize("windows", WITH_AND_WITHOUT_WINDOWS)
@given(data=st.data())
def test_nobody_is_preempted_under_the_worst_case(windows: bool, data: st.DataObject) -> None:
    """Of those that could ever run to their end; what outgrows the whole pool is turned away."""
    world = data.draw(pressed_worlds(windows, admission="worst_case"))
    states, _memory = play(world, reject_unservable=True)
    assert sum(state.num_preemptions for state in states) == 0


@pytest.mark.parametrize("windows", WITH_AND_WITHOUT_WINDOWS)
@given(data=st.data())
def test_swap_conserves_bytes(windows: bool, data: st.DataObject) -> None:
    world = data.draw(pressed_worlds(windows, preemption="swap"))
    states, memory = play(world)
    size = memory.block_bytes
    assert memory.host.num_used <= world["config"]["host_blocks"]
    for state in states:
        on_host = memory.host.get(state.request.id)
        there = on_host.num_blocks * size if on_host else 0
        assert state.swapped_out_bytes == state.swapped_in_bytes + state.swap_dropped_bytes + there
        assert state.num_preemptions == state.num_swaps + state.num_swap_fallbacks
    totals = memory.host.moved_out * size, memory.host.moved_in * size, memory.host.dropped * size
    names = ("swapped_out_bytes", "swapped_in_bytes", "swap_dropped_bytes")
    assert totals == tuple(sum(getattr(state, name) for state in states) for name in names)


@pytest.mark.parametrize("windows", WITH_AND_WITHOUT_WINDOWS)
@given(data=st.data())
def test_with_room_for_all_on_the_host_no_token_is_computed_twice(windows: bool, data: st.DataObject) -> None:
    world = data.draw(pressed_worlds(windows, preemption="swap", host_blocks=UNLIMITED))
    computed_up_to: dict[int, int] = {}

    def on_step(_scheduler: Scheduler, step: Step) -> None:
        for state, num_tokens in step.scheduled.items():
            end = state.num_computed_tokens
            assert end - num_tokens >= computed_up_to.get(state.request.id, 0)
            computed_up_to[state.request.id] = end

    states, _memory = play(world, on_step)
    assert {state.num_recomputed_tokens for state in states} == {0}
    assert {state.num_swap_fallbacks for state in states} == {0}


@pytest.mark.parametrize("windows", WITH_AND_WITHOUT_WINDOWS)
@given(data=st.data())
def test_without_room_on_the_host_swap_decides_what_recompute_does(windows: bool, data: st.DataObject) -> None:
    world = data.draw(pressed_worlds(windows, preemption="swap", host_blocks=0))
    recomputing = {**world, "config": {**world["config"], "preemption": "recompute"}}
    steps = Oracle(recomputing).run(UNTIL_NS)["steps"]
    assert replay({**world, "steps": steps}) == replay({**recomputing, "steps": steps})
    swapped, _memory = play(world)
    recomputed, _memory = play(recomputing)
    assert [s.num_recomputed_tokens for s in swapped] == [s.num_recomputed_tokens for s in recomputed]
    assert [s.num_swap_fallbacks for s in swapped] == [s.num_preemptions for s in recomputed]


def lets_in(scheduler: Scheduler, step: Step, blocks: int = 0, **changes: Any) -> bool:
    """Whether the request that was refused would have been let in, with more blocks or something changed."""
    copy = deepcopy(scheduler)
    memory = copy.allocator = with_more_blank(copy.allocator, blocks)  # type: ignore[arg-type]  # it is a paged one
    memory._longest_table, memory._head_keys = 10**6, None
    for name, value in changes.items():
        setattr(copy, name, value)
    num_running = len(copy.running)
    copy._max_running = num_running + 1
    budget = copy.config.max_num_batched_tokens - sum(step.scheduled.values())
    is_alone = num_running + len(copy.waiting) <= 1
    cap = 10**9 if is_alone else copy.config.long_prefill_token_threshold or 10**9
    copy._admit_waiting(Step(scheduled={}, admitted=[], resumed=[]), budget, cap)
    return len(copy.running) > num_running


@settings(phases=[Phase.generate])
@pytest.mark.parametrize("windows", WITH_AND_WITHOUT_WINDOWS)
@given(data=st.data())
def test_what_is_said_of_a_refusal_is_true(windows: bool, data: st.DataObject) -> None:
    world = data.draw(pressed_worlds(windows))
    promises = world["config"]["admission"] in ("worst_case", "expected")
    tried = set()

    def on_step(scheduler: Scheduler, step: Step) -> None:
        said, refused = step.refusal_shortfall, step.refused
        if said is None or refused is None or (refused.request.id, said.least_change) in tried:
            return
        tried.add((refused.request.id, said.least_change))
        changes: dict[str, dict[str, Any]] = {"watermark": {"watermark_blocks": 0}}
        if promises:
            changes["reservation"] = {"_demand": ADMISSION["known"]}
        changes["gate"] = {"_demand": ADMISSION["first_chunk"]}
        suffice = [name for name, change in changes.items() if lets_in(scheduler, step, **change)]
        assert said.least_change == (suffice[0] if suffice else "blocks")
        assert said.missing == said.need - said.blank - said.evictable > 0
        assert not lets_in(scheduler, step, said.missing - 1)
        assert lets_in(scheduler, step, said.missing)

    play(world, on_step)


def causes(world: World) -> set[str]:
    states, _memory = play(world)
    return {cause for state in states for cause in state.refusal_causes or {}}


def swaps_seen(world: World) -> set[str]:
    states, _memory = play(world)
    seen = set()
    for state in states:
        seen |= {"swapped in"} if state.swapped_in_bytes else set()
        seen |= {"fallback after a swap"} if state.num_swap_fallbacks and state.num_swaps else set()
        seen |= {"hit instead"} if state.swap_dropped_bytes and state.outcome == "finished" else set()
        seen |= {"aborted"} if state.swap_dropped_bytes and state.outcome == "aborted" else set()
    return seen


@pytest.mark.parametrize("cause", ["reservation", "watermark", "blocks"])
@pytest.mark.parametrize("windows", WITH_AND_WITHOUT_WINDOWS)
def test_random_worlds_know_every_cause_of_promises(cause: str, windows: bool) -> None:
    worlds = pressed_worlds(windows, admission="worst_case")
    limits = settings(phases=[Phase.generate], max_examples=5000)
    found = find(worlds, lambda world: cause in causes(world), settings=limits)
    assert cause in causes(found)


@pytest.mark.parametrize(
    ("what", "windows"),
    [
        ("swapped in", False),
        ("swapped in", True),
        ("fallback after a swap", False),
        ("hit instead", False),
        ("aborted", False),
    ],
)
def test_random_worlds_know_every_turn_of_a_swap(what: str, windows: bool) -> None:
    worlds = pressed_worlds(windows, preemption="swap", host_blocks=4)
    limits = settings(phases=[Phase.generate], max_examples=5000)
    assert what in swaps_seen(find(worlds, lambda world: what in swaps_seen(world), settings=limits))


# by hand: swap


class World4:
    """A scheduler over blocks of 4 slots of 100 bytes; a step and what it did."""

    def __init__(self, blocks: int, *requests: Request, host: int = 100, sharing: bool = True, **config: Any) -> None:
        self.memory = PagedAllocator(blocks, 4, sharing, groups=(LayerGroup(token_bytes=100),), host_blocks=host)
        config = {"max_model_len": 1000, "preemption": "swap", **config}
        self.scheduler = Scheduler(EngineConfig(**config), self.memory)
        self.states = [RequestState(request, order, 1000) for order, request in enumerate(requests)]
        for state in self.states:
            self.scheduler.submit(state)

    def step(self) -> Step:
        step = self.scheduler.schedule()
        self.scheduler.check()
        self.scheduler.complete(step)
        return step

    def steps(self, number: int) -> Step:
        for _ in range(number - 1):
            self.step()
        return self.step()

    def steps_until(self, happened: Callable[[], object]) -> Step:
        for _ in range(100):
            step = self.step()
            if happened():
                return step
        raise AssertionError("it never happened")


def test_a_victim_goes_to_the_host_and_comes_back_before_anybody_else() -> None:
    """8 usable blocks: both prompts take 3 and 4. The first takes the last block for its token 13, the second finds none
    for its token 17 and goes, with 16 tokens in 4 blocks. The third would fit, and has to wait."""
    world = World4(9, make_request(0, 11, output=9), make_request(1, 13, output=9), make_request(2, 1, output=1))
    first, second, third = world.states
    world.scheduler.waiting.remove(third)
    world.steps(4)
    world.scheduler.submit(third)
    step = world.step()
    assert (step.preempted, step.swapped_bytes) == ([second], 1600)
    assert (second.swapped_tokens, second.num_computed_tokens, second.swapped_out_bytes) == (16, 0, 1600)
    assert world.memory.occupancy()[:3] == (4, 4, 0)
    assert world.memory.occupancy().host_blocks == 4
    assert world.memory.swapped_tokens() == {1: 16}
    # It needs its 4 blocks, which lie cached, and one more.
    assert world.step().refused is second
    assert world.states[2].num_computed_tokens == 0
    world.steps_until(lambda: first not in world.scheduler.running)
    step = world.step()
    # The first, when it needed a fifth block, took the last of the four: 3 are hits, 1 comes back, 3 are dropped.
    assert [(state, hit.num_tokens) for state, hit in step.resumed] == [(second, 12)]
    assert [state for state, _hit in step.admitted] == [third]
    assert step.scheduled[second] == 1
    assert (step.decode_seqs, step.prefill_tokens) == (2, 0)
    assert (second.swapped_in_bytes, second.swap_dropped_bytes, step.swapped_bytes) == (400, 1200, 400)
    assert second.num_recomputed_tokens == 0
    assert world.memory.occupancy().host_blocks == 0


@pytest.mark.parametrize(("host", "swaps"), [(4, True), (3, False)])
def test_a_host_without_room_for_all_of_a_victim_falls_back_to_recompute(host: int, swaps: bool) -> None:
    world = World4(9, make_request(0, 11, output=9), make_request(1, 13, output=9), host=host)
    step = world.steps(5)
    (victim,) = step.preempted
    assert (victim.num_preemptions, victim.num_swaps, victim.num_swap_fallbacks) == (1, swaps, not swaps)
    assert victim.high_water_tokens == (0 if swaps else 16)
    assert step.swapped_bytes == (1600 if swaps else 0)


def test_without_prefix_sharing_all_that_went_out_comes_back() -> None:
    world = World4(9, make_request(0, 11, output=9), make_request(1, 13, output=9), sharing=False)
    second = world.states[1]
    step = world.steps_until(lambda: second.swapped_in_bytes)
    assert (step.swapped_bytes, second.swapped_out_bytes, second.swap_dropped_bytes) == (1600, 1600, 0)
    assert world.memory.occupancy().live_bytes == 17 * 100


def test_blocks_that_others_hold_go_out_as_well_and_are_hit_again() -> None:
    """Two requests share 8 tokens; the victim moves these too, with all 4 blocks for 13 tokens, and hits them again when
    the first has left, which has taken the other two."""
    world = World4(6, make_request(0, 2, shared=8, output=8), make_request(1, 3, shared=8, output=5))
    second = world.states[1]
    world.steps_until(lambda: second.num_swaps)
    assert (second.swapped_tokens, second.swapped_out_bytes) == (13, 1600)
    assert world.memory.occupancy()[:3] == (4, 1, 0)
    world.steps_until(lambda: not second.swapped_tokens)
    assert (second.swapped_in_bytes, second.swap_dropped_bytes, second.num_recomputed_tokens) == (800, 800, 0)


def test_an_aborted_request_leaves_the_host() -> None:
    world = World4(9, make_request(0, 11, output=9), make_request(1, 13, output=9))
    world.steps(5)
    second = world.states[1]
    assert world.scheduler.abort(second) is False
    assert (world.memory.host.num_used, second.swapped_tokens) == (0, 0)
    assert (second.swapped_out_bytes, second.swap_dropped_bytes) == (1600, 1600)
    world.scheduler.check()


def test_a_step_lasts_longer_by_what_it_moves() -> None:
    """1,600 bytes at 3 GB/s are 533.33 ns, in the step that moves them out, and again when they are back."""
    assert (transfer_ns(1600, 3 * 10**9), transfer_ns(5, 2 * 10**9), transfer_ns(0, 1)) == (533, 3, 0)
    memory = PagedAllocator(9, 4, False, block_bytes=400, host_blocks=4)
    latency = LatencyModel(base=10, per_prefill_token=0, per_decode_seq=0, per_context_token=0)
    config = EngineConfig(max_model_len=1000, preemption="swap", swap_bandwidth=3 * 10**9, latency=latency)
    requests = [make_request(0, 11, output=9), make_request(1, 13, output=9)]
    moved: list[int] = []
    began: list[int] = []

    def on_step(now: int, step: Step) -> None:
        began.append(now)
        moved.append(step.swapped_bytes)

    simulation = Simulation(config, Scheduler(config, memory), requests, on_step=on_step, check=True)
    simulation.run()
    lasted = [after - before for before, after in pairwise(began)]
    assert lasted == [10 + 533 * bool(num_bytes) for num_bytes in moved[:-1]]
    assert [num_bytes for num_bytes in moved if num_bytes] == [1600, 1600]
    rows = simulation.recorder.take_rows()
    assert set(rows["host_blocks"]) == {0, 4}


# by hand: admission


def admitted_at_once(blocks: int, *requests: Request, **config: Any) -> list[int]:
    """Requests that the first step admits, by id."""
    config = {"max_model_len": 1000, "max_num_batched_tokens": 12, **config}
    scheduler = Scheduler(EngineConfig(**config), PagedAllocator(blocks + 1, 4, True))
    for order, request in enumerate(requests):
        scheduler.submit(RequestState(request, order, 1000))
    return [state.request.id for state, _hit in scheduler.schedule().admitted]


FOUR_AND = {"max_num_batched_tokens": 100}


@pytest.mark.parametrize(
    ("blocks", "policy"),
    [
        # The first takes a block for its 4 tokens, and has been promised 3 for 4 + 8 - 1; the second likewise.
        (6, {"admission": "worst_case", "max_output_tokens": 8}),
        # An output that is longer than what is declared is declared: 4 + 10 - 1 tokens are 4 blocks, for both.
        (8, {"admission": "worst_case", "max_output_tokens": 2}),
        # 5 expected and a fifth more: 4 + 6 - 1 = 9 tokens are 3 blocks.
        (6, {"admission": "expected", "expected_output_tokens": 5, "admission_margin": 0.2}),
        # 4 + 5 - 1 = 8 tokens.
        (4, {"admission": "expected", "expected_output_tokens": 5}),
        (4, {"admission": "expected", "expected_output_tokens": 500, "max_output_tokens": 5}),
        (2, {"admission": "known"}),
        (2, {"admission": "first_chunk"}),
    ],
)
def test_blocks_that_it_takes_to_admit_two(blocks: int, policy: dict[str, Any]) -> None:
    output = 10 if policy.get("max_output_tokens") == 2 else 5
    requests = [make_request(id, 4, output=output) for id in (0, 1)]
    assert admitted_at_once(blocks, *requests, **policy) == [0, 1]
    assert admitted_at_once(blocks - 1, *requests, **policy) == [0]


def test_the_first_chunk_is_enough_where_nothing_else_is_asked_for() -> None:
    """20 tokens are 5 blocks, of which 12 tokens a step are 3."""
    for policy, admitted in (("first_chunk", [0]), ("known", [])):
        assert admitted_at_once(3, make_request(0, 20), admission=policy) == admitted
        assert admitted_at_once(5, make_request(0, 20), admission=policy) == [0]


def test_without_a_declared_maximum_the_worst_case_is_the_longest_length() -> None:
    """16 tokens at most, of which the last is never computed: 4 blocks."""
    requests = [make_request(id, 4, output=2) for id in (0, 1)]
    policy: dict[str, Any] = {"admission": "worst_case", "max_model_len": 16}
    assert admitted_at_once(8, *requests, **policy) == [0, 1]
    assert admitted_at_once(7, *requests, **policy) == [0]


def test_a_request_alone_is_let_in_whatever_it_is_promised() -> None:
    """It is promised 250 blocks of 9; the next is admitted when it has left."""
    policy: dict[str, Any] = {"admission": "worst_case"}
    assert admitted_at_once(9, make_request(0, 4), make_request(1, 4), **policy) == [0]


def test_a_promise_counts_a_shared_block_once() -> None:
    """Both prompts are 8 shared tokens and 1 of their own; promised are 11 tokens, 3 blocks. The second hits 2 blocks
    that the first holds, and is promised one more: 3 + 1."""
    requests = [make_request(id, 1, shared=8, output=3) for id in (0, 1)]
    policy: dict[str, Any] = {"admission": "worst_case", "max_output_tokens": 3, **FOUR_AND}
    assert admitted_at_once(4, *requests, **policy) == [0, 1]
    assert admitted_at_once(3, *requests, **policy) == [0]


def test_the_policies_are_those_that_a_scenario_may_name() -> None:
    for name in ADMISSION:
        assert EngineConfig(admission=name).admission_policy == name  # type: ignore[arg-type]  # a word of it
    assert set(GATES) < set(ADMISSION)
    assert EngineConfig().admission_policy == "known"
    assert EngineConfig(scheduler_reserve_full_isl=False).admission_policy == "first_chunk"
