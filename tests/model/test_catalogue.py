"""Models by name, by path and from the hub."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvsim.errors import ModelError
from kvsim.model.catalogue import catalogue, load_geometry
from kvsim.model.families import FAMILIES

HERE = Path()
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}


@pytest.mark.parametrize(
    ("name", "per_token", "length"),
    [
        ("llama-3.1-8b", 131_072, 131_072),
        ("llama-2-13b", 819_200, 4096),
        ("qwen2.5-7b", 57_344, 32_768),
        ("qwen2.5-32b", 262_144, 131_072),
        ("qwen3-0.6b", 114_688, 40_960),
        ("opt-13b", 819_200, 2048),
        ("mixtral-8x7b", 131_072, 32_768),
        ("deepseek-v3", 70_272, 163_840),
        ("gemma-3-27b", 507_904, 131_072),
        ("gpt-oss-120b", 73_728, 131_072),
        ("qwen3-next-80b-a3b", 24_576, 262_144),
        ("kimi-linear-48b-a3b", 8_064, 1_048_576),
        ("jamba-v0.1", 16_384, 262_144),
        ("lfm2-1.2b", 12_288, 128_000),
        ("falcon-40b", 122_880, None),
    ],
)
def test_well_known_models(name: str, per_token: int, length: int | None) -> None:
    geometry = load_geometry(name, HERE)
    assert geometry.bytes_per_token("bf16") == per_token
    assert geometry.max_model_len == length
    assert geometry.name == name


def test_fifteen_requests_of_qwen_32b_in_thirty_gibibytes_thirteen_in_thirty_gigabytes() -> None:
    request_bytes = load_geometry("qwen2.5-32b", HERE).bytes_per_token("fp16") * 8192
    assert request_bytes == 2 * 2**30
    assert 30 * 2**30 // request_bytes == 15
    assert 30 * 10**9 // request_bytes == 13


@pytest.mark.parametrize("name", catalogue())
def test_every_entry_is_determined_but_for_the_width_of_a_state(name: str) -> None:
    entry = catalogue()[name]
    geometry = load_geometry(name, HERE)
    assert all(assumption.startswith("recurrent state in") for assumption in geometry.assumptions)
    assert geometry.model_type in FAMILIES
    assert geometry.bytes_per_token("bf16") + geometry.state_bytes_per_seq() > 0
    assert entry["source"]
    assert entry["hub"].count("/") == 1
    assert name == name.lower()


def test_the_catalogue_covers_every_sort_of_cache() -> None:
    assert len(catalogue()) >= 40
    caches = [cache for name in catalogue() for cache in load_geometry(name, HERE).caches()]
    assert {cache.kind for cache in caches} == {
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
    }
    assert {cache.state.kind for cache in caches if cache.state} == {"mamba", "linear", "conv", "rwkv"}


def test_names_may_be_written_in_capitals() -> None:
    assert load_geometry("Llama-3.1-8B", HERE) == load_geometry("llama-3.1-8b", HERE)


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(ModelError, match=r"'lama-3-8b' is neither .* close names: llama-3-8b, "):
        load_geometry("lama-3-8b", HERE)
    with pytest.raises(ModelError, match=r"models of the catalogue$"):
        load_geometry("#" * 5000, HERE)


def test_a_path_is_relative_to_its_base(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(json.dumps(LLAMA))
    (tmp_path / "without_ending").write_text(json.dumps(LLAMA))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").write_text(json.dumps(LLAMA))
    for name in ("model.json", "without_ending", "folder"):
        assert load_geometry(name, tmp_path).bytes_per_token("bf16") == 2 * 4 * 16 * 2
    with pytest.raises(ModelError, match=r"absent\.json: there is no such file"):
        load_geometry("absent.json", tmp_path)


def test_a_folder_does_not_hide_a_name_of_the_catalogue(tmp_path: Path) -> None:
    (tmp_path / "gpt2").mkdir()
    assert load_geometry("gpt2", tmp_path).name == "gpt2"


class Hub:
    """Stands for huggingface_hub at its boundary: hands out one file and notes what it was asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[dict[str, Any]] = []

    def hf_hub_download(self, **asked: Any) -> str:
        self.asked.append(asked)
        if asked["repo_id"] == "org/absent":
            raise OSError("404 Client Error")
        return str(self.path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    stub = Hub(path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=stub.hf_hub_download))
    return stub


def test_a_config_is_fetched_from_the_hub(hub: Hub) -> None:
    geometry = load_geometry("hf:org/model", HERE)
    assert geometry.name == "hf:org/model"
    assert geometry.bytes_per_token("bf16") == 2 * 4 * 16 * 2
    assert load_geometry("hf:org/model@v1", HERE).layers == geometry.layers
    assert hub.asked == [
        {"repo_id": "org/model", "filename": "config.json", "revision": None},
        {"repo_id": "org/model", "filename": "config.json", "revision": "v1"},
    ]


def test_what_the_hub_does_not_have_is_one_clear_message(hub: Hub) -> None:
    with pytest.raises(ModelError, match=r"hf:org/absent: config\.json could not be fetched \(404 Client Error\)"):
        load_geometry("hf:org/absent", HERE)
    with pytest.raises(ModelError, match="hf:model: a hub repository must be written as hf:org/model"):
        load_geometry("hf:model", HERE)
    assert len(hub.asked) == 1


def test_without_the_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pip install 'kvsim\[hub\]'"):
        load_geometry("hf:org/model", HERE)
