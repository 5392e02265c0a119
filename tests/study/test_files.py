"""Results on disk: whole or not at all, and read back as they were."""

import hashlib
import json
import os
import signal
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from kvsim.engine.results import Results
from kvsim.engine.tables import SCHEMAS, TableName, whole
from kvsim.engine.timeline import ROWS_AT_ONCE
from kvsim.errors import OutputError
from kvsim.study.files import (
    FILES,
    TablesInFiles,
    read_results,
    remove_other_results,
    staged,
    tables_of,
    write_results,
)
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.study.sums import SUMS, write_sums
from tests.study.makers import write_scenario

ALL = ("summary", "timeline", "requests", "pressure", "plot")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return simulate(load_scenario(write_scenario(tmp_path_factory.mktemp("scenario"))))


def write(results: Results, folder: Path, files: tuple[str, ...] = ALL) -> None:
    """Tables and all, as a run with these files leaves them."""
    tables = TablesInFiles(folder, tables_of(files))
    for name in SCHEMAS:
        for part in results.tables.parts(name):
            tables.add(name, part)
    tables.close()
    write_results(results, folder, files)


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
    write(results, tmp_path)
    again = read_results(tmp_path)
    assert again.timeline.equals(results.timeline)
    assert again.requests.equals(results.requests)
    assert again.pressure.equals(results.pressure)
    assert again.summary == results.summary


def test_a_run_that_keeps_its_tables_in_files_has_the_results_of_one_that_holds_them(
    results: Results, tmp_path: Path
) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    in_files = simulate(scenario, tables=TablesInFiles(tmp_path, tables_of(ALL)))
    assert in_files.timeline.equals(results.timeline)
    assert in_files.requests.equals(results.requests)
    assert in_files.pressure.equals(results.pressure)
    assert in_files.metrics == results.metrics


@pytest.mark.parametrize(
    "files", [("requests",), ("summary", "pressure"), ("timeline",), ("plot",), ("timeline", "plot"), ()]
)
def test_only_what_is_asked_for_is_written(results: Results, tmp_path: Path, files: tuple[str, ...]) -> None:
    write(results, tmp_path, files)
    sums = {SUMS} if set(files) - {"plot"} else set()
    assert {path.name for path in tmp_path.iterdir()} == {FILES[name] for name in files} | sums


def test_a_picture_is_drawn_from_the_timeline_although_that_is_not_asked_for() -> None:
    assert tables_of(("summary", "plot")) == ["timeline"]
    assert tables_of(("pressure", "requests")) == ["requests", "pressure"]
    assert tables_of(("summary",)) == []


# tables written as rows come


def make_table(num_rows: int, first: int = 0) -> pl.DataFrame:
    """A table of pressure whose rows can be told apart."""
    numbers = pl.int_range(first, first + num_rows, eager=True)
    values = {
        name: numbers if dtype == pl.Int64() else numbers.cast(dtype) for name, dtype in SCHEMAS["pressure"].items()
    }
    return pl.DataFrame(values, schema=SCHEMAS["pressure"])


def write_table(folder: Path, parts: Iterable[pl.DataFrame], name: TableName = "pressure") -> TablesInFiles:
    folder.mkdir(exist_ok=True)
    tables = TablesInFiles(folder, [name])
    for part in parts:
        tables.add(name, part)
    tables.close()
    return tables


@pytest.mark.parametrize(
    "heights",
    [
        [5],
        [ROWS_AT_ONCE],
        [ROWS_AT_ONCE - 1, 1, 1],
        [ROWS_AT_ONCE, ROWS_AT_ONCE],
        [7, 3 * ROWS_AT_ONCE, 0, ROWS_AT_ONCE - 1],
        [ROWS_AT_ONCE // 2] * 5,
    ],
)
def test_rows_that_come_in_parts_are_those_of_the_whole_in_one_file(tmp_path: Path, heights: list[int]) -> None:
    parts = [make_table(height, sum(heights[:at])) for at, height in enumerate(heights)]
    tables = write_table(tmp_path, parts)
    expected = make_table(sum(heights))
    assert [path.name for path in tmp_path.iterdir()] == ["pressure.parquet"]
    assert_frame_equal(pl.read_parquet(tmp_path / "pressure.parquet"), expected)
    assert_frame_equal(whole(tables, "pressure"), expected)
    read = list(tables.parts("pressure", ["cause", "steps"]))
    assert max(part.height for part in read) <= ROWS_AT_ONCE
    assert_frame_equal(pl.concat(read), expected.select("cause", "steps"))


def test_the_same_parts_give_the_same_bytes(tmp_path: Path) -> None:
    heights = [ROWS_AT_ONCE - 1, 9, 2 * ROWS_AT_ONCE, 1, ROWS_AT_ONCE]
    parts = [make_table(height, sum(heights[:at])) for at, height in enumerate(heights)]
    for folder in ("once", "again"):
        write_table(tmp_path / folder, parts)
    once, again = ((tmp_path / folder / "pressure.parquet").read_bytes() for folder in ("once", "again"))
    assert once == again


def test_equal_runs_leave_equal_bytes(tmp_path: Path) -> None:
    for folder in ("once", "again"):
        (tmp_path / folder).mkdir()
        scenario = load_scenario(write_scenario(tmp_path))
        results = simulate(scenario, tables=TablesInFiles(tmp_path / folder, tables_of(ALL)))
        write_results(results, tmp_path / folder, ALL)
    for name in (FILES[name] for name in ALL):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "again" / name).read_bytes(), name


def test_a_table_without_rows_is_a_file_with_its_columns(tmp_path: Path) -> None:
    tables = write_table(tmp_path, [])
    assert list(pl.read_parquet_schema(tmp_path / "pressure.parquet").items()) == list(SCHEMAS["pressure"].items())
    assert [part.height for part in tables.parts("pressure")] == [0]


def test_tables_that_are_not_named_are_not_kept(tmp_path: Path) -> None:
    tables = TablesInFiles(tmp_path, ["requests"])
    tables.add("pressure", make_table(ROWS_AT_ONCE))
    tables.close()
    assert [path.name for path in tmp_path.iterdir()] == ["requests.parquet"]


def test_a_table_longer_than_what_is_held_is_read_back_whole(results: Results, tmp_path: Path) -> None:
    """Rows of pressure that say nothing new: preemptions are counted by requests."""
    write(results, tmp_path)
    more = make_table(2 * ROWS_AT_ONCE).with_columns(event=pl.lit("preempted"))
    write_table(tmp_path, chain(results.tables.parts("pressure"), [more]))
    write_sums(tmp_path, map(FILES.__getitem__, ALL))
    assert_frame_equal(read_results(tmp_path).pressure, pl.concat([results.pressure, more]))


def test_columns_and_types_of_the_tables(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
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
        "host_bytes",
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
    write(results, tmp_path, ALL[:-1])
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(OutputError) as caught:
        read_results(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_of_two_runs_are_not_mixed(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["metrics"]["slack_peak_bytes"] += 1
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(OutputError, match="its figures are not those of the tables beside it"):
        read_results(tmp_path)
    remove_other_results(tmp_path, ("summary",))
    assert {path.name for path in tmp_path.iterdir()} == {"summary.json", SUMS}
    remove_other_results(tmp_path, ("plot",))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["summary", "timeline", "requests", "pressure"])
def test_a_file_that_was_changed_in_any_way_is_refused(results: Results, tmp_path: Path, name: str) -> None:
    """Also where it is sound in itself, and its figures are those of the rest."""
    write(results, tmp_path, ALL[:-1])
    path = tmp_path / FILES[name]
    if name == "summary":
        path.write_text(path.read_text().replace("Does a tiny pool do?", "Does a small pool do?"))
    else:
        pl.read_parquet(path).write_parquet(path, compression="gzip")
    with pytest.raises(OutputError) as caught:
        read_results(tmp_path)
    assert str(caught.value).startswith(f"{path}: is not as kvsim run wrote it (its SHA-256 is not in SHA256SUMS")


def test_digests_are_those_that_sha256sum_checks(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    lines = (tmp_path / SUMS).read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == sorted(
        FILES[name] for name in ALL if name not in ("plot", "blocks")
    )
    for line in lines:
        digest, name = line.split("  ")
        assert digest == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("size", [None, "x", 0, -1, 1.5, []])
def test_a_summary_with_nonsense_sizes_is_refused(results: Results, tmp_path: Path, size: object) -> None:
    write(results, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary["pool"]["num_blocks"] = size
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(OutputError, match="not a summary that kvsim run wrote: pool has sizes"):
        read_results(tmp_path)


@pytest.mark.parametrize("part", ["versions", "scenario", "files", "geometry", "pool"])
@pytest.mark.parametrize("nonsense", [None, 3, "x", []])
def test_what_was_put_in_is_tables(results: Results, tmp_path: Path, part: str, nonsense: object) -> None:
    write(results, tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text()) | {part: nonsense}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(OutputError, match=r"summary\.json: not a summary that kvsim run wrote: "):
        read_results(tmp_path)


@pytest.mark.parametrize("number", ["Infinity", "NaN", "1e999"])
def test_a_number_that_json_does_not_know_is_refused(results: Results, tmp_path: Path, number: str) -> None:
    write(results, tmp_path)
    written = (tmp_path / "summary.json").read_text().replace('"block_size": 4', f'"block_size": {number}')
    (tmp_path / "summary.json").write_text(written)
    with pytest.raises(OutputError, match="not a summary that kvsim run wrote: not JSON"):
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
    write(results, tmp_path)
    damage(results.timeline).write_parquet(tmp_path / "timeline.parquet")
    with pytest.raises(OutputError, match=r"timeline\.parquet: not a Parquet file that kvsim run wrote"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda frame: frame.clear(), lambda frame: frame.with_columns(live_bytes=pl.lit(None, pl.Int64))]
)
def test_a_table_without_rows_or_values_is_refused(results: Results, tmp_path: Path, damage: Any) -> None:
    write(results, tmp_path)
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
