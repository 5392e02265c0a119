"""Every family's layers, from small configs."""

from typing import Any

import pytest

from kvsim.errors import ModelError, UnsupportedModelError
from kvsim.model.families import FAMILIES
from kvsim.model.hf_config import geometry_from_config
from tests.model.configs import (
    DELTA_NET,
    LATENT,
    LISTED,
    MAMBA_2,
    PLAIN,
    WINDOWED,
    kinds,
    make_geometry,
    shape,
    state,
)


@pytest.mark.parametrize(
    ("model_type", "config", "expected"),
    [
        ("llama", PLAIN, (2, 8, 8)),
        ("llama", {**PLAIN, "num_key_value_heads": None}, (8, 8, 8)),
        ("llama", {**PLAIN, "head_dim": 32}, (2, 32, 32)),
        ("llama", {**PLAIN, "head_dim": 0}, (2, 8, 8)),
        ("llama", {**PLAIN, "head_dim": -1}, (2, 8, 8)),
        ("gpt2", {"n_layer": 2, "n_head": 4, "n_embd": 32}, (4, 8, 8)),
        ("bloom", {"n_layer": 2, "n_head": 4, "n_embed": 32}, (4, 8, 8)),
        ("phi-msft", {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_head_kv": 2}, (2, 8, 8)),
        ("qwen", {"num_hidden_layers": 2, "num_attention_heads": 4, "kv_channels": 16}, (4, 16, 16)),
        ("step3_text", {**PLAIN, "num_key_value_heads": None, "num_attention_groups": 1}, (1, 8, 8)),
        ("gpt_bigcode", {"n_layer": 2, "n_head": 4, "n_embd": 32, "multi_query": True}, (1, 8, 8)),
        ("gpt_bigcode", {"n_layer": 2, "n_head": 4, "n_embd": 32, "multi_query": False}, (4, 8, 8)),
        ("chatglm", {**PLAIN, "multi_query_attention": True, "multi_query_group_num": 4}, (4, 8, 8)),
        ("chatglm", {**PLAIN, "num_key_value_heads": None, "multi_query_group_num": 4}, (8, 8, 8)),
        ("dbrx", {"n_layers": 2, "n_heads": 4, "d_model": 32, "attn_config": {"kv_n_heads": 2}}, (2, 8, 8)),
        ("mpt", {"n_layers": 2, "n_heads": 4, "d_model": 32, "attn_config": {}}, (4, 8, 8)),
        ("falcon", {"n_layer": 2, "n_head": 71, "hidden_size": 4544, "multi_query": True}, (1, 64, 64)),
        ("falcon", {"n_layer": 2, "n_head": 4, "hidden_size": 32, "multi_query": False}, (4, 8, 8)),
        ("RefinedWeb", {"n_layer": 2, "n_head": 8, "hidden_size": 64, "n_head_kv": 2}, (2, 8, 8)),
        ("RefinedWebModel", {"n_layer": 2, "n_head": 8, "hidden_size": 64, "multi_query": True}, (1, 8, 8)),
    ],
)
def test_heads_and_widths_under_every_name(
    model_type: str, config: dict[str, Any], expected: tuple[int, int, int]
) -> None:
    geometry = make_geometry(model_type, config)
    assert {shape(layer) for layer in geometry.layers} == {expected}
    assert set(kinds(geometry)) == {"F"}
    assert geometry.assumptions == ()


def test_the_new_falcon_decoder_ignores_multi_query() -> None:
    config = {"n_layer": 2, "n_head": 8, "hidden_size": 64, "num_kv_heads": 2, "multi_query": True}
    assert shape(make_geometry("falcon", config, new_decoder_architecture=True).layers[0]) == (2, 8, 8)


def test_explicit_head_width_of_qwen3_is_twice_hidden_by_heads() -> None:
    config = {
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "hidden_size": 1024,
    }
    explicit = make_geometry("qwen3", config, head_dim=128)
    assert explicit.bytes_per_token("bf16") == 114_688
    assert make_geometry("qwen3", config).bytes_per_token("bf16") == 57_344
    assert explicit.notes == ("head_dim 128 is not hidden/heads (64)",)


def test_nemotron_nas_blocks_differ_and_many_keep_nothing() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 8, "no_op": False, "replace_with_linear": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True}},
        {"attention": {"n_heads_in_group": None, "replace_with_linear": True}},
        {"attention": {"n_heads_in_group": 4}},
    ]
    geometry = make_geometry("nemotron-nas", {**PLAIN, "num_key_value_heads": None}, block_configs=blocks)
    assert kinds(geometry) == "F..F"
    assert [layer.num_kv_heads for layer in geometry.layers] == [1, 0, 0, 2]


def test_openelm_kv_heads_differ_by_layer() -> None:
    config = {
        "num_transformer_layers": 3,
        "head_dim": 64,
        "num_kv_heads": [3, 4, 5],
        "max_context_length": 64,
    }
    geometry = make_geometry("openelm", config)
    assert [layer.num_kv_heads for layer in geometry.layers] == [3, 4, 5]
    assert geometry.max_model_len == 64


def test_cross_layer_attention_owns_every_second_cache() -> None:
    assert kinds(make_geometry("hunyuan", PLAIN, use_cla=True, cla_share_factor=2)) == "F-F-"
    assert kinds(make_geometry("hunyuan", PLAIN, use_cla=False, cla_share_factor=2)) == "FFFF"


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("mistral", {}, "ssss"),
        ("mistral", {"sliding_window": None}, "FFFF"),
        ("mistral", {"sliding_window": 0}, "FFFF"),
        ("mistral", {"sliding_window": None, "sliding_window_size": 16}, "ssss"),
        ("phi3", {"sliding_window": 1024}, "FFFF"),
        ("phi3", {"sliding_window": 1023}, "ssss"),
        ("qwen2", {}, "FFFF"),
        ("qwen2", {"use_sliding_window": False}, "FFFF"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 3}, "FFFs"),
        ("qwen3_moe", {"use_sliding_window": True, "max_window_layers": 3}, "ssss"),
        ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 2}, "sFFF"),
        ("gemma2", {}, "sFsF"),
        ("gpt_oss", {}, "sFsF"),
        ("gemma3_text", {"sliding_window_pattern": 3}, "ssFs"),
        ("gemma3_text", {"num_hidden_layers": 7}, "sssssFs"),
        ("cohere2", {}, "sssF"),
        ("cohere2", {"sliding_window_pattern": 2}, "sFsF"),
        ("olmo3", {}, "sssF"),
        ("exaone4", {"sliding_window_pattern": "LG", "num_hidden_layers": 5}, "sFsFF"),
        ("exaone4", {"sliding_window_pattern": 4}, "sssF"),
        ("exaone4", {"sliding_window": None}, "FFFF"),
        ("gpt_neo", {"window_size": 8, "attention_layers": ["global", "local"] * 2}, "FsFs"),
    ],
)
def test_which_layers_slide(model_type: str, fields: dict[str, Any], expected: str) -> None:
    assert kinds(make_geometry(model_type, WINDOWED, **fields)) == expected


@pytest.mark.parametrize(
    "model_type",
    ["llama", "gemma2", "gemma3_text", "cohere2", "exaone4", "mistral", "step3p5", "gemma4_text"],
)
def test_a_layer_list_wins_over_any_pattern(model_type: str) -> None:
    geometry = make_geometry(model_type, WINDOWED, layer_types=LISTED)
    assert kinds(geometry) == "sFFs"
    assert geometry.layers[0].window == 16


def test_entries_of_a_layer_list_for_mtp_layers_are_cut_off() -> None:
    fields = {"layer_types": [*LISTED, "full_attention"], "num_nextn_predict_layers": 1}
    geometry = make_geometry("step3p5", WINDOWED, **fields)
    assert kinds(geometry) == "sFFs"
    assert "1 MTP layer(s) not counted" in geometry.notes
    with pytest.raises(ModelError, match="layer_types must have one entry for each of 4 layers, got 5"):
        make_geometry("step3p5", WINDOWED, layer_types=[*LISTED, "full_attention"])


def test_sliding_layers_of_step_have_heads_of_their_own() -> None:
    other = {"num_attention_groups": 4, "head_dim": 16}
    geometry = make_geometry("step3p5", WINDOWED, layer_types=LISTED, attention_other_setting=other)
    assert [shape(layer) for layer in geometry.layers[:2]] == [(4, 16, 16), (2, 8, 8)]


def test_gemma_4_full_layers_are_wider_and_the_last_layers_share() -> None:
    fields = {
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "num_kv_shared_layers": 2,
    }
    geometry = make_geometry("gemma4_text", WINDOWED, layer_types=LISTED, **fields)
    assert kinds(geometry) == "sF--"
    assert [shape(layer) for layer in geometry.layers[:2]] == [(2, 16, 16), (1, 32, 32)]
    with pytest.raises(ModelError, match="num_kv_shared_layers must be less than 4 layers, got 4"):
        make_geometry("gemma4_text", WINDOWED, layer_types=LISTED, num_kv_shared_layers=4)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "cccF"),
        ({"no_rope_layers": []}, "cccF"),
        ({"no_rope_layers": [1, 0, 1, 0]}, "cFcF"),
        ({"no_rope_layer_interval": 2}, "cFcF"),
        ({"layer_types": ["chunked_attention", *["full_attention"] * 3]}, "cFFF"),
        ({"attention_chunk_size": None}, "FFFF"),
        ({"max_position_embeddings": 32}, "FFFF"),
    ],
)
def test_llama_4_layers_with_rotary_positions_are_chunked(fields: dict[str, Any], expected: str) -> None:
    geometry = make_geometry("llama4_text", {**PLAIN, "attention_chunk_size": 32}, **fields)
    assert kinds(geometry) == expected


def test_mimo_v2_sliding_layers_have_their_own_shape_and_narrow_values() -> None:
    fields = {
        "head_dim": 24,
        "v_head_dim": 16,
        "swa_num_key_value_heads": 4,
        "swa_head_dim": 12,
        "swa_v_head_dim": 8,
        "hybrid_layer_pattern": [0, 1, 1, 0],
        "attention_chunk_size": 128,
    }
    geometry = make_geometry("mimo_v2_flash", WINDOWED, **fields)
    assert kinds(geometry) == "FssF"
    assert [shape(layer) for layer in geometry.layers[:2]] == [(2, 24, 16), (4, 12, 8)]


def test_latent_attention_is_one_vector_whatever_the_heads() -> None:
    geometry = make_geometry("deepseek_v3", LATENT, head_dim=192)
    assert {shape(layer) for layer in geometry.layers} == {(1, 40, 0)}
    assert kinds(geometry) == "LLLL"


def test_small_deepseek_models_may_do_without_latent_attention() -> None:
    assert kinds(make_geometry("deepseek_v2", PLAIN, use_mla=False)) == "FFFF"


def test_longcat_keeps_two_latent_vectors_a_layer() -> None:
    config = {**LATENT, "num_layers": 4, "num_hidden_layers": None}
    assert make_geometry("longcat_flash", config).bytes_per_token("bf16") == 2 * 4 * 80


@pytest.mark.parametrize(
    ("fields", "indexed"),
    [
        ({}, [True] * 8),
        ({"indexer_types": ["full", "shared"] * 4}, [True, False] * 4),
        ({"index_topk_pattern": "FFSSFSSS"}, [True, True, False, False, True, False, False, False]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [i in (0, 1, 2, 6) for i in range(8)]),
        ({"index_topk_freq": 4}, [i in (0, 1, 5) for i in range(8)]),
    ],
)
def test_index_keys_lie_beside_the_layers_that_select(fields: dict[str, Any], indexed: list[bool]) -> None:
    geometry = make_geometry("glm_moe_dsa", {**LATENT, "num_hidden_layers": 8, "index_head_dim": 128}, **fields)
    assert [bool(layer.beside) for layer in geometry.layers] == indexed
    assert geometry.bytes_per_token("bf16") == 8 * 80 + sum(indexed) * 132
    assert any("takes 1,056 B a token" in note for note in geometry.notes) == (not all(indexed))


def test_minimax_m3_keeps_a_bf16_index_key_on_sparse_layers() -> None:
    sparse = {"use_sparse_attention": True, "sparse_attention_freq": [0, 0, 1, 1], "sparse_index_dim": 128}
    geometry = make_geometry("minimax_m3", PLAIN, sparse_attention_config=sparse)
    assert geometry.bytes_per_token("fp8") == 4 * 32 + 2 * 256
    assert make_geometry("minimax_m3", PLAIN).bytes_per_token("fp8") == 4 * 32


def test_deepseek_v4_keeps_windows_compressed_entries_and_index_keys() -> None:
    config = {**PLAIN, "head_dim": 512, "sliding_window": 128, "index_head_dim": 128}
    fields = {"compress_ratios": [0, 4, 128, 4, 0], "num_nextn_predict_layers": 1}
    geometry = make_geometry("deepseek_v4", config, **fields)
    assert kinds(geometry) == "ssss"
    assert [[cache.kind for cache in layer.beside] for layer in geometry.layers] == [
        [],
        ["compressed", "index"],
        ["compressed"],
        ["compressed", "index"],
    ]
    assert geometry.unbounded_bytes_per_token("bf16") == 2 * 256 + 8
    assert geometry.bytes_per_token("bf16") == 4 * 1024 + 2 * 256 + 8 + 2 * 33


def test_jamba_attends_at_an_offset_of_each_period() -> None:
    fields = {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_conv": 4, "mamba_d_state": 16}
    geometry = make_geometry("jamba", PLAIN, mamba_expand=2, **fields)
    assert kinds(geometry) == "rFrF"
    assert (state(geometry.layers[0]).conv_values, state(geometry.layers[0]).recurrent_values) == (384, 2048)


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("bamba", {"attn_layer_indices": [1]}, "rFrr"),
        ("granitemoehybrid", {"layer_types": ["mamba", "attention", "mamba", "mamba"]}, "rFrr"),
        ("granitemoehybrid", {"layers_block_type": ["mamba", "attention", "mamba", "mamba"]}, "rFrr"),
        ("nemotron_h", {"hybrid_override_pattern": "M*-E"}, "rF.."),
        ("nemotron_h", {"layers_block_type": ["mamba", "attention", "mlp", "moe"]}, "rF.."),
        ("falcon_h1", {}, "FFFF"),
        ("zamba2", {"hybrid_layer_ids": [2], "n_mamba_heads": 4}, "rrFr"),
        ("zamba2", {"layers_block_type": ["mamba", "mamba", "hybrid", "mamba"]}, "rrFr"),
    ],
)
def test_mamba_2_hybrids(model_type: str, fields: dict[str, Any], expected: str) -> None:
    geometry = make_geometry(model_type, {**PLAIN, **MAMBA_2}, **fields)
    assert kinds(geometry) == expected
    states = [cache.state for cache in geometry.caches() if cache.state is not None]
    assert {(one.conv_values, one.recurrent_values) for one in states} == {((32 + 2 * 16) * 3, 32 * 16)}
    assert len(states) == {"falcon_h1": 4, "zamba2": 4, "nemotron_h": 1}.get(model_type, 3)


def test_the_shared_attention_of_zamba_sees_two_hidden_vectors() -> None:
    geometry = make_geometry("zamba2", {**PLAIN, **MAMBA_2}, hybrid_layer_ids=[2])
    assert shape(geometry.layers[2]) == (2, 16, 16)


def test_mamba_head_width_may_be_left_to_the_expansion() -> None:
    config = {**PLAIN, **MAMBA_2, "mamba_d_head": "auto", "mamba_expand": 2, "attn_layer_indices": [1]}
    assert state(make_geometry("bamba", config).layers[0]).recurrent_values == 2 * 64 * 16


@pytest.mark.parametrize(
    "fields", [{"full_attention_interval": 2}, {"layer_types": ["linear_attention", "full_attention"] * 2}]
)
def test_gated_delta_net_between_full_layers(fields: dict[str, Any]) -> None:
    geometry = make_geometry("qwen3_next", {**PLAIN, **DELTA_NET}, **fields)
    assert kinds(geometry) == "rFrF"
    assert state(geometry.layers[0]).conv_values == (2 * 2 * 8 + 4 * 16) * 3
    assert state(geometry.layers[0]).recurrent_values == 4 * 16 * 8


def test_kimi_linear_counts_its_layers_from_one() -> None:
    linear = {"full_attn_layers": [4], "num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4}
    geometry = make_geometry("kimi_linear", LATENT, linear_attn_config=linear)
    assert kinds(geometry) == "rrrL"
    assert state(geometry.layers[0]).bytes_per_seq() == 3 * 16 * 3 * 2 + 2 * 64 * 4


def test_minimax_marks_softmax_layers_with_one() -> None:
    geometry = make_geometry("minimax_m1", PLAIN, attn_type_list=[0, 0, 1, 0])
    assert kinds(geometry) == "rrFr"
    assert state(geometry.layers[0]).bytes_per_seq() == 8 * 8 * 8 * 4
    assert kinds(make_geometry("minimax_m2", PLAIN)) == "FFFF"


@pytest.mark.parametrize("fields", [{"full_attn_idxs": [1, 3]}, {"layer_types": ["conv", "full_attention"] * 2}])
def test_lfm2_has_short_convolutions(fields: dict[str, Any]) -> None:
    geometry = make_geometry("lfm2", PLAIN, conv_L_cache=3, **fields)
    assert kinds(geometry) == "rFrF"
    assert geometry.state_bytes_per_seq() == 2 * 64 * 2 * 2


def test_models_without_attention_keep_states_only() -> None:
    mamba = {"num_hidden_layers": 2, "hidden_size": 64, "expand": 2, "state_size": 16, "conv_kernel": 4}
    assert make_geometry("mamba", mamba).state_bytes_per_seq() == 2 * (128 * 3 + 128 * 16) * 2
    assert make_geometry("falcon_mamba", mamba, intermediate_size=96).state_bytes_per_seq() == 7_296
    two = {**mamba, "num_heads": 4, "head_dim": 32, "n_groups": 1}
    assert make_geometry("mamba2", two).state_bytes_per_seq() == 2 * (160 * 3 + 128 * 16) * 2
    rwkv = {"num_hidden_layers": 2, "hidden_size": 64, "head_size": 16, "context_length": 4096}
    geometry = make_geometry("rwkv5", rwkv)
    assert geometry.state_bytes_per_seq() == 2 * (128 + 64 * 16) * 2
    assert (geometry.bytes_per_token("bf16"), geometry.max_model_len) == (0, 4096)


@pytest.mark.parametrize(
    ("fields", "width"),
    [
        ({}, 2),
        ({"mamba_ssm_cache_dtype": "float32"}, 4),
        ({"mamba_ssm_dtype": "float32"}, 4),
        ({"mamba_ssm_cache_dtype": "auto"}, 2),
        ({"torch_dtype": "float32"}, 4),
    ],
)
def test_width_of_recurrent_values_is_declared_or_assumed(fields: dict[str, Any], width: int) -> None:
    geometry = make_geometry("bamba", {**PLAIN, **MAMBA_2}, attn_layer_indices=[1], **fields)
    assert state(geometry.layers[0]).recurrent_value_bytes == width
    declared = "float32" in (fields.get("mamba_ssm_cache_dtype"), fields.get("mamba_ssm_dtype"))
    assert bool(geometry.assumptions) == (not declared)


def test_mllama_cross_layers_keep_image_tokens() -> None:
    text = {"model_type": "mllama_text_model", **PLAIN, "cross_attention_layers": [1]}
    geometry = geometry_from_config({"model_type": "mllama", "text_config": text}, "test")
    assert kinds(geometry) == "FxFF"
    assert geometry.bytes_per_token("bf16") == 3 * 64
    assert geometry.cross_bytes_per_source_token("bf16") == 64


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("t5", {"num_layers": 6, "num_decoder_layers": 2, "num_heads": 4, "d_model": 64, "d_kv": 16}),
        ("bart", {"encoder_layers": 6, "decoder_layers": 2, "decoder_attention_heads": 4, "d_model": 64}),
        (
            "whisper",
            {
                "num_hidden_layers": 6,
                "decoder_layers": 2,
                "num_attention_heads": 8,
                "decoder_attention_heads": 4,
                "d_model": 64,
            },
        ),
    ],
)
def test_decoders_keep_their_own_tokens_and_the_encoders(model_type: str, config: dict[str, Any]) -> None:
    geometry = make_geometry(model_type, config, is_encoder_decoder=True)
    assert kinds(geometry) == "FF"
    assert geometry.num_query_heads == 4
    assert geometry.bytes_per_token("bf16") == geometry.cross_bytes_per_source_token("bf16") == 2 * 4 * 32 * 2


@pytest.mark.parametrize(
    ("model_type", "named"),
    [
        ("gemma2", "sliding_window"),
        ("step3p5", "layer_types"),
        ("hunyuan", "use_mla is true"),
        ("gemma3n_text", "num_kv_shared_layers"),
        ("gemma4_text", "layer_types"),
        ("exaone4", "layer_types"),
        ("mimo_v2", "hybrid_layer_pattern"),
        ("gpt_neo", "attention_layers"),
        ("nemotron-nas", "block_configs"),
        ("deepseek_v3", "kv_lora_rank"),
        ("deepseek_v32", "kv_lora_rank"),
        ("deepseek_v4", "compress_ratios"),
        ("jamba", "attn_layer_period"),
        ("bamba", "attn_layer_indices"),
        ("granitemoehybrid", "mamba_num_heads"),
        ("nemotron_h", "mamba_num_heads"),
        ("falcon_h1", "mamba_num_heads"),
        ("qwen3_next", "linear_num_key_heads"),
        ("kimi_linear", "full_attn_layers"),
        ("minimax_m1", "layer_types"),
        ("lfm2", "conv_L_cache"),
        ("zamba2", "mamba_num_heads"),
        ("mamba", "mamba_expand"),
        ("rwkv6", "head_size"),
        ("mllama_text_model", "cross_attention_layers"),
    ],
)
def test_families_name_the_field_that_they_need(model_type: str, named: str) -> None:
    needed: dict[str, dict[str, Any]] = {
        "exaone4": {"sliding_window": 16},
        "gemma3n_text": {"layer_types": ["full_attention"] * 4},
        "hunyuan": {"use_mla": True},
    }
    with pytest.raises(UnsupportedModelError, match=f"test: .*{named}"):
        make_geometry(model_type, PLAIN, **needed.get(model_type, {}))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_no_family_makes_anything_of_an_empty_config(model_type: str) -> None:
    with pytest.raises(UnsupportedModelError, match="is missing"):
        make_geometry(model_type, {})
