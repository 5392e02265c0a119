"""One value of a record, checked: what a format says must be a length is one."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from kvsim.rules import MAX_TOKENS, shown
from kvsim.workload.request import Content, Span
from kvsim.workload.traces.lines import Lines

UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds of a unit of time."""

TOKEN_IDS = "token"
"""The source of tokens that a trace names by id: the token with id 5 is its position 5, wherever it stands."""

_MOST_DIGITS = 100
"""Longer numbers are not read at all: Python refuses to, and a message need not repeat them."""

_MAX_NANOSECONDS = 10**21
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,30}(\.\d{1,30})?", re.ASCII)


def json_object(lines: Lines, text: str) -> dict[str, Any] | None:
    """The record on a line of JSON; None for a blank line."""
    if not text.strip():
        return None
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        lines.refuse(f"not JSON: {error.msg}")
    except (ValueError, RecursionError):
        lines.refuse("not JSON that can be read: a number too long or nested too deep")
    if not isinstance(record, dict):
        lines.refuse("must be a JSON object")
    return record


def json_in_text(lines: Lines, name: str, text: str) -> Any:
    """What the text of one value holds, such as a list in a cell of CSV."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        lines.refuse(f"{name} must be a text such as [4, 7], got {shown(text)}")


def required(lines: Lines, record: Mapping[str, Any], *names: str) -> list[Any]:
    """The values of keys, all of which must be there; "a.b" is the key b of the object a."""
    values = []
    for name in names:
        value: Any = record
        for key in name.split("."):
            if not isinstance(value, dict) or key not in value:
                lines.refuse(f"{name} is missing")
            value = value[key]
        values.append(value)
    return values


def optional(record: Mapping[str, Any], name: str) -> Any:
    """The value of a key such as "a.b", or None."""
    value: Any = record
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def count(lines: Lines, name: str, value: Any) -> int:
    """A number of tokens."""
    if type(value) is not int or not lines.least_tokens <= value <= MAX_TOKENS:
        lines.refuse(f"{name} must be a whole number from {lines.least_tokens} to {MAX_TOKENS:,}, got {shown(value)}")
    return value


def count_in_text(lines: Lines, name: str, text: str) -> int:
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > _MOST_DIGITS:
        lines.refuse(f"{name} must be a whole number from {lines.least_tokens} to {MAX_TOKENS:,}, got {shown(text)}")
    return count(lines, name, int(digits))


def time_ns(lines: Lines, name: str, value: Any, unit: str) -> int:
    """Nanoseconds of a time, whose decimals are taken as they are written, cut at the nanosecond."""
    if type(value) not in (int, float) or not 0 <= value < _MAX_NANOSECONDS // UNITS[unit]:
        lines.refuse(f"{name} must be a number of {unit} that is not negative and below 10^21 ns, got {shown(value)}")
    return value * UNITS[unit] if type(value) is int else int(Decimal(repr(value)) * UNITS[unit])


def time_in_text_ns(lines: Lines, name: str, text: str, unit: str) -> int:
    if not _NUMBER.fullmatch(text.strip()):
        lines.refuse(f"{name} must be a number of {unit}, such as 12.5, got {shown(text)}")
    nanoseconds = int(Decimal(text.strip()) * UNITS[unit])
    if nanoseconds >= _MAX_NANOSECONDS:
        lines.refuse(f"{name} must be below 10^21 ns, got {shown(text)}")
    return nanoseconds


def timestamp_ns(lines: Lines, name: str, text: Any) -> int:
    """Nanoseconds since 1970 of "2023-11-16 18:15:46.6805900", without rounding; UTC where no zone is given."""
    match = _TIMESTAMP.fullmatch(text) if isinstance(text, str) else None
    try:
        if match is None:
            raise ValueError("another form")
        zone = "+00:00" if match[3] in (None, "Z") else match[3]
        seconds = int(datetime.fromisoformat(f"{match[1]}{zone}").timestamp())
    except ValueError:
        lines.refuse(
            f"{name} must look like 2023-11-16 18:15:46.6805900, with at most nine digits after the point, "
            f"got {shown(text)}"
        )
    return seconds * 10**9 + int((match[2] or "").ljust(9, "0"))


def whole_numbers(lines: Lines, name: str, value: Any) -> list[int]:
    """A list of ids of any size."""
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        lines.refuse(f"{name} must be a list of whole numbers")
    return value


def name_of_session(lines: Lines, name: str, value: Any) -> str | None:
    if value is not None and type(value) not in (int, str):
        lines.refuse(f"{name} must be a string or a whole number, got {shown(value)}")
    return None if value is None else str(value)


def token_spans(ids: list[int]) -> Content:
    """The content of tokens whose ids are known."""
    spans: list[Span] = []
    for token in ids:
        if spans and spans[-1].start + spans[-1].length == token:
            spans[-1] = Span(TOKEN_IDS, spans[-1].start, spans[-1].length + 1)
        else:
            spans.append(Span(TOKEN_IDS, token, 1))
    return tuple(spans)
