"""Where the clock of a server lies in that of a run: as was said, by the first request that ran, or as both fit best.

A scrape that sees something run says only that it began since the scrape before. How much that is may be read off the
figures themselves: of the offsets that the scrapes leave open, the one at which both sides differ least.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
from attrs import frozen

from kvsim.errors import MeasuredError
from kvsim.study.measured.series import (
    Common,
    Series,
    Simulated,
    Times,
    first_above_zero,
    level_error,
    longest_hold_ns,
)
from kvsim.units import exact_duration

FIRST_RUNNING = "the first scrape that saw anything run was taken for the moment at which the run's first request ran"
BEST_FIT = (
    "of the moments at which the server's first request may have begun to run, the one that makes both differ least"
)

_TRIED = 200
_REFINED = 40
"""Offsets that a best one is chosen from, and those that lie between it and its neighbours."""

_MOST_STARTS = 10
_AS_MUCH = 0.9
"""Beginnings of busy stretches that are looked at, and the part that a later one must cover of what the first does."""


class Fit(NamedTuple):
    """How an offset was chosen: by the mean absolute error of `figure`, which is `error` at the one that was taken.

    Offsets are where the first scrape lies in the run, in ns. Without a scrape before the one that first saw anything
    run they are not `bounded`: as much time was looked at as lies between two scrapes. `passed_over_ns` is how long
    after the first scrape that saw anything run the one came that was taken.
    """

    figure: str
    offset_ns: int
    error: float
    earliest_ns: int
    earliest_error: float
    latest_ns: int
    latest_error: float
    bounded: bool
    passed_over_ns: int

    @property
    def worst_end(self) -> float:
        return max(self.earliest_error, self.latest_error)

    @property
    def matters(self) -> bool:
        """Whether the error at an end of the range is another one: half as much again, and 0.5 % or requests more."""
        return self.worst_end > 1.5 * self.error and self.worst_end - self.error > _LEAST[self.figure]


_LEAST = {"kv_usage": 0.005, "running": 0.5}
"""Figures that a fit may go by, and the difference of their errors that is worth a word."""


@frozen(kw_only=True)
class Alignment:
    """Where the measured clock lies in the run: time of the run = measured time + `shift_ns`.

    `start_ns` and `end_ns` bound the time of the run that both cover. `doubt_ns` is how much later than the event that
    was aligned the scrape may have been that saw it first; None where no scrape came before it, or it does not matter.
    """

    shift_ns: int
    how: str
    doubt_ns: int | None
    fit: Fit | None
    start_ns: int
    end_ns: int
    num_moments: int
    num_before: int
    num_after: int
    run_not_covered_ns: int

    @property
    def common(self) -> Common:
        return Common(self.shift_ns, self.start_ns, self.end_ns)


def align(series: Mapping[str, Series], run: Simulated, offset: int | Literal["best", "first"]) -> Alignment:
    """Put the measured series on the run's clock; raises MeasuredError where no moment is covered by both.

    `offset` is where their first moment lies in the run, in ns. "first": the first moment at which anything ran on one
    side is the first on the other; "best": see `best_fit`, and as "first" where there is nothing to fit.
    """
    moments = _moments(series)
    first = int(moments[0])
    if isinstance(offset, int):
        how = f"the first scrape lies {signed(offset)} into the run, as was said"
        return _aligned(moments, run, offset, how)
    starts = busy_starts(series)
    if not starts or run.began_ns is None:
        side = "on the server" if not starts else "in the run"
        return _aligned(moments, run, 0, f"nothing ever ran {side}, so the first scrape was taken for its beginning")
    fit = best_fit(series, run) if offset == "best" else None
    if fit is not None:
        return _aligned(moments, run, fit.offset_ns, BEST_FIT, fit=fit)
    doubt_ns = _gap_before(moments, starts[0])
    return _aligned(moments, run, run.began_ns - (starts[0] - first), FIRST_RUNNING, doubt_ns=doubt_ns)


def _aligned(
    moments: Times, run: Simulated, offset_ns: int, how: str, *, doubt_ns: int | None = None, fit: Fit | None = None
) -> Alignment:
    first, last = int(moments[0]), int(moments[-1])
    shift_ns = offset_ns - first
    start_ns, end_ns = max(0, offset_ns), min(run.duration_ns, last + shift_ns)
    shifted = moments + shift_ns
    num_moments = int(((shifted >= start_ns) & (shifted <= end_ns)).sum())
    if num_moments == 0:
        raise MeasuredError(
            f"no scrape lies in the run: it lasts from 0 s to {run.duration_ns / 1e9:,.3f} s, the scrapes from "
            f"{offset_ns / 1e9:,.3f} s to {(last + shift_ns) / 1e9:,.3f} s of it; --offset says where the first of "
            "them lies"
        )
    return Alignment(
        shift_ns=shift_ns,
        how=how,
        doubt_ns=doubt_ns,
        fit=fit,
        start_ns=start_ns,
        end_ns=end_ns,
        num_moments=num_moments,
        num_before=int((shifted < start_ns).sum()),
        num_after=int((shifted > end_ns).sum()),
        run_not_covered_ns=start_ns + run.duration_ns - end_ns,
    )


def best_fit(series: Mapping[str, Series], run: Simulated) -> Fit | None:
    """The offset with the least mean absolute error of what is in use, or of what runs if more scrapes have that.

    It is looked for between the scrape that first saw anything run and the one before, or as much time as lies between
    two scrapes where there is none before. Of equal ones the first. Where the server idled again after that, as after
    a request that warms it up, a later beginning is taken if it halves the error and the scrapes cover as much of the
    run. None where nothing ever ran, or there is neither level, or no offset of these has a scrape in the run.
    """
    name = max((name for name in _LEAST if name in series), key=lambda name: len(series[name].times), default=None)
    starts = busy_starts(series)[:_MOST_STARTS]
    if name is None or not starts or run.began_ns is None:
        return None
    chosen: tuple[Fit, int] | None = None
    for start in starts:
        found = _fit_at(start, series, name, run)
        if found is None:
            continue
        fit, covered_ns = found
        is_better = chosen is None or (fit.error < chosen[0].error / 2 and covered_ns >= _AS_MUCH * chosen[1])
        if is_better:
            chosen = fit._replace(passed_over_ns=start - starts[0]), covered_ns
    return None if chosen is None else chosen[0]


def _fit_at(start: int, series: Mapping[str, Series], name: str, run: Simulated) -> tuple[Fit, int] | None:
    """The best of the offsets at which the run begins in the gap before `start`, and how much of the run it covers."""
    assert run.began_ns is not None, "looked at before"
    moments = _moments(series)
    first, last = int(moments[0]), int(moments[-1])
    known = _gap_before(moments, start)
    gap = known or (int(np.median(np.diff(moments))) if len(moments) > 1 else 0)
    earliest = run.began_ns - (start - first)
    errors: dict[int, float] = {}
    hold_ns = longest_hold_ns(series[name])

    def best_of(offsets: set[int]) -> int | None:
        for offset in offsets - errors.keys():
            end_ns = min(run.duration_ns, last - first + offset)
            covered = series[name].shifted(offset - first).within(0, end_ns)
            if covered is not None:
                errors[offset] = level_error(covered, run.courses[name], end_ns, hold_ns).mean_absolute_error
        return min(errors, key=lambda offset: (errors[offset], offset)) if errors else None

    best = best_of({earliest + gap * step // _TRIED for step in range(_TRIED + 1)})
    if best is None:
        return None
    near = {best + gap * step // (_TRIED * _REFINED) for step in range(-_REFINED, _REFINED + 1)}
    best = best_of({offset for offset in near if earliest <= offset <= earliest + gap})
    assert best is not None, "there was one"
    one, other = min(errors), max(errors)
    fit = Fit(name, best, errors[best], one, errors[one], other, errors[other], known is not None, 0)
    return fit, min(run.duration_ns, last - first + best) - max(0, best)


def busy_starts(series: Mapping[str, Series]) -> list[int]:
    """Moments at which the server was seen to run something after it had run nothing, and the very first."""
    level = next((series[name] for name in ("running", "kv_usage", "waiting") if name in series), None)
    if level is None:
        grown = [first_above_zero(each.grown()) for each in series.values()]
        return sorted(at for at in grown if at is not None)[:1]
    busy = level.values > 0
    return [int(at) for at in level.times[busy & ~np.concatenate([[False], busy[:-1]])]]


def _moments(series: Mapping[str, Series]) -> Times:
    return np.unique(np.concatenate([each.times for each in series.values()]))


def _gap_before(moments: Times, seen: int) -> int | None:
    """How long before the one that saw something the last scrape was; None if it is the first."""
    before = moments[moments < seen]
    return int(seen - before[-1]) if len(before) else None


def signed(nanoseconds: int) -> str:
    return f"{'-' if nanoseconds < 0 else ''}{exact_duration(abs(nanoseconds))}"
