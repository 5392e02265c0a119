"""What one layer asks of the KV cache of one worker, in vLLM's words.

A *page* is what one layer stores in one block. Attention layers store `block_size` tokens in it, recurrent
layers one state of a sequence. Rule numbers are those of `golden/vllm_sizing/README.md`, vLLM 0.32.0.
"""

from math import prod
from typing import Literal

from attrs import Attribute, field, frozen, validators

from kvsim.model.attention import Attention
from kvsim.model.formats import KVDtype, entry_bytes

AttentionKind = Literal["full", "mla", "sliding_window", "chunked_local", "compressed", "cross"]

MambaCacheMode = Literal["none", "align", "all"]
"""Which states of a sequence stay: the running one; also the last full block's; that of every block."""

WINDOWED = ("sliding_window", "chunked_local")
"""Kinds that drop tokens: behind the last `window` ones, or before the current chunk of `window` tokens."""

BOUNDED = (*WINDOWED, "cross")
"""Kinds whose need ends at `window` tokens: those, and the `window` source tokens of cross-attention."""


def ceil_div(dividend: int, divisor: int) -> int:
    """`dividend / divisor` rounded up, without floats."""
    return -(-dividend // divisor)


def _is_padded_up(spec: "KVCacheSpec", attribute: "Attribute[int | None]", value: int | None) -> None:
    if value is not None and value < spec.unpadded_page_size_bytes:
        raise ValueError(f"page_size_padded must be >= {spec.unpadded_page_size_bytes}, got {value}")


@frozen
class AttentionSpec:
    """A cache that keeps K and V, or one latent vector (`head_size_v` 0), of each token it may still need.

    One entry stands for `tokens_per_state` tokens. `state_content_bytes`, where given, are the bytes of an
    entry in a packed format, or of an index key, which does not follow `kv_dtype`.
    """

    kind: AttentionKind
    block_size: int = field(validator=validators.ge(1))
    num_kv_heads: int = field(validator=validators.ge(1))
    head_size: int = field(validator=validators.ge(1))
    head_size_v: int = field(validator=validators.ge(0))
    kv_dtype: KVDtype
    window: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    tokens_per_state: int = field(default=1, validator=validators.ge(1))
    state_content_bytes: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    page_size_padded: int | None = field(default=None, validator=_is_padded_up)
    dealt_over: int = field(default=1, validator=validators.ge(1))
    """Ranks that the tokens are dealt out over (decode context parallelism): each keeps every so-manieth."""

    def __attrs_post_init__(self) -> None:
        if (self.window is not None) != (self.kind in BOUNDED):
            raise ValueError(f"window must be given for {', '.join(BOUNDED)} alone, got {self.window}")

    @property
    def entry_bytes(self) -> int:
        """Rule 1: `num_kv_heads x (head_size + head_size_v) x bytes of a value`, or the packed bytes."""
        if self.state_content_bytes is not None:
            return self.state_content_bytes
        return entry_bytes(self.kv_dtype, self.num_kv_heads, self.head_size, self.head_size_v)

    @property
    def unpadded_page_size_bytes(self) -> int:
        """Rule 1: the bytes of `block_size` tokens."""
        return self.entry_bytes * ceil_div(self.block_size, self.tokens_per_state)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one block in this layer, with the padding that equal pages ask for."""
        return self.unpadded_page_size_bytes if self.page_size_padded is None else self.page_size_padded

    @property
    def family(self) -> tuple[str, int | None]:
        """Layers of one family need the same number of blocks at one block size (rule 4)."""
        kind = "full" if self.kind == "mla" else self.kind
        return (kind if self.dealt_over == 1 else f"{kind} over {self.dealt_over} ranks", self.window)

    @property
    def attention(self) -> Attention:
        """What the layer reaches back to among the tokens of the sequence itself."""
        if self.kind == "sliding_window" or self.kind == "chunked_local":
            return Attention(self.kind, self.window)
        return Attention()

    def max_blocks(self, max_model_len: int, max_in_flight_tokens: int) -> int:
        """Rule 10: blocks that one request of `max_model_len` tokens can hold at any moment."""
        if self.kind == "cross" and self.window is not None:
            return ceil_div(self.window, self.block_size)
        tokens = ceil_div(max_model_len, self.dealt_over)
        return self.attention.max_blocks(tokens, max_in_flight_tokens, self.block_size)

    def first_needed_token(self, num_tokens: int) -> int:
        """Index of the first token that the last of `num_tokens` tokens attends to."""
        return self.attention.first_needed_token(num_tokens)

    def blocks_held(self, num_tokens: int) -> int:
        """Blocks of one request just after its token number `num_tokens` was written."""
        return self.attention.blocks_held(self._tokens_reached(num_tokens), self.block_size)

    def tail_slots(self, num_tokens: int) -> int:
        """Slots of the last block that stay empty when token number `num_tokens` is written."""
        return -self._tokens_reached(num_tokens) % self.block_size

    def bytes_needed(self, num_tokens: int) -> int:
        """Bytes of what the last of `num_tokens` tokens attends to: the layer's raw need."""
        tokens = self._tokens_reached(num_tokens) - self.first_needed_token(num_tokens)
        return tokens // self.tokens_per_state * self.entry_bytes

    def peak_bytes_needed(self, num_tokens: int) -> int:
        """The most that `bytes_needed` comes to on the way to `num_tokens` tokens."""
        tokens = self._tokens_reached(num_tokens)
        if self.window is not None:
            tokens = min(tokens, self.window)
        return tokens // self.tokens_per_state * self.entry_bytes

    def _tokens_reached(self, num_tokens: int) -> int:
        if self.kind == "cross" and self.window is not None:
            return self.window if num_tokens else 0
        return ceil_div(num_tokens, self.dealt_over)


@frozen
class MambaSpec:
    """A recurrent layer: a state of constant size for each sequence, whatever its length."""

    block_size: int = field(validator=validators.ge(1))
    shapes: tuple[tuple[int, ...], ...] = field(validator=validators.min_len(1))
    dtype_bytes: tuple[int, ...]
    cache_mode: MambaCacheMode = "none"
    page_size_padded: int | None = field(default=None, validator=_is_padded_up)

    @property
    def unpadded_page_size_bytes(self) -> int:
        """Rule 2: the sum over the states of elements x bytes, whatever the block size."""
        return sum(prod(shape) * size for shape, size in zip(self.shapes, self.dtype_bytes, strict=True))

    @property
    def page_size_bytes(self) -> int:
        """Bytes of one state, with the padding that equal pages ask for."""
        return self.unpadded_page_size_bytes if self.page_size_padded is None else self.page_size_padded

    @property
    def family(self) -> tuple[str, int | None]:
        """Recurrent layers share a group when their pages are equal (rule 4)."""
        return ("mamba", self.page_size_bytes)

    def max_blocks(self, max_model_len: int, max_in_flight_tokens: int) -> int:
        """Rule 10: one state, the running one and the last full block's, or one a block."""
        if self.cache_mode == "all":
            return ceil_div(max_model_len, self.block_size)
        return 2 if self.cache_mode == "align" else 1

    def blocks_held(self, num_tokens: int) -> int:
        """States of one request after `num_tokens` tokens: as many as it can ever hold by then."""
        return self.max_blocks(num_tokens, 0) if num_tokens else 0

    def tail_slots(self, num_tokens: int) -> int:
        """A state has no slots of tokens."""
        return 0

    def bytes_needed(self, num_tokens: int) -> int:
        """One state as soon as there is a token."""
        return self.unpadded_page_size_bytes if num_tokens else 0

    def peak_bytes_needed(self, num_tokens: int) -> int:
        """One state as soon as there is a token."""
        return self.bytes_needed(num_tokens)


KVCacheSpec = AttentionSpec | MambaSpec


def growth(spec: KVCacheSpec) -> Literal["unbounded", "window", "fixed"]:
    """Whether a cache grows with each token, up to its window, or not at all."""
    if isinstance(spec, MambaSpec) or spec.kind == "cross":
        return "fixed"
    return "unbounded" if spec.window is None else "window"
