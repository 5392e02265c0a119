"""A geometry in plain data."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import ModelError
from kvsim.model.catalogue import catalogue, load_geometry
from kvsim.model.describe import describe


def described(name: str, *arguments: Any) -> dict[str, Any]:
    return describe(load_geometry(name, Path()), *arguments)


def test_a_rank_of_a_uniform_model() -> None:
    assert described("llama-3.1-8b", "fp8", 4, 2)["rank"] == {
        "kv_dtype": "fp8",
        "tensor_parallel": 4,
        "pipeline_parallel": 2,
        "layers": 16,
        "bytes_per_token": 8192,
        "kv_bytes_per_token": 8192,
        "unbounded_bytes_per_token": 8192,
        "window_bound_bytes_per_seq": 0,
        "cross_bytes_per_source_token": 0,
        "state_bytes_per_seq": 0,
        "formula": "16 layers x 2 KV heads x (128 K + 128 V) x 1 B = 8,192 B",
    }


def test_index_keys_are_apart_from_k_and_v() -> None:
    facts = described("deepseek-v3.2")
    assert facts["kv_bytes_per_token_bf16"] == 70_272
    assert facts["indexer"] == {"layers": 61, "bytes_per_token": 8_052}
    assert facts["rank"]["bytes_per_token"] == 78_324
    assert described("llama-3.1-8b")["indexer"] is None


def test_state_is_given_in_both_usual_widths() -> None:
    assert described("qwen3.5-27b")["state"] == {
        "layers": 48,
        "conv_values_per_layer": 30_720,
        "recurrent_values_per_layer": 786_432,
        "bytes_per_seq": 153_944_064,
        "bytes_per_seq_conv_bf16_state_fp32": 153_944_064,
        "bytes_per_seq_all_bf16": 78_446_592,
    }
    assert described("llama-3.1-8b")["state"] is None


def test_groups_follow_the_first_layer_of_each_kind() -> None:
    groups = described("gemma-3-1b")["groups"]
    assert [(group["kind"], group["layers"], group["window"]) for group in groups] == [
        ("sliding", 22, 512),
        ("full", 4, None),
    ]
    assert groups[1]["index"] == [5, 11, 17, 23]


@pytest.mark.parametrize("name", catalogue())
def test_every_model_can_be_written_as_json(name: str) -> None:
    facts = json.loads(json.dumps(described(name)))
    assert sum(group["layers"] for group in facts["groups"]) == facts["layers"]


def test_ranks_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ModelError, match="must divide the 28 query heads"):
        described("qwen2.5-7b", "bf16", 8)
    with pytest.raises(ModelError, match="kv_dtype must be one of"):
        described("qwen2.5-7b", "fp12")
