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

_QUANTITY = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d+)?(?:[eE][+-]?\d{1,2})?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Bytes of "24 GiB", "24 GB" or a bare number of bytes; raises ValueError with the rule.

    A fraction of a byte is dropped.
    """
    return _parse(text, BYTE_UNITS, "a size such as '24 GiB', '24 GB' or a whole number of bytes")


def parse_duration_ns(text: str | int) -> int:
    """Nanoseconds of "8 ms", "40 us" or a bare number of nanoseconds; raises ValueError with the rule.

    A fraction of a nanosecond is dropped.
    """
    return _parse(text, TIME_UNITS, "a time such as '8 ms', '40 us' or a whole number of nanoseconds")


def _parse(text: str | int, units: dict[str, int], rule: str) -> int:
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise ValueError(f"must be {rule}")
    if isinstance(text, int):
        if text < 0:
            raise ValueError("must not be negative")
        return text
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"must be {rule}")
    number, unit = match.groups()
    if not unit:
        if not number.replace("_", "").isdigit():
            raise ValueError(f"must be {rule}")
        return int(number)
    if unit not in units:
        raise ValueError(f"must have one of the units {', '.join(units)}")
    return int(Decimal(number.replace("_", "")) * units[unit])


def format_bytes(num_bytes: int | float) -> str:
    """`num_bytes` for people: "24 GiB", "1.50 MiB", "512 B" (powers of 1024)."""
    return _format(num_bytes, (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)), "B")


def format_duration(nanoseconds: int | float) -> str:
    """`nanoseconds` for people: "8 ms", "1.25 s", "12.3 min"."""
    units = (("h", 3600 * 10**9), ("min", 60 * 10**9), ("s", 10**9), ("ms", 10**6), ("us", 10**3))
    return _format(nanoseconds, units, "ns")


def _format(value: int | float, units: tuple[tuple[str, int], ...], smallest: str) -> str:
    for unit, size in units:
        if abs(value) >= size:
            scaled = value / size
            if scaled == int(scaled):
                return f"{int(scaled):,} {unit}"
            return f"{scaled:.{2 if abs(scaled) < 100 else 1}f} {unit}"
    return f"{int(value) if value == int(value) else round(value, 2)} {smallest}"
