"""A run beside what a real server measured: the series of both on one clock, and by how much they differ.

A measured value stands for the moment of its scrape; what the run says then is its last row at or before that moment.
Values of a level hold until the next scrape, if none is missing in between, and means are weighted by that time, on
both sides alike, so that what lies between scrapes makes no difference. Counters are compared by what they grew
between two moments.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from attrs import frozen

Times = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


class Figure(NamedTuple):
    """Something that both sides can say over time; `unit` is share (0 to 1), requests, tokens or times."""

    name: str
    kind: Literal["level", "counter"]
    unit: str
    meaning: str


FIGURES: tuple[Figure, ...] = (
    Figure("kv_usage", "level", "share", "blocks that requests hold / usable blocks"),
    Figure("running", "level", "requests", "running"),
    Figure("waiting", "level", "requests", "waiting"),
    Figure("recent_hit_share", "level", "share", "prefix hits / prompt tokens, last 1,000 admitted requests"),
    Figure("preemptions", "counter", "times", "a running request lost its blocks"),
    Figure("finished", "counter", "requests", "answered in full or cut at a length"),
    Figure("prompt_tokens", "counter", "tokens", "of requests that got their first token"),
    Figure("generation_tokens", "counter", "tokens", "generated"),
    Figure("queried_tokens", "counter", "tokens", "looked up in the prefix cache at first admission"),
    Figure("hit_tokens", "counter", "tokens", "found there"),
)
"""Of vLLM's series, in its meaning: `kv_cache_usage_perc` is 1 - free / (blocks - the null block), where blocks that
are kept for prefix hits alone are free (`BlockPool.get_usage`), so it is allocated / pool."""

LEVELS = tuple(figure for figure in FIGURES if figure.kind == "level")
COUNTERS = tuple(figure for figure in FIGURES if figure.kind == "counter")


@frozen(eq=False)
class Series:
    """Values at moments, in nanoseconds of some clock, strictly rising. There is at least one."""

    times: Times
    values: Values

    @classmethod
    def of(cls, times: list[int], values: list[float]) -> "Series":
        """In any order; of values at one moment the last counts, and what is not a finite number is left out."""
        at, what = np.array(times, dtype=np.int64), np.array(values, dtype=np.float64)
        finite = np.isfinite(what)
        at, what = at[finite], what[finite]
        order = np.argsort(at, kind="stable")
        at, what = at[order], what[order]
        last = np.append(at[1:] != at[:-1], True) if len(at) else np.zeros(0, dtype=bool)
        return cls(at[last], what[last])

    @property
    def resets(self) -> Times:
        """Moments at which a counter had begun anew: a value below the one before."""
        return self.times[1:][np.diff(self.values) < 0]

    def grown(self) -> "Series":
        """Of a counter: what it has grown since the first moment. After a reset it has grown from 0."""
        steps = np.diff(self.values)
        steps = np.where(steps < 0, self.values[1:], steps)
        return Series(self.times, np.concatenate([[0.0], np.cumsum(steps)]))

    def shifted(self, shift_ns: int) -> "Series":
        return Series(self.times + shift_ns, self.values)

    def within(self, start_ns: int, end_ns: int) -> "Series | None":
        """The moments from the one to the other, both included; None if there are none."""
        inside = (self.times >= start_ns) & (self.times <= end_ns)
        return Series(self.times[inside], self.values[inside]) if inside.any() else None


@frozen(eq=False)
class Course:
    """What a run says over time: `values[i]` holds from `times[i]` until the next, and before the first it is 0."""

    times: Times
    values: Values

    def at(self, moments: Times) -> Values:
        held = np.searchsorted(self.times, moments, side="right")
        found: Values = np.concatenate([[0.0], self.values])[held]
        return found


@frozen(eq=False, kw_only=True)
class Simulated:
    """The run's side: a course a figure, and the moment in ns at which it ended.

    `generating` counts the requests whose tokens are only partly in the course of generation_tokens.
    """

    courses: Mapping[str, Course]
    generating: Course
    duration_ns: int

    @property
    def began_ns(self) -> int | None:
        """The first moment at which a request ran."""
        return first_above_zero(self.courses["running"])


def first_above_zero(level: Series | Course) -> int | None:
    some = np.flatnonzero(level.values > 0)
    return int(level.times[some[0]]) if len(some) else None


class Common(NamedTuple):
    """The time that both sides cover, on the run's clock: time of the run = measured time + `shift_ns`."""

    shift_ns: int
    start_ns: int
    end_ns: int


class LevelError(NamedTuple):
    """A level on both sides at the same moments; means weighted by time, `largest_ns` on the run's clock.

    Differences are measured from the run: run - server. Of the common time `left_out_ns` had no scrape that holds.
    """

    num_moments: int
    measured_mean: float
    simulated_mean: float
    mean_error: float
    mean_absolute_error: float
    largest_error: float
    largest_ns: int
    measured_then: float
    simulated_then: float
    measured_peak: float
    simulated_peak: float
    left_out_ns: int


MOST_INTERVALS = 3
"""A scrape holds for so many median intervals at most: beyond them scrapes are missing, and nothing is known."""


def longest_hold_ns(measured: Series) -> int | None:
    """How long a value holds at most; None where there are too few moments to tell what is usual."""
    return int(MOST_INTERVALS * np.median(np.diff(measured.times))) if len(measured.times) > 3 else None


def level_error(measured: Series, course: Course, end_ns: int, hold_ns: int | None = None) -> LevelError:
    """Of moments on the run's clock, each of which holds until the next, the last until `end_ns`; at most `hold_ns`."""
    simulated = course.at(measured.times)
    error = simulated - measured.values
    held = np.diff(np.append(measured.times, end_ns))
    left_out = 0
    if hold_ns is not None:
        left_out = int(np.maximum(0, held - hold_ns).sum())
        held = np.minimum(held, hold_ns)
    weights = held.astype(np.float64)
    if not weights.any():
        weights = np.ones_like(weights)
    worst = int(np.argmax(np.abs(error)))

    def mean(values: Values) -> float:
        return float((values * weights).sum() / weights.sum())

    return LevelError(
        num_moments=len(measured.times),
        measured_mean=mean(measured.values),
        simulated_mean=mean(simulated),
        mean_error=mean(error),
        mean_absolute_error=mean(np.abs(error)),
        largest_error=float(error[worst]),
        largest_ns=int(measured.times[worst]),
        measured_then=float(measured.values[worst]),
        simulated_then=float(simulated[worst]),
        measured_peak=float(measured.values.max()),
        simulated_peak=float(simulated.max()),
        left_out_ns=left_out,
    )


class CounterError(NamedTuple):
    """A counter on both sides: what it grew between two moments of the run, and in all that each side knows.

    None where there are no two moments that both cover.
    """

    from_ns: int | None
    to_ns: int | None
    measured: float | None
    simulated: float | None
    measured_in_all: float
    simulated_in_all: float

    @property
    def difference(self) -> float | None:
        """run - server, between the two moments."""
        return None if self.measured is None or self.simulated is None else self.simulated - self.measured

    @property
    def difference_in_all(self) -> float:
        return self.simulated_in_all - self.measured_in_all


def counter_error(measured: Series, course: Course, common: Common | None) -> CounterError:
    """In all: from the first scrape to the last, or since the server's start if there is but one."""
    grown = measured.grown()
    in_all = float(grown.values[-1]) if len(grown.times) > 1 else float(measured.values[0])
    simulated_in_all = float(course.values[-1]) if len(course.values) else 0.0
    covered = None
    if common is not None:
        covered = grown.shifted(common.shift_ns).within(common.start_ns, common.end_ns)
    if covered is None or len(covered.times) < 2:
        return CounterError(None, None, None, None, in_all, simulated_in_all)
    ends = course.at(covered.times[[0, -1]])
    return CounterError(
        from_ns=int(covered.times[0]),
        to_ns=int(covered.times[-1]),
        measured=float(covered.values[-1] - covered.values[0]),
        simulated=float(ends[1] - ends[0]),
        measured_in_all=in_all,
        simulated_in_all=simulated_in_all,
    )


def share(hits: float | None, queries: float | None) -> float | None:
    return hits / queries if hits is not None and queries else None
