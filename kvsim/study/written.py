"""Figures as people read them, by their unit: those that `Metric.unit` names."""

from fractions import Fraction

from kvsim.units import format_bytes, format_duration

Exact = int | float | Fraction
"""A figure, or one that has not been rounded yet."""

_IN_THE_AMOUNT = ("bytes", "ns", "share")
_SMALL = 0.005
"""What two decimals do not show."""


def written_bytes(value: Exact | None) -> str:
    return "-" if value is None else format_bytes(round(value))


def written_time(nanoseconds: Exact | None) -> str:
    return "-" if nanoseconds is None else format_duration(_plain(nanoseconds))


def written_share(value: Exact | None) -> str:
    return "-" if value is None else f"{float(value):.2%}"


def written_number(value: Exact | None) -> str:
    return "-" if value is None else f"{float(value):,.1f}"


def written(value: Exact | None, unit: str) -> str:
    """With its unit: "4 GiB", "250 ms", "4.10%", "17 requests", "3.51 requests"; "-" for None."""
    amount = written_amount(value, unit)
    if value is None or unit in _IN_THE_AMOUNT:
        return amount
    return f"{amount} {unit if value != 1 else unit.removesuffix('s')}"


def written_amount(value: Exact | None, unit: str) -> str:
    """As `written`, but of what is counted the number alone."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{_two_decimals(100 * value)}%"
    if unit == "ns":
        return written_time(value)
    if unit == "bytes":
        return written_bytes(value) if not 0 < value < 1 else f"{_two_decimals(value)} B"
    return f"{int(value):,}" if value == int(value) else _two_decimals(value)


def written_distance(distance: Exact, unit: str) -> str:
    """How far two figures of a unit lie apart: as `written`, but two shares lie so many points of a percent apart."""
    return _points(distance) if unit == "share" else written(_size(distance), unit)


def written_change(change: Exact, unit: str) -> str:
    """A change with its sign: "+1.50 MiB", "-0.40 points"; of what is counted the number alone: "-12"."""
    if not change:
        return "0"
    size = _points(change) if unit == "share" else written_amount(_size(change), unit)
    return f"{'+' if change > 0 else '-'}{size}"


def written_percent(share: Exact) -> str:
    """Of a change, as a share of what was before: "+12.3%"."""
    percent = 100 * float(share)
    return f"{percent:+,.1f}%" if abs(percent) >= 0.05 or not percent else f"{percent:+.1g}%"


def _points(share: Exact) -> str:
    return f"{_two_decimals(100 * _size(share))} points"


def _size(value: Exact) -> Exact:
    return value if value >= 0 else -value


def _two_decimals(value: Exact) -> str:
    """Of what is too small for two decimals, the first digits."""
    value = float(value)
    return f"{value:,.2f}" if abs(value) >= _SMALL or not value else f"{value:.2g}"


def _plain(value: Exact) -> int | float:
    return float(value) if isinstance(value, Fraction) else value
