import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from kvsim.errors import TraceError
from kvsim.workload.request import Span
from kvsim.workload.traces import Columns, Options, Row, Trace, read_rows

COLUMNS = Columns(prompt="in", output="out", time="at")


def read(path: Path, columns: Columns = COLUMNS, **options: str) -> list[Row]:
    return list(read_rows(path, "columns", Options(columns=columns, **options)))  # type: ignore[arg-type]


def test_parquet_is_read_in_its_order(tmp_path: Path) -> None:
    frame = pl.DataFrame({"x": [0] * 70_000, "in": range(1, 70_001), "out": [2] * 70_000, "at": range(70_000)})
    frame.write_parquet(tmp_path / "t")
    assert read(tmp_path / "t", time_unit="us") == [Row(1000 * n, n + 1, 2) for n in range(70_000)]


def test_parquet_may_hold_times_of_day(tmp_path: Path) -> None:
    start = datetime(2024, 5, 10, 0, 0, 1, 500_000)
    for zone in (None, UTC):
        times = [start.replace(tzinfo=zone), start.replace(tzinfo=zone) + timedelta(microseconds=7)]
        pl.DataFrame({"in": [1, 2], "out": [3, 4], "at": times}).write_parquet(tmp_path / "t")
        requests = list(Trace(path="t", columns=COLUMNS).requests(tmp_path))
        assert [request.arrival_ns for request in requests] == [0, 7_000]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"in": [3, None]}, "t:2: in must be a whole number from 1 to 1,000,000,000, got None"),
        ({"in": [3, -1]}, "t:2: in must be a whole number from 1 to 1,000,000,000, got -1"),
        ({"out": [0, 1]}, "t:1: out must be a whole number from 1 to 1,000,000,000, got 0"),
        ({"out": [1.5, 1]}, "t:1: out must be a whole number from 1 to 1,000,000,000, got 1.5"),
        ({"at": [1, -1]}, "t:2: at must be a number of s that is not negative and below 10^21 ns, got -1"),
        ({"at": ["1", "x"]}, "t:2: at must be a number of s, such as 12.5, got 'x'"),
    ],
)
def test_a_bad_row_of_parquet_is_named_by_its_number(
    values: dict[str, list[object]], message: str, tmp_path: Path
) -> None:
    pl.DataFrame({"in": [1, 1], "out": [1, 1], "at": [1, 2], **values}, strict=False).write_parquet(tmp_path / "t")
    with pytest.raises(TraceError) as caught:
        read(tmp_path / "t")
    assert str(caught.value) == f"{tmp_path / message}"


def test_damaged_or_other_parquet_is_refused(tmp_path: Path) -> None:
    pl.DataFrame({"in": [1], "at": [1]}).write_parquet(tmp_path / "t")
    with pytest.raises(TraceError, match="t: column out is missing, found in, at"):
        read(tmp_path / "t")
    (tmp_path / "u").write_bytes((tmp_path / "t").read_bytes()[:-9])
    with pytest.raises(TraceError, match="u: not Parquet that can be read"):
        read(tmp_path / "u")


def test_json_lines_have_their_keys_named(tmp_path: Path) -> None:
    (tmp_path / "t").write_text('{"in": 3, "out": 4, "at": 0.5}\n\n{"in": 3, "at": "2024-05-10 00:00:00"}\n')
    with pytest.raises(TraceError, match="t:3: out is missing"):
        read(tmp_path / "t")
    assert read(tmp_path / "t", Columns(prompt="in")) == [Row(None, 3, None), Row(None, 3, None)]


def test_a_file_in_which_no_times_are_named_is_not_replayed(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("in,out\n1,2\n")
    with pytest.raises(TraceError, match="t: has no times"):
        list(Trace(path="t", columns=Columns(prompt="in", output="out")).requests(tmp_path))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_ids_of_blocks_may_be_named(kind: str, tmp_path: Path) -> None:
    ids = [[7, 8], [7, 9, 4], None]
    if kind == "csv":
        (tmp_path / "t").write_text('in,ids\n20,"[7, 8]"\n33,"[7, 9, 4]"\n5,\n')
    elif kind == "jsonl":
        lengths = (20, 33, 5)
        records = [{"in": tokens, "ids": of_row} for tokens, of_row in zip(lengths, ids, strict=True)]
        (tmp_path / "t").write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        pl.DataFrame({"in": [20, 33, 5], "ids": ids}).write_parquet(tmp_path / "t")
    columns = Columns(prompt="in", hash_ids="ids")
    found = list(read_rows(tmp_path / "t", "columns", Options(columns=columns, block_tokens=16)))
    assert [row.prompt for row in found] == [
        (Span(7, 0, 16), Span(8, 0, 4)),
        (Span(7, 0, 16), Span(9, 0, 16), Span(4, 0, 1)),
        None,
    ]
    assert Trace(path="t", columns=columns).reader(tmp_path).lacks == ("times", "outputs", "sessions")
    assert Trace(path="t", columns=COLUMNS).reader(tmp_path).lacks == ("content", "sessions")


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        ("7 8", "ids must be a text such as [4, 7], got '7 8'"),
        ('"[7, 8"', "ids must be a text such as [4, 7], got '[7, 8'"),
        ("[7]", "ids must have one id per 16 tokens, 3 for input_length 33, got 1"),
        ("7", "ids must be a list of whole numbers"),
        ('"[1.5, 2, 3]"', "ids must be a list of whole numbers"),
    ],
)
def test_ids_that_are_none_are_refused(cell: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(f"in,ids\n33,{cell}\n")
    with pytest.raises(TraceError) as caught:
        list(
            read_rows(tmp_path / "t", "columns", Options(columns=Columns(prompt="in", hash_ids="ids"), block_tokens=16))
        )
    assert str(caught.value) == f"{tmp_path}/t:2: {rule}"
