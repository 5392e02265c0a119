"""What is said about one value of a description: its unit, as metadata of its attrs field, and the rules it must
keep, as attrs validators whose message names the key, the rule and the value."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import Attribute, fields, frozen

from kvsim.units import exact_duration

BYTES = {"unit": "bytes"}
"""Marks a field that a scenario file may write as "24 GiB"."""

NANOSECONDS = {"unit": "ns"}
"""Marks a field that a scenario file writes as "8 ms"."""

BYTES_PER_SECOND = {"unit": "bytes/s"}
"""Marks a field that a scenario file may write as "25 GB/s"."""

_SHOWN = 80


def shown(value: object) -> str:
    """A value as a message repeats it: printable, and not at any length."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of over 30 digits"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_PICTURES = {code: 0x2400 + code for code in range(32) if code != ord("\n")} | {127: 0x2421}
_PICTURES |= dict.fromkeys((*range(128, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
"""Signs that stand for control characters, and one for those that have none and those that turn a line round."""


def printable(text: str) -> str:
    """Lines of text without anything in them that a terminal would obey, of the same length."""
    return text.translate(_PICTURES)


def _written(attribute: "Attribute[Any]", value: Any) -> str:
    """A bound of a field, or a value, with the unit that it has."""
    if attribute.metadata.get("unit") == "ns" and type(value) is int:
        return exact_duration(value)
    return f"{value:,}" if isinstance(value, int | float) else shown(value)


def _got(attribute: "Attribute[Any]", value: Any) -> str:
    return _written(attribute, value) if attribute.metadata.get("unit") == "ns" else shown(value)


Rule = Callable[[Any, "Attribute[Any]", Any], None]


def between(low: float, high: float) -> Rule:
    """At least `low` and at most `high`."""

    def check(_instance: object, attribute: "Attribute[Any]", value: float) -> None:
        if not low <= value <= high:
            bounds = f"{_written(attribute, low)} and {_written(attribute, high)}"
            raise ValueError(f"{attribute.name} must be between {bounds}, got {_got(attribute, value)}")

    return check


def at_least(low: int) -> Rule:
    def check(_instance: object, attribute: "Attribute[Any]", value: float) -> None:
        if value < low:
            bound = exact_duration(low) if attribute.metadata.get("unit") == "ns" else str(low)
            raise ValueError(f"{attribute.name} must be >= {bound}, got {_got(attribute, value)}")

    return check


def more_than_zero(high: float) -> Rule:
    """Positive, and at most `high`."""

    def check(_instance: object, attribute: "Attribute[Any]", value: float) -> None:
        if not 0 < value <= high:
            raise ValueError(f"{attribute.name} must be > 0 and at most {high:,.0f}, got {shown(value)}")

    return check


def each(rule: Rule) -> Rule:
    """Every one of several values keeps the rule."""

    def check(instance: object, attribute: "Attribute[Any]", values: Iterable[Any]) -> None:
        for index, value in enumerate(values):
            rule(instance, attribute.evolve(name=f"{attribute.name}[{index}]"), value)

    return check


def not_blank(_instance: object, attribute: "Attribute[Any]", value: str) -> None:
    if not value.strip():
        raise ValueError(f"{attribute.name} must not be empty")


@frozen
class OneOf:
    """The rule that a value is one of some words, which can be asked for."""

    words: tuple[str, ...]

    def __call__(self, _instance: object, attribute: "Attribute[Any]", value: str) -> None:
        if value not in self.words:
            raise ValueError(f"{attribute.name} must be one of {', '.join(self.words)}, got {shown(value)}")


def one_of(words: Iterable[str]) -> OneOf:
    return OneOf(tuple(words))


MAX_TOKENS = 10**9
"""Longest length that is taken for a length: beyond it lies a slip of the pen."""

token_count = between(1, MAX_TOKENS)


class Contradiction(ValueError):
    """Values that are sound one by one and not together, a sentence each in `sentences`."""

    def __init__(self, sentences: list[str]) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = sentences


class Consistent:
    """A description whose fields must agree with each other."""

    __slots__ = ()

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        """A sentence for each disagreement. A value that broke a rule of its own is there as it was written."""
        raise NotImplementedError("each description says what must agree")

    def __attrs_post_init__(self) -> None:
        sentences = self.contradictions({a.name: getattr(self, a.name) for a in fields(type(self)) if a.init})  # type: ignore[arg-type]  # every child is an attrs class
        if sentences:
            raise Contradiction(sentences)


def out_of_order(
    values: Mapping[str, Any], low: str, high: str, written: Callable[[Any], str] = "{:,}".format
) -> list[str]:
    """A sentence if both are numbers and the value of `high` is less than that of `low`."""
    bottom, top = values[low], values[high]
    if isinstance(bottom, int | float) and isinstance(top, int | float) and top < bottom:
        return [f"{high} must be >= {low} = {written(bottom)}, got {written(top)}"]
    return []
