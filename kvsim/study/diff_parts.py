"""Figures of one run, each taken apart into causes that add up to it, exactly."""

from fractions import Fraction
from typing import NamedTuple, get_args

import polars as pl

from kvsim.engine.results import Results
from kvsim.engine.state import Outcome, RejectReason
from kvsim.engine.step import HeldBack
from kvsim.memory.allocator import LeastChange
from kvsim.study.compare_record import ALLOCATED_PARTS, byte_ns_of

Exact = int | Fraction

LOST: tuple[Outcome, ...] = ("timed_out", "aborted", "unfinished")
"""Outcomes, beside being rejected, that left a request without its answer. What is cut at max_model_len has got one."""

SLACK_PARTS = tuple(part for part in ALLOCATED_PARTS if part != "live")


class Whole(NamedTuple):
    """A figure of one run, the parts that add up to it, and how much there was of its kind.

    Averages over time are fractions of whole bytes x nanoseconds, so that nothing is lost.
    """

    value: Exact
    parts: dict[str, Exact]
    out_of: Exact


def _mean(results: Results, byte_ns: int) -> Fraction:
    return Fraction(byte_ns, results.totals.duration_ns)


def allocated(results: Results) -> Whole | None:
    sums = results.totals.integrals
    if not results.totals.duration_ns:
        return None
    parts: dict[str, Exact] = {part: _mean(results, sums[f"{part}_bytes"]) for part in ALLOCATED_PARTS}
    return Whole(_mean(results, sums["allocated_bytes"]), parts, results.shape.pool_bytes)


def slack(results: Results) -> Whole | None:
    sums = results.totals.integrals
    if not results.totals.duration_ns:
        return None
    parts: dict[str, Exact] = {part: _mean(results, sums[f"{part}_bytes"]) for part in SLACK_PARTS}
    return Whole(_mean(results, sums["slack_bytes"]), parts, _mean(results, sums["allocated_bytes"]))


def external(results: Results) -> Whole | None:
    if not results.totals.duration_ns:
        return None
    mean = _mean(results, results.totals.integrals["external_bytes"])
    return Whole(mean, {"external": mean}, results.shape.pool_bytes)


def allocated_at_peak(results: Results) -> Whole | None:
    """At the first moment at which most was allocated."""
    peak = results.totals.at_peak
    parts: dict[str, Exact] = {part: peak[f"{part}_bytes"] for part in ALLOCATED_PARTS}
    return Whole(peak["allocated_bytes"], parts, results.shape.pool_bytes)


def live(results: Results) -> Whole | None:
    sums = results.totals.integrals
    if not results.totals.duration_ns:
        return None
    parts: dict[str, Exact] = {
        "logical": _mean(results, sums["logical_bytes"]),
        "window_saving": -_mean(results, sums["window_saving_bytes"]),
        "shared_saving": -_mean(results, sums["shared_saving_bytes"]),
    }
    return Whole(_mean(results, sums["live_bytes"]), parts, results.shape.pool_bytes)


def pool_shares(results: Results) -> Whole | None:
    totals = results.totals
    whole = results.shape.pool_bytes * totals.duration_ns
    if not whole:
        return None
    parts: dict[str, Exact] = {part: Fraction(byte_ns, whole) for part, byte_ns in byte_ns_of(totals).items()}
    return Whole(1, parts, 1)


def unshared(results: Results) -> Whole | None:
    """Of several outputs from one prompt: what they would hold if none shared."""
    unshared, totals = results.totals.unshared, results.totals
    if unshared is None or not totals.duration_ns:
        return None
    allocated = totals.integrals["allocated_bytes"]
    parts: dict[str, Exact] = {
        "allocated": _mean(results, allocated),
        "saved": _mean(results, unshared.byte_ns - allocated),
    }
    return Whole(_mean(results, unshared.byte_ns), parts, results.shape.pool_bytes)


def by_outcome(results: Results) -> Whole | None:
    totals = results.totals
    parts: dict[str, Exact] = {outcome: totals.outcomes[outcome] for outcome in get_args(Outcome)}
    return Whole(totals.num_requests, parts, totals.num_requests)


def lost(results: Results) -> Whole | None:
    totals = results.totals
    parts: dict[str, Exact] = {
        **{f"rejected_{reason}": totals.reasons[reason] for reason in get_args(RejectReason)},
        **{outcome: totals.outcomes[outcome] for outcome in LOST},
    }
    lost = totals.outcomes["rejected"] + sum(totals.outcomes[outcome] for outcome in LOST)
    return Whole(lost, parts, totals.num_requests)


def _by_refusal_cause(results: Results, figure: pl.Expr) -> dict[str, Exact]:
    """A figure of the requests table, over the requests that were refused most often for each cause."""
    sums = results.requests.group_by("refusal_cause").agg(figure.alias("sum"))
    found = dict(zip(sums["refusal_cause"], sums["sum"], strict=True))
    return {cause: int(found.get(cause, 0)) for cause in get_args(LeastChange)}


def refused(results: Results) -> Whole | None:
    parts = _by_refusal_cause(results, pl.len())
    return Whole(results.totals.num_refused, parts, results.totals.num_requests)


def blocked(results: Results) -> Whole | None:
    parts = _by_refusal_cause(results, pl.col("blocked_ns").sum())
    return Whole(results.totals.sums["blocked_ns"], parts, results.totals.duration_ns)


def held_back(results: Results) -> Whole | None:
    """Steps that left somebody waiting: the head of the queue was refused, or not even tried."""
    totals = results.totals
    parts: dict[str, Exact] = {
        **{cause: totals.refusals_for[cause] for cause in get_args(LeastChange)},
        **{cause: totals.held_back_steps[cause] for cause in get_args(HeldBack)},
    }
    return Whole(totals.sums["refusals"] + sum(totals.held_back_steps.values()), parts, totals.num_steps)


def preemptions(results: Results) -> Whole | None:
    totals = results.totals
    swapped, fallen_back = totals.sums["swaps"], totals.sums["swap_fallbacks"]
    parts: dict[str, Exact] = {
        "recomputed": totals.sums["preemptions"] - swapped - fallen_back,
        "swaps": swapped,
        "swap_fallbacks": fallen_back,
    }
    return Whole(totals.sums["preemptions"], parts, totals.num_requests)


def hits(results: Results) -> Whole | None:
    totals = results.totals
    hits, asked = totals.sums["hit_tokens"], totals.admitted_prompt_tokens
    return Whole(hits, {"admitted": asked, "not_found": hits - asked}, asked)


def queued(results: Results) -> Whole | None:
    """Time in the queue, summed over requests: the level of those waiting, over time."""
    totals = results.totals
    never = results.requests.filter(pl.col("admitted_ns").is_null())
    # Who is there at the end has waited until then.
    waited = never.select(pl.col("ended_ns").fill_null(totals.duration_ns) - pl.col("arrival_ns")).to_series()
    first, in_vain = int(totals.waits.sum()), int(waited.sum())
    whole = totals.integrals["waiting"]
    parts: dict[str, Exact] = {
        "to_admission": first,
        "in_vain": in_vain,
        "after_preemption": whole - first - in_vain,
    }
    return Whole(whole, parts, whole + totals.integrals["running"])


def duration(results: Results) -> Whole | None:
    totals = results.totals
    parts: dict[str, Exact] = {"busy": totals.busy_ns, "idle": totals.duration_ns - totals.busy_ns}
    return Whole(totals.duration_ns, parts, totals.duration_ns)
