"""What one run came to."""

import json
from pathlib import Path

import polars as pl
import pytest

from kvsim.engine.metrics import METRICS
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.study.sweep_record import FIGURES, Record, figure_column, record_of
from tests.study.makers import write_scenario


def test_a_record_has_all_figures_of_the_run(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    record, results = record_of(scenario), simulate(scenario)
    assert tuple(record.figures) == FIGURES
    assert {metric.name: record.figures[metric.name] for metric in METRICS} == results.metrics
    assert (record.outcome, record.error, record.notes) == ("finished", None, results.notes)
    pool = ("num_blocks", "usable_blocks", "block_size_tokens", "block_bytes", "bytes_per_token", "max_model_len")
    assert [record.figures[name] for name in pool] == [33, 32, 4, 128, 32, 128]


def test_a_record_is_read_back_as_it_was(tmp_path: Path) -> None:
    record = record_of(load_scenario(write_scenario(tmp_path)))
    assert Record.of_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_stalled_run_says_who_blocks_it(tmp_path: Path) -> None:
    overrides = ("memory.num_blocks=6", "engine.reject_unservable=false")
    record = record_of(load_scenario(write_scenario(tmp_path), overrides))
    assert record.outcome == "stalled"
    assert record.error is not None
    assert record.error.startswith("request ")
    assert record.figures["unfinished"]


def test_a_run_that_cannot_end_is_the_record_of_a_failure(tmp_path: Path) -> None:
    record = record_of(load_scenario(write_scenario(tmp_path), "engine.latency.base=100000 h"))
    assert record.outcome == "failed"
    assert record.error is not None
    assert "must fit in 64 bits" in record.error
    assert record.figures == {}


def test_a_defect_is_named_by_its_type() -> None:
    record = record_of(None)  # type: ignore[arg-type]
    assert record == Record.failed("AttributeError: 'NoneType' object has no attribute 'model'")


@pytest.mark.parametrize("change", [{"outcome": "lost"}, {"figures": {}}, {"notes": None}])
def test_what_is_no_record_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    written = record_of(load_scenario(write_scenario(tmp_path))).to_json()
    with pytest.raises((ValueError, TypeError)):
        Record.of_json({**written, **change})


@pytest.mark.parametrize("value", ["7", True, [], float("nan"), 10**400])
def test_a_figure_must_be_a_number(tmp_path: Path, value: object) -> None:
    written = record_of(load_scenario(write_scenario(tmp_path))).to_json()
    with pytest.raises(ValueError, match="not the figures"):
        Record.of_json({**written, "figures": {**written["figures"], "preemptions": value}})


def test_columns_have_the_type_of_their_figure_also_without_values() -> None:
    assert figure_column("slack_share", [None]).dtype == pl.Float64
    assert figure_column("slack_share", [0, 0.5]).to_list() == [0.0, 0.5]
    assert figure_column("preempted", [None, 3]).dtype == pl.Int64
    assert figure_column("live_mean_bytes", [3, 0.5]).dtype == pl.Float64
    assert figure_column("worst_case_bytes", [2**70]).to_list() == [2.0**70]
