"""How a model is served: the caches of its layers as specs, and the ranks that hold them."""

from collections.abc import Callable, Sequence
from typing import Any, cast, get_args

from attrs import Attribute, field, frozen

from kvsim.errors import ModelError
from kvsim.model.engines import EngineRules, engine_rules
from kvsim.model.geometry import WINDOW_KINDS, KVDtype, LayerKV, ModelGeometry
from kvsim.model.groups import grown_to_states
from kvsim.model.plan import CacheOptions, Worker
from kvsim.model.specs import AttentionKind, AttentionSpec, KVCacheSpec, MambaCacheMode, MambaSpec
from kvsim.rules import MAX_TOKENS, shown

ASSUMED_BATCHED_TOKENS = 8192
"""Tokens of a step where none are given: vLLM's default for a server on a large GPU."""


def _at_least_one(instance: object, attribute: "Attribute[Any]", value: int | None) -> None:
    if value is not None and not 1 <= value <= MAX_TOKENS:
        raise ModelError(f"{attribute.name} must be between 1 and {MAX_TOKENS:,}, got {shown(value)}")


def _one_of(words: object) -> Callable[[object, "Attribute[Any]", str], None]:
    """One of the words of a Literal."""
    known = get_args(words)

    def check(instance: object, attribute: "Attribute[Any]", value: str) -> None:
        if value not in known:
            raise ModelError(f"{attribute.name} must be one of {', '.join(known)}, got {value!r}")

    return check


@frozen
class Deployment:
    """Engine, number format and ranks; what is left out is the engine's default."""

    kv_dtype: KVDtype = field(default="bf16", validator=_one_of(KVDtype))
    engine: str = "vllm"
    block_size: int | None = field(default=None, validator=_at_least_one)
    tensor_parallel: int = field(default=1, validator=_at_least_one)
    pipeline_parallel: int = field(default=1, validator=_at_least_one)
    data_parallel_attention: int = field(default=1, validator=_at_least_one)
    decode_context_parallel: int = field(default=1, validator=_at_least_one)
    max_num_batched_tokens: int | None = field(default=None, validator=_at_least_one)
    mamba_cache_mode: MambaCacheMode = field(default="none", validator=_one_of(MambaCacheMode))
    recurrent_value_bytes: int | None = field(default=None, validator=_at_least_one)
    source_tokens: int | None = field(default=None, validator=_at_least_one)
    """Image or encoder tokens of a request, for models with cross-attention."""
    disable_hybrid_kv_cache_manager: bool = False

    @property
    def rules(self) -> EngineRules:
        """The engine's rules of layout; raises UnsupportedModelError for an unknown engine."""
        return engine_rules(self.engine)

    @property
    def num_ranks(self) -> int:
        """Ranks of one copy of the model."""
        return self.tensor_parallel * self.pipeline_parallel

    def attention_ranks(self, geometry: ModelGeometry) -> int:
        """Ranks that the heads of one copy of the cache are split over."""
        return geometry.attention_ranks(self.tensor_parallel, self.data_parallel_attention)

    def assumptions(self, geometry: ModelGeometry) -> tuple[str, ...]:
        """What was left out and decides the answer for this model, a sentence each."""
        windowed = any(cache.kind in WINDOW_KINDS for cache in geometry.caches())
        if self.max_num_batched_tokens is None and windowed and self.rules.hybrid == "groups":
            return (
                f"max_num_batched_tokens {ASSUMED_BATCHED_TOKENS:,}: not given; "
                f"a request holds so many tokens beside each window while its prompt is computed",
            )
        return ()

    def cache_options(self, max_model_len: int) -> CacheOptions:
        """What the engine is told, for requests of up to `max_model_len` tokens."""
        return CacheOptions(
            max_model_len=max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens or ASSUMED_BATCHED_TOKENS,
            disable_hybrid_kv_cache_manager=self.disable_hybrid_kv_cache_manager,
        )


@frozen
class PlacedCaches:
    """The caches of a model, as one rank of their stage holds them, and the cache numbers of each rank."""

    specs: tuple[KVCacheSpec, ...]
    caches_of_ranks: tuple[frozenset[int], ...]

    def workers(self, kv_bytes: Sequence[int]) -> list[Worker]:
        """The ranks with their memory: one number for all, or one a rank, stage by stage."""
        if len(kv_bytes) not in (1, len(self.caches_of_ranks)):
            raise ModelError(
                f"the budget must be one number of bytes, or one for each of "
                f"{len(self.caches_of_ranks)} ranks, got {len(kv_bytes)}"
            )
        memory = list(kv_bytes) * (len(self.caches_of_ranks) if len(kv_bytes) == 1 else 1)
        return [
            Worker(bytes_of_rank, caches) for bytes_of_rank, caches in zip(memory, self.caches_of_ranks, strict=True)
        ]


def place_caches(geometry: ModelGeometry, deployment: Deployment, max_model_len: int) -> PlacedCaches:
    """The specs of every cache of the model, and which rank holds which.

    Raises ModelError where layers or heads cannot be split over the ranks.
    """
    ranks = deployment.attention_ranks(geometry)
    block_size = deployment.block_size or deployment.rules.block_size
    specs: list[KVCacheSpec] = []
    caches_of_ranks: list[frozenset[int]] = []
    for stage in geometry.stages(deployment.pipeline_parallel):
        first = len(specs)
        for cache in stage.caches():
            spec = _spec_of(cache, deployment, ranks, block_size, max_model_len)
            if spec is not None:
                specs.append(spec)
        caches_of_ranks += [frozenset(range(first, len(specs)))] * deployment.tensor_parallel
    return PlacedCaches(grown_to_states(specs), tuple(caches_of_ranks))


def _spec_of(
    cache: LayerKV, deployment: Deployment, ranks: int, block_size: int, max_model_len: int
) -> KVCacheSpec | None:
    """The spec of one cache on one of `ranks` ranks, None for a layer that owns none."""
    if cache.kind in ("shared", "none"):
        return None
    if cache.state is not None:
        state_bytes = cache.state.bytes_per_seq(ranks, deployment.recurrent_value_bytes)
        return MambaSpec(
            block_size=block_size if deployment.mamba_cache_mode == "align" else max_model_len,
            shapes=((state_bytes,),),
            dtype_bytes=(1,),
            cache_mode=deployment.mamba_cache_mode,
        )
    window = cache.window
    if cache.kind == "cross":
        window = deployment.source_tokens
        if window is None:
            raise ModelError("source_tokens must be given: the model has cross-attention layers")
    # An index key lies beside the layer's own cache and is laid out like one of full attention.
    kind = "mla" if cache.kind == "index" else cache.kind
    return AttentionSpec(
        kind=cast(AttentionKind, kind),
        block_size=block_size,
        num_kv_heads=cache.num_kv_heads_on_rank(ranks),
        head_size=max(1, cache.k_dim),
        head_size_v=cache.v_dim,
        kv_dtype=deployment.kv_dtype,
        window=window,
        tokens_per_state=cache.tokens_per_entry,
        state_content_bytes=cache.fixed_entry_bytes,
        dealt_over=cache.dealt_over(ranks, deployment.decode_context_parallel),
    )
