"""Sums, peaks and counts over the tables of a run, added up part by part as rows come."""

from collections import Counter
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl
from attrs import define, field

from kvsim.engine.tables import MemoryShape, Tables
from kvsim.engine.unshared import UnsharedTotals, unshared_peak_bytes

LEVEL_COLUMNS = (
    "allocated_bytes",
    "live_bytes",
    "slack_bytes",
    "tail_bytes",
    "reserved_bytes",
    "unused_bytes",
    "cached_bytes",
    "logical_bytes",
    "window_saving_bytes",
    "shared_saving_bytes",
    "padding_bytes",
    "external_bytes",
    "host_bytes",
    "running",
    "waiting",
)
"""Of the timeline; each is summed over time, and has a peak."""

REQUEST_SUMS = (
    "prompt_tokens",
    "output_tokens",
    "hit_tokens",
    "resumed_hit_tokens",
    "refusals",
    "blocked_ns",
    "preemptions",
    "recomputed_tokens",
    "swaps",
    "swap_fallbacks",
    "swapped_out_bytes",
    "swapped_in_bytes",
    "swap_dropped_bytes",
)

_LIMB_BITS = 21
_ROWS_PER_SUM = 2**20


@define(eq=False)
class Totals:
    """What figures are made of. Integrals are level x nanoseconds, exactly.

    `num_steps` scheduled tokens; `held_back_steps` counts those in which the head of the queue was not tried, by
    cause; `moved_bytes` were copied for requests that outgrew their extent, and `busy_ns` is how long any ran. Of each
    admitted request its wait is kept, 8 bytes, for the percentiles.
    """

    shape: MemoryShape
    worst_case_bytes: int
    num_steps: int = 0
    held_back_steps: dict[str, int] = field(factory=dict)
    moved_bytes: int = 0
    duration_ns: int = 0
    busy_ns: int = 0
    integrals: dict[str, int] = field(factory=lambda: dict.fromkeys(LEVEL_COLUMNS, 0))
    peaks: dict[str, int] = field(factory=lambda: dict.fromkeys(LEVEL_COLUMNS, 0))
    at_peak: dict[str, int] = field(factory=lambda: dict.fromkeys(LEVEL_COLUMNS, 0))
    """Levels at the first moment at which most was allocated."""
    num_requests: int = 0
    sums: dict[str, int] = field(factory=lambda: dict.fromkeys(REQUEST_SUMS, 0))
    admitted_prompt_tokens: int = 0
    outcomes: Counter[str] = field(factory=Counter)
    reasons: Counter[str] = field(factory=Counter)
    num_refused: int = 0
    num_preempted: int = 0
    refusals_for: Counter[str] = field(factory=Counter)
    unshared: UnsharedTotals | None = None
    """Of a run with several outputs from one prompt."""
    _waits: list[npt.NDArray[np.int64]] = field(factory=list)
    _last: dict[str, int] | None = None

    @property
    def has_timeline(self) -> bool:
        return self._last is not None

    def add_all(self, tables: Tables) -> None:
        """All rows of all tables."""
        for name, add in (
            ("timeline", self.add_timeline),
            ("requests", self.add_requests),
            ("pressure", self.add_pressure),
        ):
            for part in tables.parts(name):  # type: ignore[arg-type]  # mypy widens the names to str
                add(part)

    def add_timeline(self, part: pl.DataFrame) -> None:
        """Rows that follow those added before."""
        if part.is_empty():
            return
        times = part["time_ns"].to_numpy()
        lasted = np.diff(times)
        if self._last is not None:
            gap = int(times[0]) - self._last["time_ns"]
            for name in LEVEL_COLUMNS:
                self.integrals[name] += self._last[name] * gap
            self.busy_ns += gap if self._last["running"] else 0
        self.busy_ns += int(lasted[part["running"].to_numpy()[:-1] > 0].sum())
        if self.unshared is not None:  # never more than a level that was followed from step to step
            self.unshared.peak_bytes = max(self.unshared.peak_bytes, unshared_peak_bytes(part))
        most = self.peaks["allocated_bytes"]
        for name in LEVEL_COLUMNS:
            level = part[name].to_numpy()
            self.integrals[name] += exact_dot(level[:-1], lasted)
            self.peaks[name] = max(self.peaks[name], int(level.max()))
        at = int(part["allocated_bytes"].arg_max() or 0)
        if self.peaks["allocated_bytes"] > most:
            self.at_peak = {name: int(part[name][at]) for name in LEVEL_COLUMNS}
        self._last = {name: int(part[name][-1]) for name in ("time_ns", *LEVEL_COLUMNS)}
        self.duration_ns = self._last["time_ns"]

    def add_requests(self, part: pl.DataFrame) -> None:
        self.num_requests += part.height
        for name in REQUEST_SUMS:
            self.sums[name] += int(part[name].sum())
        self.num_refused += int((part["refusals"] > 0).sum())
        self.num_preempted += int((part["preemptions"] > 0).sum())
        self.outcomes.update(part["outcome"].to_list())
        self.reasons.update(part["reason"].drop_nulls().to_list())
        was_admitted = part["admitted_ns"].is_not_null()
        self.admitted_prompt_tokens += int(part["prompt_tokens"].filter(was_admitted).sum())
        self._waits.append((part["admitted_ns"] - part["arrival_ns"]).drop_nulls().to_numpy())

    def add_pressure(self, part: pl.DataFrame) -> None:
        for event, cause, steps in zip(part["event"], part["cause"], part["steps"], strict=True):
            if event == "refused":
                self.refusals_for[cause] += steps

    @cached_property
    def waits(self) -> pl.Series:
        """Nanoseconds from arrival to first admission of each admitted request, when all have been added."""
        return pl.Series(np.concatenate(self._waits) if self._waits else np.array([], dtype=np.int64))


def exact_dot(levels: npt.NDArray[np.int64], lasted: npt.NDArray[np.int64]) -> int:
    """Sum of products of whole numbers that are not negative, however large it is."""
    if not len(levels):
        return 0
    if float(levels.max()) * float(lasted.max()) * len(levels) < 2**62:
        return int(np.dot(levels, lasted))
    total = 0
    for start in range(0, len(levels), _ROWS_PER_SUM):
        a, b = levels[start : start + _ROWS_PER_SUM], lasted[start : start + _ROWS_PER_SUM]
        for i, low in enumerate(_limbs(a)):
            for j, high in enumerate(_limbs(b)):
                total += int(np.dot(low, high)) << (_LIMB_BITS * (i + j))
    return total


def _limbs(values: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Digits of 21 bits, lowest first: a million products of two of them fit in 64 bits."""
    return [(values >> shift) & (2**_LIMB_BITS - 1) for shift in range(0, int(values.max()).bit_length(), _LIMB_BITS)]
