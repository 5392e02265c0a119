"""What a reader of the results should know, a sentence each."""

from collections.abc import Iterator

from attrs import evolve

from kvsim.engine.latency import LatencyModel
from kvsim.engine.tables import MemoryShape
from kvsim.engine.totals import Totals
from kvsim.model.geometry import ModelGeometry
from kvsim.model.plan import KVCachePlan, Worker, missing_bytes
from kvsim.study.scenario import MemoryTable, Scenario
from kvsim.units import format_bytes
from kvsim.workload.traces import SkippedRows, Trace

DEFAULT_TOKEN_BYTES = 131_072
"""What a token takes in the model that the default step times stand for."""


def notes_on(
    scenario: Scenario,
    geometry: ModelGeometry,
    shape: MemoryShape,
    max_model_len: int,
    blocks: KVCachePlan,
    worker: Worker,
) -> Iterator[str]:
    """Assumptions, and where the scenario differs from what an engine would do or a user may expect."""
    yield from geometry.assumptions
    if scenario.memory.allocator == "paged":
        yield from _on_lengths(geometry, max_model_len, blocks, worker)
    yield from _on_allocator(scenario, shape, max_model_len)
    yield from _on_step_times(scenario, shape)
    yield from _on_workload(scenario)
    yield from _on_outputs(scenario)
    yield from _on_pressure(scenario, shape, max_model_len)


def _on_lengths(geometry: ModelGeometry, max_model_len: int, blocks: KVCachePlan, worker: Worker) -> Iterator[str]:
    missing = missing_bytes(blocks.groups, worker, evolve(blocks.options, max_model_len=max_model_len), blocks.rules)
    if missing > 0:
        yield (
            f"The real engine would refuse to start: one request of max_model_len = {max_model_len:,} tokens needs "
            f"{format_bytes(missing)} more than there is beside the null block."
        )
    if geometry.max_model_len is not None and max_model_len > geometry.max_model_len:
        yield (
            f"max_model_len = {max_model_len:,} is longer than the {geometry.max_model_len:,} positions that the "
            "model's config states."
        )


def _on_allocator(scenario: Scenario, shape: MemoryShape, max_model_len: int) -> Iterator[str]:
    memory = scenario.memory
    if memory.allocator != "predicted" and memory.prediction_error is not None:
        yield f"memory.prediction_error is given, but memory.allocator is {memory.allocator}: nothing is predicted."
    if memory.allocator == "paged":
        if memory.placement is not None:
            yield "memory.placement is given, but memory.allocator is paged: any free block serves."
        return
    yield on_reserving(memory)
    if memory.allocator == "max" and shape.usable_blocks < max_model_len:
        yield (
            f"Every request reserves max_model_len = {max_model_len:,} slots, of which the pool has "
            f"{shape.usable_blocks:,}: none can run."
        )


def on_reserving(memory: MemoryTable) -> str:
    """What is different from paging."""
    return (
        f"memory.allocator is {memory.allocator}: every request holds one extent of slots, of a token each, in a pool "
        f"of the bytes that it has when paged in blocks of {memory.block_size:,}; prefix sharing and block_ids do not "
        "apply, and the engine's rules but for memory still hold."
    )


def _on_step_times(scenario: Scenario, shape: MemoryShape) -> Iterator[str]:
    model = scenario.model
    parallel = model.tensor_parallel * model.pipeline_parallel > 1
    if scenario.engine.latency == LatencyModel() and (parallel or shape.token_bytes != DEFAULT_TOKEN_BYTES):
        yield (
            "Step times are the defaults, those of an 8B-class model in bf16 on one H100; for this model set "
            "engine.latency, as waiting, refusals and preemptions depend on it."
        )


def _on_workload(scenario: Scenario) -> Iterator[str]:
    workload = scenario.workload
    if isinstance(workload, Trace):
        shares = scenario.memory.prefix_sharing and scenario.memory.allocator == "paged"
        if shares and not workload.reader(scenario.base).has_content:
            yield (
                f"The trace format {workload.format_of(scenario.base)} does not say what prompts contain: they are "
                "taken to share nothing, so prefix sharing finds nothing."
            )
        return
    if scenario.engine.policy == "priority" and workload.priority is None:
        yield "engine.policy is priority, but workload.priority is not given: all requests are equally urgent."
    if scenario.engine.policy == "fcfs" and workload.priority is not None:
        yield "workload.priority is given, but engine.policy is fcfs: priorities change nothing."


def _on_outputs(scenario: Scenario) -> Iterator[str]:
    num_outputs, sharing = scenario.workload.num_outputs, scenario.sample_sharing
    if num_outputs is None:
        return
    if sharing == "prefix_cache":
        if num_outputs > 1:
            yield (
                f"Each of the {num_outputs:,} samples of a request arrives and counts as a request of its own, as in "
                "vLLM's V1 engine; figures of sharing include what different requests have in common."
            )
        return
    yield (
        "The outputs of a request are admitted, preempted and ended together, as in vLLM V0, and are equally long; all "
        "of them count as one request that runs or waits. Different requests share nothing, as there is no prefix "
        "cache."
    )
    if scenario.workload.beam_width is not None:
        yield (
            "Which beams go on is drawn: each picks its parent among all beams with the chance of "
            "workload.beam_concentration, else it goes on from its own. What is shared depends on it."
        )


def _on_pressure(scenario: Scenario, shape: MemoryShape, max_model_len: int) -> Iterator[str]:
    engine = scenario.engine
    if engine.preemption == "swap":
        yield (
            "engine.preemption is swap, as vLLM V0 did; vLLM V1 only recomputes. Blocks are taken to move at "
            f"{engine.swap_bandwidth / 10**9:,.4g} GB/s, and a step waits for them."
        )
        if engine.swap_space < shape.block_bytes:
            yield (
                f"engine.swap_space = {format_bytes(engine.swap_space)} has no room for a block of "
                f"{format_bytes(shape.block_bytes)}: every preemption recomputes."
            )
    if engine.admission == "worst_case" and engine.max_output_tokens is None:
        yield (
            "engine.admission is worst_case, and engine.max_output_tokens is not given: every request is taken to "
            f"grow to max_model_len = {max_model_len:,} tokens."
        )


def notes_on_swap(scenario: Scenario, totals: Totals) -> Iterator[str]:
    """What a run has found out about its host pool."""
    fallbacks = totals.sums["swap_fallbacks"]
    if scenario.engine.preemption == "swap" and fallbacks:
        yield (
            f"The host pool of {format_bytes(scenario.engine.swap_space)} had no room for {fallbacks:,} of "
            f"{totals.sums['preemptions']:,} preempted requests, which were computed again instead."
        )


def notes_on_rows(skipped: SkippedRows) -> Iterator[str]:
    """What a run has found out about its trace."""
    if skipped.count:
        yield f"{skipped.count:,} bad rows of the trace were passed over, as workload.on_bad_row is skip."
