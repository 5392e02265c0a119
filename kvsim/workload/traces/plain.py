"""Plain CSV, JSON lines and Parquet, whose columns the user names."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvsim.workload.traces.fields import (
    count,
    count_in_text,
    json_object,
    required,
    time_in_text_ns,
    time_ns,
    timestamp_ns,
)
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.options import Columns, Options
from kvsim.workload.traces.row import Row
from kvsim.workload.traces.tables import Table

_PARQUET_MAGIC = b"PAR1"
_BATCH = 65_536


def read_columns(lines: Lines, options: Options) -> Iterator[Row]:
    """A plain table: `columns` says where its prompt and output tokens and its times are, `time_unit` (else s) what
    times count; a time may also be a text such as 2023-11-16 18:15:46.68. In Parquet the place of a row is its number.
    """
    columns = options.columns
    if columns is None:
        lines.refuse_file("the format columns needs a table columns that names them: { prompt, output, time }")
    unit = options.time_unit or "s"
    if is_parquet(lines.path):
        yield from lines.each(_parquet(lines, columns), lambda record: _row(lines, columns, unit, record))
    elif next(iter(Lines(lines.path)), "").lstrip().startswith("{"):
        yield from lines.each(lines, lambda line: _row(lines, columns, unit, json_object(lines, line)))
    else:
        table = Table(lines, _named(columns))
        yield from lines.each(table, lambda row: _row(lines, columns, unit, table.fields(row), in_text=True))


def is_parquet(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == _PARQUET_MAGIC


def _named(columns: Columns) -> list[str]:
    return [name for name in (columns.prompt, columns.output, columns.time) if name is not None]


def _row(lines: Lines, columns: Columns, unit: str, record: dict[str, Any] | None, in_text: bool = False) -> Row | None:
    if record is None:
        return None
    required(lines, record, *_named(columns))
    counted = count_in_text if in_text else count
    return Row(
        None if columns.time is None else _time(lines, columns.time, record[columns.time], unit),
        counted(lines, columns.prompt, record[columns.prompt]),
        None if columns.output is None else counted(lines, columns.output, record[columns.output]),
    )


def _time(lines: Lines, name: str, value: Any, unit: str) -> int:
    if not isinstance(value, str):
        return time_ns(lines, name, value, unit)
    return timestamp_ns(lines, name, value) if ":" in value else time_in_text_ns(lines, name, value, unit)


def _parquet(lines: Lines, columns: Columns) -> Iterator[dict[str, Any]]:
    """A batch of rows at a time."""
    import polars as pl

    names = _named(columns)
    try:
        table = pl.scan_parquet(lines.path)
        found = table.collect_schema()
        missing = [name for name in names if name not in found]
        if missing:
            lines.refuse_file(f"column {missing[0]} is missing, found {', '.join(found.names())}")
        times = [name for name in names if found[name] == pl.Datetime]
        table = table.select(names).with_columns(pl.col(times).dt.strftime("%Y-%m-%d %H:%M:%S%.9f"))
        start = 0
        while (batch := table.slice(start, _BATCH).collect()).height:
            start += batch.height
            for record in batch.iter_rows(named=True):
                lines.number += 1
                yield record
    except pl.exceptions.PolarsError as error:
        lines.refuse_file(f"not Parquet that can be read: {error}")
