"""Files that are written while rows come."""

from pathlib import Path
from threading import active_count

import polars as pl
import pytest

from kvsim.study.parquet_stream import ParquetStream

SCHEMA = {"number": pl.Int64, "name": pl.String}


def rows(start: int, count: int) -> pl.DataFrame:
    return pl.DataFrame(
        {"number": range(start, start + count), "name": [f"row {start + i}" for i in range(count)]}, schema=SCHEMA
    )


def write(path: Path, *frames: pl.DataFrame) -> None:
    stream = ParquetStream(path, SCHEMA, 10)
    for frame in frames:
        stream.write(frame)
    stream.close()


def test_all_rows_are_there_in_their_order(tmp_path: Path) -> None:
    before = active_count()
    write(tmp_path / "a", rows(0, 10), rows(10, 10), rows(20, 3))
    assert pl.read_parquet(tmp_path / "a").equals(rows(0, 23))
    assert active_count() == before


def test_equal_frames_make_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, *(rows(10 * part, 10) for part in range(20)))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_may_have_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "a")
    assert pl.read_parquet(tmp_path / "a").equals(pl.DataFrame(schema=SCHEMA))


def test_what_cannot_be_written_is_said_where_rows_come_from(tmp_path: Path) -> None:
    before = active_count()
    (tmp_path / "a").mkdir()
    stream = ParquetStream(tmp_path / "a", SCHEMA, 10)
    try:
        with pytest.raises((OSError, pl.exceptions.PolarsError)):
            for part in range(100):
                stream.write(rows(10 * part, 10))
    finally:
        stream.abandon()
    assert active_count() == before


@pytest.mark.parametrize("num_frames", [0, 1, 5])
def test_what_is_abandoned_is_written_no_more(tmp_path: Path, num_frames: int) -> None:
    before = active_count()
    stream = ParquetStream(tmp_path / "a", SCHEMA, 10)
    for part in range(num_frames):
        stream.write(rows(10 * part, 10))
    stream.abandon()
    assert active_count() == before
    stream.abandon()
