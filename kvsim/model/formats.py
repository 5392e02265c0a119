"""How cached values are stored: the bytes that one token's keys or values take in each KV-cache format.

    bytes = values x bits / 8 + groups x scale bytes

Formats that carry scales have names of their own; plain `fp8`, `int8` and `int4` store none beside the values
(one scale for a whole tensor or head is a constant of the model).
"""

from typing import Literal, cast

from attrs import frozen

from kvsim.errors import ModelError

KVDtype = Literal[
    "bf16",
    "fp16",
    "fp32",
    "fp8",
    "int8",
    "int4",
    "fp8_per_token_head",
    "int8_per_token_head",
    "int4_per_token_head",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "q8_0",
    "q5_1",
    "q5_0",
    "q4_1",
    "q4_0",
    "iq4_nl",
    "kivi4_g32",
    "kivi2_g32",
    "kivi4_g64",
    "kivi2_g64",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
]


@frozen
class KVFormat:
    """`bits` of one value, and `scale_bytes` beside every `group` of values.

    Without a `group` one scale serves the whole vector of one token and head. Groups lie within a head, or
    run over the row of all heads of a token.
    """

    bits: int
    scale_bytes: int = 0
    group: int | None = None
    grouped_over: Literal["head", "row"] = "head"

    def vector_bytes(self, kv_dtype: str, num_heads: int, head_dim: int) -> int:
        """Bytes of `num_heads` vectors of `head_dim` values: all keys, or all values, of a token in a layer.

        Raises ModelError where the values do not fill whole groups or whole bytes.
        """
        values = num_heads * head_dim
        if values * self.bits % 8:
            raise ModelError(
                f"kv_dtype {kv_dtype} needs a whole number of bytes a token, got {values * self.bits} bits"
            )
        if self.group is None:
            return values * self.bits // 8 + num_heads * self.scale_bytes
        grouped = head_dim if self.grouped_over == "head" else values
        if grouped % self.group:
            raise ModelError(
                f"kv_dtype {kv_dtype} stores groups of {self.group} values, "
                f"which do not fill a {self.grouped_over} of {grouped}"
            )
        return values * self.bits // 8 + values // self.group * self.scale_bytes


FORMATS: dict[str, KVFormat] = {
    "bf16": KVFormat(16),
    "fp16": KVFormat(16),
    "fp32": KVFormat(32),
    "fp8": KVFormat(8),
    "int8": KVFormat(8),
    "int4": KVFormat(4),
    # vLLM and LMDeploy: 4 bytes of scale (and zero point) for K and as much for V, per token and head.
    "fp8_per_token_head": KVFormat(8, scale_bytes=4),
    "int8_per_token_head": KVFormat(8, scale_bytes=4),
    "int4_per_token_head": KVFormat(4, scale_bytes=4),
    # OCP microscaling and NVFP4: one-byte scales along the head.
    "mxfp8": KVFormat(8, scale_bytes=1, group=32),
    "mxfp4": KVFormat(4, scale_bytes=1, group=32),
    "nvfp4": KVFormat(4, scale_bytes=1, group=16),
    # llama.cpp blocks of 32 along the row: an fp16 scale, in the _1 forms an fp16 minimum too.
    "q8_0": KVFormat(8, scale_bytes=2, group=32, grouped_over="row"),
    "q5_1": KVFormat(5, scale_bytes=4, group=32, grouped_over="row"),
    "q5_0": KVFormat(5, scale_bytes=2, group=32, grouped_over="row"),
    "q4_1": KVFormat(4, scale_bytes=4, group=32, grouped_over="row"),
    "q4_0": KVFormat(4, scale_bytes=2, group=32, grouped_over="row"),
    "iq4_nl": KVFormat(4, scale_bytes=2, group=32, grouped_over="row"),
    # KIVI: fp16 scale and zero point a group. The last 32 or 128 tokens stay in fp16; not counted here.
    "kivi4_g32": KVFormat(4, scale_bytes=4, group=32),
    "kivi2_g32": KVFormat(2, scale_bytes=4, group=32),
    "kivi4_g64": KVFormat(4, scale_bytes=4, group=64),
    "kivi2_g64": KVFormat(2, scale_bytes=4, group=64),
}

PACKED_LATENT_BYTES: dict[str, dict[int, int]] = {
    # 512 fp8 + 4 fp32 scales + 64 bf16 of rotary key; DeepSeek-V4: 448 fp8 + 64 bf16 + 8 bytes of scales.
    "fp8_ds_mla": {576: 656, 512: 584},
    "nvfp4_ds_mla": {576: 352},
}
"""Bytes of one latent vector of so many values in the packings that exist for latent attention only."""


def known_dtype(name: str) -> KVDtype:
    """`name` as a KV dtype; raises ModelError with the known ones for any other word."""
    if name not in FORMATS and name not in PACKED_LATENT_BYTES:
        known = ", ".join([*FORMATS, *PACKED_LATENT_BYTES])
        raise ModelError(f"kv_dtype must be one of {known}, got {name!r}")
    return cast(KVDtype, name)


def entry_bytes(kv_dtype: str, num_heads: int, k_dim: int, v_dim: int) -> int:
    """Bytes that the keys and values of one token take in one layer on `num_heads` heads.

    A latent vector (`v_dim` 0) still has the scales of both in formats with one scale a vector, as in vLLM.
    Raises ModelError for an unknown `kv_dtype` and for shapes that the format cannot hold.
    """
    if kv_dtype in PACKED_LATENT_BYTES:
        packed = PACKED_LATENT_BYTES[kv_dtype]
        if v_dim or k_dim not in packed:
            raise ModelError(
                f"kv_dtype {kv_dtype} holds latent vectors of {' or '.join(map(str, packed))} values only, "
                f"got {k_dim} K + {v_dim} V"
            )
        return num_heads * packed[k_dim]
    form = FORMATS[known_dtype(kv_dtype)]
    return form.vector_bytes(kv_dtype, num_heads, k_dim) + form.vector_bytes(kv_dtype, num_heads, v_dim)
