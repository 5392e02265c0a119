"""Arrivals whose rate changes over time: bursts, and windows as they were measured."""

import csv
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import TextIOWrapper
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from attrs import evolve, field, frozen, validators

from kvsim.errors import TraceError
from kvsim.rules import NANOSECONDS, Consistent, at_least, between, more_than_zero, not_blank, shown
from kvsim.workload.generate.generated import Generated, content_contradicts, no_end
from kvsim.workload.generate.packed import open_unpacked
from kvsim.workload.generate.streams import random_stream
from kvsim.workload.generate.weibull import weibull_shape

_MOST_ROWS = 1_000_000
_LEAST_ARRIVALS = 0.001
"""Fewer expected in a period, and most of the work would be periods in which nothing comes."""


class Stage(NamedTuple):
    """A stretch of `length_ns` with `rate` arrivals per second; `gap` draws gaps whose mean is 1."""

    length_ns: int
    rate: float
    gap: Callable[[], float]


def stage_arrivals(stages: Iterable[Stage]) -> Iterator[int]:
    """Times of arrival (ns). A gap that outlasts its stage goes on at the rate of the next one, so that a Poisson
    process stays one at every rate."""
    begin_ns = 0
    left: float | None = None
    for stage in stages:
        at_ns = 0.0
        while stage.rate > 0:
            gap = stage.gap() if left is None else left
            next_ns = at_ns + gap * 1e9 / stage.rate
            if next_ns > stage.length_ns:
                left = gap - (stage.length_ns - at_ns) * stage.rate / 1e9
                break
            at_ns, left = next_ns, None
            yield begin_ns + round(at_ns)
        begin_ns += stage.length_ns


@frozen(kw_only=True)
class OnOff(Generated):
    """Bursts: Poisson arrivals at `rate` per second for `on`, then at `off_rate` for `off`, and so on.

    These lengths are kept exactly, or are the means of exponentially distributed ones.
    """

    rate: float = field(validator=more_than_zero(1_000_000))
    on: int = field(validator=at_least(1), metadata=NANOSECONDS)
    off: int = field(validator=at_least(1), metadata=NANOSECONDS)
    off_rate: float = field(default=0.0, validator=between(0, 1_000_000))
    periods: Literal["fixed", "exponential"] = "fixed"

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        stages = ((values["on"], values["rate"]), (values["off"], values["off_rate"]))
        return Generated.contradictions(values) + _too_rare("on and off", stages)

    def arrival_times(self, seed: int) -> Iterator[int]:
        return stage_arrivals(self._stages(seed))

    def _stages(self, seed: int) -> Iterator[Stage]:
        gap = random_stream(seed, "arrivals").standard_exponential
        length = random_stream(seed, "periods").standard_exponential
        for mean_ns, rate in cycle(((self.on, self.rate), (self.off, self.off_rate))):
            yield Stage(mean_ns if self.periods == "fixed" else round(mean_ns * length()), rate, gap)


@frozen(kw_only=True)
class Window(Consistent):
    """`duration` with `rate` arrivals per second whose gaps have the coefficient of variation `cv`."""

    duration: int = field(validator=at_least(1), metadata=NANOSECONDS)
    rate: float = field(validator=between(0, 1_000_000))
    cv: float = field(default=1.0, validator=between(0.02, 100))
    distribution: Literal["gamma", "weibull"] = "gamma"

    @staticmethod
    def contradictions(_values: Mapping[str, Any]) -> list[str]:
        return []

    def stage(self, rng: np.random.Generator) -> Stage:
        if self.distribution == "gamma":
            return Stage(self.duration, self.rate, lambda: rng.gamma(self.cv**-2, self.cv**2))
        shape = weibull_shape(self.cv)
        mean = math.gamma(1 + 1 / shape)
        return Stage(self.duration, self.rate, lambda: rng.weibull(shape) / mean)


@frozen(kw_only=True)
class Windows(Generated):
    """Arrivals at a rate given window by window, here or in a file as ServeGen's, which end with the last window or
    are repeated from the first."""

    windows: tuple[Window, ...] | None = None
    path: str | None = field(default=None, validator=validators.optional(not_blank))
    repeat: bool = False

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        sentences = content_contradicts(values)
        if values["repeat"] is True:
            sentences += no_end(values)
        windows = values["windows"]
        if (windows is None) == (values["path"] is None):
            sentences.append("one of windows and path must be given, and not both")
        if isinstance(windows, tuple) and all(window.rate == 0 for window in windows):
            sentences.append("windows must have one with a rate > 0")
        elif isinstance(windows, tuple) and values["repeat"] is True:
            sentences += _too_rare("windows that are repeated", [(window.duration, window.rate) for window in windows])
        return sentences

    def arrival_times(self, seed: int) -> Iterator[int]:
        assert self.windows is not None, "the file has been read"
        rng = random_stream(seed, "arrivals")
        stages = (window.stage(rng) for window in (cycle(self.windows) if self.repeat else self.windows))
        return stage_arrivals(stages)

    def loaded(self, base: Path) -> "Windows":
        """With the windows of its file; raises TraceError for a file that cannot be used."""
        if self.path is None:
            return self
        windows = _read_windows(base / self.path)
        try:
            return evolve(self, windows=windows, path=None)
        except ValueError as error:
            raise TraceError(f"{base / self.path}: {error}") from None


def _too_rare(what: str, stages: Iterable[tuple[Any, Any]]) -> list[str]:
    """A sentence where next to nothing arrives in a round through the stages: (ns, arrivals per second)."""
    pairs = list(stages)
    if not all(isinstance(value, int | float) for pair in pairs for value in pair):
        return []
    arrivals = sum(length_ns * rate for length_ns, rate in pairs) / 1e9
    if arrivals >= _LEAST_ARRIVALS:
        return []
    return [f"{what} must bring at least {_LEAST_ARRIVALS} requests a round on average, got {arrivals:.3g}"]


def _read_windows(path: Path) -> tuple[Window, ...]:
    """Rows without a header: start (s), rate (1/s), cv, Gamma or Weibull, and what else there may be."""
    try:
        rows = [(number, row) for number, row in enumerate(_csv_rows(path), 1) if row]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from None
    if len(rows) < 2:
        raise TraceError(f"{path}: must have at least two windows, got {len(rows)}")
    starts = [_number(path, number, "start", row, 0) for number, row in rows]
    lengths = [after - before for before, after in pairwise(starts)]
    windows = []
    for (number, row), seconds in zip(rows, [*lengths, lengths[-1]], strict=True):
        if seconds <= 0:
            raise TraceError(f"{path}:{number}: must start before the row below")
        windows.append(_window(path, number, row, round(seconds * 1e9)))
    if not any(window.rate for window in windows):
        raise TraceError(f"{path}: has no window with a rate > 0")
    return tuple(windows)


def _csv_rows(path: Path) -> Iterator[list[str]]:
    if not path.is_file():
        raise TraceError(f"{path}: is not a file")
    with TextIOWrapper(open_unpacked(path), encoding="utf-8-sig") as lines:
        for number, row in enumerate(csv.reader(lines), 1):
            if number > _MOST_ROWS:
                raise TraceError(f"{path}: must have at most {_MOST_ROWS:,} windows")
            yield row


def _window(path: Path, number: int, row: list[str], duration: int) -> Window:
    rate = _number(path, number, "rate", row, 1)
    if rate == 0:
        return Window(duration=duration, rate=0.0)
    word = row[3].strip().lower() if len(row) > 3 else ""
    if word not in ("gamma", "weibull"):
        raise TraceError(f"{path}:{number}: distribution must be Gamma or Weibull, got {shown(word)}")
    distribution: Literal["gamma", "weibull"] = "gamma" if word == "gamma" else "weibull"
    try:
        return Window(duration=duration, rate=rate, cv=_number(path, number, "cv", row, 2), distribution=distribution)
    except ValueError as error:
        raise TraceError(f"{path}:{number}: {error}") from None


def _number(path: Path, number: int, name: str, row: list[str], column: int) -> float:
    try:
        value = float(row[column])
    except (IndexError, ValueError):
        value = math.nan
    if not 0 <= value <= 10**12:
        raise TraceError(f"{path}:{number}: {name} must be a number >= 0, got {shown(','.join(row))}")
    return value
