"""The static answers: tokens and requests that fit, the longest length, waste, the budget for a target."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from attrs import asdict, frozen

from kvsim.errors import ModelError, UnsupportedModelError
from kvsim.model.accounting import Accounting, Question, engine_accounting, ideal_accounting
from kvsim.model.deployment import Deployment, place_caches
from kvsim.model.geometry import ModelGeometry
from kvsim.model.mix import LengthMix
from kvsim.model.plan import KVCachePlan, lay_out
from kvsim.model.pools import Pool, engine_pool, ideal_pool
from kvsim.rules import shown

MAX_ASKED = 10**12
"""Tokens, sequences or requests: beyond it lies a slip of the pen."""

CLAIM = "A sizing of KV-cache memory, not an out-of-memory predictor: weights, activations and overhead are inputs."
"""What no output may leave out."""


@frozen
class Sizing:
    """All static answers for one model, one deployment and one budget."""

    model: str
    engine_name: str
    max_model_len: int
    num_sequences: int
    num_tokens: int
    num_ranks: int
    num_replicas: int
    """Copies of the attention layers among the ranks, each with a pool of its own; all figures are of one."""
    target_concurrency: int | None
    formula: str
    """What a token costs, with its numbers."""
    ideal: Accounting
    engine: Accounting | None
    engine_refusal: str | None
    """Why the engine's accounting is missing: a layout that it refuses or that is not described."""
    assumptions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {"claim": CLAIM, **asdict(self)}


def size(
    geometry: ModelGeometry,
    kv_bytes: int | Sequence[int],
    deployment: Deployment | None = None,
    *,
    max_model_len: int | None = None,
    num_sequences: int = 1,
    num_tokens: int | None = None,
    target_concurrency: int | None = None,
    mix: LengthMix | None = None,
    assumptions: Sequence[str] = (),
) -> Sizing:
    """The static answers for `kv_bytes` bytes of KV memory on each rank, or one number a rank.

    `max_model_len` is the model's own where left out, or `num_tokens` where the model names none; `num_tokens` of
    each sequence is `max_model_len`.
    `assumptions` are those of the budget; the model's are added. Raises ModelError for what cannot be split
    or does not add up, UnsupportedModelError for a model that keeps nothing.
    """
    served = deployment or Deployment()
    assumed: tuple[str, ...] = ()
    if max_model_len is None and geometry.max_model_len is None and num_tokens is not None:
        length = num_tokens
        assumed = (f"longest request {length:,} tokens, those asked about: {geometry.name} names no maximum length",)
    else:
        length = length_asked(geometry, max_model_len)
    question = _question(length, num_sequences, num_tokens, target_concurrency, mix)
    pools = pools_of(geometry, kv_bytes, served, length)
    return Sizing(
        model=geometry.name,
        engine_name=served.rules.name,
        max_model_len=length,
        num_sequences=question.num_sequences,
        num_tokens=question.num_tokens,
        num_ranks=served.num_ranks,
        num_replicas=served.data_parallel_attention,
        target_concurrency=target_concurrency,
        formula=geometry.formula(
            served.kv_dtype,
            served.attention_ranks(geometry),
            served.pipeline_parallel,
            served.decode_context_parallel,
        ),
        ideal=ideal_accounting(pools.ideal, question),
        engine=None if pools.engine is None else engine_accounting(*pools.engine, question),
        engine_refusal=pools.engine_refusal,
        assumptions=(*geometry.assumptions, *served.assumptions(geometry), *assumed, *assumptions),
    )


def length_asked(geometry: ModelGeometry, max_model_len: int | None) -> int:
    """The length that is asked about, or the model's own; raises ModelError where neither is there."""
    length = geometry.max_model_len if max_model_len is None else max_model_len
    if length is None:
        raise ModelError(f"max_model_len must be given: {geometry.name} names no maximum length")
    if not 1 <= length <= MAX_ASKED:
        raise ModelError(f"max_model_len must be between 1 and {MAX_ASKED:,}, got {shown(length)}")
    return length


def _question(
    max_model_len: int,
    num_sequences: int,
    num_tokens: int | None,
    target_concurrency: int | None,
    mix: LengthMix | None,
) -> Question:
    tokens = max_model_len if num_tokens is None else num_tokens
    asked = {"num_sequences": num_sequences, "num_tokens": tokens, "target_concurrency": target_concurrency}
    for name, number in asked.items():
        if number is not None and not 1 <= number <= MAX_ASKED:
            raise ModelError(f"{name} must be between 1 and {MAX_ASKED:,}, got {shown(number)}")
    if tokens > max_model_len:
        raise ModelError(f"num_tokens must not exceed max_model_len, got {tokens:,} for {max_model_len:,}")
    return Question(max_model_len, num_sequences, tokens, target_concurrency, mix)


class EnginePool(NamedTuple):
    """An engine's blocks as a pool, and the plan that made them."""

    pool: Pool
    plan: KVCachePlan


@frozen
class Pools:
    """One memory in both accountings; `engine` is None where its layout is refused or not described."""

    ideal: Pool
    engine: EnginePool | None
    engine_refusal: str | None


def pools_of(
    geometry: ModelGeometry, kv_bytes: int | Sequence[int], deployment: Deployment, max_model_len: int
) -> Pools:
    """The memory of the rank that fills first, ideally and as the engine lays it out.

    Raises ModelError for a budget below one byte, UnsupportedModelError for a model that keeps nothing.
    """
    placed = place_caches(geometry, deployment, max_model_len)
    if not placed.specs:
        raise UnsupportedModelError(f"{geometry.name} keeps no KV cache and no state: nothing to size")
    workers = placed.workers([kv_bytes] if isinstance(kv_bytes, int) else kv_bytes)
    if any(worker.available_memory < 1 for worker in workers):
        raise ModelError(f"the budget must be > 0 bytes on each rank, got {kv_bytes}")
    ideal = ideal_pool(placed.specs, workers, max_model_len)
    try:
        plan = lay_out(placed.specs, workers, deployment.cache_options(max_model_len), deployment.rules)
        return Pools(ideal, EnginePool(engine_pool(plan, placed.specs), plan), None)
    except UnsupportedModelError as error:
        return Pools(ideal, None, str(error))
