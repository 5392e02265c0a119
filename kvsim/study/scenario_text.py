"""The text of a scenario as fields that can be edited one by one, and the place of a problem among them.

Comments, order and spacing stay as they were written: only the text of a value is ever replaced.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from attrs import evolve, frozen

from kvsim.study.toml import parse_toml, toml_text, typed_value

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_PLAIN_PART = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")
_HEADER = re.compile(rf"(\[\[?)[ \t]*({_KEY})[ \t]*\]\]?")
_ASSIGNED = re.compile(rf"({_KEY})[ \t]*=[ \t]*")
_ON_TOP = re.compile(r"[A-Za-z_]+( is missing|: unknown key)")
_LINE_OF_ERROR = re.compile(r"\(at line (\d+), column \d+\)")


@frozen
class Field:
    """One `key = value` of the text.

    `named` is its dotted key as problems have it, and `name` the key as it stands in `table`. `can_be_set` says that
    `--set KEY=VALUE` means this very field, which it cannot in a list of tables or where a key has a dot in it; `key`
    is then `named`, and else has a number behind it, so that it is of one field alone. `typed` is what to type to get
    the value (see `typed_value`), and the value stands in the text from `start` to `end`.
    """

    key: str
    named: str
    table: str
    name: str
    value: Any
    typed: str
    help: str
    start: int
    end: int
    can_be_set: bool


@frozen
class Table:
    """A header of the text, or what stands above the first, whose `key` is ""."""

    key: str
    help: str


@frozen
class ScenarioText:
    """A text that is TOML, its tables and its fields in their order."""

    text: str
    tables: tuple[Table, ...]
    fields: tuple[Field, ...]

    def with_values(self, edits: Mapping[str, str]) -> str:
        """The text with other values for some keys, as they were typed; a key whose value is empty is taken out."""
        text = self.text
        for field in reversed(self.fields):
            if field.key in edits:
                text = _replaced(text, field, edits[field.key])
        return text

    def edits_to(self, text: str) -> dict[str, str] | None:
        """What `with_values` needs to give the text; None where it cannot, or `--set` could not say it."""
        try:
            other = read_scenario_text(text)
        except ValueError:
            return None
        theirs = {field.key: field for field in other.fields}
        edits = {}
        for field in self.fields:
            same = theirs.get(field.key)
            if same is None:
                edits[field.key] = ""
            elif other.text[same.start : same.end] != self.text[field.start : field.end]:
                edits[field.key] = same.typed
        sets_all = all(field.can_be_set for field in self.fields if field.key in edits)
        return edits if sets_all and self.with_values(edits) == text else None


def read_scenario_text(text: str) -> ScenarioText:
    """Raises ValueError with what is wrong where the text is not TOML."""
    parse_toml(text)
    tables, fields = [], []
    alike: Counter[str] = Counter()
    for item in _items(text):
        if isinstance(item, Table):
            tables.append(item)
        elif item.can_be_set:
            fields.append(item)
        else:
            alike[item.named] += 1
            fields.append(evolve(item, key=f"{item.named} ({alike[item.named]})"))
    return ScenarioText(text, tuple(tables), tuple(fields))


def line_of_error(error: str, text: str) -> int | None:
    """The line, from 1, that a message of `parse_toml` names."""
    if match := _LINE_OF_ERROR.search(error):
        return int(match[1])
    return text.count("\n") + 1 if "(at end of document)" in error else None


def written_value(typed: str) -> str:
    """What stands behind the equals sign for what was typed: as it is where that is TOML on one line, else a string."""
    typed = typed.strip()
    try:
        is_value = set(parse_toml(f"value = {typed}")) == {"value"}
    except ValueError:
        is_value = False
    if is_value and not {"\n", "\r"} & set(typed) and _end_of_value(typed, 0) == len(typed):
        return typed
    return toml_text(typed_value(typed))


class Place(NamedTuple):
    """Where a problem is shown: beside a field, at the head of a table ("" is the top), or nowhere if both are None."""

    field: str | None
    table: str | None


def place_of(problem: str, text: ScenarioText) -> Place:
    """By the dotted key with which a problem begins: beside its field, or at the head of its table."""
    fields = [field for field in text.fields if _begins_with(problem, field.named)]
    if fields:
        return Place(max(fields, key=lambda field: len(field.named)).key, None)
    tables = [table.key for table in text.tables if table.key and _begins_with(problem, table.key)]
    if tables:
        table = max(tables, key=len)
        kinds = [field.key for field in text.fields if (field.table, field.name) == (table, "kind")]
        if kinds and problem.startswith(f"{table} must have a kind "):
            return Place(kinds[0], None)
        return Place(None, table)
    return Place(None, "" if _ON_TOP.match(problem) else None)


def _begins_with(problem: str, key: str) -> bool:
    return problem.startswith(key) and problem[len(key) : len(key) + 1] in ("", " ", ":", ".", "[")


# reading


def _items(text: str) -> Iterator[Table | Field]:
    """Tables and fields in order, each with its comment: that of its own line, else the lines above it."""
    above: list[str] = []
    header = ""
    lists: dict[str, int] = {}
    position = 0
    yield Table("", _heading(text))
    while position < len(text):
        line_end = _line_end(text, position)
        line = text[position:line_end].strip()
        start = position + len(text[position:line_end]) - len(text[position:line_end].lstrip())
        if not line:
            above.clear()
            position = line_end + 1
        elif line.startswith("#"):
            above.append(_comment(line))
            position = line_end + 1
        elif match := _HEADER.match(text, start):
            header = _table_key(_parts(match[2]), lists, is_list=match[1] == "[[")
            yield Table(header, _comment(text[match.end() : line_end].strip()) or " ".join(above))
            above.clear()
            position = line_end + 1
        else:
            match = _ASSIGNED.match(text, start)
            assert match is not None, "the text is TOML"
            end = _end_of_value(text, match.end())
            line_end = _line_end(text, end)
            help_text = _comment(text[end:line_end].strip()) or " ".join(above)
            yield _field(text, header, match[1], match.end(), end, help_text)
            above.clear()
            position = line_end + 1


def _field(text: str, header: str, name: str, start: int, end: int, help_text: str) -> Field:
    parts = _parts(name)
    named = ".".join([header, *parts] if header else parts)
    value = parse_toml(f"value = {text[start:end]}")["value"]
    can_be_set = _PLAIN.fullmatch(header) is not None and all(_PLAIN_PART.fullmatch(part) for part in parts)
    return Field(
        key=named,
        named=named,
        table=header,
        name=".".join(parts),
        value=value,
        typed=_typed(text[start:end], value),
        help=help_text,
        start=start,
        end=end,
        can_be_set=can_be_set,
    )


def _typed(written: str, value: Any) -> str:
    """Strings without their quotes, where they would be read as strings without them."""
    if isinstance(value, str) and value and typed_value(value) == value and value.isprintable():
        return value
    return toml_text(value) if "\n" in written else written


def _parts(key: str) -> list[str]:
    """The names of a dotted key."""
    table: Any = tomllib.loads(f"{key} = 0")
    parts = []
    while isinstance(table, dict):
        ((part, table),) = table.items()
        parts.append(part)
    return parts


def _table_key(parts: list[str], lists: dict[str, int], *, is_list: bool) -> str:
    """Dotted; items of lists of tables are counted from 0, as problems count them."""
    key = ""
    for index, part in enumerate(parts):
        key = f"{key}.{part}" if key else part
        is_last = index == len(parts) - 1
        if is_list and is_last:
            lists[key] = lists.get(key, -1) + 1
        if key in lists:
            key = f"{key}[{lists[key]}]"
    return key


def _heading(text: str) -> str:
    """The comment that the text begins with, if an empty line sets it apart."""
    lines: list[str] = []
    for line in text.lstrip().splitlines():
        if not line.strip():
            # Lines of a sentence are one line, and what is set in stays apart.
            return re.sub(r"(?<=\S)\n(?=\S)", " ", "\n".join(lines))
        if not line.lstrip().startswith("#"):
            return ""
        lines.append(line.strip().removeprefix("#").removeprefix(" "))
    return ""


def _comment(text: str) -> str:
    return text.lstrip("#").strip() if text.startswith("#") else ""


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _end_of_value(text: str, position: int) -> int:
    """Where a value ends that begins here: with its line, or before a comment, outside of quotes and brackets."""
    depth = 0
    end = position
    while position < len(text):
        character = text[position]
        if character in "\"'":
            position = _end_of_string(text, position)
            end = position
            continue
        if character == "#":
            if depth == 0:
                break
            position = _line_end(text, position)
            continue
        if character == "\n" and depth == 0:
            break
        depth += (character in "[{") - (character in "]}")
        position += 1
        if not character.isspace():
            end = position
    return end


def _end_of_string(text: str, position: int) -> int:
    quote = text[position]
    if text.startswith(quote * 3, position):
        position += 3
        while not text.startswith(quote * 3, position):
            position += 2 if quote == '"' and text[position] == "\\" else 1
        position += 3
        while text.startswith(quote, position):  # two more may stand before the three that close it
            position += 1
        return position
    position += 1
    while text[position] != quote:
        position += 2 if quote == '"' and text[position] == "\\" else 1
    return position + 1


def _replaced(text: str, field: Field, typed: str) -> str:
    if typed.strip():
        return text[: field.start] + written_value(typed) + text[field.end :]
    begin = text.rfind("\n", 0, field.start) + 1
    return text[:begin] + text[_line_end(text, field.end) + 1 :]
