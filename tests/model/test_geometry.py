"""Layers, ranks and the bytes of a token."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ModelError
from kvsim.model.geometry import (
    MAX_LAYERS,
    LayerKV,
    ModelGeometry,
    RecurrentState,
    layers_per_stage,
    uniform_geometry,
)

FULL = LayerKV("full", 8, 128, 128)
LATENT = LayerKV("mla", 1, 576, 0)


def make_geometry(*layers: LayerKV, **fields: Any) -> ModelGeometry:
    return ModelGeometry("test", layers, **fields)


def test_llama_8b_takes_a_gibibyte_for_8192_tokens() -> None:
    geometry = uniform_geometry(32, 8, 128)
    assert geometry.bytes_per_token("fp16") * 8192 == 2**30
    assert 16 * geometry.bytes_per_token("fp16") * 8192 == 16 * 2**30
    assert uniform_geometry(32, 32, 128).bytes_per_token("fp16") * 8192 == 4 * 2**30


def test_mixtral_takes_four_gibibytes_for_32768_tokens_half_in_fp8_a_quarter_in_int4() -> None:
    geometry = uniform_geometry(32, 8, 128)
    assert geometry.bytes_per_token("bf16") * 32768 == 4 * 2**30 == 4_294_967_296
    assert geometry.bytes_per_token("fp8") * 32768 == 2 * 2**30
    assert geometry.bytes_per_token("int4") * 32768 == 2**30


@pytest.mark.parametrize(("ranks", "expected"), [(1, 196_608), (2, 98_304), (4, 49_152), (8, 24_576)])
def test_heads_are_dealt_out_over_ranks(ranks: int, expected: int) -> None:
    assert uniform_geometry(48, 8, 128).bytes_per_token("bf16", tensor_parallel=ranks) == expected


@pytest.mark.parametrize(("ranks", "heads"), [(1, 4), (2, 2), (4, 1), (8, 1), (16, 1)])
def test_more_ranks_than_heads_repeat_them(ranks: int, heads: int) -> None:
    assert LayerKV("full", 4, 128, 128).num_kv_heads_on_rank(ranks) == heads


def test_ranks_that_do_not_divide_the_kv_heads_are_refused() -> None:
    rule = "tensor_parallel must divide the number of KV heads or be a multiple of it, got 3 for 8 KV heads"
    with pytest.raises(ModelError, match=rule):
        uniform_geometry(32, 8, 128).bytes_per_token("bf16", tensor_parallel=3)


def test_ranks_must_divide_the_query_heads() -> None:
    geometry = make_geometry(LayerKV("full", 4, 128, 128), num_query_heads=28)
    with pytest.raises(ModelError, match="tensor_parallel must divide the 28 query heads of test, got 8"):
        geometry.bytes_per_token("bf16", tensor_parallel=8)


@pytest.mark.parametrize("ranks", [0, -1])
def test_at_least_one_rank_of_every_sort(ranks: int) -> None:
    geometry = make_geometry(FULL, FULL)
    with pytest.raises(ModelError, match=f"tensor_parallel must be > 0, got {ranks}"):
        geometry.bytes_per_token("bf16", tensor_parallel=ranks)
    with pytest.raises(ModelError, match=f"pipeline_parallel must be > 0, got {ranks}"):
        geometry.bytes_per_token("bf16", pipeline_parallel=ranks)
    with pytest.raises(ModelError, match=f"decode_context_parallel must be > 0, got {ranks}"):
        geometry.bytes_per_token("bf16", decode_context_parallel=ranks)
    with pytest.raises(ModelError, match=f"data_parallel_attention must be > 0, got {ranks}"):
        geometry.bytes_per_token("bf16", data_parallel_attention=ranks)


def test_a_latent_vector_lies_on_every_rank() -> None:
    geometry = make_geometry(*[LATENT] * 61, num_query_heads=128)
    assert [geometry.bytes_per_token("bf16", tensor_parallel=ranks) for ranks in (1, 8, 16)] == [70_272] * 3


def test_decode_context_parallel_deals_out_latent_tokens() -> None:
    geometry = make_geometry(*[LATENT] * 61, num_query_heads=128)
    assert geometry.bytes_per_token("bf16", 8, decode_context_parallel=8) == 8_784
    with pytest.raises(ModelError, match="divide the 8 ranks that hold the same KV heads, got 3"):
        geometry.bytes_per_token("bf16", 8, decode_context_parallel=3)


def test_decode_context_parallel_uses_the_ranks_that_repeat_kv_heads() -> None:
    geometry = make_geometry(LayerKV("full", 2, 128, 128), LayerKV("sliding_window", 2, 128, 128, window=64))
    assert geometry.bytes_per_token("bf16", 8) == 2 * 512
    assert geometry.bytes_per_token("bf16", 8, decode_context_parallel=4) == 512 // 4 + 512
    with pytest.raises(ModelError, match="decode_context_parallel must divide the 1 ranks"):
        geometry.bytes_per_token("bf16", 2, decode_context_parallel=2)


def test_data_parallel_attention_splits_over_fewer_ranks() -> None:
    geometry = make_geometry(FULL, num_query_heads=32)
    assert geometry.bytes_per_token("bf16", 8, data_parallel_attention=8) == FULL.bytes_per_token("bf16")
    assert geometry.bytes_per_token("bf16", 8, data_parallel_attention=2) == FULL.bytes_per_token("bf16", 4)
    with pytest.raises(ModelError, match="data_parallel_attention must divide tensor_parallel, got 3 for 8"):
        geometry.bytes_per_token("bf16", 8, data_parallel_attention=3)


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        (32, 4, [8, 8, 8, 8]),
        (33, 2, [17, 16]),
        (22, 4, [5, 6, 6, 5]),
        (5, 3, [2, 2, 1]),
        (4, 3, [1, 2, 1]),
        (43, 10, [4, 4, 4, 4, 4, 4, 5, 5, 5, 4]),
    ],
)
def test_layers_that_do_not_divide_go_before_the_last_stage(layers: int, stages: int, expected: list[int]) -> None:
    assert layers_per_stage(layers, stages) == expected


@given(st.integers(1, 200), st.integers(1, 200))
def test_stages_hold_every_layer_once(layers: int, stages: int) -> None:
    if stages > layers:
        with pytest.raises(ModelError, match="pipeline_parallel must not exceed the number of layers"):
            layers_per_stage(layers, stages)
        return
    counts = layers_per_stage(layers, stages)
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1


def test_the_stage_that_holds_most_decides() -> None:
    none = LayerKV("none")
    geometry = make_geometry(none, FULL, FULL, none, none, none)
    assert geometry.bytes_per_token("bf16", pipeline_parallel=2) == 2 * 4096
    assert [len(stage.layers) for stage in geometry.stages(2)] == [3, 3]
    assert geometry.heaviest_stage("bf16", pipeline_parallel=2) == geometry.stages(2)[0]


def test_windows_count_in_a_token_and_not_in_growth() -> None:
    window = LayerKV("sliding_window", 1, 256, 256, window=512)
    chunk = LayerKV("chunked_local", 1, 256, 256, window=128)
    geometry = make_geometry(window, chunk, FULL)
    assert geometry.bytes_per_token("bf16") == 1024 + 1024 + 4096
    assert geometry.unbounded_bytes_per_token("bf16") == 4096
    assert geometry.window_bytes_per_seq("bf16") == (512 + 128) * 1024


def test_compressed_entries_are_rounded_up_once_for_all_layers() -> None:
    packed = LayerKV("compressed", 1, 512, 0, tokens_per_entry=128)
    assert packed.bytes_per_token("fp8_ds_mla") == 5
    assert make_geometry(*[packed] * 20).bytes_per_token("fp8_ds_mla") == 92


def test_index_keys_do_not_follow_the_dtype() -> None:
    index = LayerKV("index", 1, 128, fixed_entry_bytes=132)
    geometry = make_geometry(LayerKV("mla", 1, 576, 0, beside=(index,)))
    assert geometry.bytes_per_token("bf16") == 1152 + 132
    assert geometry.bytes_per_token("fp8", tensor_parallel=8) == 576 + 132


def test_keys_and_values_may_differ_in_width() -> None:
    assert LayerKV("full", 4, 192, 128).bytes_per_token("bf16") == 4 * 320 * 2


def test_cross_attention_adds_nothing_for_text_tokens() -> None:
    geometry = make_geometry(FULL, LayerKV("cross", 8, 128, 128))
    assert geometry.bytes_per_token("bf16") == 4096
    assert geometry.cross_bytes_per_source_token("bf16", tensor_parallel=2) == 2048


def test_a_state_is_divided_over_ranks_and_its_groups_repeated() -> None:
    state = RecurrentState("mamba", 256, 4_194_304, 49_152, num_groups=8, group_conv_values=1_536)
    assert state.conv_values == 61_440
    assert state.bytes_per_seq() == 2 * (61_440 + 4_194_304)
    assert state.bytes_per_seq(recurrent_value_bytes=4) == 2 * 61_440 + 4 * 4_194_304
    assert state.bytes_per_seq(8) == 2 * (61_440 + 4_194_304) // 8
    assert state.bytes_per_seq(16) == 2 * (49_152 // 16 + 1_536 + 4_194_304 // 16)
    with pytest.raises(ModelError, match="must divide the 256 heads of a recurrent layer, got 3"):
        state.bytes_per_seq(3)


def test_state_bytes_of_a_model_are_those_of_its_layers() -> None:
    recurrent = LayerKV("recurrent", state=RecurrentState("linear", 4, 64, recurrent_value_bytes=4))
    geometry = make_geometry(recurrent, LayerKV("full", 1, 8, 8, beside=(recurrent,)))
    assert geometry.bytes_per_token("bf16") == 32
    assert geometry.state_bytes_per_seq() == 2 * 64 * 4
    assert geometry.state_bytes_per_seq(4) == 2 * 16 * 4
    assert geometry.state_bytes_per_seq(1, recurrent_value_bytes=2) == 2 * 64 * 2


@pytest.mark.parametrize("kind", ["shared", "none"])
def test_layers_without_a_cache_cost_nothing(kind: Any) -> None:
    geometry = make_geometry(FULL, LayerKV(kind))
    assert geometry.bytes_per_token("bf16") == 4096
    assert len(geometry.layers) == 2


@pytest.mark.parametrize(
    ("kv_dtype", "ranks", "expected"),
    [
        ("bf16", 1, "32 layers x 8 KV heads x (128 K + 128 V) x 2 B = 131,072 B"),
        ("int4", 8, "32 layers x 1 KV head x (128 K + 128 V) x 0.5 B = 4,096 B"),
        (
            "q8_0",
            1,
            "32 layers x 2176 B (8 KV heads x (128 K + 128 V) in q8_0 with its scales) = 69,632 B",
        ),
    ],
)
def test_the_formula_has_its_numbers_in_it(kv_dtype: Any, ranks: int, expected: str) -> None:
    assert uniform_geometry(32, 8, 128).formula(kv_dtype, ranks) == expected


def test_the_formula_has_a_term_for_each_sort_of_cache() -> None:
    index = LayerKV("index", 1, 128, tokens_per_entry=4, fixed_entry_bytes=132)
    layers = [FULL, LayerKV("mla", 1, 576, 0, beside=(index,)), FULL]
    assert make_geometry(*layers).formula("bf16") == (
        "2 layers x 8 KV heads x (128 K + 128 V) x 2 B + 1 layers x 576 latent values x 2 B "
        "+ 1 layers x 132 B index key / 4 tokens = 9,377 B"
    )
    assert make_geometry(LayerKV("none")).formula("bf16") == "no layer keeps tokens = 0 B"


@pytest.mark.parametrize(
    ("sizes", "rule"),
    [
        ((0, 8, 128), "num_layers must be > 0, got 0"),
        ((-3, 8, 128), "num_layers must be > 0, got -3"),
        ((32, 0, 128), "num_kv_heads must be > 0, got 0"),
        ((32, 8, -1), "k_dim must be > 0, got -1"),
        ((MAX_LAYERS + 1, 8, 128), "num_layers must be at most 10,000, got 10,001"),
    ],
)
def test_sizes_without_sense_are_refused(sizes: tuple[int, int, int], rule: str) -> None:
    with pytest.raises(ModelError, match=rule):
        uniform_geometry(*sizes)


def test_layers_without_sense_are_refused() -> None:
    with pytest.raises(ModelError, match="window must be > 0, got 0"):
        LayerKV("sliding_window", 8, 128, 128)
    with pytest.raises(ModelError, match="v_dim must not be negative, got -1"):
        LayerKV("full", 8, 128, -1)
    with pytest.raises(ModelError, match="num_layers must be > 0, got 0"):
        make_geometry()


@given(st.integers(1, 4), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from(["bf16", "fp8", "q8_0", "nvfp4"]))
def test_ranks_together_hold_each_head_once_or_equally_often(layers: int, ranks: int, kv_dtype: Any) -> None:
    geometry = uniform_geometry(layers, 8, 128)
    whole = geometry.bytes_per_token(kv_dtype)
    assert geometry.bytes_per_token(kv_dtype, ranks) * ranks == whole * max(1, ranks // 8)
