"""Bytes and nanoseconds: whole numbers inside, words like "24 GiB" and "8 ms" at the edges."""

import re
from decimal import Decimal

BYTE_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
TIME_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}

_QUANTITY = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*")


def parse_bytes(value: object) -> int:
    """Bytes of "24 GiB", "24 GB" or a bare whole number of bytes; raises ValueError with the rule.

    A fraction of a byte is dropped.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.isascii() and value.strip().isdecimal() and len(value) <= 30:
        return int(value)
    return _parse(value, BYTE_UNITS, "a size such as '24 GiB', '24 GB' or a whole number of bytes")


def parse_bandwidth(value: object) -> int:
    """Bytes per second of "25 GB/s" or a bare whole number of them; raises ValueError with the rule.

    A fraction of a byte is dropped.
    """
    rule = "a bandwidth such as '25 GB/s' or a whole number of bytes per second"
    if isinstance(value, str):
        number, slash, unit = value.rpartition("/")
        if not slash or unit.strip() != "s":
            raise ValueError(f"must be {rule}")
        return _parse(number, BYTE_UNITS, rule)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"must be {rule}")


def parse_duration_ns(value: object) -> int:
    """Nanoseconds of "8 ms" or "40 us"; raises ValueError with the rule, for a bare number too.

    A fraction of a nanosecond is dropped.
    """
    return _parse(value, TIME_UNITS, "a time with its unit such as '8 ms' or '40 us'")


def _parse(value: object, units: dict[str, int], rule: str) -> int:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"must be {rule}")
    number, unit = match.groups()
    if unit not in units:
        raise ValueError(f"must be {rule}; units are {', '.join(units)}")
    return int(Decimal(number) * units[unit])


def format_bytes(num_bytes: int | float) -> str:
    """`num_bytes` for people: "24 GiB", "1.50 MiB", "512 B" (powers of 1024)."""
    return _format(num_bytes, (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)), "B")


def format_duration(nanoseconds: int | float) -> str:
    """`nanoseconds` for people: "8 ms", "1.25 s", "12.3 min"."""
    units = (("h", 3600 * 10**9), ("min", 60 * 10**9), ("s", 10**9), ("ms", 10**6), ("us", 10**3))
    return _format(nanoseconds, units, "ns")


def format_moment(time_ns: int) -> str:
    """A time of a run as people read it: "20.80 s", "4 min 12.3 s", "1 h 4 min 12.3 s"."""
    if time_ns == 0:
        return "0 s"
    if time_ns < 59_995 * 10**6:  # else it would round to a minute
        unit = next((unit for unit in ("s", "ms") if time_ns >= TIME_UNITS[unit]), "us")
        return f"{time_ns / TIME_UNITS[unit]:.2f} {unit}"
    tenths = (time_ns + 5 * 10**7) // 10**8
    minutes, tenths = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    return f"{f'{hours:,} h ' if hours else ''}{minutes} min {tenths / 10:.1f} s"


def time_axis_unit(end_ns: int | float) -> str:
    """The unit, of TIME_UNITS, for an axis of time from 0 to `end_ns`."""
    return next((unit for unit in ("h", "min") if end_ns >= 3 * TIME_UNITS[unit]), "s")


def byte_axis_unit(num_bytes: int) -> str:
    """The unit, of BYTE_UNITS, for an axis from 0 to `num_bytes`."""
    return next((unit for unit in ("TiB", "GiB", "MiB", "KiB") if num_bytes >= BYTE_UNITS[unit]), "B")


def byte_scale(num_bytes: int) -> tuple[str, int]:
    """The unit for an axis from 0 to `num_bytes`, and its size."""
    unit = byte_axis_unit(num_bytes)
    return unit, BYTE_UNITS[unit]


def exact_duration(nanoseconds: int) -> str:
    """`nanoseconds` as parse_duration_ns reads them back, in the largest unit of which they are a whole number."""
    if not nanoseconds:
        return "0 s"
    unit, size = next((unit, size) for unit, size in reversed(TIME_UNITS.items()) if nanoseconds % size == 0)
    return f"{nanoseconds // size} {unit}"


def exact_size(num_bytes: int) -> str:
    """`num_bytes` as parse_bytes reads them back, in the largest unit of which they are a whole number."""
    if not num_bytes:
        return "0 B"
    unit, size = max(
        ((unit, size) for unit, size in BYTE_UNITS.items() if num_bytes % size == 0), key=lambda pair: pair[1]
    )
    return f"{num_bytes // size} {unit}"


def _format(value: int | float, units: tuple[tuple[str, int], ...], smallest: str) -> str:
    for unit, size in units:
        if abs(value) >= size:
            scaled = value / size
            if scaled == int(scaled):
                return f"{int(scaled):,} {unit}"
            return f"{scaled:,.{2 if abs(scaled) < 100 else 1}f} {unit}"
    return f"{int(value) if value == int(value) else round(value, 2)} {smallest}"
