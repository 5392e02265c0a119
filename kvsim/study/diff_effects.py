"""What a run came to, each figure taken apart into causes that add up to it, exactly."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple, get_args

import polars as pl

from kvsim.engine.metrics import METRICS, SAMPLE_METRICS
from kvsim.engine.results import Results
from kvsim.engine.state import Outcome, RejectReason
from kvsim.engine.step import HeldBack
from kvsim.errors import KvsimError
from kvsim.memory.allocator import LeastChange
from kvsim.study.compare_record import ALLOCATED_PARTS, byte_ns_of

Exact = int | Fraction

_MEANINGS = {metric.name: metric.meaning for metric in (*METRICS, *SAMPLE_METRICS)}


class Whole(NamedTuple):
    """A figure of one run, the parts that add up to it, and how much there was of its kind.

    Averages over time are fractions of whole bytes x nanoseconds, so that nothing is lost.
    """

    value: Exact
    parts: dict[str, Exact]
    out_of: Exact


class Explained(NamedTuple):
    """A figure that is taken apart: its name (of METRICS, where it is one), how a sentence calls it, its unit (as those
    of METRICS), and what each part means. `out_of` says in words what a change is measured against, and `counted` how
    the parts are told apart, where that is not plain.
    """

    name: str
    title: str
    unit: str
    out_of: str
    of: Callable[[Results], Whole | None]
    meanings: Mapping[str, str]
    counted: str = ""


def _mean(results: Results, byte_ns: int) -> Fraction:
    return Fraction(byte_ns, results.totals.duration_ns)


def _allocated(results: Results) -> Whole | None:
    sums = results.totals.integrals
    if not results.totals.duration_ns:
        return None
    parts: dict[str, Exact] = {part: _mean(results, sums[f"{part}_bytes"]) for part in ALLOCATED_PARTS}
    return Whole(_mean(results, sums["allocated_bytes"]), parts, results.shape.pool_bytes)


def _allocated_at_peak(results: Results) -> Whole | None:
    """At the first moment at which most was allocated."""
    peak = results.totals.at_peak
    parts: dict[str, Exact] = {part: peak[f"{part}_bytes"] for part in ALLOCATED_PARTS}
    return Whole(peak["allocated_bytes"], parts, results.shape.pool_bytes)


def _live(results: Results) -> Whole | None:
    sums = results.totals.integrals
    if not results.totals.duration_ns:
        return None
    parts: dict[str, Exact] = {
        "logical": _mean(results, sums["logical_bytes"]),
        "window_saving": -_mean(results, sums["window_saving_bytes"]),
        "shared_saving": -_mean(results, sums["shared_saving_bytes"]),
    }
    return Whole(_mean(results, sums["live_bytes"]), parts, results.shape.pool_bytes)


def _pool_shares(results: Results) -> Whole | None:
    totals = results.totals
    whole = results.shape.pool_bytes * totals.duration_ns
    if not whole:
        return None
    parts: dict[str, Exact] = {part: Fraction(byte_ns, whole) for part, byte_ns in byte_ns_of(totals).items()}
    return Whole(1, parts, 1)


def _unshared(results: Results) -> Whole | None:
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


def _by_outcome(results: Results) -> Whole | None:
    totals = results.totals
    parts: dict[str, Exact] = {outcome: totals.outcomes[outcome] for outcome in get_args(Outcome)}
    return Whole(totals.num_requests, parts, totals.num_requests)


def _rejected(results: Results) -> Whole | None:
    totals = results.totals
    parts: dict[str, Exact] = {reason: totals.reasons[reason] for reason in get_args(RejectReason)}
    return Whole(totals.outcomes["rejected"], parts, totals.num_requests)


def _by_refusal_cause(results: Results, figure: pl.Expr) -> dict[str, Exact]:
    """A figure of the requests table, over the requests that were refused most often for each cause."""
    sums = results.requests.group_by("refusal_cause").agg(figure.alias("sum"))
    found = dict(zip(sums["refusal_cause"], sums["sum"], strict=True))
    return {cause: int(found.get(cause, 0)) for cause in get_args(LeastChange)}


def _refused(results: Results) -> Whole | None:
    parts = _by_refusal_cause(results, pl.len())
    return Whole(results.totals.num_refused, parts, results.totals.num_requests)


def _blocked(results: Results) -> Whole | None:
    parts = _by_refusal_cause(results, pl.col("blocked_ns").sum())
    return Whole(results.totals.sums["blocked_ns"], parts, results.totals.duration_ns)


def _held_back(results: Results) -> Whole | None:
    """Steps that left somebody waiting: the head of the queue was refused, or not even tried."""
    totals = results.totals
    parts: dict[str, Exact] = {
        **{cause: totals.refusals_for[cause] for cause in get_args(LeastChange)},
        **{cause: totals.held_back_steps[cause] for cause in get_args(HeldBack)},
    }
    return Whole(totals.sums["refusals"] + sum(totals.held_back_steps.values()), parts, totals.num_steps)


def _preemptions(results: Results) -> Whole | None:
    totals = results.totals
    swapped, fallen_back = totals.sums["swaps"], totals.sums["swap_fallbacks"]
    parts: dict[str, Exact] = {
        "recomputed": totals.sums["preemptions"] - swapped - fallen_back,
        "swaps": swapped,
        "swap_fallbacks": fallen_back,
    }
    return Whole(totals.sums["preemptions"], parts, totals.num_requests)


def _admitted_prompts(results: Results) -> Whole | None:
    totals = results.totals
    hits = totals.sums["hit_tokens"]
    parts: dict[str, Exact] = {"hit": hits, "not_hit": totals.admitted_prompt_tokens - hits}
    return Whole(totals.admitted_prompt_tokens, parts, totals.admitted_prompt_tokens)


def _queued(results: Results) -> Whole | None:
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


def _duration(results: Results) -> Whole | None:
    totals = results.totals
    parts: dict[str, Exact] = {"busy": totals.busy_ns, "idle": totals.duration_ns - totals.busy_ns}
    return Whole(totals.duration_ns, parts, totals.duration_ns)


_PARTS_OF_ALLOCATED = {
    "live": "written in allocated blocks, each slot once",
    **{part: _MEANINGS[f"{part}_mean_bytes"].partition(";")[0] for part in ALLOCATED_PARTS if part != "live"},
}
_REFUSED_FOR = {cause: _MEANINGS[f"refusals_for_{cause}"] for cause in get_args(LeastChange)}
_MOST_OFTEN = "each request for what refused it most often"

EXPLAINED: tuple[Explained, ...] = (
    Explained(
        "allocated_mean_bytes",
        "allocated memory on average",
        "bytes",
        "the pool",
        _allocated,
        _PARTS_OF_ALLOCATED,
    ),
    Explained(
        "allocated_peak_bytes",
        "allocated memory at its peak",
        "bytes",
        "the pool",
        _allocated_at_peak,
        _PARTS_OF_ALLOCATED,
    ),
    Explained(
        "live_mean_bytes",
        "live memory on average",
        "bytes",
        "the pool",
        _live,
        {
            "logical": "computed tokens as if nothing were shared",
            "window_saving": "less what windows have passed and given back",
            "shared_saving": "less what is held once for several requests",
        },
    ),
    Explained(
        "pool_shares",
        "what the pool consists of on average",
        "share",
        "the pool",
        _pool_shares,
        {
            **_PARTS_OF_ALLOCATED,
            "external": "free, and no extent of it large enough for the head of the queue",
            "cached": "held by nobody but still findable by key",
            "blank": "free, beside what is external",
        },
    ),
    Explained(
        "sample_unshared_mean_bytes",
        "memory if outputs shared nothing, on average",
        "bytes",
        "the pool",
        _unshared,
        {"allocated": "in blocks that a request holds", "saved": "saved by sharing"},
    ),
    Explained(
        "requests",
        "requests that arrived",
        "requests",
        "the requests",
        _by_outcome,
        {outcome: _MEANINGS[outcome] for outcome in get_args(Outcome)},
    ),
    Explained(
        "rejected",
        "rejected requests",
        "requests",
        "the requests",
        _rejected,
        {reason: _MEANINGS[f"rejected_{reason}"] for reason in get_args(RejectReason)},
    ),
    Explained(
        "refused",
        "requests refused by memory",
        "requests",
        "the requests",
        _refused,
        _REFUSED_FOR,
        counted=_MOST_OFTEN,
    ),
    Explained(
        "blocked_ns",
        "time for which memory blocked the head of the queue",
        "ns",
        "the simulated time",
        _blocked,
        _REFUSED_FOR,
        counted=_MOST_OFTEN,
    ),
    Explained(
        "held_back_steps",
        "steps that held back the head of the queue",
        "steps",
        "the steps",
        _held_back,
        {**_REFUSED_FOR, **{cause: _MEANINGS[f"held_back_by_{cause}"] for cause in get_args(HeldBack)}},
    ),
    Explained(
        "preemptions",
        "preemptions",
        "times",
        "the requests",
        _preemptions,
        {
            "recomputed": "to be computed again",
            "swaps": "to the host instead",
            "swap_fallbacks": "computed again as the host was full",
        },
    ),
    Explained(
        "admitted_prompt_tokens",
        "prompt tokens of admitted requests",
        "tokens",
        "the tokens",
        _admitted_prompts,
        {"hit": "found in the prefix cache at first admission", "not_hit": "not found there"},
    ),
    Explained(
        "queued_ns",
        "time in the queue of all requests together",
        "ns",
        "the time of all requests in engine and queue",
        _queued,
        {
            "to_admission": "from arrival to first admission",
            "in_vain": "of requests that were never admitted",
            "after_preemption": "again, after a preemption",
        },
    ),
    Explained(
        "duration_ns",
        "simulated time",
        "ns",
        "the simulated time",
        _duration,
        {"busy": "while requests run", "idle": "while none runs"},
    ),
)
"""What a difference between two runs is explained by. No part of a figure is left over, and none is counted twice."""


def wholes_of(results: Results) -> dict[str, Whole]:
    """The figures of a run that have a value, by name. The tables of the run must have been kept.

    Raises KvsimError for tables that kvsim has not written so: parts that do not add up.
    """
    wholes = {}
    for explained in EXPLAINED:
        whole = explained.of(results)
        if whole is None:
            continue
        if sum(whole.parts.values()) != whole.value:
            raise KvsimError(f"the tables of a run contradict each other: the parts of {explained.name} do not add up")
        wholes[explained.name] = whole
    return wholes
