"""simulate(scenario) -> Results: the one place that turns a description into objects."""

import platform
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from itertools import chain
from typing import Any

from kvsim import __version__
from kvsim.engine.collect import collect
from kvsim.engine.results import Results
from kvsim.engine.simulation import FollowUps, Simulation
from kvsim.engine.step import Sampled
from kvsim.engine.tables import Tables, TablesInMemory
from kvsim.engine.timeline import ROWS_AT_ONCE
from kvsim.engine.totals import Totals
from kvsim.engine.unshared import UnsharedLevel, UnsharedTotals
from kvsim.errors import ScenarioError
from kvsim.memory.block_map import BlockMap
from kvsim.memory.samples import SampleAllocator
from kvsim.rules import Contradiction
from kvsim.study.input_files import input_files
from kvsim.study.notes import notes_on_rows, notes_on_swap
from kvsim.study.plan import Plan, plan
from kvsim.study.scenario import Scenario, scenario_dict, scenario_text
from kvsim.study.schedulers import scheduler_of
from kvsim.workload.outputs import SampleTraffic, sample_requests
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
    moments: Iterable[int] = (),
    on_moment: Callable[[BlockMap], None] | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
    on_rows: Callable[[Simulation], None] | None = None,
) -> Results:
    """Run a scenario to its end; `check` recounts all of memory and the queues after every step.

    Rows go to `tables` as they come, about `rows_at_once` together, or are all held in memory if none are given;
    `on_rows` is told each time some have gone there, and may ask the simulation for its time and block map.
    `on_moment` is shown who holds which block at each of the `moments` (ns, ascending).

    Raises ScenarioError for a scenario that does not hold together, TraceError for a trace that cannot be used,
    ModelError for a model that cannot be, InvariantError where a recount finds kvsim wrong.
    """
    planned = plan(scenario)
    skipped = SkippedRows()
    tables = TablesInMemory() if tables is None else tables
    totals = Totals(planned.shape, planned.worst_case_bytes)
    scheduler = scheduler_of(scenario, planned)
    level = UnsharedLevel(scheduler.memory) if isinstance(scheduler.memory, SampleAllocator) else None
    if scenario.sample_sharing is not None:
        totals.unshared = UnsharedTotals() if level is None else level.totals
    try:
        requests, follow_ups = _requests(scenario, skipped, on_request)
        simulation = Simulation(
            planned.engine,
            scheduler,
            requests,
            follow_ups=follow_ups,
            on_step=None if level is None else level.step_began,
            on_outputs=_outputs_hook(_progress_hook(scenario, on_progress), level),
            moments=moments,
            on_moment=on_moment,
            rows_at_once=rows_at_once,
            fast_forward=scenario.engine.fast_forward,
            check=check,
        )
        collect(simulation, tables, totals, on_rows)
        if on_progress is not None:
            num_ended = simulation.recorder.num_ended
            on_progress(num_ended, num_ended)
    except OverflowError:
        raise ScenarioError(
            scenario.source,
            ["simulated times and bytes must fit in 64 bits: raise the rate, or lower speed-up, latency or sizes"],
        ) from None
    if totals.unshared is not None and level is None:
        totals.unshared.byte_ns = totals.integrals["allocated_bytes"] + totals.integrals["shared_saving_bytes"]
    return Results(
        description=_describe(scenario, planned),
        totals=totals,
        tables=tables,
        notes=(*planned.notes, *notes_on_rows(skipped), *notes_on_swap(scenario, totals)),
        stalled=simulation.stalled,
    )


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
    if on_request is not None:
        requests, follow_ups = _watched(requests, follow_ups, on_request)
    num_samples = workload.num_outputs or 1
    if num_samples == 1 or scenario.sample_sharing != "prefix_cache":
        return requests, follow_ups
    if follow_ups is None:
        return chain.from_iterable(sample_requests(request, num_samples) for request in requests), None
    samples = SampleTraffic(requests, follow_ups, num_samples)
    return iter(samples), samples.follow_ups


OutputsHook = Callable[[int, Sampled], None]


def _outputs_hook(progress: OutputsHook | None, level: UnsharedLevel | None) -> OutputsHook | None:
    """Both, where there are both."""
    if level is None or progress is None:
        return progress if level is None else level.step_ended
    told, followed = progress, level.step_ended

    def on_outputs(now: int, sampled: Sampled) -> None:
        followed(now, sampled)
        told(now, sampled)

    return on_outputs


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
    if total is not None and scenario.sample_sharing == "prefix_cache":
        total *= workload.num_outputs or 1
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
        "scenario_text": scenario_text(scenario),
        "files": input_files([scenario]),
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
