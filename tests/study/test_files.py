"""Results on disk: whole or not at all, and read back as they were."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvsim.engine.results import Results
from kvsim.errors import OutputError
from kvsim.study.files import read_results, remove_other_results, staged, write_results
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import write_scenario

ALL = ("summary", "timeline", "requests", "pressure", "plot")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return simulate(load_scenario(write_scenario(tmp_path_factory.mktemp("scenario"))))


def test_files_appear_when_the_block_ends_well(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with staged(target) as folder:
        (folder / "x.txt").write_text("x")
        assert [path.name for path in target.iterdir()] == [folder.name], "nothing shows before the end"
    assert [path.name for path in target.iterdir()] == ["x.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_when_the_block_fails(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), staged(tmp_path / "a" / "b") as folder:
        (folder / "x.txt").write_text("x")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_failed_run_leaves_what_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("old")
    with pytest.raises(ValueError, match="no"), staged(tmp_path) as folder:
        (folder / "x.txt").write_text("new")
        raise ValueError("no")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x.txt", "old")]


def test_a_place_that_cannot_be_written_to_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="cannot be written to"), staged(target):
            raise AssertionError("the block does not begin")


def test_results_are_read_back_as_they_were(results: Results, tmp_path: Path) -> None:
    write_results(results, tmp_path, ALL)
    again = read_results(tmp_path)
    assert again.timeline.equals(results.timeline)
    assert again.requests.equals(results.requests)
    assert again.summary == results.summary


def test_only_what_is_asked_for_is_written(results: Results, tmp_path: Path) -> None:
    write_results(results, tmp_path, ("requests",))
    assert [path.name for path in tmp_path.iterdir()] == ["requests.parquet"]


def test_columns_and_types_of_the_tables(results: Results, tmp_path: Path) -> None:
    write_results(results, tmp_path, ALL)
    timeline = pl.read_parquet_schema(tmp_path / "timeline.parquet")
    assert list(timeline) == [
        "time_ns",
        "pool_bytes",
        "allocated_bytes",
        "live_bytes",
        "slack_bytes",
        "tail_bytes",
        "reserved_bytes",
        "unused_bytes",
        "padding_bytes",
        "external_bytes",
        "cached_bytes",
        "blank_bytes",
        "logical_bytes",
        "window_saving_bytes",
        "shared_saving_bytes",
        "running",
        "waiting",
        "arrived",
        "admitted",
        "resumed",
        "preempted",
        "refused",
        "finished",
        "rejected",
        "timed_out",
        "aborted",
    ]
    assert set(timeline.values()) == {pl.Int64}
    requests = pl.read_parquet_schema(tmp_path / "requests.parquet")
    assert {name for name, dtype in requests.items() if dtype != pl.Int64} == {"outcome", "reason", "refusal_cause"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pressure.parquet", None, "pressure.parquet: cannot be read"),
        ("summary.json", None, "summary.json: cannot be read: No such file or directory"),
        ("summary.json", "{", "summary.json: not a summary that kvsim run wrote: not JSON"),
        ("summary.json", "[]", "summary.json: not a summary that kvsim run wrote: not a JSON object"),
        ("summary.json", "{}", "summary.json: not a summary that kvsim run wrote: 'pool'"),
        ("timeline.parquet", None, "timeline.parquet: cannot be read"),
        ("timeline.parquet", "no", "timeline.parquet: not a Parquet file that kvsim run wrote"),
        ("requests.parquet", "", "requests.parquet: not a Parquet file that kvsim run wrote"),
    ],
)
def test_missing_and_damaged_files_are_named(
    results: Results, tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    write_results(results, tmp_path, ALL[:-1])
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(OutputError) as caught:
        read_results(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_two_runs_are_not_mixed(results: Results, tmp_path: Path) -> None:
    write_results(results, tmp_path, ALL)
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["metrics"]["slack_peak_bytes"] += 1
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(OutputError, match="its figures are not those of the tables beside it"):
        read_results(tmp_path)
    remove_other_results(tmp_path, ("summary",))
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("size", [None, "x", 0, -1, 1.5, []])
def test_a_summary_with_nonsense_sizes_is_refused(results: Results, tmp_path: Path, size: object) -> None:
    write_results(results, tmp_path, ALL)
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["pool"]["num_blocks"] = size
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(OutputError, match="not a summary that kvsim run wrote: pool has sizes"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda frame: frame.drop("live_bytes"),
        lambda frame: frame.with_columns(frame["live_bytes"].cast(pl.String)),
        lambda frame: frame.select(sorted(frame.columns)),
    ],
)
def test_a_table_with_other_columns_is_refused(results: Results, tmp_path: Path, damage: Any) -> None:
    write_results(results, tmp_path, ALL)
    damage(results.timeline).write_parquet(tmp_path / "timeline.parquet")
    with pytest.raises(OutputError, match=r"timeline\.parquet: not a Parquet file that kvsim run wrote"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda frame: frame.clear(), lambda frame: frame.with_columns(live_bytes=pl.lit(None, pl.Int64))]
)
def test_a_table_without_rows_or_values_is_refused(results: Results, tmp_path: Path, damage: Any) -> None:
    write_results(results, tmp_path, ALL)
    damage(results.timeline).write_parquet(tmp_path / "timeline.parquet")
    with pytest.raises(OutputError, match="not a summary that kvsim run wrote"):
        read_results(tmp_path)


def test_nothing_is_moved_where_one_file_would_replace_a_folder_or_link(tmp_path: Path) -> None:
    (tmp_path / "out" / "b.txt").mkdir(parents=True)
    with (
        pytest.raises(OutputError, match=r"b\.txt: is there already, and is not a regular file"),
        staged(tmp_path / "out") as folder,
    ):
        (folder / "a.txt").write_text("a")
        (folder / "b.txt").write_text("b")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.txt"]


def test_an_interrupt_while_files_are_moved_waits_until_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = os.replace

    def interrupted(source: Path, target: Path) -> None:
        move(source, target)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), staged(tmp_path) as folder:
        for name in ("a.txt", "b.txt"):
            (folder / name).write_text(name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]
