"""A run against a real server: everything that is known of both, compared, and what a reader should know of it."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from attrs import frozen

from kvsim.engine.results import Results
from kvsim.study.measured.clocks import BEST_FIT, FIRST_RUNNING, Alignment, align, busy_starts
from kvsim.study.measured.load import Counted, on_edges, on_load, what_to_count
from kvsim.study.measured.read import Measured
from kvsim.study.measured.run import simulated
from kvsim.study.measured.series import (
    COUNTERS,
    LEVELS,
    MOST_INTERVALS,
    CounterError,
    LevelError,
    Series,
    Simulated,
    counter_error,
    level_error,
    longest_hold_ns,
    share,
)
from kvsim.study.measured.sizes import Conditions, conditions
from kvsim.units import format_duration

_FEW = 5
"""Scrapes in the run below which a comparison says little, where there are more."""

_OF_PREFIX_CACHE = ("queried_tokens", "hit_tokens")


@frozen(kw_only=True)
class HitShare:
    """Prefix hits of the tokens looked up, between the same moments and in all; None where nothing was looked up."""

    measured: float | None
    simulated: float | None
    measured_in_all: float | None
    simulated_in_all: float | None


@frozen(eq=False, kw_only=True)
class MeasuredComparison:
    """`series` are the measured ones on the run's clock, all of them; without an `alignment` there are none.

    A figure is in `levels` or `counters` if both sides have it. `counted` says which of the two spans of time of a
    counter can be compared; `load_differs` whether what can be is another load.
    """

    results: Results
    measured: Measured
    run: Simulated
    alignment: Alignment | None
    series: Mapping[str, Series]
    levels: Mapping[str, LevelError]
    counters: Mapping[str, CounterError]
    counted: Counted
    hit_share: HitShare | None
    conditions: Conditions
    warnings: tuple[str, ...]
    load_differs: bool
    notes: tuple[str, ...]


def compare_measured(
    results: Results, measured: Measured, *, offset: int | Literal["best", "first"] = "best"
) -> MeasuredComparison:
    """Put both on one clock and say by how much they differ; raises MeasuredError where they have no moment in common.

    `offset` is where the first scrape lies in the run in ns, or how to find that; see `align` and `best_fit`. One
    scrape alone is on no clock without it.
    """
    run = simulated(results)
    alignment = None
    if measured.num_moments > 1 or (measured.series and isinstance(offset, int)):
        alignment = align(measured.series, run, offset)
    series: dict[str, Series] = {}
    levels: dict[str, LevelError] = {}
    if alignment is not None:
        series = {name: each.shifted(alignment.shift_ns) for name, each in measured.series.items()}
        for figure in LEVELS:
            if figure.name in series and figure.name in run.courses:
                covered = series[figure.name].within(alignment.start_ns, alignment.end_ns)
                if covered is not None:
                    hold_ns = longest_hold_ns(series[figure.name])
                    course = run.courses[figure.name]
                    levels[figure.name] = level_error(covered, course, alignment.end_ns, hold_ns)
    common = None if alignment is None else alignment.common
    counters = {
        figure.name: counter_error(measured.series[figure.name], run.courses[figure.name], common)
        for figure in COUNTERS
        if figure.name in measured.series and figure.name in run.courses
    }
    counted = what_to_count(measured.series, run, alignment, counters)
    notes = [
        *_on_time(measured, run, alignment),
        *_on_gaps(alignment, levels),
        *_on_counters(measured, run, counters, counted),
    ]
    hit_share = _hit_share(counters)
    load = on_load(measured.series, counted, counters)
    if measured.ratio_only:
        counters = {name: each for name, each in counters.items() if name not in _OF_PREFIX_CACHE}
    notes += on_edges(counted, counters)
    found = conditions(results, measured)
    return MeasuredComparison(
        results=results,
        measured=measured,
        run=run,
        alignment=alignment,
        series=series,
        levels=levels,
        counters=counters,
        counted=counted,
        hit_share=hit_share,
        conditions=found,
        warnings=(*found.warnings, *load, *_on_overlap(measured, alignment)),
        load_differs=bool(load),
        notes=(*notes, *measured.notes),
    )


def _hit_share(counters: Mapping[str, CounterError]) -> HitShare | None:
    if not all(name in counters for name in _OF_PREFIX_CACHE):
        return None
    queried, hits = (counters[name] for name in _OF_PREFIX_CACHE)
    return HitShare(
        measured=share(hits.measured, queried.measured),
        simulated=share(hits.simulated, queried.simulated),
        measured_in_all=share(hits.measured_in_all, queried.measured_in_all),
        simulated_in_all=share(hits.simulated_in_all, queried.simulated_in_all),
    )


def _on_time(measured: Measured, run: Simulated, alignment: Alignment | None) -> list[str]:
    if alignment is None:
        if not measured.series:
            return ["No figures over time: the files hold sizes alone."]
        return [
            "One scrape alone: its counters are compared since the server's start with the whole run, and levels not, "
            "as nothing says where in the run it lies; --offset may."
        ]
    notes = []
    starts, fit = busy_starts(measured.series), alignment.fit
    if alignment.doubt_ns is not None:
        notes.append(
            f"That moment may lie up to {format_duration(alignment.doubt_ns)} before the scrape that saw it: "
            "--offset sets the clocks more exactly."
        )
    elif alignment.how == FIRST_RUNNING or (fit is not None and not fit.bounded):
        notes.append("Something ran in the very first scrape: how long before it that began is not known.")
    if alignment.how == BEST_FIT:
        notes.append("The clocks were set to make the errors small: they say nothing of how well times agree.")
    if fit is not None and fit.passed_over_ns:
        notes.append(
            f"What the server ran in the first {format_duration(fit.passed_over_ns)} was taken for a warm-up, after "
            "which it idled: the run fits better to what came then (--offset first begins with it all the same)."
        )
    elif alignment.how == FIRST_RUNNING and len(starts) > 1:
        notes.append("The server idled again after what it ran first. If that was a warm-up, say so by --offset.")
    outside = {"before": alignment.num_before, "after": alignment.num_after}
    left = [f"{count:,} {where} it" for where, count in outside.items() if count]
    if left:
        notes.append(f"Left out: scrapes that lie outside of the run, {' and '.join(left)}.")
    if alignment.run_not_covered_ns:
        part = alignment.run_not_covered_ns / max(1, run.duration_ns)
        notes.append(
            f"Left out: {format_duration(alignment.run_not_covered_ns)} of the run ({part:.1%}) that no scrape covers."
        )
    return notes


def _on_overlap(measured: Measured, alignment: Alignment | None) -> list[str]:
    if alignment is None or alignment.num_moments >= min(_FEW, measured.num_moments):
        return []
    count = "one alone lies" if alignment.num_moments == 1 else f"{alignment.num_moments} alone lie"
    return [f"Of {measured.num_moments:,} scrapes {count} in the run: that says little. --offset sets the clocks."]


def _on_gaps(alignment: Alignment | None, levels: Mapping[str, LevelError]) -> list[str]:
    """What no scrape says of the common time, and figures that have fewer scrapes than there are."""
    if alignment is None:
        return []
    notes = []
    most = max((each.left_out_ns for each in levels.values()), default=0)
    if most:
        notes.append(
            f"Left out of the means: {format_duration(most)} in which scrapes are missing. A scrape holds for "
            f"{MOST_INTERVALS} times the usual interval at most."
        )
    few = [f"{name} {each.num_moments:,}" for name, each in levels.items() if each.num_moments < alignment.num_moments]
    if few:
        notes.append(f"Of {alignment.num_moments:,} moments not all have every figure: {', '.join(few)}.")
    return notes


def _on_counters(measured: Measured, run: Simulated, counters: dict[str, CounterError], counted: Counted) -> list[str]:
    """Also takes away what cannot be compared between two moments."""
    notes = []
    resets = {name: measured.series[name].resets for name in counters}
    some = {name: len(times) for name, times in resets.items() if len(times)}
    if some:
        notes.append(
            f"{', '.join(some)} began anew {max(some.values()):,} times, as when a server restarts: what was counted "
            "before and after is added up, what lay between is lost. A run has no restart."
        )
    generated = counters.get("generation_tokens")
    if generated is not None and generated.from_ns is not None and generated.to_ns is not None:
        ends = run.generating.at(np.array([generated.from_ns, generated.to_ns], dtype=np.int64))
        if ends.any():
            counters["generation_tokens"] = generated._replace(measured=None, simulated=None)
        if ends.any() and counted == "between":
            notes.append(
                f"generated tokens cannot be compared: requests of the run ({int(ends.max()):,}) are in the "
                "middle of their output where the common time begins or ends, and its tables do not say how far."
            )
    if measured.ratio_only and all(name in counters for name in _OF_PREFIX_CACHE):
        notes.append("The prefix cache's counters count blocks in some versions of vLLM: only their ratio is compared.")
    return notes
