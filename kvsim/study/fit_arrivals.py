"""When requests come, as the arrival processes can say it: the one nearest to a trace by rate, spread and bursts.

Like what is shared, this is tried out: every process is generated with what the trace suggests, bursts over a grid, and
measured as the trace is.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import islice, product, takewhile
from typing import Any, NamedTuple

import numpy as np
from attrs import frozen

from kvsim.study.fit_lengths import apart, rounded
from kvsim.study.reuse import Ints
from kvsim.study.trace_info import dispersion
from kvsim.workload.generate import (
    Arrivals,
    Constant,
    Fixed,
    Gamma,
    OnOff,
    Poisson,
    Sessions,
    Weibull,
    Window,
    Windows,
    random_stream,
)

_GAPS_IN_BINS = (10, 100)
"""Bursts are looked at by the second and in bins of so many mean gaps, in which something happens at any rate."""

_FEWEST_BINS = 20

_MOST_DRAWN = 4_000
_SEEDS = 3
_FEWEST = 30
"""Of fewer arrivals no bursts are made out."""

_MOST_RATE = 1_000_000
_NUM_WINDOWS = (12, 48, 96)
_ON_SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)
_CYCLES = (3.0, 10, 30, 100, 300, 1_000, 3_000)
"""In mean gaps."""

_OFF_RATES = (0.0, 0.25)
_COSTS = {Constant: 0.0, Poisson: 0.0, Gamma: 0.01, Weibull: 0.01, OnOff: 0.03, Windows: 0.03}
_COST_OF_A_WINDOW = 0.0005
"""What is simpler is taken before what is no better than that."""


class Bursts(NamedTuple):
    """What is compared."""

    rate_per_s: float
    gap_cv: float
    iods: tuple[float, ...]
    """Dispersion by the second, and in each of the longer bins."""

    @classmethod
    def of(cls, times_ns: Ints, bins_ns: Sequence[int]) -> "Bursts | None":
        """None for times that are too few or all the same."""
        since = np.sort(times_ns) - times_ns.min() if len(times_ns) else times_ns
        if len(since) < 2 or not since[-1]:
            return None
        gaps = np.diff(since).astype(np.float64)
        rate = len(gaps) * 1e9 / float(since[-1])
        iods = tuple(dispersion(since, size) for size in (10**9, *bins_ns))
        return cls(rate, float(gaps.std() / gaps.mean()), iods)

    def distance(self, other: "Bursts | None") -> float:
        if other is None:
            return 2.0
        pairs = zip((*self[:2], *self.iods), (*other[:2], *other.iods), strict=True)
        return sum(apart(one, another) for one, another in pairs) / (2 + len(self.iods))


class Process(NamedTuple):
    """An arrival process and its keys."""

    cls: type[Any]
    keys: dict[str, Any]

    @property
    def cost(self) -> float:
        return _COSTS[self.cls] + _COST_OF_A_WINDOW * len(self.keys.get("windows", ()))

    def faster(self, factor: float) -> "Process":
        """The same at another rate."""
        keys = dict(self.keys)
        for name in ("rate", "off_rate"):
            if name in keys:
                keys[name] = rounded(min(keys[name] * factor, _MOST_RATE))
        if "windows" in keys:
            keys["windows"] = tuple(_window(one.duration, one.rate * factor, one.cv) for one in keys["windows"])
        return Process(self.cls, keys)


@frozen(kw_only=True)
class Timing:
    """How requests come out of arrivals: each by itself, or as the turns of sessions, until an end."""

    sessions: Sessions | None
    end: dict[str, Any]

    def times(self, process: Process, seed: int, most: int) -> Ints:
        one = Fixed(1)
        workload: Arrivals = process.cls(prompt=one, output=one, **self.end, **process.keys)
        arrivals = islice(workload.arrival_times(seed), min(most, self.end.get("num_requests", most)))
        if self.sessions is None:
            return np.fromiter(arrivals, dtype=np.int64)
        last_ns: int = self.end["duration"]
        starts = np.fromiter(takewhile(lambda start: start <= last_ns, arrivals), dtype=np.int64)
        return np.sort(_turns_from(self.sessions, starts, last_ns, seed))[:most]


def _turns_from(sessions: Sessions, starts: Ints, last_ns: int, seed: int) -> Ints:
    """When the turns come of sessions that begin at these times; as drawn from the same distributions, all at once."""
    turns = sessions.turns.sample(random_stream(seed, "turns"), len(starts))
    ends = np.cumsum(turns)
    pauses = np.zeros(int(ends[-1]) if len(ends) else 0)
    if sessions.think is not None:
        pauses[:] = sessions.think.sample(random_stream(seed, "thinks"), len(pauses))
    firsts = ends - turns
    pauses[firsts] = 0
    since = np.cumsum(pauses)
    times = np.repeat(starts - since[firsts], turns) + since
    return np.rint(times[times <= last_ns]).astype(np.int64)


def bins_ns(times_ns: Ints) -> list[int]:
    """The longer bins, the last of them only where there are enough."""
    gap_ns = int(times_ns.max() - times_ns.min()) / max(1, len(times_ns) - 1)
    first, *longer = _GAPS_IN_BINS
    wide = (first, *(gaps for gaps in longer if len(times_ns) >= gaps * _FEWEST_BINS))
    return [max(1, round(gaps * gap_ns)) for gaps in wide]


def fit_arrivals(starts_ns: Ints, times_ns: Ints, timing: Timing, seed: int, most: int) -> Process:
    """The nearest process; `starts_ns` are when requests came by themselves, `times_ns` when all did."""
    bins = bins_ns(times_ns)
    wanted = Bursts.of(times_ns, bins)
    assert wanted is not None, "the trace has a rate"
    candidates = list(_candidates(np.sort(starts_ns), wanted, bins, timing, seed))
    if timing.sessions is not None:
        candidates = [_at_the_rate(process, wanted, timing, seed, most) for process in candidates]

    def rank(process: Process) -> float:
        made = (Bursts.of(timing.times(process, seed + number, most), bins) for number in range(_SEEDS))
        return sum(map(wanted.distance, made)) / _SEEDS + process.cost

    return min(candidates, key=rank)


def _at_the_rate(process: Process, wanted: Bursts, timing: Timing, seed: int, most: int) -> Process:
    """Turns that come after the end are missing: as many more sessions make up for them."""
    for _ in range(2):
        made = [Bursts.of(timing.times(process, seed + number, most), ()) for number in range(_SEEDS)]
        rates = [one.rate_per_s for one in made if one is not None]
        if not rates:
            break
        process = process.faster(min(max(wanted.rate_per_s * len(rates) / sum(rates), 0.5), 2.0))
    return process


def _candidates(starts: Ints, wanted: Bursts, bins: list[int], timing: Timing, seed: int) -> Iterator[Process]:
    seconds = max(float(starts[-1] - starts[0]), 1.0) / 1e9
    rate = rounded(min(max(len(starts) - 1, 1) / seconds, _MOST_RATE))
    gaps = np.diff(starts).astype(np.float64)
    cv = float(gaps.std() / gaps.mean()) if len(gaps) and gaps.any() else 1.0
    if cv < 0.001:
        yield Process(Constant, {"rate": rate})
        return
    yield Process(Poisson, {"rate": rate})
    if abs(cv - 1) >= 0.02:
        yield Process(Gamma, {"rate": rate, "cv": rounded(min(cv, 100.0))})
        yield Process(Weibull, {"rate": rate, "cv": rounded(min(max(cv, 0.02), 100.0))})
    if len(starts) >= _FEWEST and cv > 1.02:
        yield _bursts(rate, len(starts), wanted, bins, timing, seed)
        yield from _windows(starts)


def _bursts(rate: float, number: int, wanted: Bursts, bins: list[int], timing: Timing, seed: int) -> Process:
    """Bursts of the length and distance that come closest."""

    def distance(process: Process) -> float:
        return wanted.distance(Bursts.of(timing.times(process, seed, _MOST_DRAWN), bins))

    most_gaps = number / 2
    grid = product(_ON_SHARES, [c for c in _CYCLES if c <= most_gaps], ("fixed", "exponential"), _OFF_RATES)
    tried: dict[tuple[float, float, str, float], float] = {point: distance(_on_off(rate, *point)) for point in grid}
    best = min(tried, key=lambda point: tried[point])
    for factor in (1.8, 1.3, 1.1):
        share, cycle, periods, off = best
        for point in product((share / factor, share, share * factor), (cycle / factor, cycle, cycle * factor)):
            beside = (min(point[0], 0.95), point[1], periods, off)
            tried.setdefault(beside, distance(_on_off(rate, *beside)))
        best = min(tried, key=lambda point: tried[point])
    return _on_off(rate, *best)


def _on_off(rate: float, share: float, cycle: float, periods: str, off: float) -> Process:
    """On for a share of a cycle of so many mean gaps, between which the rate is `off` of the mean one."""
    cycle_ns = cycle / rate * 1e9
    off_rate = rate * off
    keys = {
        "rate": rounded(min((rate - off_rate * (1 - share)) / share, _MOST_RATE)),
        "on": _readable_ns(cycle_ns * share),
        "off": _readable_ns(cycle_ns * (1 - share)),
        "periods": periods,
    }
    return Process(OnOff, keys | ({"off_rate": rounded(off_rate)} if off_rate else {}))


def _windows(starts: Ints) -> Iterator[Process]:
    """The rate by windows of equal length, and within them the gaps of one spread."""
    since = starts - starts[0]
    for number in _NUM_WINDOWS:
        if number * 5 > len(starts):
            return
        length = _readable_ns(math.ceil((int(since[-1]) + 1) / number))
        counts = np.bincount(since // length)
        gaps = np.diff(since) * counts[since[:-1] // length] / length
        within = gaps[(np.diff(since // length) == 0) & (gaps >= 0)]
        spread = float(within.std() / within.mean()) if len(within) and within.any() else 1.0
        for cv in sorted({1.0, round(min(max(spread, 0.02), 100.0), 2), round(max(spread, 0.02) ** 0.5, 2)}):
            yield Process(
                Windows, {"windows": tuple(_window(length, count * 1e9 / length, cv) for count in counts.tolist())}
            )


def _window(length: int, rate: float, cv: float) -> Window:
    return Window(duration=length, rate=rounded(min(rate, _MOST_RATE)), cv=cv)


def _readable_ns(nanoseconds: float) -> int:
    """With five digits."""
    return max(1, int(rounded(nanoseconds)))
