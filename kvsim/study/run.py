"""simulate(scenario) -> Results: the one place that turns a description into objects."""

import platform
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from itertools import chain
from typing import Any

from kvsim import __version__
from kvsim.engine.clocked import ClockedScheduler, can_be_clocked
from kvsim.engine.collect import collect
from kvsim.engine.results import Results
from kvsim.engine.scheduler import Sampled, Scheduler, StepScheduler
from kvsim.engine.simulation import FollowUps, Simulation
from kvsim.engine.tables import Tables, TablesInMemory
from kvsim.engine.totals import Totals
from kvsim.errors import ScenarioError
from kvsim.memory.chains import ChainAllocator
from kvsim.memory.contiguous import Prediction, ReservingAllocator
from kvsim.memory.extents import DEFAULT_PLACEMENT
from kvsim.memory.paged import PagedAllocator
from kvsim.rules import Contradiction
from kvsim.study.notes import notes_on_rows
from kvsim.study.plan import Plan, plan
from kvsim.study.scenario import Scenario, scenario_dict
from kvsim.workload.request import Request
from kvsim.workload.traces import SkippedRows, Trace

Progress = Callable[[int, int | None], None]
"""Called with the number of requests that have ended and, where it is known, of all."""

OnRequest = Callable[[Request], None]
"""Called with every request that is asked, as it is made."""

_TOLD_EVERY = 64
"""Requests: often enough to look at, and a bar costs more than a request."""


def simulate(
    scenario: Scenario,
    *,
    tables: Tables | None = None,
    check: bool = False,
    on_progress: Progress | None = None,
    on_request: OnRequest | None = None,
) -> Results:
    """Run a scenario to its end; `check` recounts all of memory and the queues after every step.

    Rows go to `tables` as they come, or are all held in memory if none are given. Raises ScenarioError for a scenario
    that does not hold together, TraceError for a trace that cannot be used, ModelError for a model that cannot be,
    InvariantError where a recount finds kvsim wrong.
    """
    planned = plan(scenario)
    skipped = SkippedRows()
    tables = TablesInMemory() if tables is None else tables
    totals = Totals(planned.shape, planned.worst_case_bytes)
    try:
        requests, follow_ups = _requests(scenario, skipped, on_request)
        simulation = Simulation(
            planned.engine,
            _scheduler(scenario, planned),
            requests,
            follow_ups=follow_ups,
            on_outputs=_progress_hook(scenario, on_progress),
            fast_forward=scenario.engine.fast_forward,
            check=check,
        )
        collect(simulation, tables, totals)
        if on_progress is not None:
            num_ended = simulation.recorder.num_ended
            on_progress(num_ended, num_ended)
    except OverflowError:
        raise ScenarioError(
            scenario.source,
            ["simulated times and bytes must fit in 64 bits: raise the rate, or lower speed-up, latency or sizes"],
        ) from None
    return Results(
        description=_describe(scenario, planned),
        totals=totals,
        tables=tables,
        notes=(*planned.notes, *notes_on_rows(skipped)),
        stalled=simulation.stalled,
    )


def _scheduler(scenario: Scenario, planned: Plan) -> StepScheduler:
    """By chains of blocks and windows of steps where these say all there is to say, else block by block."""
    memory, shape = scenario.memory, planned.shape
    watermark_blocks = int(memory.watermark * shape.num_blocks)
    if memory.allocator != "paged":
        reserving = ReservingAllocator(
            shape.num_blocks,
            memory.allocator,
            memory.placement or DEFAULT_PLACEMENT,
            planned.max_model_len,
            token_bytes=shape.token_bytes,
            prediction=Prediction(memory.prediction_error or 0.0, scenario.seed),
        )
        return Scheduler(planned.engine, reserving, watermark_blocks)
    kinds = [group.attention.kind for group in planned.groups]
    plain = kinds == ["full"] and memory.eviction == "lru" and not memory.block_ids
    if plain and can_be_clocked(planned.engine, shape.block_size):
        chains = ChainAllocator(
            shape.num_blocks,
            shape.block_size,
            memory.prefix_sharing,
            token_bytes=shape.token_bytes,
            block_bytes=shape.block_bytes,
        )
        return ClockedScheduler(planned.engine, chains, watermark_blocks)
    paged = PagedAllocator(
        shape.num_blocks,
        shape.block_size,
        memory.prefix_sharing,
        groups=planned.groups,
        block_bytes=shape.block_bytes,
        max_num_batched_tokens=planned.engine.max_num_batched_tokens,
        max_model_len=planned.max_model_len,
        retention_interval=memory.retention_interval,
        eviction=memory.eviction,
    )
    return Scheduler(planned.engine, paged, watermark_blocks)


def _requests(
    scenario: Scenario, skipped: SkippedRows, on_request: OnRequest | None = None
) -> tuple[Iterator[Request], FollowUps | None]:
    """Those that come by themselves, and what makes those that follow the end of another.

    The first is made already, so that a workload that cannot be used is refused at once.
    """
    workload = scenario.workload
    follow_ups: FollowUps | None = None
    if isinstance(workload, Trace):
        requests = workload.requests(scenario.base, skipped)
    else:
        try:
            traffic = workload.traffic(scenario.seed, scenario.base)
        except Contradiction as error:  # a file does not go with the rest
            raise ScenarioError(scenario.source, [f"workload: {sentence}" for sentence in error.sentences]) from None
        requests, follow_ups = iter(traffic), traffic.follow_ups
    first = next(requests, None)
    if first is None:
        end = "windows" if getattr(workload, "duration", None) is None else "duration"
        raise ScenarioError(scenario.source, [f"workload.{end} must last until the first request arrives"])
    requests = chain([first], requests)
    return (requests, follow_ups) if on_request is None else _watched(requests, follow_ups, on_request)


def _watched(
    requests: Iterator[Request], follow_ups: FollowUps | None, on_request: OnRequest
) -> tuple[Iterator[Request], FollowUps | None]:
    """The same, and `on_request` is told of each."""

    def told(some: Iterable[Request]) -> Iterator[Request]:
        for request in some:
            on_request(request)
            yield request

    if follow_ups is None:
        return told(requests), None
    following = follow_ups
    return told(requests), lambda now, ended, complete: list(told(following(now, ended, complete)))


def _progress_hook(scenario: Scenario, on_progress: Progress | None) -> Callable[[int, Sampled], None] | None:
    if on_progress is None:
        return None
    workload = scenario.workload
    total = workload.limit if isinstance(workload, Trace) else workload.num_requests
    done = told = 0

    def on_outputs(_now: int, sampled: Sampled) -> None:
        nonlocal done, told
        done += len(sampled.finished)
        if done - told >= _TOLD_EVERY:
            told = done
            on_progress(done, total)

    return on_outputs


def _describe(scenario: Scenario, planned: Plan) -> dict[str, Any]:
    """All that was put in, ready for JSON."""
    shape = planned.shape
    return {
        "question": scenario.question,
        "overrides": list(scenario.overrides),
        "seed": scenario.seed,
        "versions": {
            "kvsim": __version__,
            "python": platform.python_version(),
            **{package: version(package) for package in ("numpy", "polars", "simpy")},
        },
        "scenario": scenario_dict(scenario),
        "geometry": {
            "name": planned.geometry.name,
            "kv_dtype": scenario.model.kv_dtype,
            "bytes_per_token": shape.token_bytes,
            "formula": planned.token_formula,
            "max_model_len": planned.max_model_len,
            "num_devices": planned.num_devices,
            "groups": [
                {
                    "kind": group.attention.kind,
                    "window": group.attention.window,
                    "bytes_per_token": group.token_bytes,
                    "padding_bytes_per_block": shape.block_bytes - shape.block_size * group.token_bytes,
                }
                for group in planned.groups
            ],
        },
        "pool": {
            "num_blocks": shape.num_blocks,
            "usable_blocks": shape.usable_blocks,
            "block_size_tokens": shape.block_size,
            "block_bytes": shape.block_bytes,
            "bytes_per_token": shape.token_bytes,
            "pool_bytes": shape.pool_bytes,
        },
    }
