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
from kvsim.engine.rules import ENGINE_RULES
from kvsim.engine.scheduler import Sampled
from kvsim.engine.simulation import Simulation
from kvsim.engine.tables import MemoryShape, pressure_frame, requests_frame, timeline_frame
from kvsim.errors import ModelError, ScenarioError, UnsupportedModelError
from kvsim.memory.groups import LayerGroup
from kvsim.memory.paged import PagedAllocator
from kvsim.model.catalogue import load_geometry
from kvsim.model.deployment import Deployment, place_caches
from kvsim.model.geometry import ModelGeometry, uniform_geometry
from kvsim.model.groups import bytes_per_block
from kvsim.model.plan import KVCachePlan, Worker, lay_out, num_blocks_of
from kvsim.model.specs import AttentionSpec, MambaSpec
from kvsim.study.notes import notes_on
from kvsim.study.scenario import MAX_BLOCKS, MAX_POOL_BYTES, Scenario, scenario_dict
from kvsim.units import format_bytes
from kvsim.workload.request import Request
from kvsim.workload.traces import Trace

Progress = Callable[[int, int | None], None]
"""Called with the number of requests that have ended and, where it is known, of all."""


@frozen
class Plan:
    """A scenario worked out: the layers and their blocks on the device that fills first, what the engine is told."""

    geometry: ModelGeometry
    token_formula: str
    shape: MemoryShape
    groups: tuple[LayerGroup, ...]
    worst_case_bytes: int
    num_devices: int
    engine: EngineConfig
    max_model_len: int
    notes: tuple[str, ...]


def plan(scenario: Scenario) -> Plan:
    """Raises ScenarioError where model, memory and engine do not go together."""
    try:
        geometry = _geometry(scenario)
        max_model_len = _max_model_len(scenario, geometry)
        blocks, worker = _lay_out(scenario, geometry, max_model_len)
        model = scenario.model
        formula = geometry.formula(model.kv_dtype, model.tensor_parallel, model.pipeline_parallel)
    except ModelError as error:
        raise ScenarioError(scenario.source, [f"model: {error}"]) from None
    groups = _layer_groups(scenario, geometry, blocks, worker)
    block_bytes = bytes_per_block(blocks.groups, worker.layers)
    shape = MemoryShape(
        _num_blocks(scenario, blocks.num_blocks, block_bytes),
        scenario.memory.block_size,
        block_bytes,
        sum(group.token_bytes for group in groups),
    )
    return Plan(
        geometry=geometry,
        token_formula=formula,
        shape=shape,
        groups=groups,
        worst_case_bytes=scenario.engine.max_num_seqs * blocks.blocks_per_request * block_bytes,
        num_devices=scenario.model.tensor_parallel * scenario.model.pipeline_parallel,
        engine=evolve(scenario.engine, max_model_len=max_model_len),
        max_model_len=max_model_len,
        notes=tuple(notes_on(scenario, geometry, shape, max_model_len, blocks, worker)),
    )


def simulate(scenario: Scenario, *, check: bool = False, on_progress: Progress | None = None) -> Results:
    """Run a scenario to its end; `check` recounts all of memory and the queues after every step.

    Raises ScenarioError for a scenario that does not hold together, TraceError for a trace that cannot be used,
    ModelError for a model that cannot be, InvariantError where a recount finds kvsim wrong.
    """
    planned = plan(scenario)
    memory, shape = scenario.memory, planned.shape
    try:
        simulation = Simulation(
            planned.engine,
            _allocator(scenario, planned),
            _first_checked(scenario),
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
        notes=planned.notes,
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


def _lay_out(scenario: Scenario, geometry: ModelGeometry, max_model_len: int) -> tuple[KVCachePlan, Worker]:
    """The blocks that the engine makes of the memory, and the device that has the fewest."""
    model, memory = scenario.model, scenario.memory
    deployment = Deployment(
        kv_dtype=model.kv_dtype,
        engine=ENGINE_RULES[scenario.engine.rules].sizing,
        block_size=memory.block_size,
        tensor_parallel=model.tensor_parallel,
        pipeline_parallel=model.pipeline_parallel,
        max_num_batched_tokens=scenario.engine.max_num_batched_tokens,
    )
    placed = place_caches(geometry, deployment, max_model_len)
    if not placed.specs:
        raise UnsupportedModelError(f"{geometry.name} keeps no KV cache: nothing to simulate")
    workers = placed.workers([memory.budget or 0])
    options = evolve(deployment.cache_options(max_model_len), num_gpu_blocks_override=memory.num_blocks)
    blocks = lay_out(placed.specs, workers, options, deployment.rules)

    def fills_first(worker: Worker) -> tuple[int, int]:
        return num_blocks_of(blocks.groups, worker, options), -bytes_per_block(blocks.groups, worker.layers)

    return blocks, min(workers, key=fills_first)


def _layer_groups(
    scenario: Scenario, geometry: ModelGeometry, blocks: KVCachePlan, worker: Worker
) -> tuple[LayerGroup, ...]:
    """The engine's groups as the allocator counts them; raises ScenarioError for what is not simulated."""
    groups = []
    for group in blocks.groups:
        spec = group.specs[0]
        if not isinstance(spec, AttentionSpec) or spec.kind in ("compressed", "cross"):
            kind = "recurrent" if isinstance(spec, MambaSpec) else spec.kind
            raise ScenarioError(
                scenario.source,
                [f"model: {geometry.name} has {kind} layers, which can be sized but not simulated so far"],
            )
        if group.block_size != scenario.memory.block_size:
            raise ScenarioError(
                scenario.source,
                [
                    f"model: {geometry.name} has layers of different widths, to which the engine gives blocks of "
                    f"{group.block_size} and {scenario.memory.block_size} tokens; they can be sized but not simulated "
                    "so far"
                ],
            )
        token_bytes = sum(
            spec.entry_bytes
            for layer, spec in zip(group.layers, group.specs, strict=True)
            if isinstance(spec, AttentionSpec) and layer in worker.layers
        )
        groups.append(LayerGroup(spec.attention, token_bytes))
    return tuple(groups)


def _num_blocks(scenario: Scenario, num_blocks: int, block_bytes: int) -> int:
    """Blocks = floor(budget / block bytes), the null block included (sizing rule 9)."""
    budget = scenario.memory.budget
    if budget is not None and num_blocks < 2:
        raise ScenarioError(
            scenario.source,
            [
                f"memory.budget must hold at least two blocks of {format_bytes(block_bytes)}, as the engine keeps "
                f"one, got {format_bytes(budget)}"
            ],
        )
    if num_blocks * block_bytes > MAX_POOL_BYTES:
        raise ScenarioError(
            scenario.source,
            [
                f"memory must not be larger than {format_bytes(MAX_POOL_BYTES)}, got {num_blocks:,} blocks of "
                f"{format_bytes(block_bytes)}"
            ],
        )
    if num_blocks > MAX_BLOCKS:
        raise ScenarioError(
            scenario.source,
            [f"memory.budget must not hold more than {MAX_BLOCKS:,} blocks, got {num_blocks:,}: raise block_size"],
        )
    return num_blocks


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
