"""The figures of a run: one row each, and tables, files and reports follow."""

from collections.abc import Callable
from operator import mul
from typing import NamedTuple

import polars as pl

from kvsim.engine.tables import RunTables

Number = int | float | None


class Metric(NamedTuple):
    """A figure of a run; None where there is nothing to divide by.

    `unit` is bytes, ns, tokens, requests, times, steps or share (0 to 1). Figures that do not depend on how long
    a step takes are marked apart from those that do, be it ever so little.
    """

    name: str
    unit: str
    meaning: str
    of: Callable[[RunTables], Number]
    depends_on_step_times: bool = True


def _duration_ns(run: RunTables) -> int:
    return int(run.timeline["time_ns"][-1])


def _integral(run: RunTables, column: str) -> int:
    """Sum of level x nanoseconds, exactly."""
    lasted = run.timeline["time_ns"].diff().drop_nulls()
    return sum(map(mul, run.timeline[column].to_list(), lasted.to_list()))


def _peak(column: str) -> Callable[[RunTables], Number]:
    return lambda run: max(run.timeline[column].to_list())


def _mean(column: str) -> Callable[[RunTables], Number]:
    def mean(run: RunTables) -> Number:
        duration = _duration_ns(run)
        return _integral(run, column) / duration if duration else None

    return mean


def _share_of_pool(figure: Callable[[RunTables], Number]) -> Callable[[RunTables], Number]:
    def share(run: RunTables) -> Number:
        value = figure(run)
        return None if value is None else value / run.shape.pool_bytes

    return share


def _share_of_allocated(column: str) -> Callable[[RunTables], Number]:
    """Of the bytes that were allocated, each weighted by how long."""

    def share(run: RunTables) -> Number:
        allocated = _integral(run, "allocated_bytes")
        return _integral(run, column) / allocated if allocated else None

    return share


def _share_at_peak(column: str) -> Callable[[RunTables], Number]:
    """At the first moment at which most was allocated."""

    def share(run: RunTables) -> Number:
        allocated = run.timeline["allocated_bytes"]
        at = allocated.arg_max()
        if at is None or not allocated[at]:
            return None
        return float(run.timeline[column][at] / allocated[at])

    return share


def _count(condition: pl.Expr) -> Callable[[RunTables], Number]:
    return lambda run: run.requests.filter(condition).height


def _sum(column: str) -> Callable[[RunTables], Number]:
    return lambda run: sum(run.requests[column].to_list())


def _refusals_for(cause: str) -> Callable[[RunTables], Number]:
    of_cause = (pl.col("event") == "refused") & (pl.col("cause") == cause)
    return lambda run: sum(run.pressure.filter(of_cause)["steps"].to_list())


def _held_back(cause: str) -> Callable[[RunTables], Number]:
    return lambda run: run.held_back_steps[cause]


def _average(column: str) -> Callable[[RunTables], Number]:
    def average(run: RunTables) -> Number:
        return sum(run.requests[column].to_list()) / run.requests.height if run.requests.height else None

    return average


def _waited(summarise: Callable[[pl.Series], object]) -> Callable[[RunTables], Number]:
    """Nanoseconds from arrival to first admission, over the requests that were admitted."""

    def waited(run: RunTables) -> Number:
        waits = run.requests.select(pl.col("admitted_ns") - pl.col("arrival_ns")).to_series().drop_nulls()
        value = summarise(waits)
        return round(value) if isinstance(value, int | float) else None

    return waited


def _hit_share(run: RunTables) -> Number:
    looked_up = run.requests.filter(pl.col("admitted_ns").is_not_null())
    prompt_tokens = sum(looked_up["prompt_tokens"].to_list())
    return sum(looked_up["hit_tokens"].to_list()) / prompt_tokens if prompt_tokens else None


_LEVELS = {
    "allocated": "in blocks that a request holds, a shared block once",
    "live": "written in allocated blocks, each slot once",
    "slack": "allocated and not written",
    "cached": "held by nobody but still findable by key",
    "logical": "computed tokens as if nothing were shared",
    "window_saving": "logical, and given back by windows",
    "shared_saving": "logical, and held once for several requests",
    "padding": "slack that blocks of smaller groups of layers leave",
    "external": "free but of no use to the head of the queue (0 when paged)",
}

_outcome, _reason = pl.col("outcome"), pl.col("reason")

METRICS: tuple[Metric, ...] = (
    Metric("duration_ns", "ns", "simulated time until the last change", _duration_ns),
    Metric("steps", "steps", "engine steps that scheduled tokens", lambda run: run.num_steps),
    Metric("pool_bytes", "bytes", "usable blocks", lambda run: run.shape.pool_bytes, False),
    Metric("null_block_bytes", "bytes", "held back", lambda run: run.shape.block_bytes, False),
    Metric("worst_case_bytes", "bytes", "max_num_seqs x max_model_len", lambda run: run.worst_case_bytes, False),
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
    Metric("utilization", "share", "live / allocated by time", _share_of_allocated("live_bytes")),
    Metric("utilization_at_peak", "share", "when most is allocated", _share_at_peak("live_bytes")),
    Metric("slack_share", "share", "slack / allocated by time", _share_of_allocated("slack_bytes")),
    Metric("slack_share_at_peak", "share", "when most is allocated", _share_at_peak("slack_bytes")),
    Metric("requests", "requests", "arrived", lambda run: run.requests.height, False),
    Metric("prompt_mean_tokens", "tokens", "of the requests that arrived", _average("prompt_tokens"), False),
    Metric("output_mean_tokens", "tokens", "of the requests that arrived", _average("output_tokens"), False),
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
    Metric("refusals_for_blocks", "times", "too few blocks free", _refusals_for("blocks")),
    Metric("refusals_for_gate", "times", "only the whole-sequence gate stood in the way", _refusals_for("gate")),
    Metric("refusals_for_watermark", "times", "only the watermark stood in the way", _refusals_for("watermark")),
    Metric("blocked_ns", "ns", "memory held the head of the queue back", _sum("blocked_ns")),
    Metric("held_back_by_max_num_seqs", "steps", "all seats taken", _held_back("max_num_seqs")),
    Metric("held_back_by_token_budget", "steps", "tokens of the step used up", _held_back("token_budget")),
    Metric("held_back_by_preemption", "steps", "a step that preempts admits nobody", _held_back("preemption")),
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
