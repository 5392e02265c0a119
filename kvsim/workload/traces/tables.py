"""Tables of lengths: the CSV formats. None says what prompts contain."""

import csv
from collections.abc import Iterator, Sequence

from kvsim.workload.traces.fields import count_in_text, timestamp_ns
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.options import Options
from kvsim.workload.traces.row import Row


class Table:
    """A CSV file with a header; columns are found by name, and those that nobody asks for are not looked at."""

    def __init__(self, lines: Lines, needed: Sequence[str], optional: Sequence[str] = ()) -> None:
        self._lines = lines
        self._rows = self._parsed()
        self._header = header = next(self._rows, [])
        if not header and lines.number == 0:
            return
        for name in needed:
            if name not in header:
                if header and header[0].lstrip().startswith("{"):
                    lines.refuse("must be CSV with a header, got JSON")
                lines.refuse(f"column {name} is missing, found {', '.join(header) or 'none'}")
        for name in (*needed, *optional):
            if header.count(name) > 1:
                lines.refuse(f"column {name} stands there {header.count(name)} times")

    def __iter__(self) -> Iterator[list[str]]:
        return (row for row in self._rows if row)

    def __contains__(self, column: str) -> bool:
        return column in self._header

    def fields(self, row: list[str]) -> dict[str, str]:
        if len(row) != len(self._header):
            self._lines.refuse(f"must have {len(self._header)} columns, got {len(row)}")
        return dict(zip(self._header, row, strict=True))

    def _parsed(self) -> Iterator[list[str]]:
        try:
            yield from csv.reader(self._lines)
        except csv.Error as error:
            self._lines.refuse(f"not CSV: {error}")


def read_azure(lines: Lines, _options: Options) -> Iterator[Row]:
    """Azure LLM inference traces of 2023 and 2024: TIMESTAMP (UTC or with a zone), ContextTokens, GeneratedTokens."""
    table = Table(lines, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))

    def convert(row: list[str]) -> Row:
        fields = table.fields(row)
        return Row(
            timestamp_ns(lines, "TIMESTAMP", fields["TIMESTAMP"]),
            count_in_text(lines, "ContextTokens", fields["ContextTokens"]),
            count_in_text(lines, "GeneratedTokens", fields["GeneratedTokens"]),
        )

    yield from lines.each(table, convert)
