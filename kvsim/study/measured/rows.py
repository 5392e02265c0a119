"""Scrapes that came as tables or from Prometheus' HTTP API: CSV, Parquet, and the JSON of a query_range."""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from kvsim.rules import shown
from kvsim.study.measured.text import (
    Labels,
    MetricsFile,
    Scrapes,
    figure_name,
    is_config,
    number_of,
    parse_labels,
    parse_time_ns,
    split_series,
)

_TIME_UNITS = {"": None, "s": 10**9, "seconds": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_TIME = re.compile(
    r"(?:time|timestamp|ts|date|datetime|unix_?time|scraped_at|scrape_time)(?:[_ ]?(s|seconds|ms|us|ns))?",
    re.IGNORECASE,
)
_NAME_COLUMNS = ("metric", "__name__", "name", "series")
_NUMBERS = ("", "index", "row", "Unnamed: 0")
"""Columns that number rows."""
_VALUE_COLUMNS = ("value", "val")
_LONGEST_ANSWER = 2**30
_LONGEST_ROW = 2**20
_LABEL_COLUMNS = ("engine", "model_name", "instance", "job", "pod", "namespace", "finished_reason")


def is_api(head: str) -> bool:
    words = ('"resultType"', '"metric"', '"errorType"', '"data"')
    return head.lstrip()[:1] in ("{", "[") and any(word in head for word in words)


def is_csv(head: str) -> bool:
    """Whether its first line names a column of times and another one."""
    columns = _columns((head.partition("\n")[2] if head.startswith("sep=") else head).partition("\n")[0])
    return len(columns) > 1 and any(_TIME.fullmatch(column) for column in columns)


def read_api(file: MetricsFile, into: Scrapes) -> None:
    """Answers of query_range or query, one or several one after another: a matrix or a vector of series."""
    text = "\n".join(file.lines(_LONGEST_ANSWER)).strip()
    decoder = json.JSONDecoder(parse_float=Decimal)
    at = 0
    while at < len(text):
        try:
            answer, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            where = f"line {error.lineno:,}" if isinstance(error, json.JSONDecodeError) else "it"
            raise file.refuse(f"not JSON that can be read, at {where}: is the file cut off?") from None
        for each in answer if isinstance(answer, list) else [answer]:
            _read_answer(file, each, into)
        at = end + len(text[end:]) - len(text[end:].lstrip(" \t\r\n,"))


def _read_answer(file: MetricsFile, answer: Any, into: Scrapes) -> None:
    if isinstance(answer, dict) and answer.get("status") == "error":
        raise file.refuse(f"Prometheus answered with an error: {shown(answer.get('error'))}")
    if isinstance(answer, dict) and "metric" in answer:  # its data.result alone
        kind = "matrix" if "values" in answer else "vector"
        answer = {"data": {"resultType": kind, "result": [answer]}}
    try:
        found = answer["data"]["result"]
        kind = answer["data"]["resultType"]
        if kind not in ("matrix", "vector"):
            raise file.refuse(f"resultType must be matrix or vector, got {shown(kind)}")
        for series in found:
            labels = {str(name): str(value) for name, value in series["metric"].items()}
            pairs = series["values"] if kind == "matrix" else [series["value"]]
            _add_series(file, labels, pairs, into)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise file.refuse("not an answer of Prometheus: data.result must be a list of series with values") from None


def _add_series(file: MetricsFile, labels: dict[str, str], pairs: list[Any], into: Scrapes) -> None:
    name = labels.pop("__name__", None)
    if name is None:
        into.notes.append(f"{file.path.name}: a series without a name, as of an expression, was passed over.")
        return
    if is_config(name):
        into.config.append(labels)
        return
    bare = figure_name(name)
    if bare is None:
        return
    key = tuple(sorted(labels.items()))
    for time, value in pairs:
        time_ns = parse_time_ns(str(time), 10**9)
        if time_ns is None:
            raise file.refuse(f"a time must be a number of seconds, got {shown(time)}")
        into.add(bare, key, time_ns, number_of(file, name, "a value", value))
    into.num_timed += len(pairs)


def read_csv(file: MetricsFile, into: Scrapes) -> None:
    """A row a scrape with a column a series, or a row a value with columns of names and values."""
    lines = file.lines(_LONGEST_ROW, only_whole=True)
    first = next(lines, "")
    if first.startswith("sep="):  # as spreadsheets write before the names
        first = next(lines, "")
    rows = csv.reader(lines, delimiter=_delimiter(first))
    columns = _columns(first)
    short = [0]

    def records() -> Iterator[tuple[str, dict[str, Any]]]:
        for cells in rows:
            if not cells:
                continue
            if len(cells) != len(columns):
                short[0] += 1
                continue
            yield f"line {rows.line_num + 1}", dict(zip(columns, cells, strict=True))

    try:
        _read_records(file, columns, records(), into)
    except csv.Error as error:
        raise file.refuse(f"line {rows.line_num + 1}: not CSV that can be read: {error}") from None
    if short[0]:
        into.notes.append(f"{file.path.name}: {short[0]:,} rows have not as many cells as columns; passed over.")


def read_parquet(file: MetricsFile, into: Scrapes) -> None:
    from kvsim.workload.traces.lines import Lines
    from kvsim.workload.traces.parquet import parquet_columns, parquet_records

    columns = parquet_columns(file.path)
    records = parquet_records(Lines(file.path), columns)
    _read_records(file, columns, ((f"row {at}", record) for at, record in enumerate(records, 1)), into)


def _read_records(
    file: MetricsFile, columns: list[str], records: Iterator[tuple[str, dict[str, Any]]], into: Scrapes
) -> None:
    """Empty cells say nothing; those of other columns are not looked at."""
    time_column = next((column for column in columns if _TIME.fullmatch(column)), None)
    if time_column is None:
        raise file.refuse(f"needs a column of times, such as time or timestamp_ms, found {shown(', '.join(columns))}")
    unit = _TIME.fullmatch(time_column)
    unit_ns = None if unit is None else _TIME_UNITS[(unit[1] or "").lower()]
    wide = _wide(columns)
    name_column = next((column for column in columns if column.lower() in _NAME_COLUMNS), None)
    value_column = next((column for column in columns if column.lower() in _VALUE_COLUMNS), None)
    if not wide and (name_column is None or value_column is None):
        raise file.refuse(f"none of its columns is a series of vLLM's, found {shown(', '.join(columns))}")
    into.has_tables = True
    own = (time_column, name_column, value_column)
    # A row a value: whatever else it says tells one series from another.
    label_columns = [
        column
        for column in columns
        if (column in _LABEL_COLUMNS if wide else column not in own and column not in _NUMBERS)
    ]
    for place, record in records:
        labels = _labels(record, label_columns)
        if wide:
            cells = [(name, (*written, *labels), column) for column, (name, written) in wide.items()]
        else:
            assert name_column is not None, "looked at above"
            assert value_column is not None, "looked at above"
            cells = [(*each, value_column) for each in _long(record[name_column], labels)]
        if cells:
            time_ns = parse_time_ns(str(record[time_column]), unit_ns)
            if time_ns is None:
                raise file.refuse(
                    f"{place}: {time_column} must be unix time or look like 2026-11-29 12:34:56, "
                    f"got {shown(record[time_column])}"
                )
            for name, named, column in cells:
                if record[column] not in (None, ""):
                    into.add(name, named, time_ns, number_of(file, place, column, record[column]))
                    into.num_timed += 1


def _labels(record: Mapping[str, Any], columns: list[str]) -> Labels:
    """Of these columns, one of which may hold several, as JSON or as Prometheus writes them."""
    labels: dict[str, str] = {}
    for column in columns:
        value = record[column]
        if value in (None, ""):
            continue
        text = str(value)
        several = _several(text) if text.startswith("{") else None
        labels |= {column: text} if several is None else several
    labels.pop("__name__", None)
    return tuple(sorted(labels.items()))


def _several(text: str) -> dict[str, str] | None:
    written = parse_labels(text)
    if written:
        return dict(written)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {str(name): str(each) for name, each in value.items()} if isinstance(value, dict) else None


def _wide(columns: list[str]) -> Mapping[str, tuple[str, Labels]]:
    """The columns that are series, with the key of NAMES and labels of each."""
    found = {}
    for column in columns:
        series = split_series(column)
        name = None if series is None else figure_name(series[0])
        if series is not None and name is not None:
            found[column] = (name, series[1])
    return found


def _long(text: Any, labels: Labels) -> list[tuple[str, Labels]]:
    """The series that a row is of, if it is one of ours."""
    series = split_series(str(text))
    name = None if series is None else figure_name(series[0])
    return [] if series is None or name is None else [(name, (*series[1], *labels))]


def _columns(first: str) -> list[str]:
    """The names in a first line; none where it is no CSV."""
    try:
        return [column.strip() for column in next(csv.reader([first], delimiter=_delimiter(first)), [])]
    except csv.Error:
        return []


def _delimiter(first: str) -> str:
    """The sign that the first line has most of, outside of what labels quote."""
    outside = re.sub(r'\{[^}]*\}|"[^"]*"', "", first)
    return max((",", ";", "\t"), key=outside.count)
