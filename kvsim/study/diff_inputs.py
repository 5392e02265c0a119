"""What was put into two runs, key by key: where they differ."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from kvsim.rules import shown
from kvsim.study.scenario import scenario_units
from kvsim.study.toml import toml_text
from kvsim.units import exact_duration, format_bytes

_SCENARIO = "scenario"

_FOLLOWS = ("geometry", "pool")
"""Parts of a description that are worked out from the others, and from the model's config."""

_FILES = "files"
_OVERRIDES = "overrides"

_ALREADY_IN_THE_SCENARIO = ("question", "seed", "scenario_text")

_IN_BYTES = ("bytes", "bytes_per_token", "block_bytes", "pool_bytes", "padding_bytes_per_block")
"""Of parts that are not the scenario, by the last word of their names."""

_DIGITS = 6
"""Of a digest, for people."""

_LONGEST = 200
_TOO_LARGE = 10**30


@frozen
class Input:
    """A key whose values differ; None where it is not set. `follows` from others, and is not said in the scenario.

    `unit` is bytes, bytes/s or ns where the value has one of these. A file is one key, "files.NAME", whose values are
    its size and SHA-256.
    """

    name: str
    before: Any
    after: Any
    unit: str | None = None
    follows: bool = False
    is_file: bool = False

    @property
    def title(self) -> str:
        return f"file {self.name.removeprefix(f'{_FILES}.')}" if self.is_file else self.name

    @property
    def before_text(self) -> str:
        return _file_text(self.before) if self.is_file else _text(self.before, self.unit)

    @property
    def after_text(self) -> str:
        return _file_text(self.after) if self.is_file else _text(self.after, self.unit)

    @property
    def sentence(self) -> str:
        """Such as "memory.block_size 4 -> 8" and "file trace.csv: other content (SHA-256 a1b2c3 -> d4e5f6)"."""
        if not self.is_file or self.before is None or self.after is None:
            return f"{self.title} {self.before_text} -> {self.after_text}"
        return f"{self.title}: other content (SHA-256 {_digest(self.before)} -> {_digest(self.after)})"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "before": self.before,
            "after": self.after,
            "follows": self.follows,
        }


def changed_inputs(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Input, ...]:
    """Every key that differs between the descriptions of two runs (`Results.description`): those of the scenario, with
    the names that --set gives them, then what else was put in, and at last what follows from both. Overrides are left
    out where the keys that they set are among these.
    """
    units = scenario_units(before["scenario"]) | scenario_units(after["scenario"])
    parts = [part for part in {**before, **after} if part not in _ALREADY_IN_THE_SCENARIO]
    parts.sort(key=lambda part: 0 if part == _SCENARIO else 2 if part in _FOLLOWS else 1)
    inputs = []
    for part in parts:
        if part == _FILES:
            inputs += _changed_files(before.get(part) or {}, after.get(part) or {})
            continue
        prefix = "" if part == _SCENARIO else part
        old, new = (dict(_flat(description.get(part), prefix)) for description in (before, after))
        follows = part in _FOLLOWS
        for name in {**new, **old}:
            if not _equal(old.get(name), new.get(name)):
                unit = "bytes" if prefix and name.rpartition(".")[2] in _IN_BYTES else None
                inputs.append(Input(name, old.get(name), new.get(name), unit or units.get(name), follows))
    listed = [changed.name for changed in inputs]
    are_listed = all(_is_listed(key, listed) for key in _overridden_otherwise(before, after))
    return tuple(changed for changed in inputs if changed.name != _OVERRIDES or not are_listed)


def _changed_files(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Input]:
    inputs = []
    for name in {**after, **before}:
        old, new = before.get(name), after.get(name)
        if old != new:
            is_file = all(value is None or _says_content(value) for value in (old, new))
            inputs.append(Input(f"{_FILES}.{name}", old, new, is_file=is_file))
    return inputs


def _says_content(value: Any) -> bool:
    return isinstance(value, Mapping) and type(value.get("bytes")) is int and isinstance(value.get("sha256"), str)


def _overridden_otherwise(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Keys that only one of the runs has set in such a way."""
    old, new = (set(description.get(_OVERRIDES) or ()) for description in (before, after))
    return {override.partition("=")[0].strip() for override in old ^ new}


def _is_listed(key: str, listed: Iterable[str]) -> bool:
    """Itself, or keys of the table that it is."""
    return any(name == key or name.startswith((f"{key}.", f"{key}[")) for name in listed)


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Values that are no tables, with dotted names; the tables of a list are told apart by their place."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif _is_list(value) and value and all(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _flat(item, f"{name}[{index}]")
    else:
        yield name, value


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _equal(one: Any, other: Any) -> bool:
    """True is not 1 in a scenario, but 1.0 is."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _text(value: Any, unit: str | None) -> str:
    """On one line, exactly, as a scenario would say it."""
    if value is None:
        return "not set"
    if type(value) is int and abs(value) >= _TOO_LARGE:
        return shown(value)
    if type(value) is int and unit == "ns":
        return exact_duration(value)
    if type(value) is int and unit == "bytes":
        return _exact_bytes(value)
    if type(value) is int and unit == "bytes/s":
        return f"{value:,} B/s"
    text = value if isinstance(value, str) and value.isprintable() and value else toml_text(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _file_text(value: Mapping[str, Any] | None) -> str:
    return "not used" if value is None else f"SHA-256 {_digest(value)}, {_exact_bytes(value['bytes'])}"


def _digest(value: Mapping[str, Any]) -> str:
    return str(value["sha256"][:_DIGITS])


def _exact_bytes(value: int) -> str:
    short = format_bytes(value)
    return short if "." not in short else f"{short} ({value:,} B)"
