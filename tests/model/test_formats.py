"""Bytes of cached values in every format."""

from typing import get_args

import pytest

from kvsim.errors import ModelError
from kvsim.model.formats import FORMATS, PACKED_LATENT_BYTES, KVDtype, entry_bytes, known_dtype


@pytest.mark.parametrize(
    ("kv_dtype", "expected"),
    [
        ("bf16", 131_072),
        ("fp16", 131_072),
        ("fp32", 262_144),
        ("fp8", 65_536),
        ("int8", 65_536),
        ("int4", 32_768),
        ("fp8_per_token_head", 67_584),
        ("int8_per_token_head", 67_584),
        ("int4_per_token_head", 34_816),
        ("mxfp8", 67_584),
        ("mxfp4", 34_816),
        ("nvfp4", 36_864),
        ("q8_0", 69_632),
        ("q5_1", 49_152),
        ("q5_0", 45_056),
        ("q4_1", 40_960),
        ("q4_0", 36_864),
        ("iq4_nl", 36_864),
        ("kivi4_g32", 40_960),
        ("kivi2_g32", 24_576),
        ("kivi4_g64", 36_864),
        ("kivi2_g64", 20_480),
    ],
)
def test_llama_8b_token_in_every_format(kv_dtype: str, expected: int) -> None:
    assert 32 * entry_bytes(kv_dtype, 8, 128, 128) == expected


@pytest.mark.parametrize(
    ("kv_dtype", "expected"),
    [("int4_per_token_head", 68), ("nvfp4", 72), ("fp8_per_token_head", 132), ("q8_0", 136)],
)
def test_one_vector_of_128_values(kv_dtype: str, expected: int) -> None:
    assert FORMATS[kv_dtype].vector_bytes(kv_dtype, 1, 128) == expected


@pytest.mark.parametrize(
    ("kv_dtype", "width", "expected"),
    [
        ("bf16", 576, 1152),
        ("fp8", 576, 576),
        ("fp8_per_token_head", 576, 584),
        ("int4_per_token_head", 576, 296),
        ("fp8_ds_mla", 576, 656),
        ("nvfp4_ds_mla", 576, 352),
        ("fp8_ds_mla", 512, 584),
    ],
)
def test_one_latent_vector(kv_dtype: str, width: int, expected: int) -> None:
    assert entry_bytes(kv_dtype, 1, width, 0) == expected


def test_row_formats_group_over_all_heads_of_a_token() -> None:
    assert entry_bytes("q8_0", 2, 80, 80) == 2 * 5 * 34
    with pytest.raises(ModelError, match="groups of 32 values, which do not fill a row of 80"):
        entry_bytes("q8_0", 1, 80, 80)


def test_head_formats_group_within_a_head() -> None:
    with pytest.raises(ModelError, match="groups of 32 values, which do not fill a head of 80"):
        entry_bytes("mxfp4", 2, 80, 80)


def test_half_a_byte_is_refused() -> None:
    with pytest.raises(ModelError, match="kv_dtype int4 needs a whole number of bytes a token, got 12 bits"):
        entry_bytes("int4", 1, 3, 3)


@pytest.mark.parametrize(("k_dim", "v_dim"), [(128, 128), (288, 0)])
def test_packed_latent_formats_hold_nothing_else(k_dim: int, v_dim: int) -> None:
    with pytest.raises(ModelError, match="holds latent vectors of 576 or 512 values only"):
        entry_bytes("fp8_ds_mla", 1, k_dim, v_dim)


def test_an_unknown_dtype_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ModelError, match=r"kv_dtype must be one of bf16, fp16, .*, got 'fp7'"):
        entry_bytes("fp7", 1, 128, 128)
    with pytest.raises(ModelError, match="got ''"):
        known_dtype("")


def test_every_name_has_one_form() -> None:
    assert set(get_args(KVDtype)) == {*FORMATS, *PACKED_LATENT_BYTES}
