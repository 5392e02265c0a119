"""Plain CSV, JSON lines and Parquet, whose columns the user names."""

from collections.abc import Iterator
from typing import Any

from kvsim.workload.request import Content
from kvsim.workload.traces.fields import (
    count,
    count_in_text,
    json_in_text,
    json_object,
    required,
    time_in_text_ns,
    time_ns,
    timestamp_ns,
    whole_numbers,
)
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.mooncake import MOONCAKE, Blocks
from kvsim.workload.traces.options import Columns, Options
from kvsim.workload.traces.parquet import is_parquet, parquet_records
from kvsim.workload.traces.row import Row
from kvsim.workload.traces.tables import Table


def read_columns(lines: Lines, options: Options) -> Iterator[Row]:
    """A plain table: `columns` says where its prompt and output tokens, its times and the ids of the blocks of its
    prompts are, `time_unit` (else s) what times count, `block_tokens` (else 512, or what the first row shows) what an
    id stands for. A time may also be a text such as 2023-11-16 18:15:46.68, and in CSV ids are a text such as [4, 7].
    In Parquet the place of a row is its number.
    """
    columns = options.columns
    if columns is None:
        lines.refuse_file("the format columns needs a table columns that names them: { prompt, output, time }")
    plain = _Plain(lines, options, columns)
    if is_parquet(lines.path):
        yield from lines.each(parquet_records(lines, columns.names), plain.row)
    elif next(iter(Lines(lines.path)), "").lstrip().startswith("{"):
        yield from lines.each(lines, lambda line: plain.row(json_object(lines, line)))
    else:
        table = Table(lines, columns.names)
        yield from lines.each(table, lambda row: plain.row(table.fields(row), in_text=True))


class _Plain:
    """Records whose columns are named, one after the other."""

    def __init__(self, lines: Lines, options: Options, columns: Columns) -> None:
        self._lines = lines
        self._columns = columns
        self._unit = options.time_unit or "s"
        self._blocks = Blocks(lines, options.block_tokens, MOONCAKE.block_tokens)

    def row(self, record: dict[str, Any] | None, *, in_text: bool = False) -> Row | None:
        if record is None:
            return None
        lines, columns = self._lines, self._columns
        required(lines, record, *columns.names)
        counted = count_in_text if in_text else count
        prompt_tokens = counted(lines, columns.prompt, record[columns.prompt])
        return Row(
            None if columns.time is None else self._time(columns.time, record[columns.time]),
            prompt_tokens,
            None if columns.output is None else counted(lines, columns.output, record[columns.output]),
            None if columns.hash_ids is None else self._content(columns.hash_ids, record, prompt_tokens),
        )

    def _time(self, name: str, value: Any) -> int:
        if not isinstance(value, str):
            return time_ns(self._lines, name, value, self._unit)
        if ":" in value:
            return timestamp_ns(self._lines, name, value)
        return time_in_text_ns(self._lines, name, value, self._unit)

    def _content(self, name: str, record: dict[str, Any], prompt_tokens: int) -> Content | None:
        value = record[name]
        if value is None or value == "":
            return None
        if isinstance(value, str):
            value = json_in_text(self._lines, name, value)
        return self._blocks.content(name, whole_numbers(self._lines, name, value), prompt_tokens)
