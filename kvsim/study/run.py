"""simulate(scenario) -> Results: the one place that turns a description into objects."""

import platform
from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import chain
from typing import Any

from attrs import evolve, frozen

from kvsim import __version__
from kvsim.engine.config import EngineConfig
from kvsim.engine.results import Results
from kvsim.engine.scheduler import Sampled
from kvsim.engine.simulation import Simulation
from kvsim.engine.tables import MemoryShape, requests_frame, timeline_frame
from kvsim.errors import ModelError, ScenarioError, UnsupportedModelError
from kvsim.memory.paged import PagedAllocator
from kvsim.model.catalogue import load_geometry
from kvsim.model.geometry import ModelGeometry, uniform_geometry
from kvsim.study.scenario import MAX_BLOCKS, Scenario, scenario_dict
from kvsim.units import format_bytes
from kvsim.workload.request import Request
from kvsim.workload.traces import Trace

Progress = Callable[[int, int | None], None]
"""Called with the number of requests that have ended and, where it is known, of all."""


@frozen
class Plan:
    """A scenario worked out: what a token takes, how large the pool is, what the engine is told."""

    geometry: ModelGeometry
    token_formula: str
    shape: MemoryShape
    engine: EngineConfig
    max_model_len: int
    notes: tuple[str, ...]


def plan(scenario: Scenario) -> Plan:
    """Raises ScenarioError where model, memory and engine do not go together."""
    try:
        geometry = _geometry(scenario)
        max_model_len = _max_model_len(scenario, geometry)
        _refuse_what_is_not_simulated(geometry, max_model_len)
        model = scenario.model
        ranks = (model.kv_dtype, model.tensor_parallel, model.pipeline_parallel)
        token_bytes, formula = geometry.bytes_per_token(*ranks), geometry.formula(*ranks)
    except ModelError as error:
        raise ScenarioError(scenario.source, [f"model: {error}"]) from None
    shape = _memory_shape(scenario, token_bytes)
    engine = evolve(scenario.engine, max_model_len=max_model_len)
    notes = tuple(_notes(scenario, geometry, shape, max_model_len))
    return Plan(geometry, formula, shape, engine, max_model_len, notes)


def simulate(scenario: Scenario, *, on_progress: Progress | None = None) -> Results:
    """Run a scenario to its end.

    Raises ScenarioError for a scenario that does not hold together, TraceError for a trace that cannot be used,
    ModelError for a model that cannot be.
    """
    planned = plan(scenario)
    memory, shape = scenario.memory, planned.shape
    try:
        simulation = Simulation(
            planned.engine,
            PagedAllocator(shape.num_blocks, shape.block_size, memory.prefix_sharing),
            _first_checked(scenario),
            watermark_blocks=int(memory.watermark * shape.num_blocks),
            on_outputs=_progress_hook(scenario, on_progress),
        )
        recorder = simulation.run()
    except OverflowError:
        raise ScenarioError(
            scenario.source,
            ["workload and engine.latency must end within 292 simulated years: raise the rate or lower the latency"],
        ) from None
    return Results(
        description=_describe(scenario, planned),
        shape=shape,
        worst_case_bytes=planned.engine.max_num_seqs * planned.max_model_len * shape.token_bytes,
        num_steps=recorder.num_steps,
        timeline=timeline_frame(recorder, shape),
        requests=requests_frame(recorder),
        notes=planned.notes,
        stalled=simulation.stalled,
    )


def _geometry(scenario: Scenario) -> ModelGeometry:
    model = scenario.model
    if model.config is not None:
        return evolve(load_geometry(model.config, scenario.base), name=model.config)
    assert model.num_layers is not None, "the table is consistent"
    assert model.num_kv_heads is not None, "the table is consistent"
    assert model.head_dim is not None, "the table is consistent"
    return uniform_geometry(model.num_layers, model.num_kv_heads, model.head_dim)


def _max_model_len(scenario: Scenario, geometry: ModelGeometry) -> int:
    """What the scenario says, else what the model's config says."""
    engine = scenario.engine
    max_model_len = engine.max_model_len or geometry.max_model_len
    if max_model_len is None:
        raise ScenarioError(
            scenario.source, ["engine.max_model_len is missing, and the model does not say its longest length"]
        )
    if not engine.enable_chunked_prefill and engine.max_num_batched_tokens < max_model_len:
        raise ScenarioError(
            scenario.source,
            [
                f"engine.max_num_batched_tokens must be >= the model's max_model_len = {max_model_len:,} with "
                f"enable_chunked_prefill = false, got {engine.max_num_batched_tokens:,}"
            ],
        )
    return max_model_len


def _refuse_what_is_not_simulated(geometry: ModelGeometry, max_model_len: int) -> None:
    """Every layer must keep every token, so that all layers share one block table.

    A window that no request outgrows keeps every token as well.
    """
    for cache in geometry.caches():
        endless = cache.window is not None and cache.window >= max_model_len
        simulated = endless or cache.kind in ("full", "mla", "index", "shared", "none")
        if not simulated or cache.tokens_per_entry > 1:
            raise UnsupportedModelError(
                f"{geometry.name} has {cache.kind.replace('_', ' ')} layers; only models whose layers keep every "
                "token can be simulated so far"
            )


def _memory_shape(scenario: Scenario, token_bytes: int) -> MemoryShape:
    """Blocks = floor(budget / block bytes), the null block included (sizing rule 9)."""
    memory = scenario.memory
    block_bytes = memory.block_size * token_bytes
    if memory.num_blocks is not None:
        return MemoryShape(memory.num_blocks, memory.block_size, token_bytes)
    assert memory.budget is not None, "the table is consistent"
    num_blocks = memory.budget // block_bytes
    if num_blocks < 2:
        raise ScenarioError(
            scenario.source,
            [
                f"memory.budget must hold at least two blocks of {format_bytes(block_bytes)}, as the engine keeps "
                f"one, got {format_bytes(memory.budget)}"
            ],
        )
    if num_blocks > MAX_BLOCKS:
        raise ScenarioError(
            scenario.source,
            [f"memory.budget must not hold more than {MAX_BLOCKS:,} blocks, got {num_blocks:,}: raise block_size"],
        )
    return MemoryShape(num_blocks, memory.block_size, token_bytes)


def _requests(scenario: Scenario) -> Iterator[Request]:
    workload = scenario.workload
    if isinstance(workload, Trace):
        return workload.requests(scenario.base)
    return workload.requests(scenario.seed)


def _first_checked(scenario: Scenario) -> Iterator[Request]:
    """The requests, the first one made already, so that a workload that cannot be used is refused at once."""
    requests = _requests(scenario)
    first = next(requests, None)
    if first is None:
        raise ScenarioError(scenario.source, ["workload.duration must last until the first request arrives"])
    return chain([first], requests)


def _notes(scenario: Scenario, geometry: ModelGeometry, shape: MemoryShape, max_model_len: int) -> Iterator[str]:
    """What a reader of the results should know, a sentence each."""
    yield from geometry.assumptions
    longest_blocks = -(-max_model_len // shape.block_size)
    needed = longest_blocks * shape.block_bytes
    available = scenario.memory.budget or shape.num_blocks * shape.block_bytes
    if needed > available - shape.block_bytes:
        yield (
            f"The real engine would refuse to start: one request of max_model_len = {max_model_len:,} tokens needs "
            f"{format_bytes(needed)}, which is {format_bytes(needed + shape.block_bytes - available)} more than "
            "there is beside the null block."
        )
    if geometry.max_model_len is not None and max_model_len > geometry.max_model_len:
        yield (
            f"max_model_len = {max_model_len:,} is longer than the {geometry.max_model_len:,} positions that the "
            "model's config states."
        )
    workload = scenario.workload
    if scenario.memory.prefix_sharing and isinstance(workload, Trace) and not workload.has_content:
        yield (
            f"The trace format {workload.format} does not say what prompts contain: they are taken to share "
            "nothing, so prefix sharing finds nothing."
        )


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
        },
        "pool": {
            "num_blocks": shape.num_blocks,
            "usable_blocks": shape.num_blocks - 1,
            "block_size_tokens": shape.block_size,
            "block_bytes": shape.block_bytes,
            "pool_bytes": shape.pool_bytes,
        },
    }
