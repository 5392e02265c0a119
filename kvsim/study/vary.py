"""What a sweep varies: keys of a scenario and the values that each of them takes.

memory.block_size=1,2,4           three values, read as `--set` reads them
workload.rate=2:12:2              2, 4, 6, 8, 10, 12: from 2 on by steps of 2, and 12 if a step meets it
memory.watermark=0,0.02:0.1:0.02  both; decimals are exact, so that the fourth is 0.06
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from attrs import frozen

from kvsim.rules import shown
from kvsim.study.toml import toml_text, typed_value

MAX_VALUES = 10_000
"""Of one key: more are a slip of the pen."""

Scalar = int | float | bool | str

_NUMBER = r"[+-]?\d{1,18}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,2})?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*:\s*({_NUMBER})\s*:\s*({_NUMBER})\s*")
_OPENING, _CLOSING, _QUOTES = "[{", "]}", "\"'"


class Value(NamedTuple):
    """As it is written behind `--set key=`, and as it stands in a table of results."""

    text: str
    shown: Scalar


@frozen
class Axis:
    """One key of a scenario, as "memory.block_size", and the different values that it takes."""

    key: str
    values: tuple[Value, ...]


def read_axes(vary: Mapping[str, Any] | Iterable[str]) -> tuple[Axis, ...]:
    """The keys of a table [study] vary, or of texts such as "memory.block_size=1,2,4".

    Raises ValueError with a sentence.
    """
    if isinstance(vary, Mapping):
        axes = [_axis(key, _listed(key, values)) for key, values in _leaves(vary)]
    else:
        axes = [_read_axis(text) for text in ([vary] if isinstance(vary, str) else vary)]
    for place, axis in enumerate(axes):
        for other in axes[:place]:
            if f"{axis.key}.".startswith(f"{other.key}.") or f"{other.key}.".startswith(f"{axis.key}."):
                raise ValueError(f"{other.key} and {axis.key} set the same key")
    return tuple(axes)


def vary_table(table: object) -> dict[str, Any]:
    """A table [study] vary as it was written; raises ValueError with the rule."""
    if not isinstance(table, dict):
        raise ValueError("must be a table of keys and their values")
    try:
        read_axes(table)
    except ValueError as error:
        raise ValueError(f"cannot be: {error}") from None
    return table


def _read_axis(text: str) -> Axis:
    key, equals, values = text.partition("=")
    if not equals:
        raise ValueError(
            f"must be key=values such as memory.block_size=1,2,4 or workload.rate=2:12:2, got {shown(text)}"
        )
    return _axis(key.strip(), _typed(key.strip(), values))


def _axis(key: str, values: Iterable[Value]) -> Axis:
    table = key.partition(".")[0]
    if not all(key.split(".")):
        raise ValueError(f"must have a key such as memory.block_size, got {shown(key)}")
    if key == "seed":
        raise ValueError("seed is varied by a number of seeds: use --seeds, or [study] seeds")
    if table in ("question", "study"):
        raise ValueError(f"{key} is not varied: it changes nothing in a run")
    different: dict[tuple[bool, Scalar], Value] = {}
    for value in values:
        told_apart = isinstance(value.shown, bool), value.shown  # 1 and 1.0 are equal, and True is neither
        if told_apart in different:
            raise ValueError(f"{key} has the value {value.text} twice")
        different[told_apart] = value
        if len(different) > MAX_VALUES:
            raise ValueError(f"{key} must have at most {MAX_VALUES:,} values")
    if not different:
        raise ValueError(f"{key} has no values")
    return Axis(key, tuple(different.values()))


def _leaves(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys of nested tables."""
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            yield from _leaves(value, key)
        else:
            yield key, value


def _listed(key: str, values: object) -> Iterator[Value]:
    """A list of TOML values, each as it is; or a text as it would be typed."""
    if isinstance(values, str):
        return _typed(key, values)
    if not isinstance(values, list | tuple):
        raise ValueError(f"{key} must be a list of values, or a text such as '1,2,4' or '2:12:2', got {shown(values)}")
    return (Value(toml_text(value), _scalar(value)) for value in values)


def _typed(key: str, text: str) -> Iterator[Value]:
    for piece in _pieces(text):
        if not piece.strip():
            raise ValueError(f"{key} has an empty value, got {shown(text)}")
        if match := _RANGE.fullmatch(piece):
            yield from _range(key, *match.groups())
        else:
            yield Value(piece.strip(), _scalar(typed_value(piece)))


def _pieces(text: str) -> Iterator[str]:
    """What stands between commas, but for those within quotes and brackets."""
    start, depth, quote, escaped = 0, 0, "", False
    for place, character in enumerate(text):
        if escaped:
            escaped = False
        elif quote:
            escaped = quote == '"' and character == "\\"
            quote = "" if character == quote else quote
        elif character in _QUOTES and (depth or not text[start:place].strip()):
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _range(key: str, start: str, stop: str, step: str) -> Iterator[Value]:
    """Counted in units of the last decimal, so that nothing drifts."""
    low, high, by = (Fraction(number) for number in (start, stop, step))
    if by <= 0 or high < low:
        raise ValueError(f"{key} must go up by steps > 0, got {start}:{stop}:{step}")
    if (high - low) / by >= MAX_VALUES:
        raise ValueError(f"{key} must have at most {MAX_VALUES:,} values, got {start}:{stop}:{step}")
    places = max(_decimals(number) for number in (start, stop, step))
    whole = all(re.fullmatch(r"[+-]?\d+", number) for number in (start, stop, step))
    unit = 10**places
    for count in range(int(low * unit), int(high * unit) + 1, int(by * unit)):
        text = str(count) if whole else _decimal(count, places)
        yield Value(text, typed_value(text))


def _decimals(number: str) -> int:
    """Digits after the point, written without an exponent."""
    mantissa, _, exponent = number.lower().partition("e")
    return max(0, len(mantissa.partition(".")[2]) - int(exponent or 0))


def _decimal(count: int, places: int) -> str:
    """`count` units of the last of so many decimals, with at least one."""
    digits = str(abs(count)).rjust(places + 1, "0")
    whole, decimals = digits[: len(digits) - places], digits[len(digits) - places :]
    return f"{'-' if count < 0 else ''}{whole}.{decimals or '0'}"


def _scalar(value: object) -> Scalar:
    return value if isinstance(value, int | float | str) else toml_text(value)
