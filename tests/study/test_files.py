"""Results on disk: whole or not at all, and read back as they were."""

from pathlib import Path

import polars as pl
import pytest

from kvsim.engine.results import Results
from kvsim.errors import OutputError
from kvsim.study.files import read_results, staged, write_results
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import write_scenario

ALL = ("summary", "timeline", "requests", "plot")


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
    assert {name for name, dtype in requests.items() if dtype != pl.Int64} == {"outcome", "reason"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
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
    write_results(results, tmp_path, ("summary", "timeline", "requests"))
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(OutputError) as caught:
        read_results(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
