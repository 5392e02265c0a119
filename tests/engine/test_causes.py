"""What is said of refusals and preemptions is true: in random worlds every shortfall is tried out on a copy of memory.

A row of `pressure` is a run of refusals; sums over it, over the requests and over the timeline must agree.
"""

from collections import Counter
from copy import deepcopy
from itertools import groupby
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings

from kvsim.engine.metrics import METRICS
from kvsim.engine.recorder import Recorder
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.simulation import Simulation
from kvsim.engine.step import Step
from kvsim.engine.tables import MemoryShape, pressure_frame, requests_frame, timeline_frame
from kvsim.engine.timeline import EVENTS
from kvsim.engine.totals import Totals
from kvsim.memory.allocator import Hit, Shortfall
from kvsim.memory.paged import PagedAllocator
from kvsim.workload.request import Request
from tests.engine.worlds import worlds
from tests.oracle import World
from tests.replay import case_allocator, case_config, case_requests, watermark_blocks

UNTIL_NS = 150
"""Steps that are followed: some worlds go round in circles for ever."""


def with_more_blank(allocator: PagedAllocator, num_blocks: int) -> PagedAllocator:
    """A copy of memory that has so many more blank blocks."""
    copy = deepcopy(allocator)
    pool = copy.pool
    pool._blank[:0] = range(pool.num_blocks, pool.num_blocks + num_blocks)
    pool._ref_counts += [0] * num_blocks
    pool._keys += [None] * num_blocks
    pool.num_blocks += num_blocks
    copy.check()
    return copy


class Doubter:
    """Memory that tries out whatever it says about why it said no."""

    def __init__(self, allocator: PagedAllocator) -> None:
        self.allocator = allocator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.allocator, name)

    def why_not_admitted(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> Shortfall:
        asked = request, hit, num_tokens, must_fit_tokens, spare_blocks
        said = self.allocator.why_not_admitted(*asked)
        self.is_what_memory_has(said)
        without_watermark = deepcopy(self.allocator).admit(request, hit, num_tokens, must_fit_tokens, 0)
        without_gate = deepcopy(self.allocator).admit(request, hit, num_tokens, None, spare_blocks)
        first_that_suffices = "watermark" if without_watermark else "gate" if without_gate else "blocks"
        assert said.least_change == first_that_suffices
        assert not with_more_blank(self.allocator, said.missing - 1).admit(*asked)
        assert with_more_blank(self.allocator, said.missing).admit(*asked)
        return said

    def why_not_grown(self, request: Request, num_tokens: int) -> Shortfall:
        said = self.allocator.why_not_grown(request, num_tokens)
        self.is_what_memory_has(said)
        assert said.least_change == "blocks"
        assert not with_more_blank(self.allocator, said.missing - 1).grow(request, num_tokens)
        assert with_more_blank(self.allocator, said.missing).grow(request, num_tokens)
        return said

    def is_what_memory_has(self, said: Shortfall) -> None:
        pool = self.allocator.pool
        assert (said.blank, said.evictable) == (pool.num_blank, pool.num_cached)
        assert said.need == said.blank + said.evictable + said.missing
        occupancy = self.allocator.occupancy()
        assert said.slack_bytes == occupancy.allocated_blocks * self.allocator.block_bytes - occupancy.live_bytes


class Followed:
    """A finished run over a world, and what each of its decisions said."""

    def __init__(self, world: World) -> None:
        allocator = case_allocator(world)
        self.decisions: list[tuple[int, Step]] = []
        scheduler = Scheduler(case_config(world), Doubter(allocator), watermark_blocks(world))
        simulation = Simulation(
            scheduler.config,
            scheduler,
            case_requests(world),
            on_step=lambda now, step: self.decisions.append((now, step)),
        )
        self.recorder: Recorder = simulation.run(UNTIL_NS)
        shape = MemoryShape(
            allocator.pool.num_blocks, allocator.block_size, allocator.block_bytes, len(allocator.groups)
        )
        self.refusals = [row for row in self.recorder.pressure if row.event == "refused"]
        self.timeline = timeline_frame(self.recorder.take_rows(), shape)
        self.requests = requests_frame(self.recorder.take_states(all=True))
        self.pressure = pressure_frame(self.recorder.take_pressure(all=True))
        totals = Totals(
            shape,
            worst_case_bytes=0,
            num_steps=self.recorder.num_steps,
            held_back_steps=self.recorder.held_back_steps,
        )
        totals.add_timeline(self.timeline)
        totals.add_requests(self.requests)
        totals.add_pressure(self.pressure)
        self.figures = {metric.name: metric.of(totals) for metric in METRICS}


def runs_of_refusals(decisions: list[tuple[int, Step]]) -> list[tuple[int, int, str, int, Shortfall]]:
    """Decisions in a row that refused one request for one cause: time, request, cause, number, what the first said."""

    def refused(decision: tuple[int, Step]) -> tuple[int, str] | None:
        _now, step = decision
        if step.refused is None or step.refusal_shortfall is None:
            return None
        return step.refused.request.id, step.refusal_shortfall.least_change

    rows = []
    for what, group in groupby(decisions, key=refused):
        if what is not None:
            (now, first), *others = group
            assert first.refusal_shortfall is not None
            rows.append((now, *what, 1 + len(others), first.refusal_shortfall))
    return rows


def assert_all_tell_the_same(world: World) -> None:
    run = Followed(world)
    figures = run.figures
    counted = {name: run.timeline[name].sum() for name in EVENTS}
    steps = [step for _now, step in run.decisions]

    assert [(r.time_ns, r.request_id, r.cause, r.steps, r.shortfall) for r in run.refusals] == runs_of_refusals(
        run.decisions
    )
    by_cause = Counter[str]()
    by_request: dict[int, Counter[str]] = {id: Counter() for id in run.requests["request_id"]}
    for row in run.refusals:
        by_cause[row.cause] += row.steps
        by_request[row.request_id][row.cause] += row.steps
    assert figures["refusals"] == counted["refused"] == by_cause.total()
    for cause in ("blocks", "gate", "watermark"):
        assert figures[f"refusals_for_{cause}"] == by_cause[cause]
    for id, refused, cause in run.requests.select("request_id", "refusals", "refusal_cause").rows():
        assert refused == by_request[id].total()
        assert cause == next((name for name, _count in by_request[id].most_common(1)), None)

    preempted = [(now, state.request.id) for now, step in run.decisions for state in step.preempted]
    rows = run.pressure.rows(named=True)
    assert [(r["time_ns"], r["request_id"]) for r in rows if r["event"] == "preempted"] == preempted
    assert {(r["cause"], r["steps"]) for r in rows if r["event"] == "preempted"} <= {("blocks", 1)}
    assert figures["preemptions"] == counted["preempted"] == len(preempted)
    assert run.pressure["time_ns"].is_sorted()

    for cause in ("preemption", "max_num_seqs", "token_budget"):
        assert figures[f"held_back_by_{cause}"] == sum(step.held_back == cause for step in steps)
    for step in steps:
        assert (step.held_back == "preemption") == bool(step.preempted)
        assert (step.refused is None) == (step.refusal_shortfall is None)
        assert step.refused is None or step.held_back is None


@given(worlds())
def test_what_is_said_of_pressure_is_true_and_adds_up(world: World) -> None:
    assert_all_tell_the_same(world)


@given(worlds(windows=True))
def test_what_is_said_of_pressure_with_windows_and_several_groups_is_true_and_adds_up(world: World) -> None:
    assert_all_tell_the_same(world)


def seen(world: World) -> set[str]:
    run = Followed(world)
    refused_for = {row.cause for row in run.refusals}
    held_back_by = {cause for cause, steps in run.recorder.held_back_steps.items() if steps}
    return refused_for | held_back_by


@pytest.mark.parametrize("cause", ["blocks", "gate", "watermark", "preemption", "max_num_seqs", "token_budget"])
@pytest.mark.parametrize("windows", [False, True])
def test_random_worlds_know_every_cause(cause: str, windows: bool) -> None:
    world = find(worlds(windows), lambda world: cause in seen(world), settings=settings(phases=[Phase.generate]))
    assert cause in seen(world)


def test_figures_of_a_world_with_every_cause_but_preemption() -> None:
    """5 tokens a step, two seats, and 4 usable blocks, of which one is to spare. All is about the third request, which
    arrives at step 1 and needs 3 blocks for its 9 tokens.

    step      0              1              2 3 4        5 6 7 8     9         10
    first     2 blocks       2 blocks       gone
    second    no tokens left 1 block        1 block      2 blocks    3 blocks  gone
    third                    no seat        3 free, but  2 free, a   1 free    admitted
                                            one to spare chunk fits
    """
    config = {
        "block_size": 4,
        "num_gpu_blocks": 5,
        "max_num_seqs": 2,
        "max_num_active_seqs": None,
        "max_num_batched_tokens": 5,
        "max_model_len": 10_000,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,
        "watermark": 0.2,
        "policy": "fcfs",
        "enable_prefix_caching": False,
        "groups": [{"type": "full"}],
        "prefix_cache_retention_interval": 0,
    }
    requests = [
        {"id": 0, "arrival_step": 0, "prompt_runs": [[100, 5]], "output_base": 1000, "output_len": 2},
        {"id": 1, "arrival_step": 0, "prompt_runs": [[200, 1]], "output_base": 2000, "output_len": 9},
        {"id": 2, "arrival_step": 1, "prompt_runs": [[300, 9]], "output_base": 3000, "output_len": 1},
    ]
    run = Followed({"config": config, "requests": requests})
    assert run.pressure.rows() == [
        # time, event, request, cause, steps, need, blank, evictable, missing, slack
        (2, "refused", 2, "watermark", 3, 4, 3, 0, 1, 2),
        (5, "refused", 2, "gate", 4, 4, 2, 0, 2, 3),
        (9, "refused", 2, "blocks", 1, 4, 1, 0, 3, 3),
    ]
    assert {name: value for name, value in run.figures.items() if name.startswith(("refus", "held_back"))} == {
        "refused": 1,
        "refusals": 8,
        "refusals_for_blocks": 1,
        "refusals_for_gate": 4,
        "refusals_for_watermark": 3,
        "refusals_for_extent": 0,
        "refusals_for_reservation": 0,
        "held_back_by_max_num_seqs": 1,
        "held_back_by_token_budget": 1,
        "held_back_by_preemption": 0,
    }
    assert run.requests["refusal_cause"].to_list() == [None, None, "gate"]
    assert run.requests["admitted_ns"].to_list() == [0, 1, 10]
