"""Tables of whole numbers, packed small and exact for a browser; `static/timeline.js` unpacks them.

    4 bytes   length of the header, little-endian
    header    JSON in UTF-8: {"note": ..., "tables": {name: {"rows": n, "columns": {name: column}}}}
    streams   one behind the other, in the order of the header's columns that have "bytes"

A column is `{"same": other}` where one before it in its table is equal, else it has its "first" value (as text, since
JSON's numbers end at 2^53), and says whether it is "exact" as a floating-point number. The other rows are differences
to the row before, modulo 2^64, in signed integers of "width" bytes; one that never changes has none. A stream is these
integers with their lowest bytes first, then all second bytes and so on, which halves what zlib leaves.
"""

import json
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

_LARGEST_EXACT = 2**53 - 1
"""Whole numbers up to it are told apart by a browser's numbers."""

_WIDTHS = (1, 2, 4, 8)
_COMPRESSION = 6
"""Higher levels of zlib take ten times as long for 4 % less."""


def pack(tables: Mapping[str, Mapping[str, Integers]], note: Mapping[str, object]) -> bytes:
    """Columns of each table are of equal length; `note` is anything that JSON can say."""
    streams: list[bytes] = []
    header = {
        "note": note,
        "tables": {
            name: {
                "rows": len(next(iter(columns.values()), ())),
                "columns": _columns(columns, streams),
            }
            for name, columns in tables.items()
        },
    }
    text = json.dumps(header, ensure_ascii=False, allow_nan=False).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *streams])


def _columns(columns: Mapping[str, Integers], streams: list[bytes]) -> dict[str, object]:
    """What the header says of them; what they need of the streams is added to those."""
    packed: dict[str, object] = {}
    names: dict[bytes, str] = {}
    for name, column in columns.items():
        values = np.ascontiguousarray(column, dtype=np.int64)
        same = names.setdefault(values.tobytes(), name)
        packed[name] = _column(values, streams) if same == name else {"same": same}
    return packed


def _column(values: Integers, streams: list[bytes]) -> dict[str, object]:
    if not len(values):
        return {"first": "0", "exact": True}
    least, most = int(values.min()), int(values.max())
    packed: dict[str, object] = {
        "first": str(values[0]),
        "exact": least >= -_LARGEST_EXACT and most <= _LARGEST_EXACT,
    }
    if least < most:
        steps = np.diff(values)  # of numpy's integers, so modulo 2^64
        width = _width(steps)
        planes = steps.astype(f"<i{width}").view(np.uint8).reshape(-1, width).T
        streams.append(zlib.compress(planes.tobytes(), _COMPRESSION))
        packed |= {"width": width, "bytes": len(streams[-1])}
    return packed


def _width(steps: Integers) -> int:
    """Bytes of the shortest signed integers that hold them all."""
    least, most = int(steps.min()), int(steps.max())
    return next(width for width in _WIDTHS if -(2 ** (8 * width - 1)) <= least and most < 2 ** (8 * width - 1))


def chosen_rows(times: Integers, levels: Sequence[Integers], most_rows: int) -> Integers:
    """At most `most_rows` row numbers, in order: all of them if they are so few.

    Else time is cut into equal parts, and of each part the first row is taken, the last, and of every level the first
    row with the most and the first with the least. `times` are in order.
    """
    if len(times) <= most_rows:
        return np.arange(len(times), dtype=np.int64)
    num_parts = max(1, most_rows // (2 + 2 * len(levels)))
    part_ns = (int(times[-1]) - int(times[0])) // num_parts + 1
    part = (times - times[0]) // part_ns
    starts = np.flatnonzero(np.append(True, np.diff(part) > 0))
    lengths = np.diff(np.append(starts, len(times)))
    taken = [starts, starts + lengths - 1]
    for level in levels:
        for extreme in (np.maximum, np.minimum):
            reached = np.flatnonzero(level == np.repeat(extreme.reduceat(level, starts), lengths))
            taken.append(reached[np.unique(part[reached], return_index=True)[1]])
    return np.unique(np.concatenate(taken)).astype(np.int64)
