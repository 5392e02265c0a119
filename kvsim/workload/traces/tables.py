"""Tables of lengths: the CSV formats. None says what prompts contain."""

import csv
from collections.abc import Iterator, Sequence

from kvsim.workload.traces.fields import count_in_text, time_in_text_ns, timestamp_ns
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


def read_burstgpt(lines: Lines, _options: Options) -> Iterator[Row]:
    """BurstGPT of all releases: Timestamp (s), Request tokens, Response tokens, and Session ID in later ones.

    Failed requests have no tokens: they are bad rows.
    """
    table = Table(lines, ("Timestamp", "Request tokens", "Response tokens"), ("Session ID",))

    def convert(row: list[str]) -> Row:
        fields = table.fields(row)
        return Row(
            time_in_text_ns(lines, "Timestamp", fields["Timestamp"], "s"),
            count_in_text(lines, "Request tokens", fields["Request tokens"]),
            count_in_text(lines, "Response tokens", fields["Response tokens"]),
            session=fields.get("Session ID"),
        )

    yield from lines.each(table, convert)


def read_turn_lengths(lines: Lines, _options: Options) -> Iterator[Row]:
    """Lengths of conversations, turn by turn: conversation, human_tokens, gpt_tokens, without what was said before."""
    table = Table(lines, ("conversation", "human_tokens", "gpt_tokens"))

    def convert(row: list[str]) -> Row:
        fields = table.fields(row)
        return Row(
            None,
            count_in_text(lines, "human_tokens", fields["human_tokens"]),
            count_in_text(lines, "gpt_tokens", fields["gpt_tokens"]),
            session=fields["conversation"],
        )

    yield from lines.each(table, convert)


def read_vidur(lines: Lines, _options: Options) -> Iterator[Row]:
    """Vidur: num_prefill_tokens, num_decode_tokens, and arrived_at (s) where requests were timed."""
    return _read(lines, "num_prefill_tokens", "num_decode_tokens", "arrived_at")


def read_splitwisesim(lines: Lines, _options: Options) -> Iterator[Row]:
    """SplitwiseSim: arrival_timestamp (s), prompt_size, token_size."""
    return _read(lines, "prompt_size", "token_size", "arrival_timestamp", timed=True)


def _read(lines: Lines, prompt: str, output: str, time: str, *, timed: bool = False) -> Iterator[Row]:
    table = Table(lines, (time, prompt, output) if timed else (prompt, output), (time,))

    def convert(row: list[str]) -> Row:
        fields = table.fields(row)
        return Row(
            time_in_text_ns(lines, time, fields[time], "s") if time in fields else None,
            count_in_text(lines, prompt, fields[prompt]),
            count_in_text(lines, output, fields[output]),
        )

    yield from lines.each(table, convert)
