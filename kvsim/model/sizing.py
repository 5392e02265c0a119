"""The static answers: tokens and requests that fit, the longest length, waste, the budget for a target."""

from collections.abc import Sequence
from typing import Any

from attrs import asdict, frozen

from kvsim.errors import ModelError, UnsupportedModelError
from kvsim.model.accounting import Accounting, Question, engine_accounting, ideal_accounting
from kvsim.model.deployment import Deployment, place_caches
from kvsim.model.geometry import ModelGeometry
from kvsim.model.mix import LengthMix
from kvsim.model.plan import lay_out
from kvsim.model.pools import engine_pool, ideal_pool


@frozen
class Sizing:
    """All static answers for one model, one deployment and one budget."""

    model: str
    engine_name: str
    max_model_len: int
    num_sequences: int
    num_tokens: int
    num_ranks: int
    formula: str
    """What a token costs, with its numbers."""
    ideal: Accounting
    engine: Accounting | None
    engine_refusal: str | None
    """Why the engine's accounting is missing: a layout that it refuses or that is not described."""
    assumptions: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)


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

    `max_model_len` is the model's own where left out, `num_tokens` of each sequence is `max_model_len`.
    `assumptions` are those of the budget; the model's are added. Raises ModelError for what cannot be split
    or does not add up, UnsupportedModelError for a model that keeps nothing.
    """
    served = deployment or Deployment()
    question = _question(geometry, max_model_len, num_sequences, num_tokens, target_concurrency, mix)
    placed = place_caches(geometry, served, question.max_model_len)
    if not placed.specs:
        raise UnsupportedModelError(
            f"{geometry.name} keeps no KV cache and no state: there is nothing to size"
        )
    workers = placed.workers([kv_bytes] if isinstance(kv_bytes, int) else kv_bytes)
    if any(worker.available_memory < 1 for worker in workers):
        raise ModelError(f"the budget must be > 0 bytes on each rank, got {kv_bytes}")
    engine: Accounting | None = None
    refusal: str | None = None
    try:
        plan = lay_out(placed.specs, workers, served.cache_options(question.max_model_len), served.rules)
        engine = engine_accounting(engine_pool(plan, placed.specs), plan, question)
    except UnsupportedModelError as error:
        refusal = str(error)
    return Sizing(
        model=geometry.name,
        engine_name=served.rules.name,
        max_model_len=question.max_model_len,
        num_sequences=question.num_sequences,
        num_tokens=question.num_tokens,
        num_ranks=served.num_ranks,
        formula=geometry.formula(served.kv_dtype, served.tensor_parallel, served.pipeline_parallel),
        ideal=ideal_accounting(ideal_pool(placed.specs, workers, question.max_model_len), question),
        engine=engine,
        engine_refusal=refusal,
        assumptions=(*geometry.assumptions, *assumptions),
    )


def _question(
    geometry: ModelGeometry,
    max_model_len: int | None,
    num_sequences: int,
    num_tokens: int | None,
    target_concurrency: int | None,
    mix: LengthMix | None,
) -> Question:
    longest = max_model_len if max_model_len is not None else geometry.max_model_len
    if longest is None:
        raise ModelError(f"max_model_len must be given: {geometry.name} names no maximum length")
    tokens = longest if num_tokens is None else num_tokens
    asked = {"max_model_len": longest, "num_sequences": num_sequences, "num_tokens": tokens}
    if target_concurrency is not None:
        asked["target_concurrency"] = target_concurrency
    for name, number in asked.items():
        if number < 1:
            raise ModelError(f"{name} must be > 0, got {number}")
    if tokens > longest:
        raise ModelError(f"num_tokens must not exceed max_model_len, got {tokens:,} for {longest:,}")
    return Question(longest, num_sequences, tokens, target_concurrency, mix)
