"""simulate(scenario) -> Results: the one place that turns a description into objects."""

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import chain
from typing import Any

from kvsim import __version__
from kvsim.engine.admission import GATES
from kvsim.engine.clocked import ClockedScheduler, can_be_clocked
from kvsim.engine.recorder import Recorder
from kvsim.engine.results import Results
from kvsim.engine.scheduler import Sampled, Scheduler, StepScheduler
from kvsim.engine.simulation import FollowUps, Simulation
from kvsim.engine.tables import MemoryShape, Tables, TablesInMemory, pressure_frame, requests_frame, timeline_frame
from kvsim.engine.totals import Totals
from kvsim.errors import ScenarioError
from kvsim.memory.chains import ChainAllocator
from kvsim.memory.paged import PagedAllocator
from kvsim.rules import Contradiction
from kvsim.study.notes import notes_on_rows, notes_on_swap
from kvsim.study.plan import Plan, plan
from kvsim.study.scenario import Scenario, scenario_dict
from kvsim.workload.request import Request
from kvsim.workload.traces import SkippedRows, Trace

Progress = Callable[[int, int | None], None]
"""Called with the number of requests that have ended and, where it is known, of all."""

_TOLD_EVERY = 64
"""Requests: often enough to look at, and a bar costs more than a request."""


def simulate(
    scenario: Scenario,
    *,
    tables: Tables | None = None,
    check: bool = False,
    on_progress: Progress | None = None,
) -> Results:
    """Run a scenario to its end; `check` recounts all of memory and the queues after every step.

    Rows go to `tables` as they come, or are all held in memory if none are given. Raises ScenarioError for a scenario
    that does not hold together, TraceError for a trace that cannot be used, ModelError for a model that cannot be,
    InvariantError where a recount finds kvsim wrong.
    """
    planned = plan(scenario)
    skipped = SkippedRows()
    shape = planned.shape
    tables = TablesInMemory() if tables is None else tables
    totals = Totals(shape, planned.worst_case_bytes)
    try:
        requests, follow_ups = _requests(scenario, skipped)
        simulation = Simulation(
            planned.engine,
            _scheduler(scenario, planned),
            requests,
            follow_ups=follow_ups,
            on_outputs=_progress_hook(scenario, on_progress),
            on_full=lambda now: _hand_over(simulation.recorder, tables, totals, shape, now),
            fast_forward=scenario.engine.fast_forward,
            check=check,
        )
        recorder = simulation.run()
        _hand_over(recorder, tables, totals, shape, None)
        tables.close()
        if on_progress is not None:
            on_progress(recorder.num_ended, recorder.num_ended)
    except OverflowError:
        raise ScenarioError(
            scenario.source,
            ["simulated times and bytes must fit in 64 bits: raise the rate, or lower speed-up, latency or sizes"],
        ) from None
    totals.num_steps = recorder.num_steps
    totals.held_back_steps = recorder.held_back_steps
    return Results(
        description=_describe(scenario, planned),
        totals=totals,
        tables=tables,
        notes=(*planned.notes, *notes_on_rows(skipped), *notes_on_swap(scenario, totals)),
        stalled=simulation.stalled,
    )


def _hand_over(recorder: Recorder, tables: Tables, totals: Totals, shape: MemoryShape, before_ns: int | None) -> None:
    """Take out of the recorder what is complete: rows before an instant, or at the end all of them."""
    is_end = before_ns is None
    timeline = timeline_frame(recorder.take_rows(before_ns), shape)
    requests = requests_frame(recorder.take_states(all=is_end))
    pressure = pressure_frame(recorder.take_pressure(all=is_end))
    totals.add_timeline(timeline)
    totals.add_requests(requests)
    totals.add_pressure(pressure)
    tables.add("timeline", timeline)
    tables.add("requests", requests)
    tables.add("pressure", pressure)


def _scheduler(scenario: Scenario, planned: Plan) -> StepScheduler:
    """By chains of blocks and windows of steps where these say all there is to say, else block by block."""
    memory, shape, engine = scenario.memory, planned.shape, planned.engine
    watermark_blocks = int(memory.watermark * shape.num_blocks)
    kinds = [group.attention.kind for group in planned.groups]
    as_vllm_v1 = engine.preemption == "recompute" and engine.admission_policy in GATES
    if kinds == ["full"] and can_be_clocked(engine, shape.block_size) and as_vllm_v1 and not memory.block_ids:
        chains = ChainAllocator(
            shape.num_blocks,
            shape.block_size,
            memory.prefix_sharing,
            token_bytes=shape.token_bytes,
            block_bytes=shape.block_bytes,
        )
        return ClockedScheduler(engine, chains, watermark_blocks)
    paged = PagedAllocator(
        shape.num_blocks,
        shape.block_size,
        memory.prefix_sharing,
        groups=planned.groups,
        block_bytes=shape.block_bytes,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=planned.max_model_len,
        retention_interval=memory.retention_interval,
        host_blocks=engine.swap_space // shape.block_bytes if engine.preemption == "swap" else 0,
    )
    return Scheduler(engine, paged, watermark_blocks)


def _requests(scenario: Scenario, skipped: SkippedRows) -> tuple[Iterator[Request], FollowUps | None]:
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
    return chain([first], requests), follow_ups


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
            "usable_blocks": shape.num_blocks - 1,
            "block_size_tokens": shape.block_size,
            "block_bytes": shape.block_bytes,
            "bytes_per_token": shape.token_bytes,
            "pool_bytes": shape.pool_bytes,
        },
    }
