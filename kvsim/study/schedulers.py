"""Which scheduler, and which memory, decides for a scenario."""

from kvsim.engine.admission import GATES
from kvsim.engine.clocked import ClockedScheduler, can_be_clocked
from kvsim.engine.scheduler import Scheduler, StepScheduler
from kvsim.memory.chains import ChainAllocator
from kvsim.memory.contiguous import Prediction, ReservingAllocator
from kvsim.memory.extents import DEFAULT_PLACEMENT
from kvsim.memory.paged import PagedAllocator
from kvsim.study.outputs import grouped_scheduler, is_grouped
from kvsim.study.plan import Plan
from kvsim.study.scenario import Scenario


def scheduler_of(scenario: Scenario, planned: Plan) -> StepScheduler:
    """By chains of blocks and windows of steps where these say all there is to say, else step by step."""
    memory, shape, engine = scenario.memory, planned.shape, planned.engine
    watermark_blocks = int(memory.watermark * shape.num_blocks)
    sharing = scenario.sample_sharing
    if memory.allocator != "paged":
        return Scheduler(engine, _reserving(scenario, planned), watermark_blocks)
    if sharing is not None and is_grouped(sharing):
        return grouped_scheduler(scenario.workload, sharing, engine, shape, watermark_blocks, scenario.seed)
    if _is_ordinary(scenario, planned):
        chains = ChainAllocator(
            shape.num_blocks,
            shape.block_size,
            memory.prefix_sharing,
            token_bytes=shape.token_bytes,
            block_bytes=shape.block_bytes,
        )
        return ClockedScheduler(engine, chains, watermark_blocks)
    return Scheduler(engine, _paged(scenario, planned), watermark_blocks)


def _is_ordinary(scenario: Scenario, planned: Plan) -> bool:
    """One group of full attention, decided as vLLM V1 does where nothing unusual is asked for."""
    memory, engine = scenario.memory, planned.engine
    return (
        [group.attention.kind for group in planned.groups] == ["full"]
        and can_be_clocked(engine, planned.shape.block_size)
        and engine.preemption == "recompute"
        and engine.admission_policy in GATES
        and memory.eviction == "lru"
        and not memory.block_ids
    )


def _paged(scenario: Scenario, planned: Plan) -> PagedAllocator:
    memory, shape, engine = scenario.memory, planned.shape, planned.engine
    return PagedAllocator(
        shape.num_blocks,
        shape.block_size,
        memory.prefix_sharing,
        groups=planned.groups,
        block_bytes=shape.block_bytes,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=planned.max_model_len,
        retention_interval=memory.retention_interval,
        eviction=memory.eviction,
        host_blocks=engine.swap_space // shape.block_bytes if engine.preemption == "swap" else 0,
    )


def _reserving(scenario: Scenario, planned: Plan) -> ReservingAllocator:
    memory, shape = scenario.memory, planned.shape
    return ReservingAllocator(
        shape.num_blocks,
        memory.allocator,
        memory.placement or DEFAULT_PLACEMENT,
        planned.max_model_len,
        token_bytes=shape.token_bytes,
        prediction=Prediction(memory.prediction_error or 0.0, scenario.seed),
    )
