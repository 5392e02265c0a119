"""A scenario worked out: the layers and blocks that the engine would make of it, or what does not go together."""

from attrs import evolve, frozen

from kvsim.engine.config import EngineConfig
from kvsim.engine.rules import ENGINE_RULES
from kvsim.engine.tables import MemoryShape
from kvsim.errors import ModelError, ScenarioError, UnsupportedModelError
from kvsim.memory.groups import LayerGroup
from kvsim.model.catalogue import load_geometry
from kvsim.model.deployment import Deployment, place_caches
from kvsim.model.geometry import ModelGeometry, uniform_geometry
from kvsim.model.groups import bytes_per_block
from kvsim.model.plan import KVCachePlan, Worker, lay_out, num_blocks_of
from kvsim.model.specs import AttentionSpec
from kvsim.study.notes import notes_on
from kvsim.study.scenario import MAX_BLOCKS, MAX_POOL_BYTES, Scenario
from kvsim.units import format_bytes


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
        engine=evolve(
            scenario.engine,
            max_model_len=max_model_len,
            scheduler_reserve_full_isl=scenario.engine.admission_policy != "first_chunk",
        ),
        max_model_len=max_model_len,
        notes=tuple(notes_on(scenario, geometry, shape, max_model_len, blocks, worker)),
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
    for kind in ("recurrent", "cross", "compressed"):
        if any(cache.kind == kind for cache in geometry.caches()):
            raise UnsupportedModelError(
                f"{geometry.name} has {kind} layers, which can be sized but not simulated so far"
            )
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
        assert isinstance(spec, AttentionSpec), "other layers were refused"
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
