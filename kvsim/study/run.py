"""simulate(scenario) -> Results: the one place that turns a description into objects."""

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import chain
from typing import Any

from kvsim import __version__
from kvsim.engine.results import Results
from kvsim.engine.scheduler import Sampled
from kvsim.engine.simulation import FollowUps, Simulation
from kvsim.engine.tables import pressure_frame, requests_frame, timeline_frame
from kvsim.errors import ScenarioError
from kvsim.memory.paged import PagedAllocator
from kvsim.rules import Contradiction
from kvsim.study.notes import notes_on_rows
from kvsim.study.plan import Plan, plan
from kvsim.study.scenario import Scenario, scenario_dict
from kvsim.workload.request import Request
from kvsim.workload.traces import SkippedRows, Trace

Progress = Callable[[int, int | None], None]
"""Called with the number of requests that have ended and, where it is known, of all."""


def simulate(scenario: Scenario, *, check: bool = False, on_progress: Progress | None = None) -> Results:
    """Run a scenario to its end; `check` recounts all of memory and the queues after every step.

    Raises ScenarioError for a scenario that does not hold together, TraceError for a trace that cannot be used,
    ModelError for a model that cannot be, InvariantError where a recount finds kvsim wrong.
    """
    planned = plan(scenario)
    skipped = SkippedRows()
    memory, shape = scenario.memory, planned.shape
    try:
        requests, follow_ups = _requests(scenario, skipped)
        simulation = Simulation(
            planned.engine,
            _allocator(scenario, planned),
            requests,
            follow_ups=follow_ups,
            watermark_blocks=int(memory.watermark * shape.num_blocks),
            on_outputs=_progress_hook(scenario, on_progress),
            check=check,
        )
        recorder = simulation.run()
    except OverflowError:
        raise ScenarioError(
            scenario.source,
            ["simulated times and bytes must fit in 64 bits: raise the rate, or lower speed-up, latency or sizes"],
        ) from None
    return Results(
        description=_describe(scenario, planned),
        shape=shape,
        worst_case_bytes=planned.worst_case_bytes,
        num_steps=recorder.num_steps,
        held_back_steps=recorder.held_back_steps,
        timeline=timeline_frame(recorder, shape),
        requests=requests_frame(recorder),
        pressure=pressure_frame(recorder),
        notes=(*planned.notes, *notes_on_rows(skipped)),
        stalled=simulation.stalled,
    )


def _allocator(scenario: Scenario, planned: Plan) -> PagedAllocator:
    memory, shape = scenario.memory, planned.shape
    return PagedAllocator(
        shape.num_blocks,
        shape.block_size,
        memory.prefix_sharing,
        groups=planned.groups,
        block_bytes=shape.block_bytes,
        max_num_batched_tokens=planned.engine.max_num_batched_tokens,
        max_model_len=planned.max_model_len,
        retention_interval=memory.retention_interval,
    )


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
    done = 0

    def on_outputs(_now: int, sampled: Sampled) -> None:
        nonlocal done
        if sampled.finished:
            done += len(sampled.finished)
            on_progress(done, total)

    return on_outputs


def _describe(scenario: Scenario, planned: Plan) -> dict[str, Any]:
    """All that was put in, ready for JSON."""
    shape = planned.shape
    return {
        "question": scenario.question,
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
