"""Values sorted into bins whose edges can be read: whole steps where values lie close, 1-2-5 or powers of 2 where they
are spread over orders of magnitude.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import count, islice
from typing import Literal

import numpy as np
import numpy.typing as npt
from attrs import frozen

from kvsim.units import TIME_UNITS

Unit = Literal["bytes", "blocks", "ns"]

MOST_BINS = 24
_WIDE_SPREAD = 100
"""Times as large is the largest as the smallest that is not 0: beyond it bins grow with the values."""


@frozen
class Histogram:
    """`counts[i]` values lie from `edges[i]` up to, and not at, `edges[i + 1]`. Edges are whole and ascend.

    Where `grows`, each bin is about as many times as large as the one before, but for a first one of zeros alone.
    """

    edges: tuple[int, ...]
    counts: tuple[int, ...]
    grows: bool

    def place(self, value: int) -> float:
        """Where a value lies if all bins are drawn equally wide: 0 is the first edge, 1 the second."""
        bin = min(bisect_right(self.edges, value) - 1, len(self.counts) - 1)
        low, high = self.edges[bin], self.edges[bin + 1]
        if self.grows and low:
            return bin + float(np.log(value / low) / np.log(high / low))
        return bin + (value - low) / (high - low)


def histogram(values: npt.NDArray[np.int64], unit: Unit) -> Histogram:
    """Of at least one value, none of them negative; at most MOST_BINS bins, and one of zeros beside bins that grow."""
    distinct = np.unique(values)
    positive = distinct[distinct > 0]
    grows = len(positive) > 1 and int(positive[-1]) > _WIDE_SPREAD * int(positive[0]) and len(distinct) > MOST_BINS
    edges = _growing_edges(positive, unit) if grows else _even_edges(distinct, unit)
    if grows and not distinct[0]:
        edges = [0, *edges]
    bins = np.searchsorted(np.array(edges), values, side="right") - 1
    return Histogram(tuple(edges), tuple(np.bincount(bins, minlength=len(edges) - 1).tolist()), grows)


def _even_edges(distinct: npt.NDArray[np.int64], unit: Unit) -> list[int]:
    """A bin a value where there are few, as of slots of a block; else some steps of their common divisor."""
    low, high = int(distinct[0]), int(distinct[-1])
    step = 1 if unit == "ns" else int(np.gcd.reduce(np.diff(distinct))) if len(distinct) > 1 else 1
    origin = low % step
    for steps in _ladder(unit):
        width = steps * step
        first = origin + (low - origin) // width * width
        num_bins = (high - first) // width + 1
        if num_bins <= MOST_BINS:
            return [first + index * width for index in range(num_bins + 1)]
    raise AssertionError("steps grow without end")


def _growing_edges(positive: npt.NDArray[np.int64], unit: Unit) -> list[int]:
    """From the last edge that is not above the smallest value to the first above the largest."""
    low, high = int(positive[0]), int(positive[-1])
    for every in count(1):
        edges: list[int] = []
        for edge in islice(_ladder(unit), 0, None, every):
            if edge <= low:
                edges.clear()
            edges.append(edge)
            if edge > high:
                break
        if len(edges) <= MOST_BINS + 1:
            return edges
    raise AssertionError("steps grow without end")


def _ladder(unit: Unit) -> Iterator[int]:
    if unit == "bytes":
        yield from (1 << power for power in count())
    elif unit == "blocks":
        yield from (step * 10**power for power in count() for step in (1, 2, 5))
    else:
        yield from _times()


def _times() -> Iterator[int]:
    """1, 2, 5 ns ... 50 s as decimals go, then minutes and hours."""
    yield from (step * 10**power for power in range(10) for step in (1, 2, 5))
    minute, hour = TIME_UNITS["min"], TIME_UNITS["h"]
    yield from (10 * 10**9, 20 * 10**9, minute, 2 * minute, 5 * minute, 10 * minute, 20 * minute)
    yield from (step * 10**power * hour for power in count() for step in (1, 2, 5))
