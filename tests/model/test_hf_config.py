"""Where a config holds its language model, what is assumed, and what is refused."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import ModelError, UnsupportedModelError
from kvsim.model.catalogue import catalogue
from kvsim.model.describe import describe
from kvsim.model.hf_config import MAX_CONFIG_BYTES, geometry_from_config, read_config
from tests.model.configs import LISTED, PLAIN, WINDOWED, kinds, make_geometry, shape


@pytest.mark.parametrize(
    "config",
    [
        {"text_config": {"model_type": "llama", **PLAIN}, "vision_config": {"num_attention_heads": 16}},
        {"llm_config": {"model_type": "llama", **PLAIN}},
        {"language_config": {"model_type": "llama", **PLAIN}},
        {"thinker_config": {"text_config": {"model_type": "llama", **PLAIN}}},
        {"model_type": "llama", "text_config": {}, **PLAIN, "vision_config": {"num_attention_heads": 16}},
    ],
)
def test_the_language_model_is_found_where_it_is_nested(config: dict[str, Any]) -> None:
    geometry = geometry_from_config({"model_type": "wrapper", **config}, "test")
    assert {shape(layer) for layer in geometry.layers} == {(2, 8, 8)}
    assert geometry.model_type == "llama"


def test_a_nested_config_that_leaves_out_sizes_has_those_of_its_class() -> None:
    text = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}
    geometry = geometry_from_config({"model_type": "llava", "text_config": text}, "test")
    assert geometry.bytes_per_token("bf16") == 524_288
    assert geometry.assumptions == (
        "text_config leaves out hidden_size 4096, num_hidden_layers 32, num_attention_heads 32: "
        "taken from the defaults of 'llama'",
    )


def test_gemma_3_4b_is_saved_as_a_difference() -> None:
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    geometry = geometry_from_config({"model_type": "gemma3", "text_config": text}, "test")
    assert kinds(geometry).count("s") == 29
    assert geometry.bytes_per_token("bf16") == 139_264


def test_a_null_in_a_nested_config_is_not_a_default() -> None:
    text = {"model_type": "mistral", "sliding_window": None}
    geometry = geometry_from_config({"model_type": "llava_next", "text_config": text}, "test")
    assert kinds(geometry) == "F" * 32
    assert {shape(layer) for layer in geometry.layers} == {(8, 128, 128)}


@pytest.mark.parametrize(
    ("model_type", "fields", "expected"),
    [
        ("llama", {}, None),
        ("llama", {"max_position_embeddings": 4096, "seq_length": 2048, "n_positions": None}, 2048),
        ("llama", {"max_position_embeddings": 4096, "model_max_length": 10**30}, 4096),
        ("cohere", {"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
    ],
)
def test_the_smallest_maximum_length_counts(model_type: str, fields: dict[str, Any], expected: int | None) -> None:
    assert make_geometry(model_type, PLAIN, **fields).max_model_len == expected


def test_an_unknown_type_with_plain_fields_is_full_attention_and_says_so() -> None:
    geometry = make_geometry("brand_new", PLAIN)
    assert kinds(geometry) == "FFFF"
    assert geometry.assumptions == ("model_type 'brand_new' is not known: taken as full attention by its plain fields",)
    assert kinds(make_geometry("brand_new", WINDOWED, use_sliding_window=False)) == "FFFF"
    assert kinds(make_geometry("brand_new", WINDOWED, layer_types=LISTED)) == "sFFs"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"mamba_d_state": 16}, "mamba_d_state"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
        ({"sliding_window": 16}, "layer_types is missing, so sliding_window 16"),
        ({"layer_types": ["full_attention", "hyper", "hyper", "hyper"]}, r"layer_types\[1\] is 'hyper'"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 65}, "head_dim is missing"),
    ],
)
def test_what_a_config_does_not_determine_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        make_geometry("brand_new", PLAIN, **fields)


@pytest.mark.parametrize("value", [0, -4, 2.0, "4", True, [4], 10**13])
@pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size"])
def test_sizes_that_are_no_whole_number_above_zero_are_refused(field: str, value: object) -> None:
    with pytest.raises(ModelError, match=f"test: {field} must "):
        make_geometry("llama", PLAIN, **{field: value})


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"num_key_value_heads": 3}, "8 query heads must be a multiple of the KV heads, got 3"),
        ({"num_key_value_heads": 16}, "8 query heads must be a multiple of the KV heads, got 16"),
        ({"num_hidden_layers": 10_001}, "the number of layers must be at most 10,000, got 10,001"),
        ({"max_position_embeddings": 0}, "max_position_embeddings must be > 0, got 0"),
        ({"head_dim": 1.5}, "head_dim must be a whole number, got 1.5"),
        ({"layer_types": "full"}, "layer_types must be a list, got 'full'"),
        ({"use_sliding_window": 1, "sliding_window": 4}, "use_sliding_window must be true or false, got 1"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], rule: str) -> None:
    with pytest.raises(ModelError, match=rule):
        make_geometry("llama", PLAIN, **fields)


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"model_type": "vit", **PLAIN, "image_size": 224}, "is an image model"),
        ({"model_type": "new_eye", **PLAIN, "image_size": 224, "patch_size": 16}, "has no language model"),
        ({"model_type": "new_eye", "vision_config": PLAIN}, "has no language model"),
        ({"model_type": "bert", **PLAIN}, "is an encoder, which keeps no KV cache"),
        (
            {"model_type": "clip", "text_config": PLAIN},
            "is an image model",
        ),
        ({"model_type": "dual", "text_config": {"model_type": "siglip_text_model"}}, "is an encoder"),
    ],
)
def test_models_that_are_no_decoder_are_refused(config: dict[str, Any], rule: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rule):
        geometry_from_config(config, "test")


@pytest.mark.parametrize(
    ("config", "shown"), [([], "a list"), ("x", "a string"), (3, "a number"), (None, "null"), (True, "true")]
)
def test_a_config_must_be_an_object(config: object, shown: str) -> None:
    with pytest.raises(ModelError, match=f"test: a model config must be a JSON object, got .*{shown}"):
        geometry_from_config(config, "test")


def test_a_config_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **PLAIN, "limit": float("inf")}))
    geometry = read_config(path)
    assert geometry.bytes_per_token("bf16") == 4 * 64
    assert geometry.name == str(path)
    assert read_config(path, "mine").name == "mine"


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "is not valid JSON"),
        (b"{", "is not valid JSON"),
        (b"[]", "must be a JSON object, got a list"),
        (b"\xff\xfe\xfa", "is not valid JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b"[" * 100_000, "is nested too deeply"),
    ],
)
def test_what_is_no_config_is_refused_with_its_path(tmp_path: Path, content: bytes, rule: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=rule) as refused:
        read_config(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_places_that_are_no_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder, not a config"):
        read_config(tmp_path)
    with pytest.raises(ModelError, match="there is no such file"):
        read_config(tmp_path / "absent.json")
    with pytest.raises(ModelError, match="there is no such file"):
        read_config(tmp_path / ("x" * 5000))
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ModelError, match="is not a regular file"):
        read_config(tmp_path / "pipe.json")


def test_a_file_of_100_mb_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 10**6)
    with pytest.raises(ModelError, match=f"must be at most {MAX_CONFIG_BYTES:,} bytes, got 100,000,000"):
        read_config(path)


SECTIONS = ("text_config", "attn_config", "linear_attn_config", "sparse_attention_config")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)


@settings(deadline=None, max_examples=400)
@given(st.data())
def test_whatever_a_field_holds_the_answer_is_a_geometry_or_a_clear_refusal(data: st.DataObject) -> None:
    config: dict[str, Any] = json.loads(json.dumps(data.draw(st.sampled_from(list(catalogue().values())))["config"]))
    places = [config, *(config[name] for name in SECTIONS if name in config)]
    place = data.draw(st.sampled_from(places))
    field = data.draw(st.sampled_from(sorted(place)))
    place[field] = data.draw(ANYTHING)
    refusal = None
    try:
        describe(geometry_from_config(config, "test"))
    except ModelError as refused:
        refusal = str(refused)
    assert refusal is None or refusal.startswith("test: ")
