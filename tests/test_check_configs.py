"""The comparison of a folder of configs with known figures, and that it notices what differs."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.check_configs import check, main

CONFIG = {
    "model_type": "deepseek_v32",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "num_nextn_predict_layers": 1,
}
FACT: dict[str, Any] = {
    "file": "model.json",
    "model_type": "deepseek_v32",
    "nested_in": None,
    "layers": 2,
    "q_heads": 4,
    "kv_heads": 1,
    "head_dim": None,
    "head_dim_explicit": False,
    "max_positions": None,
    "groups": [
        {
            "kind": "mla",
            "layers": 2,
            "index": [0, 1],
            "kv_heads": 1,
            "k_dim": 576,
            "v_dim": 0,
            "window": None,
            "bytes_per_token_bf16": 2304,
        }
    ],
    "kv_bytes_per_token_bf16": 2304,
    "unbounded_bytes_per_token_bf16": 2304,
    "window_bound_bytes_per_seq_bf16": 0,
    "notes": ["1 MTP layer(s) not counted"],
    "extra": {"indexer_bytes_per_token_fp8": 264, "indexer_layers": 2},
}
ALTERED = {
    "model_type": "deepseek_v3",
    "nested_in": "text_config",
    "layers": 3,
    "q_heads": 8,
    "kv_heads": 4,
    "head_dim": 128,
    "head_dim_explicit": True,
    "max_positions": 4096,
    "groups": [],
    "kv_bytes_per_token_bf16": 2305,
    "unbounded_bytes_per_token_bf16": 0,
    "window_bound_bytes_per_seq_bf16": 1,
    "notes": [],
    "extra": {"indexer_bytes_per_token_fp8": 265, "indexer_layers": 2},
    "state": {"layers": 2},
    "surprise": 1,
}


def write(folder: Path, fact: dict[str, Any]) -> Path:
    (folder / "model.json").write_text(json.dumps(CONFIG))
    (folder / "facts.jsonl").write_text(json.dumps(fact) + "\n")
    return folder


def test_shared_configs_all_match(shared: Path) -> None:
    total, problems = check(shared / "configs")
    assert (total, problems) == (98, [])


def test_known_figures_match(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(write(tmp_path, FACT))]) == 0
    assert capsys.readouterr().out == "1 of 1 match\n"


@pytest.mark.parametrize("name", ALTERED)
def test_any_altered_field_is_a_mismatch(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(write(tmp_path, {**FACT, name: ALTERED[name]}))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model.json"
    assert lines[1].strip().startswith(name)
    assert lines[-1] == "0 of 1 match"


def test_both_values_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(write(tmp_path, {**FACT, "kv_bytes_per_token_bf16": 2305}))])
    assert "kv_bytes_per_token_bf16: expected 2305, got 2304" in capsys.readouterr().out


def test_a_config_without_figures_is_a_mismatch(tmp_path: Path) -> None:
    write(tmp_path, FACT)
    (tmp_path / "other.json").write_text("{}")
    assert check(tmp_path) == (2, ["other.json\n    no line in facts.jsonl"])


def test_a_config_that_is_refused_is_a_mismatch(tmp_path: Path) -> None:
    write(tmp_path, FACT)
    (tmp_path / "model.json").write_text("[]")
    _, problems = check(tmp_path)
    assert "must be a JSON object, got a list" in problems[0]


def test_one_folder_with_figures_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().err == "usage: python -m tests.check_configs DIR\n"
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path}: there is no facts.jsonl\n"
