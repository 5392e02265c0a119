"""A run beside what a real server measured: the series of both on one clock, and by how much they differ.

A measured value stands for the moment of its scrape; what the run says then is its last row at or before that moment.
Values of a level hold until the next scrape, and means are weighted by that time, on both sides alike, so that what
lies between scrapes makes no difference. Counters are compared by what they grew between two moments.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from attrs import frozen

from kvsim.errors import MeasuredError
from kvsim.units import exact_duration

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
        return _first(self.courses["running"])


def _first(level: Series | Course) -> int | None:
    some = np.flatnonzero(level.values > 0)
    return int(level.times[some[0]]) if len(some) else None


FIRST_RUNNING = "the first scrape that saw anything run was taken for the moment at which the run's first request ran"
BEST_FIT = "of the moments at which that scrape may have begun to see, the one that makes the levels differ least"

_TRIED = 400
"""Offsets that a best one is chosen from."""


@frozen(kw_only=True)
class Alignment:
    """Where the measured clock lies in the run: time of the run = measured time + `shift_ns`.

    `start_ns` and `end_ns` bound the time of the run that both cover. `doubt_ns` is how much later than the event that
    was aligned the scrape may have been that saw it first; None where no scrape came before it, or it does not matter.
    """

    shift_ns: int
    how: str
    doubt_ns: int | None
    start_ns: int
    end_ns: int
    num_moments: int
    num_before: int
    num_after: int
    run_not_covered_ns: int


def align(series: Mapping[str, Series], run: Simulated, offset_ns: int | None) -> Alignment:
    """Put the measured series on the run's clock; raises MeasuredError where no moment is covered by both.

    `offset_ns` is where their first moment lies in the run. Without it, the first moment at which anything ran on one
    side is the first on the other.
    """
    moments = np.unique(np.concatenate([each.times for each in series.values()]))
    first, last = int(moments[0]), int(moments[-1])
    doubt_ns = None
    if offset_ns is not None:
        shift_ns, how = offset_ns - first, f"the first scrape lies {_signed(offset_ns)} into the run, as was said"
    else:
        seen = _first_seen(series)
        if seen is None or run.began_ns is None:
            side = "on the server" if seen is None else "in the run"
            shift_ns = -first
            how = f"nothing ever ran {side}, so the first scrape was taken for the beginning of the run"
        else:
            shift_ns = run.began_ns - seen
            how = FIRST_RUNNING
            before = moments[moments < seen]
            doubt_ns = int(seen - before[-1]) if len(before) else None
    start_ns, end_ns = max(0, first + shift_ns), min(run.duration_ns, last + shift_ns)
    shifted = moments + shift_ns
    num_moments = int(((shifted >= start_ns) & (shifted <= end_ns)).sum())
    if num_moments == 0:
        raise MeasuredError(
            f"no scrape lies in the run: it lasts from 0 s to {run.duration_ns / 1e9:,.3f} s, the scrapes from "
            f"{(first + shift_ns) / 1e9:,.3f} s to {(last + shift_ns) / 1e9:,.3f} s of it; --offset says where the "
            "first of them lies"
        )
    return Alignment(
        shift_ns=shift_ns,
        how=how,
        doubt_ns=doubt_ns,
        start_ns=start_ns,
        end_ns=end_ns,
        num_moments=num_moments,
        num_before=int((shifted < start_ns).sum()),
        num_after=int((shifted > end_ns).sum()),
        run_not_covered_ns=start_ns + run.duration_ns - end_ns,
    )


def best_offset(series: Mapping[str, Series], run: Simulated) -> int | None:
    """Where the first scrape lies in the run for the least mean absolute error of what is in use, else of what runs.

    It is looked for between the scrape that first saw anything run and the one before, or as much time as lies between
    two scrapes where there is none before. None where nothing ever ran, or there is neither level.
    """
    name = next((name for name in ("kv_usage", "running") if name in series), None)
    seen = _first_seen(series)
    if name is None or seen is None or run.began_ns is None:
        return None
    moments = np.unique(np.concatenate([each.times for each in series.values()]))
    first, latest = int(moments[0]), run.began_ns - (seen - int(moments[0]))
    gap = align(series, run, None).doubt_ns or (int(np.median(np.diff(moments))) if len(moments) > 1 else 0)
    best: tuple[float, int] | None = None
    for offset in sorted({latest + gap * step // _TRIED for step in range(_TRIED + 1)}):
        tried = align(series, run, offset)
        covered = series[name].shifted(offset - first).within(tried.start_ns, tried.end_ns)
        if covered is None:
            continue
        error = level_error(covered, run.courses[name], tried.end_ns).mean_absolute_error
        if best is None or error < best[0]:
            best = error, offset
    return None if best is None else best[1]


def _first_seen(series: Mapping[str, Series]) -> int | None:
    """When the server first did anything: by its running requests, else by what it held, else by what it counted."""
    for name in ("running", "kv_usage", "waiting"):
        if name in series:
            return _first(series[name])
    grown = [_first(each.grown()) for each in series.values()]
    return min((at for at in grown if at is not None), default=None)


def _signed(nanoseconds: int) -> str:
    return f"{'-' if nanoseconds < 0 else ''}{exact_duration(abs(nanoseconds))}"


class LevelError(NamedTuple):
    """A level on both sides at the same moments; means weighted by time, `largest_ns` on the run's clock.

    Differences are measured from the run: run - server.
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


def level_error(measured: Series, course: Course, end_ns: int) -> LevelError:
    """Of moments on the run's clock, the last of which holds until `end_ns`."""
    simulated = course.at(measured.times)
    error = simulated - measured.values
    weights = np.diff(np.append(measured.times, end_ns)).astype(np.float64)
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


def counter_error(measured: Series, course: Course, alignment: Alignment | None) -> CounterError:
    """In all: from the first scrape to the last, or since the server's start if there is but one."""
    grown = measured.grown()
    in_all = float(grown.values[-1]) if len(grown.times) > 1 else float(measured.values[0])
    simulated_in_all = float(course.values[-1]) if len(course.values) else 0.0
    covered = None
    if alignment is not None:
        covered = grown.shifted(alignment.shift_ns).within(alignment.start_ns, alignment.end_ns)
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
