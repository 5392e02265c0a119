"""The files that a scenario names are known by their digest."""

import hashlib
from pathlib import Path

import pytest

from kvsim.study.input_files import _beside, _named_file
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.workload.traces import Trace
from tests.study.makers import AZURE_ROWS, TINY_TRACE, write_scenario


def test_a_run_says_which_files_it_was_made_of(tmp_path: Path) -> None:
    rows = AZURE_ROWS.encode()
    files = simulate(load_scenario(write_scenario(tmp_path, TINY_TRACE))).summary["files"]
    assert files == {"trace.csv": {"bytes": len(rows), "sha256": hashlib.sha256(rows).hexdigest()}}
    assert simulate(load_scenario(write_scenario(tmp_path))).summary["files"] == {}


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    before = simulate(load_scenario(path)).summary["files"]
    (tmp_path / "trace.csv").write_bytes(AZURE_ROWS.replace("30,9", "31,9").encode())
    assert simulate(load_scenario(path)).summary["files"] != before


def test_a_folder_of_a_model_and_files_beside_a_trace_count(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert _named_file("model", tmp_path) == {"model/config.json": tmp_path / "model" / "config.json"}
    assert _named_file("missing", tmp_path) == {}
    (tmp_path / "trace.jsonl").write_text('{"hash_ids": {"sys_prompt": [], "passages_ids": [], "user_input": []}}')
    (tmp_path / "1_sys_prompt.jsonl").write_text("")
    (tmp_path / "other.jsonl").write_text("")
    assert _beside(Trace(path="trace.jsonl"), tmp_path) == {"1_sys_prompt.jsonl": tmp_path / "1_sys_prompt.jsonl"}
    assert _beside(Trace(path="trace.jsonl", format="mooncake"), tmp_path) == {}


def test_a_model_on_the_hub_counts_by_what_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.model.hub.fetch_config", lambda repository: tmp_path / repository)
    assert _named_file("hf:a/b", tmp_path) == {"hf:a/b": tmp_path / "a/b"}
