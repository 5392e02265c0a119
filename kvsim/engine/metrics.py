"""The figures of a run: one row each, and tables, files and reports follow."""

from collections.abc import Callable
from operator import mul
from typing import NamedTuple

import polars as pl

from kvsim.engine.results import Results

Number = int | float | None


class Metric(NamedTuple):
    """A figure of a run; None where there is nothing to divide by.

    `unit` is bytes, ns, tokens, requests, times, steps or share (0 to 1). Figures that hardly depend on how
    long a step takes are marked apart from those that do.
    """

    name: str
    unit: str
    meaning: str
    of: Callable[[Results], Number]
    depends_on_step_times: bool = True


def measure(results: Results) -> dict[str, Number]:
    """All figures by name."""
    return {metric.name: metric.of(results) for metric in METRICS}


def _duration_ns(results: Results) -> int:
    return int(results.timeline["time_ns"][-1])


def _integral(results: Results, column: str) -> int:
    """Sum of level x nanoseconds, exactly."""
    lasted = results.timeline["time_ns"].diff().drop_nulls()
    return sum(map(mul, results.timeline[column].to_list(), lasted.to_list()))


def _peak(column: str) -> Callable[[Results], Number]:
    return lambda results: max(results.timeline[column].to_list())


def _mean(column: str) -> Callable[[Results], Number]:
    def mean(results: Results) -> Number:
        duration = _duration_ns(results)
        return _integral(results, column) / duration if duration else None

    return mean


def _share_of_pool(figure: Callable[[Results], Number]) -> Callable[[Results], Number]:
    def share(results: Results) -> Number:
        value = figure(results)
        return None if value is None else value / results.shape.pool_bytes

    return share


def _share_of_allocated(column: str) -> Callable[[Results], Number]:
    """Of the bytes that were allocated, each weighted by how long."""

    def share(results: Results) -> Number:
        allocated = _integral(results, "allocated_bytes")
        return _integral(results, column) / allocated if allocated else None

    return share


def _share_at_peak(column: str) -> Callable[[Results], Number]:
    """At the first moment at which most was allocated."""

    def share(results: Results) -> Number:
        allocated = results.timeline["allocated_bytes"]
        at = allocated.arg_max()
        if at is None or not allocated[at]:
            return None
        return float(results.timeline[column][at] / allocated[at])

    return share


def _count(condition: pl.Expr) -> Callable[[Results], Number]:
    return lambda results: results.requests.filter(condition).height


def _sum(column: str) -> Callable[[Results], Number]:
    return lambda results: sum(results.requests[column].to_list())


def _waited(summarise: Callable[[pl.Series], object]) -> Callable[[Results], Number]:
    """Nanoseconds from arrival to first admission, over the requests that were admitted."""

    def waited(results: Results) -> Number:
        waits = results.requests.select(pl.col("admitted_ns") - pl.col("arrival_ns")).to_series().drop_nulls()
        value = summarise(waits)
        return round(value) if isinstance(value, int | float) else None

    return waited


def _hit_share(results: Results) -> Number:
    looked_up = results.requests.filter(pl.col("admitted_ns").is_not_null())
    prompt_tokens = sum(looked_up["prompt_tokens"].to_list())
    return sum(looked_up["hit_tokens"].to_list()) / prompt_tokens if prompt_tokens else None


_LEVELS = {
    "allocated": "in blocks that a request holds, a shared block once",
    "live": "written in allocated blocks, each slot once",
    "slack": "allocated and not written",
    "cached": "held by nobody but still findable by key",
    "logical": "computed tokens as if nothing were shared",
    "shared_saving": "logical - live",
    "external": "free but of no use to the head of the queue (0 when paged)",
}

_outcome, _reason = pl.col("outcome"), pl.col("reason")

METRICS: tuple[Metric, ...] = (
    Metric("duration_ns", "ns", "simulated time until the last change", _duration_ns),
    Metric("steps", "steps", "engine steps that scheduled tokens", lambda results: results.num_steps),
    Metric("pool_bytes", "bytes", "usable blocks", lambda results: results.shape.pool_bytes, False),
    Metric("null_block_bytes", "bytes", "held back", lambda results: results.shape.block_bytes, False),
    Metric("worst_case_bytes", "bytes", "max_num_seqs x max_model_len", lambda r: r.worst_case_bytes, False),
    *(
        Metric(f"{level}_peak_bytes", "bytes", f"{what}; the most", _peak(f"{level}_bytes"))
        for level, what in _LEVELS.items()
    ),
    *(
        Metric(f"{level}_mean_bytes", "bytes", f"{what}; weighted by time", _mean(f"{level}_bytes"))
        for level, what in _LEVELS.items()
    ),
    Metric("pool_used_peak", "share", "most allocated / pool", _share_of_pool(_peak("allocated_bytes"))),
    Metric("pool_used_mean", "share", "allocated / pool by time", _share_of_pool(_mean("allocated_bytes"))),
    Metric("utilization", "share", "live / allocated by time", _share_of_allocated("live_bytes"), False),
    Metric("utilization_at_peak", "share", "when most is allocated", _share_at_peak("live_bytes"), False),
    Metric("slack_share", "share", "slack / allocated by time", _share_of_allocated("slack_bytes"), False),
    Metric("slack_share_at_peak", "share", "when most is allocated", _share_at_peak("slack_bytes"), False),
    Metric("requests", "requests", "arrived", lambda results: results.requests.height, False),
    Metric("finished", "requests", "got their whole output", _count(_outcome == "finished")),
    Metric("cut", "requests", "ended at max_model_len", _count(_outcome == "cut")),
    Metric("rejected", "requests", "turned away on arrival", _count(_outcome == "rejected")),
    Metric(
        "rejected_prompt_too_long",
        "requests",
        "of max_model_len or more",
        _count(_reason == "prompt_too_long"),
    ),
    Metric("rejected_never_fits", "requests", "longer than the pool", _count(_reason == "never_fits")),
    Metric("rejected_queue_full", "requests", "found max_waiting ahead", _count(_reason == "queue_full")),
    Metric("timed_out", "requests", "waited too long for admission", _count(_outcome == "timed_out")),
    Metric("aborted", "requests", "hung up", _count(_outcome == "aborted")),
    Metric("unfinished", "requests", "left when nothing moved any more", _count(_outcome == "unfinished")),
    Metric("refused", "requests", "that memory said no to at least once", _count(pl.col("refusals") > 0)),
    Metric("refusals", "times", "memory said no to the head of the queue", _sum("refusals")),
    Metric("blocked_ns", "ns", "from first refusal to admission, summed", _sum("blocked_ns")),
    Metric("preempted", "requests", "preempted at least once", _count(pl.col("preemptions") > 0)),
    Metric("preemptions", "times", "a running request lost its blocks", _sum("preemptions")),
    Metric("recomputed_tokens", "tokens", "computed again after it", _sum("recomputed_tokens")),
    Metric("hit_tokens", "tokens", "found in the prefix cache at first admission", _sum("hit_tokens")),
    Metric("hit_share", "share", "of the prompt tokens of admitted requests", _hit_share),
    Metric("resumed_hit_tokens", "tokens", "found after a preemption", _sum("resumed_hit_tokens")),
    Metric("running_mean", "requests", "running, by time", _mean("running")),
    Metric("running_peak", "requests", "running at once at most", _peak("running")),
    Metric("waiting_mean", "requests", "waiting, by time", _mean("waiting")),
    Metric("waiting_peak", "requests", "waiting at once at most", _peak("waiting")),
    Metric("waited_mean_ns", "ns", "arrival to first admission", _waited(pl.Series.mean)),
    Metric(
        "waited_p50_ns",
        "ns",
        "arrival to first admission",
        _waited(lambda waits: waits.quantile(0.5, "linear")),
    ),
    Metric(
        "waited_p99_ns",
        "ns",
        "arrival to first admission",
        _waited(lambda waits: waits.quantile(0.99, "linear")),
    ),
    Metric("waited_max_ns", "ns", "arrival to first admission", _waited(pl.Series.max)),
)
