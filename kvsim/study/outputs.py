"""Several outputs from one prompt: how a scenario has them share memory, and what does not go with that."""

from typing import Literal

from kvsim.engine.config import EngineConfig
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.sequences import Sequences
from kvsim.engine.tables import MemoryShape
from kvsim.memory.beams import Beams
from kvsim.memory.samples import SampleAllocator
from kvsim.workload.outputs import SeveralOutputs

SampleSharing = Literal["prefix_cache", "copy_on_write", "none"]
"""As vLLM's V1 engine does, as the PagedAttention paper and V0 do, or every output with all blocks of its own."""


def sharing_of(outputs: SeveralOutputs, said: SampleSharing | None) -> SampleSharing | None:
    """How outputs share memory; None where a scenario does not speak of several."""
    return None if outputs.num_outputs is None else said or "prefix_cache"


def is_grouped(sharing: SampleSharing | None) -> bool:
    """Whether a request is a group of sequences, and not each of its samples a request."""
    return sharing in ("copy_on_write", "none")


def sharing_contradicts(
    outputs: SeveralOutputs, said: SampleSharing | None, prefix_sharing: bool, engine: EngineConfig
) -> list[str]:
    """A sentence for each disagreement of outputs with [memory] and [engine]."""
    sharing, num_outputs = sharing_of(outputs, said), outputs.num_outputs
    if num_outputs is None:
        return [] if said is None else ["memory.sample_sharing needs workload.samples or workload.beam_width"]
    sentences = []
    if sharing == "prefix_cache":
        if outputs.beam_width is not None:
            sentences.append(
                "memory.sample_sharing must be copy_on_write or none with workload.beam_width, got prefix_cache: the "
                "scheduler of vLLM's V1 engine knows no beams, it is asked for one more token of each of them again "
                "and again"
            )
        elif num_outputs > 1 and not prefix_sharing:
            sentences.append("memory.sample_sharing = prefix_cache needs memory.prefix_sharing = true")
        return sentences
    seats = engine.max_num_active_seqs or engine.max_num_seqs
    name = "samples" if outputs.beam_width is None else "beam_width"
    if seats < num_outputs:
        key = "max_num_active_seqs" if engine.max_num_active_seqs else "max_num_seqs"
        sentences.append(
            f"engine.{key} must be >= workload.{name} = {num_outputs:,}, as each output takes a seat, got {seats:,}"
        )
    if not engine.enable_chunked_prefill:
        sentences.append(
            f"engine.enable_chunked_prefill must be true with memory.sample_sharing = {sharing}: outputs that were "
            "preempted are computed again together, which may be more than one step holds"
        )
    return sentences


def grouped_scheduler(
    outputs: SeveralOutputs,
    sharing: SampleSharing,
    engine: EngineConfig,
    shape: MemoryShape,
    watermark_blocks: int,
    seed: int,
) -> Scheduler:
    """A scheduler of requests that are groups of sequences, with the memory that they share or do not."""
    num_seqs = outputs.num_outputs
    assert num_seqs is not None, "there are several outputs"
    beams = None
    if outputs.beam_width is not None:
        concentration = outputs.beam_concentration
        beams = Beams(outputs.beam_width, 1.0 if concentration is None else concentration, seed)
    allocator = SampleAllocator(
        shape.num_blocks,
        shape.block_size,
        num_seqs,
        sharing=sharing == "copy_on_write",
        beams=beams,
        token_bytes=shape.token_bytes,
        block_bytes=shape.block_bytes,
    )
    sequences = Sequences(num_seqs, None if beams is None else allocator.choose_beams)
    return Scheduler(engine, allocator, watermark_blocks, sequences)
