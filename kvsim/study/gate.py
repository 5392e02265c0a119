"""Limits on the figures of a run, such as "slack_share > 0.04": which of them it broke, and by how much."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction

from attrs import frozen

from kvsim.engine.metrics import METRICS, SAMPLE_METRICS, Metric, Number
from kvsim.errors import KvsimError
from kvsim.rules import shown
from kvsim.study.written import written, written_distance
from kvsim.units import BYTE_UNITS, TIME_UNITS

OPERATORS: dict[str, Callable[[Fraction, Fraction], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}

_FIGURES = {metric.name: metric for metric in (*METRICS, *SAMPLE_METRICS)}
_OF_SAMPLES = {metric.name for metric in SAMPLE_METRICS}

_EXPRESSION = re.compile(r"\s*([^\s<>=!]+)\s*([<>=!]+)\s*(.*?)\s*", re.DOTALL)
_NUMBER = r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*([A-Za-z]*|%)")
_UNITS: dict[str, tuple[Mapping[str, int | Fraction], str]] = {
    "bytes": (BYTE_UNITS, f"a number of bytes, or a size such as '4 GiB', in {', '.join(BYTE_UNITS)}"),
    "ns": (TIME_UNITS, f"a number of nanoseconds, or a time such as '200 ms', in {', '.join(TIME_UNITS)}"),
    "share": ({"%": Fraction(1, 100)}, "a share such as 0.04 or 4%"),
}
"""What may stand behind the limit of a figure, by the unit of the figure, and the rule."""

_RULE = 'must be FIGURE OPERATOR NUMBER, such as "slack_share > 0.04"'
_MOST_NEAR = 3


@frozen
class Limit:
    """A run must not be so: `operator` is one of OPERATORS, `bound` is in the unit of the figure (bytes, ns, a share
    from 0 to 1, or a count), and `expression` is how it was typed, with the unit of a time or a size if that was not.
    """

    figure: Metric
    operator: str
    bound: Fraction
    expression: str

    def is_broken_by(self, value: Number) -> bool:
        """Whether the figure is as it must not be. One without a value breaks every limit on it."""
        return value is None or OPERATORS[self.operator](Fraction(value), self._bound_for(value))

    def _bound_for(self, value: int | float) -> Fraction:
        """Shares and means are rounded to the nearest float, and so is what they are compared with: a share of exactly
        1/25 is not more than 0.04.
        """
        return Fraction(float(self.bound)) if isinstance(value, float) else self.bound

    def broken(self, value: Number) -> str:
        """How a value breaks the limit: what it is, and how far it is off, in its unit and in percent of the bound."""
        name, unit = self.figure.name, self.figure.unit
        if value is None:
            return f"{self.expression}: {name} has no value in this run, as there is nothing to divide by"
        distance = Fraction(value) - self._bound_for(value)
        if not distance:
            return f"{self.expression}: {name} is {_exact(value, unit)}, the limit itself"
        far = f"{written_distance(distance, unit)} {'over' if distance > 0 else 'under'} the limit"
        percent = f" ({_digits(100 * abs(distance / self.bound))}% of it)" if self.bound else ""
        return f"{self.expression}: {name} is {_exact(value, unit)}, {far}{percent}"


def parse_limits(expressions: Iterable[str], *, has_samples: bool) -> tuple[Limit, ...]:
    """The limits that are typed; `has_samples` tells whether requests have several outputs, with figures of their own.

    Raises KvsimError with all that is wrong with them.
    """
    limits, problems, unknown = [], [], []
    for expression in expressions:
        try:
            limits.append(_limit(expression))
        except _UnknownFigure as error:
            unknown.append(error.name)
            problems.append(f"{error}, got {shown(expression)}")
        except ValueError as error:
            problems.append(f"{error}, got {shown(expression)}")
        else:
            if limits[-1].figure.name in _OF_SAMPLES and not has_samples:
                problems.append(
                    f"{limits[-1].figure.name} is a figure of several outputs from one prompt: it needs "
                    f"workload.samples or workload.beam_width, got {shown(expression)}"
                )
    if problems:
        known = [name for name in _FIGURES if has_samples or name not in _OF_SAMPLES]
        listed = [f"known: {', '.join(_nearest_first(unknown, known))}"] if unknown else []
        raise KvsimError("\n  ".join([f"--fail-if: {problems[0]}", *problems[1:], *listed]))
    return tuple(limits)


def broken_limits(limits: Sequence[Limit], figures: Mapping[str, Number]) -> list[str]:
    """A sentence for each limit that the figures of a run break."""
    return [limit.broken(value) for limit in limits if limit.is_broken_by(value := figures[limit.figure.name])]


class _UnknownFigure(ValueError):
    def __init__(self, name: str) -> None:
        near = _near(name, _FIGURES)
        hint = f" (did you mean {', '.join(near)}?)" if near else ""
        super().__init__(f"no figure of a run is called {shown(name)}{hint}")
        self.name = name


def _limit(expression: str) -> Limit:
    """Raises ValueError with the rule that is broken."""
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise ValueError(_RULE)
    name, sign, bound = match.groups()
    if sign not in OPERATORS:
        raise ValueError(f"{_RULE}, with one of {' '.join(OPERATORS)}")
    if name not in _FIGURES:
        raise _UnknownFigure(name)
    figure = _FIGURES[name]
    return Limit(figure, sign, _bound(bound, figure), f"{name} {sign} {_with_unit(bound, figure)}")


def _with_unit(bound: str, figure: Metric) -> str:
    """Who typed "200" of a time may have meant milliseconds."""
    unit = {"bytes": "B", "ns": "ns"}.get(figure.unit)
    return bound if unit is None or bound[-1].isalpha() else f"{bound} {unit}"


def _bound(text: str, figure: Metric) -> Fraction:
    """A number as it is typed, exactly, in the unit of the figure."""
    units, rule = _UNITS.get(figure.unit, ({}, f"a number of {figure.unit}, without a unit"))
    match = _QUANTITY.fullmatch(text)
    number, unit = match.groups() if match is not None else ("", "")
    if not number or (unit and unit not in units):
        raise ValueError(f"the limit of {figure.name} must be {rule}")
    bound = Fraction(number) * units.get(unit, 1)
    if figure.unit == "share" and not 0 <= bound <= 1:
        raise ValueError(f"the limit of {figure.name} must be {rule}, from 0 to 1")
    return bound


def _near(name: str, known: Iterable[str]) -> list[str]:
    return get_close_matches(name, known, n=_MOST_NEAR)


def _nearest_first(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """All that is known, and first what is like one of the names, as that may be what was meant."""
    near = dict.fromkeys(word for name in names for word in get_close_matches(name, known, n=len(known)))
    return [*near, *(word for word in known if word not in near)]


def _exact(value: int | float, unit: str) -> str:
    """With all its digits, and in larger units where these say it shorter: "4,294,967,297 B (4.00 GiB)"."""
    word = {"bytes": " B", "share": ""}.get(unit, f" {unit}")
    digits, short = f"{value:,}{word}", written(value, unit)
    return short if unit not in ("bytes", "ns") and isinstance(value, int) else f"{digits} ({short})"


def _digits(percent: Fraction) -> str:
    return f"{float(percent):,.1f}" if percent >= 1 else f"{float(percent):.2g}"
