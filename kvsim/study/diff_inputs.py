"""What was put into two runs, key by key: where they differ."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from kvsim.rules import shown
from kvsim.study.scenario import scenario_units
from kvsim.study.toml import toml_text
from kvsim.units import exact_duration, format_bytes

_SCENARIO = "scenario"

_FOLLOWS = ("geometry", "pool")
"""Parts of a description that are worked out from the others, and from the model's config."""

_ALREADY_IN_THE_SCENARIO = ("question", "seed", "scenario_text")

_IN_BYTES = ("bytes", "bytes_per_token", "block_bytes", "pool_bytes", "padding_bytes_per_block")
"""Of parts that are not the scenario, by the last word of their names."""

_LONGEST = 200
_TOO_LARGE = 10**30


@frozen
class Input:
    """A key whose values differ; None where it is not set. `follows` from others, and is not said in the scenario.

    `unit` is bytes, bytes/s or ns where the value has one of these.
    """

    name: str
    before: Any
    after: Any
    unit: str | None = None
    follows: bool = False

    @property
    def before_text(self) -> str:
        return _text(self.before, self.unit)

    @property
    def after_text(self) -> str:
        return _text(self.after, self.unit)

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
    the names that --set gives them, then what else was put in, and at last what follows from both.
    """
    units = scenario_units(before["scenario"]) | scenario_units(after["scenario"])
    parts = [part for part in {**before, **after} if part not in _ALREADY_IN_THE_SCENARIO]
    parts.sort(key=lambda part: 0 if part == _SCENARIO else 2 if part in _FOLLOWS else 1)
    inputs = []
    for part in parts:
        prefix = "" if part == _SCENARIO else part
        old, new = (dict(_flat(description.get(part), prefix)) for description in (before, after))
        follows = part in _FOLLOWS
        for name in {**new, **old}:
            if not _equal(old.get(name), new.get(name)):
                unit = "bytes" if prefix and name.rpartition(".")[2] in _IN_BYTES else None
                inputs.append(Input(name, old.get(name), new.get(name), unit or units.get(name), follows))
    return tuple(inputs)


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


def _exact_bytes(value: int) -> str:
    short = format_bytes(value)
    return short if "." not in short else f"{short} ({value:,} B)"
