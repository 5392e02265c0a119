"""What a token costs: the layers of a model, one by one, and the bytes they take on a rank.

Bytes of one token in one layer (K and V, any attention that keeps both):

    num_kv_heads x (k_dim + v_dim) x bytes of one value + scales

and of one sequence of T tokens, each layer keeping only what it needs:

    full, mla        bytes x T                          grows for ever
    sliding_window   bytes x min(T, window)             the last `window` tokens
    chunked_local    bytes x (1 + (T - 1) mod window)   the chunk of `window` tokens so far
    compressed       bytes x floor(T / r)               one entry for r tokens
    index            bytes x floor(T / r)               keys that pick what sparse attention reads
    cross            bytes x source tokens              image or encoder tokens, constant while decoding
    recurrent        state bytes                        constant
    shared, none     nothing                            reads another layer's cache, or has no attention
"""

from fractions import Fraction
from typing import Literal

from attrs import evolve, frozen

from kvsim.errors import ModelError
from kvsim.model.formats import FORMATS, entry_bytes
from kvsim.model.formats import (
    KVDtype as KVDtype,  # part of this module's face: a geometry is asked in a dtype
)

LayerKind = Literal[
    "full",
    "mla",
    "sliding_window",
    "chunked_local",
    "compressed",
    "index",
    "cross",
    "recurrent",
    "shared",
    "none",
]

KV_KINDS = frozenset({"full", "mla", "sliding_window", "chunked_local", "compressed"})
"""Caches that a text token adds K or V to."""
TOKEN_KINDS = KV_KINDS | {"index"}
"""All caches that a text token adds bytes to."""
WINDOW_KINDS = frozenset({"sliding_window", "chunked_local"})

MAX_LAYERS = 10_000
"""More layers than any model has; who claims more is refused before they are laid out."""

StateKind = Literal["mamba", "linear", "conv", "rwkv"]


@frozen
class RecurrentState:
    """What a state-space, linear-attention or convolution layer keeps of one sequence, whatever its length.

    Numbers of values before tensor parallelism, which hands out `num_heads` equal parts (heads or channels);
    convolution inputs of the `num_groups` groups are repeated where groups do not divide.
    """

    kind: StateKind
    num_heads: int
    recurrent_values: int
    head_conv_values: int = 0
    num_groups: int = 0
    group_conv_values: int = 0
    conv_value_bytes: int = 2
    recurrent_value_bytes: int = 2

    @property
    def conv_values(self) -> int:
        """Values of the convolution state on one rank that holds everything."""
        return self.head_conv_values + self.num_groups * self.group_conv_values

    def bytes_per_seq(self, tensor_parallel: int = 1, recurrent_value_bytes: int | None = None) -> int:
        """Bytes of one sequence on one rank; `recurrent_value_bytes` overrides the declared width.

        Raises ModelError where the heads do not divide by the ranks.
        """
        _at_least_one(tensor_parallel=tensor_parallel)
        if self.num_heads % tensor_parallel:
            raise ModelError(
                f"tensor_parallel must divide the {self.num_heads} heads of a recurrent layer, got {tensor_parallel}"
            )
        groups = 1 if self.num_groups % tensor_parallel else self.num_groups // tensor_parallel
        conv = self.head_conv_values // tensor_parallel + groups * self.group_conv_values
        recurrent = self.recurrent_values // tensor_parallel
        return conv * self.conv_value_bytes + recurrent * (recurrent_value_bytes or self.recurrent_value_bytes)


@frozen
class LayerKV:
    """What one layer keeps of each token or sequence, before it is split over ranks.

    `beside` holds further caches of the same layer: index keys, compressed entries, a state, cross-attention.
    An entry stands for `tokens_per_entry` tokens; `fixed_entry_bytes`, if given, does not follow the dtype.
    """

    kind: LayerKind
    num_kv_heads: int = 0
    k_dim: int = 0
    v_dim: int = 0
    window: int | None = None
    state: RecurrentState | None = None
    tokens_per_entry: int = 1
    fixed_entry_bytes: int | None = None
    beside: tuple["LayerKV", ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.kind in KV_KINDS | {"cross"}:
            _at_least_one(num_kv_heads=self.num_kv_heads, k_dim=self.k_dim)
        if self.v_dim < 0:
            raise ModelError(f"v_dim must not be negative, got {self.v_dim}")
        if self.kind in WINDOW_KINDS:
            _at_least_one(window=self.window or 0)
        assert (self.state is not None) == (self.kind == "recurrent"), "a state belongs to a recurrent layer"

    def caches(self) -> tuple["LayerKV", ...]:
        """This cache and those beside it."""
        return (self, *self.beside)

    def num_kv_heads_on_rank(self, tensor_parallel: int) -> int:
        """KV heads that one of `tensor_parallel` ranks holds; at least one: more ranks repeat heads.

        One latent vector or index key cannot be split, so every rank holds it. Raises ModelError where heads
        and ranks do not divide each other (vLLM refuses the same).
        """
        _at_least_one(tensor_parallel=tensor_parallel)
        heads, ranks = self.num_kv_heads, tensor_parallel
        if heads % ranks and ranks % heads:
            raise ModelError(
                f"tensor_parallel must divide the number of KV heads or be a multiple of it, "
                f"got {ranks} for {heads} KV heads"
            )
        return max(1, heads // ranks)

    def entry_bytes(self, kv_dtype: KVDtype, tensor_parallel: int = 1) -> int:
        """Bytes of one entry of this cache on one rank, without those beside it; 0 if tokens leave none."""
        if self.fixed_entry_bytes is not None:
            return self.fixed_entry_bytes
        if self.num_kv_heads == 0:
            return 0
        return entry_bytes(kv_dtype, self.num_kv_heads_on_rank(tensor_parallel), self.k_dim, self.v_dim)

    def bytes_per_token(self, kv_dtype: KVDtype, tensor_parallel: int = 1) -> int:
        """Bytes that one token takes in this cache on one rank; a compressed one is rounded up to a byte."""
        return -(-self.entry_bytes(kv_dtype, tensor_parallel) // self.tokens_per_entry)

    def copies(self, tensor_parallel: int) -> int:
        """Ranks that hold the same heads: more than one once ranks outnumber heads."""
        return max(1, tensor_parallel // max(1, self.num_kv_heads))

    def dealt_over(self, tensor_parallel: int, decode_context_parallel: int) -> int:
        """Ranks that the tokens of this cache are dealt out over: full and latent attention only.

        Raises ModelError where they are not a divisor of the ranks that hold the same heads.
        """
        if decode_context_parallel == 1 or self.kind not in ("full", "mla"):
            return 1
        copies = self.copies(tensor_parallel)
        if copies % decode_context_parallel:
            raise ModelError(
                f"decode_context_parallel must divide the {copies} ranks that hold the same KV heads, "
                f"got {decode_context_parallel}"
            )
        return decode_context_parallel


@frozen
class ModelGeometry:
    """The layers of a model in model order, those without a cache included.

    `assumptions` were taken as true without being in the config, and belong in every output; `notes` say what
    the config holds that did not count.
    """

    name: str
    layers: tuple[LayerKV, ...]
    max_model_len: int | None = None
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    model_type: str | None = None
    nested_in: str | None = None
    num_query_heads: int | None = None
    head_dim_in_config: bool = False

    def __attrs_post_init__(self) -> None:
        _at_least_one(num_layers=len(self.layers))

    def caches(self) -> list[LayerKV]:
        """Every cache of every layer, in model order."""
        return [cache for layer in self.layers for cache in layer.caches()]

    def stages(self, pipeline_parallel: int) -> tuple["ModelGeometry", ...]:
        """The layers of each pipeline stage, split as vLLM splits them."""
        counts = layers_per_stage(len(self.layers), pipeline_parallel)
        starts = [sum(counts[:stage]) for stage in range(pipeline_parallel)]
        return tuple(
            evolve(self, layers=self.layers[start : start + count]) for start, count in zip(starts, counts, strict=True)
        )

    def heaviest_stage(
        self, kv_dtype: KVDtype, tensor_parallel: int = 1, pipeline_parallel: int = 1
    ) -> "ModelGeometry":
        """The first of the pipeline stages where a token takes most: its pool fills first."""
        return max(self.stages(pipeline_parallel), key=lambda stage: stage.bytes_per_token(kv_dtype, tensor_parallel))

    def attention_ranks(self, tensor_parallel: int, data_parallel_attention: int = 1) -> int:
        """Ranks that attention is split over; with data-parallel attention each replica has its own pool.

        Raises ModelError where the query heads do not divide by them.
        """
        _at_least_one(tensor_parallel=tensor_parallel, data_parallel_attention=data_parallel_attention)
        if tensor_parallel % data_parallel_attention:
            raise ModelError(
                f"data_parallel_attention must divide tensor_parallel, "
                f"got {data_parallel_attention} for {tensor_parallel}"
            )
        ranks = tensor_parallel // data_parallel_attention
        if self.num_query_heads is not None and self.num_query_heads % ranks:
            raise ModelError(
                f"tensor_parallel must divide the {self.num_query_heads} query heads of {self.name}, got {ranks}"
            )
        return ranks

    def bytes_per_token(
        self,
        kv_dtype: KVDtype,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        *,
        data_parallel_attention: int = 1,
        decode_context_parallel: int = 1,
    ) -> int:
        """Bytes that one token takes on the rank that holds most: the pool of that rank fills first.

        Every layer counts, windowed ones and index keys too, as while a token is inside every window.
        """
        ranks = self.attention_ranks(tensor_parallel, data_parallel_attention)
        return max(
            stage.token_bytes(TOKEN_KINDS, kv_dtype, ranks, decode_context_parallel)
            for stage in self.stages(pipeline_parallel)
        )

    def token_bytes(
        self,
        kinds: frozenset[str],
        kv_dtype: KVDtype,
        tensor_parallel: int = 1,
        decode_context_parallel: int = 1,
    ) -> int:
        """Bytes that one token adds to the caches of these kinds on one rank that holds all layers.

        Decode context parallelism deals tokens out over the ranks that hold the same heads. A fraction of a byte,
        which compressed caches can leave, is rounded up once.
        """
        _at_least_one(decode_context_parallel=decode_context_parallel)
        total = Fraction(0)
        for cache in self.caches():
            if cache.kind not in kinds:
                continue
            tokens = cache.tokens_per_entry
            tokens *= cache.dealt_over(tensor_parallel, decode_context_parallel)
            total += Fraction(cache.entry_bytes(kv_dtype, tensor_parallel), tokens)
        return -(-total.numerator // total.denominator)

    def unbounded_bytes_per_token(self, kv_dtype: KVDtype, tensor_parallel: int = 1) -> int:
        """Bytes that each further token costs once every window is full, index keys not counted."""
        return self.token_bytes(KV_KINDS - WINDOW_KINDS, kv_dtype, tensor_parallel)

    def window_bytes_per_seq(self, kv_dtype: KVDtype, tensor_parallel: int = 1) -> int:
        """Bytes that the windowed layers hold of one sequence at most, freed token by token."""
        return sum(
            (cache.window or 0) * cache.entry_bytes(kv_dtype, tensor_parallel)
            for cache in self.caches()
            if cache.kind in WINDOW_KINDS
        )

    def state_bytes_per_seq(self, tensor_parallel: int = 1, recurrent_value_bytes: int | None = None) -> int:
        """Bytes of recurrent state that one sequence takes on one rank that holds all layers."""
        return sum(
            cache.state.bytes_per_seq(tensor_parallel, recurrent_value_bytes)
            for cache in self.caches()
            if cache.state is not None
        )

    def cross_bytes_per_source_token(self, kv_dtype: KVDtype, tensor_parallel: int = 1) -> int:
        """Bytes that one image or encoder token takes in the cross-attention layers."""
        return self.token_bytes(frozenset({"cross"}), kv_dtype, tensor_parallel)

    def formula(
        self,
        kv_dtype: KVDtype,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        decode_context_parallel: int = 1,
    ) -> str:
        """`bytes_per_token` written out with its numbers, one term for each sort of cache."""
        stage = self.heaviest_stage(kv_dtype, tensor_parallel, pipeline_parallel)
        counts: dict[str, int] = {}
        for cache in stage.caches():
            if cache.kind in TOKEN_KINDS:
                term = _formula_term(cache, kv_dtype, tensor_parallel)
                ranks = cache.dealt_over(tensor_parallel, decode_context_parallel)
                term += f" / {ranks} ranks" if ranks > 1 else ""
                counts[term] = counts.get(term, 0) + 1
        terms = [f"{count} layers x {term}" for term, count in counts.items()]
        total = stage.token_bytes(TOKEN_KINDS, kv_dtype, tensor_parallel, decode_context_parallel)
        return f"{' + '.join(terms) or 'no layer keeps tokens'} = {total:,} B"


def uniform_geometry(
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    name: str = "given geometry",
    *,
    v_dim: int | None = None,
    window: int | None = None,
    num_query_heads: int | None = None,
    max_model_len: int | None = None,
) -> ModelGeometry:
    """A model of `num_layers` equal layers (MHA, GQA or MQA) that keep every token, or a `window` of them.

    Values are as wide as keys unless `v_dim` says otherwise. Raises ModelError for a number that no model has.
    """
    _at_least_one(num_layers=num_layers)
    if num_layers > MAX_LAYERS:
        raise ModelError(f"num_layers must be at most {MAX_LAYERS:,}, got {num_layers:,}")
    widths = head_dim, head_dim if v_dim is None else v_dim
    layer = LayerKV("full" if window is None else "sliding_window", num_kv_heads, *widths, window)
    return ModelGeometry(name, (layer,) * num_layers, max_model_len=max_model_len, num_query_heads=num_query_heads)


def is_uniform(geometry: ModelGeometry) -> bool:
    """Whether `uniform_geometry` makes the same layers."""
    first = geometry.layers[0]
    if first.kind not in ("full", "sliding_window"):
        return False
    plain = LayerKV(first.kind, first.num_kv_heads, first.k_dim, first.v_dim, first.window)
    return set(geometry.layers) == {first} and first == plain


def layers_per_stage(num_layers: int, pipeline_parallel: int) -> list[int]:
    """Layers of each pipeline stage by vLLM's rule: what does not divide goes to the stages before the last.

    33 layers on 2 stages are 17 and 16; 22 on 4 are 5, 6, 6 and 5.
    """
    _at_least_one(pipeline_parallel=pipeline_parallel)
    if pipeline_parallel > num_layers:
        raise ModelError(
            f"pipeline_parallel must not exceed the number of layers, got {pipeline_parallel} for {num_layers} layers"
        )
    base, remainder = divmod(num_layers, pipeline_parallel)
    counts = [base] * pipeline_parallel
    for place in range(2, remainder + 2):
        counts[-place] += 1
    return counts


def _formula_term(cache: LayerKV, kv_dtype: KVDtype, tensor_parallel: int) -> str:
    """One layer's bytes in words: heads, widths and the bytes of a value, or of an entry with its scales."""
    size = cache.entry_bytes(kv_dtype, tensor_parallel)
    per = f" / {cache.tokens_per_entry} tokens" if cache.tokens_per_entry > 1 else ""
    if cache.fixed_entry_bytes is not None:
        return f"{size} B index key{per}"
    heads = cache.num_kv_heads_on_rank(tensor_parallel)
    plural = "" if heads == 1 else "s"
    shape = (
        f"{heads} KV head{plural} x ({cache.k_dim} K + {cache.v_dim} V)"
        if cache.v_dim
        else f"{cache.k_dim} latent values"
    )
    if kv_dtype in FORMATS and FORMATS[kv_dtype].scale_bytes == 0:
        return f"{shape} x {FORMATS[kv_dtype].bits / 8:g} B{per}"
    return f"{size} B{per} ({shape} in {kv_dtype} with its scales)"


def _at_least_one(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ModelError(f"{name} must be > 0, got {size}")
