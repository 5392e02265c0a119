"""Trace files: requests that were really asked, in the order of the file.

A format is a generator of requests and one line in READERS. Readers stream: a file is never held whole. Times
start at the first request; a bad line is an error that names file and line.
"""

import csv
import gzip
import json
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime
from fractions import Fraction
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

from attrs import field, frozen, validators

from kvsim.errors import TraceError
from kvsim.rules import MAX_TOKENS, between, more_than_zero, not_blank, one_of, shown
from kvsim.workload.request import Request, Span, make_request

MOONCAKE_BLOCK_TOKENS = 512
_GZIP_MAGIC = b"\x1f\x8b"
_MOST_DIGITS = 100
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))?", re.ASCII)
"""Longer numbers are not read at all: Python refuses to, and a message need not repeat them."""


class Row(NamedTuple):
    """One request of a trace, times in nanoseconds from any origin."""

    time_ns: int
    prompt_tokens: int
    output_tokens: int
    prompt: tuple[Span, ...] | None = None


class Lines:
    """The lines of a plain or gzip text file; knows where it is, so that an error can name the line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        try:
            mode = self.path.stat().st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                raise TraceError(f"{self.path}: is a device, not a file")
            with self.path.open("rb") as file, self._unzipped(file) as lines:
                for line in lines:
                    self.number += 1
                    yield line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except EOFError:
            self._broken("the gzip stream is cut off")
        except (gzip.BadGzipFile, zlib.error) as error:
            self._broken(f"not a sound gzip stream ({error})")
        except UnicodeDecodeError:
            self.refuse("not UTF-8 text")
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror}") from error

    def _unzipped(self, file: BufferedReader) -> BinaryIO:
        """The same file, or what is zipped in it; it is opened once, as it may be a pipe."""
        if file.peek(2)[:2] == _GZIP_MAGIC:
            return cast(BinaryIO, gzip.open(file))
        return file

    def _broken(self, why: str) -> NoReturn:
        raise TraceError(f"{self.path}: {why} after line {self.number}") from None

    def refuse(self, why: str) -> NoReturn:
        raise TraceError(f"{self.path}:{self.number}: {why}")


def read_azure(lines: Lines) -> Iterator[Row]:
    """Azure LLM inference trace 2023, CSV: TIMESTAMP, ContextTokens, GeneratedTokens; no content."""
    rows = _csv_rows(lines)
    header = next(rows, None)
    if header is None:
        return
    columns = {}
    for name in ("TIMESTAMP", "ContextTokens", "GeneratedTokens"):
        if name not in header:
            if header[:1] and header[0].lstrip().startswith("{"):
                lines.refuse("must be CSV with a header, got JSON: is the format mooncake?")
            lines.refuse(f"column {name} is missing, found {', '.join(header) or 'none'}")
        if header.count(name) > 1:
            lines.refuse(f"column {name} stands there {header.count(name)} times")
        columns[name] = header.index(name)
    time, prompt, output = columns.values()
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            lines.refuse(f"must have {len(header)} columns, got {len(row)}")
        yield Row(
            _parse_timestamp(lines, row[time]),
            _parse_count(lines, "ContextTokens", row[prompt]),
            _parse_count(lines, "GeneratedTokens", row[output]),
        )


def _csv_rows(lines: Lines) -> Iterator[list[str]]:
    try:
        yield from csv.reader(lines)
    except csv.Error as error:
        lines.refuse(f"not CSV: {error}")


def read_mooncake(lines: Lines) -> Iterator[Row]:
    """Mooncake JSONL: timestamp (ms), input_length, output_length, hash_ids of 512-token prefix blocks."""
    for line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            hint = ": is the format azure?" if line.startswith("TIMESTAMP") else ""
            lines.refuse(f"not JSON: {error.msg}{hint}")
        except (ValueError, RecursionError):
            lines.refuse("not JSON that can be read: a number too long or nested too deep")
        if not isinstance(record, dict):
            lines.refuse("must be a JSON object")
        values = {}
        for name in ("timestamp", "input_length", "output_length", "hash_ids"):
            if name not in record:
                lines.refuse(f"{name} is missing")
            values[name] = record[name]
        prompt_tokens = _check_count(lines, "input_length", values["input_length"])
        yield Row(
            _check_milliseconds(lines, values["timestamp"]) * 10**6,
            prompt_tokens,
            _check_count(lines, "output_length", values["output_length"]),
            _mooncake_content(lines, values["hash_ids"], prompt_tokens),
        )


def _mooncake_content(lines: Lines, hash_ids: Any, prompt_tokens: int) -> tuple[Span, ...]:
    """One source per id; the last, usually partial, block has an id of its own."""
    if not isinstance(hash_ids, list) or not all(type(block) is int for block in hash_ids):
        lines.refuse("hash_ids must be a list of whole numbers")
    needed = -(-prompt_tokens // MOONCAKE_BLOCK_TOKENS)
    if len(hash_ids) != needed:
        lines.refuse(
            f"hash_ids must have one id per {MOONCAKE_BLOCK_TOKENS} tokens, {needed} for input_length "
            f"{prompt_tokens}, got {len(hash_ids)}"
        )
    spans = [Span(block, 0, MOONCAKE_BLOCK_TOKENS) for block in hash_ids]
    spans[-1] = Span(hash_ids[-1], 0, prompt_tokens - (needed - 1) * MOONCAKE_BLOCK_TOKENS)
    return tuple(spans)


class Reader(NamedTuple):
    """How a format is read, and whether it says what the prompts contain."""

    read: Callable[[Lines], Iterator[Row]]
    has_content: bool


READERS: dict[str, Reader] = {
    "azure": Reader(read_azure, has_content=False),
    "mooncake": Reader(read_mooncake, has_content=True),
}


def read_rows(path: Path, format: str) -> Iterator[Row]:
    """The rows of a trace file; raises TraceError for an unknown format, or a file or line that cannot be used."""
    if format not in READERS:
        raise TraceError(f"the format of a trace must be one of {', '.join(READERS)}, got {format!r}")
    return READERS[format].read(Lines(path))


@frozen(kw_only=True)
class Trace:
    """A replay of a trace file at its own times divided by `speedup`, of all its rows or the first `limit`."""

    path: str = field(validator=not_blank)
    format: str = field(validator=one_of(READERS))
    speedup: float = field(default=1.0, validator=more_than_zero(1_000_000))
    limit: int | None = field(default=None, validator=validators.optional(between(1, 10**12)))

    @property
    def has_content(self) -> bool:
        return READERS[self.format].has_content

    def requests(self, base: Path) -> Iterator[Request]:
        """The requests in the order of the file, whose times must not go back; `base` is what paths start from.

        Raises TraceError for a file or line that cannot be used, or a file without requests.
        """
        lines = Lines(base / self.path)
        speedup = Fraction(str(self.speedup))  # 0.1 is a tenth, as it was written
        first_ns: int | None = None
        last_ns = 0
        for request_id, row in enumerate(islice(READERS[self.format].read(lines), self.limit)):
            if first_ns is None:
                first_ns = last_ns = row.time_ns
            if row.time_ns < last_ns:
                lines.refuse("its time lies before that of the row above; sort the file by time")
            last_ns = row.time_ns
            arrival_ns = (row.time_ns - first_ns) * speedup.denominator // speedup.numerator
            prompt = row.prompt or (Span(f"user:{request_id}", 0, row.prompt_tokens),)
            yield make_request(request_id, arrival_ns, prompt, row.output_tokens)
        if first_ns is None:
            raise TraceError(f"{lines.path}: has no requests")


def _parse_timestamp(lines: Lines, text: str) -> int:
    """Nanoseconds since 1970 of "2023-11-16 18:15:46.6805900", read as UTC and without rounding."""
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError("another form")
        seconds = int(datetime.fromisoformat(f"{match[1]}+00:00").timestamp())
    except ValueError:
        lines.refuse(
            f"TIMESTAMP must look like 2023-11-16 18:15:46.6805900, with at most nine digits after the point, "
            f"got {shown(text)}"
        )
    return seconds * 10**9 + int((match[2] or "").ljust(9, "0"))


def _parse_count(lines: Lines, name: str, text: str) -> int:
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > _MOST_DIGITS:
        lines.refuse(f"{name} must be a whole number from 1 to {MAX_TOKENS:,}, got {shown(text)}")
    return _check_count(lines, name, int(digits))


def _check_count(lines: Lines, name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_TOKENS:
        lines.refuse(f"{name} must be a whole number from 1 to {MAX_TOKENS:,}, got {shown(value)}")
    return int(value)


def _check_milliseconds(lines: Lines, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 10**12:
        lines.refuse(f"timestamp must be a whole number of milliseconds from 0 to 10^12, got {shown(value)}")
    return int(value)
