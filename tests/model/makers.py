"""Small specs for the tests of `kvsim.model`: one KV head of 4 + 4 one-byte values, blocks of 4 tokens."""

from kvsim.model.formats import KVDtype
from kvsim.model.specs import AttentionKind, AttentionSpec, MambaSpec


def attention(
    kind: AttentionKind = "full", window: int | None = None, kv_dtype: KVDtype = "fp8", **changes: int
) -> AttentionSpec:
    """An attention spec of 8 B a token and 32 B a page."""
    sizes = {"block_size": 4, "num_kv_heads": 1, "head_size": 4, "head_size_v": 4} | changes
    return AttentionSpec(kind=kind, window=window, kv_dtype=kv_dtype, **sizes)


def mamba(state_bytes: int = 24, **changes: object) -> MambaSpec:
    """A recurrent spec with one state of `state_bytes` bytes."""
    given: dict[str, object] = {"block_size": 64, "shapes": ((state_bytes,),), "dtype_bytes": (1,)} | changes
    return MambaSpec(**given)  # type: ignore[arg-type]  # the changes are checked by attrs
