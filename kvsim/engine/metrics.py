"""The figures of a run: one row each, and tables, files and reports follow."""

from collections.abc import Callable
from typing import NamedTuple

import polars as pl

from kvsim.engine.totals import Totals
from kvsim.engine.unshared import UnsharedTotals

Number = int | float | None


class Metric(NamedTuple):
    """A figure of a run; None where there is nothing to divide by.

    `unit` is bytes, ns, tokens, requests, times, steps or share (0 to 1). Figures that do not depend on how long
    a step takes are marked apart from those that do, be it ever so little.
    """

    name: str
    unit: str
    meaning: str
    of: Callable[[Totals], Number]
    depends_on_step_times: bool = True


def _peak(column: str) -> Callable[[Totals], Number]:
    return lambda run: run.peaks[column]


def _mean(column: str) -> Callable[[Totals], Number]:
    return lambda run: run.integrals[column] / run.duration_ns if run.duration_ns else None


def _share_of_pool(figure: Callable[[Totals], Number]) -> Callable[[Totals], Number]:
    def share(run: Totals) -> Number:
        value = figure(run)
        return None if value is None else value / run.shape.pool_bytes

    return share


def _share_of_allocated(column: str) -> Callable[[Totals], Number]:
    """Of the bytes that were allocated, each weighted by how long."""

    def share(run: Totals) -> Number:
        allocated = run.integrals["allocated_bytes"]
        return run.integrals[column] / allocated if allocated else None

    return share


def _share_at_peak(column: str) -> Callable[[Totals], Number]:
    """At the first moment at which most was allocated."""

    def share(run: Totals) -> Number:
        allocated = run.at_peak["allocated_bytes"]
        return run.at_peak[column] / allocated if allocated else None

    return share


def _outcome(outcome: str) -> Callable[[Totals], Number]:
    return lambda run: run.outcomes[outcome]


def _rejected_for(reason: str) -> Callable[[Totals], Number]:
    return lambda run: run.reasons[reason]


def _sum(column: str) -> Callable[[Totals], Number]:
    return lambda run: run.sums[column]


def _average(column: str) -> Callable[[Totals], Number]:
    return lambda run: run.sums[column] / run.num_requests if run.num_requests else None


def _refusals_for(cause: str) -> Callable[[Totals], Number]:
    return lambda run: run.refusals_for[cause]


def _held_back(cause: str) -> Callable[[Totals], Number]:
    return lambda run: run.held_back_steps[cause]


def _waited(summarise: Callable[[pl.Series], object]) -> Callable[[Totals], Number]:
    """Nanoseconds from arrival to first admission, over the requests that were admitted."""

    def waited(run: Totals) -> Number:
        value = summarise(run.waits)
        return round(value) if isinstance(value, int | float) else None

    return waited


def _null_block_bytes(run: Totals) -> Number:
    return run.shape.num_null_blocks * run.shape.block_bytes


def _batched_mean(run: Totals) -> Number:
    return run.integrals["running"] / run.busy_ns if run.busy_ns else None


def _unshared(figure: Callable[[UnsharedTotals, Totals], Number]) -> Callable[[Totals], Number]:
    return lambda run: None if run.unshared is None else figure(run.unshared, run)


def _saved_share(unshared: UnsharedTotals, run: Totals) -> Number:
    """The paper's figure: blocks saved by sharing / blocks without it, both summed over time."""
    return 1 - run.integrals["allocated_bytes"] / unshared.byte_ns if unshared.byte_ns else None


def _mean_unshared(unshared: UnsharedTotals, run: Totals) -> Number:
    return unshared.byte_ns / run.duration_ns if run.duration_ns else None


def _hit_share(run: Totals) -> Number:
    prompt_tokens = run.admitted_prompt_tokens
    return run.sums["hit_tokens"] / prompt_tokens if prompt_tokens else None


_LEVELS = {
    "allocated": "in blocks that a request holds, a shared block once",
    "live": "written in allocated blocks, each slot once",
    "slack": "allocated and not written",
    "tail": "slack in partly filled blocks",
    "reserved": "slack for tokens still to come (0 when paged)",
    "unused": "slack reserved and never used (0 when paged)",
    "cached": "held by nobody but still findable by key",
    "logical": "computed tokens as if nothing were shared",
    "window_saving": "logical, and given back by windows",
    "shared_saving": "logical, and held once for several requests",
    "padding": "slack that blocks of smaller groups of layers leave",
    "external": "free, and no extent of it large enough for the head of the queue (0 when paged)",
    "host": "on the host, of requests that were swapped out",
}

METRICS: tuple[Metric, ...] = (
    Metric("duration_ns", "ns", "simulated time until the last change", lambda run: run.duration_ns),
    Metric("steps", "steps", "engine steps that scheduled tokens", lambda run: run.num_steps),
    Metric("pool_bytes", "bytes", "usable blocks", lambda run: run.shape.pool_bytes, False),
    Metric("null_block_bytes", "bytes", "held back", _null_block_bytes, False),
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
    *(
        Metric(f"{level}_share", "share", f"{level} / allocated by time", _share_of_allocated(f"{level}_bytes"))
        for level in ("tail", "reserved", "unused", "padding")
    ),
    Metric("external_share", "share", "external / pool by time", _share_of_pool(_mean("external_bytes"))),
    Metric("requests", "requests", "arrived", lambda run: run.num_requests, False),
    Metric("prompt_mean_tokens", "tokens", "of the requests that arrived", _average("prompt_tokens"), False),
    Metric("output_mean_tokens", "tokens", "of the requests that arrived", _average("output_tokens"), False),
    Metric("finished", "requests", "got their whole output", _outcome("finished")),
    Metric("cut", "requests", "ended at max_model_len", _outcome("cut")),
    Metric("rejected", "requests", "turned away on arrival", _outcome("rejected")),
    Metric(
        "rejected_prompt_too_long",
        "requests",
        "of max_model_len or more",
        _rejected_for("prompt_too_long"),
    ),
    Metric("rejected_never_fits", "requests", "longer than the pool", _rejected_for("never_fits")),
    Metric("rejected_queue_full", "requests", "found max_waiting ahead", _rejected_for("queue_full")),
    Metric("timed_out", "requests", "waited too long for admission", _outcome("timed_out")),
    Metric("aborted", "requests", "hung up", _outcome("aborted")),
    Metric("unfinished", "requests", "left when nothing moved any more", _outcome("unfinished")),
    Metric("refused", "requests", "that memory said no to at least once", lambda run: run.num_refused),
    Metric("refusals", "times", "memory said no to the head of the queue", _sum("refusals")),
    Metric("refusals_for_blocks", "times", "too few blocks free", _refusals_for("blocks")),
    Metric("refusals_for_gate", "times", "only the whole-sequence gate stood in the way", _refusals_for("gate")),
    Metric("refusals_for_watermark", "times", "only the watermark stood in the way", _refusals_for("watermark")),
    Metric("refusals_for_extent", "times", "enough was free, in no extent large enough", _refusals_for("extent")),
    Metric(
        "refusals_for_reservation",
        "times",
        "only what requests have been promised stood in the way",
        _refusals_for("reservation"),
    ),
    Metric("blocked_ns", "ns", "memory held the head of the queue back", _sum("blocked_ns")),
    Metric("held_back_by_max_num_seqs", "steps", "all seats taken", _held_back("max_num_seqs")),
    Metric("held_back_by_token_budget", "steps", "tokens of the step used up", _held_back("token_budget")),
    Metric("held_back_by_preemption", "steps", "a step that preempts admits nobody", _held_back("preemption")),
    Metric("preempted", "requests", "preempted at least once", lambda run: run.num_preempted),
    Metric("preemptions", "times", "a running request lost its blocks", _sum("preemptions")),
    Metric("recomputed_tokens", "tokens", "computed again after it", _sum("recomputed_tokens")),
    Metric("moved_bytes", "bytes", "copied for requests that outgrew their extent", lambda run: run.moved_bytes),
    Metric("swaps", "times", "preemptions that moved blocks to the host instead", _sum("swaps")),
    Metric("swap_fallbacks", "times", "preemptions that recomputed as the host was full", _sum("swap_fallbacks")),
    Metric("swapped_out_bytes", "bytes", "moved to the host", _sum("swapped_out_bytes")),
    Metric("swapped_in_bytes", "bytes", "moved back from the host", _sum("swapped_in_bytes")),
    Metric("swap_dropped_bytes", "bytes", "on the host and not needed again", _sum("swap_dropped_bytes")),
    Metric("hit_tokens", "tokens", "found in the prefix cache at first admission", _sum("hit_tokens")),
    Metric("hit_share", "share", "of the prompt tokens of admitted requests", _hit_share),
    Metric("resumed_hit_tokens", "tokens", "found after a preemption", _sum("resumed_hit_tokens")),
    Metric("running_mean", "requests", "running, by time", _mean("running")),
    Metric("batched_mean", "requests", "running, by time, while any run", _batched_mean),
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
        "waited_p95_ns",
        "ns",
        "arrival to first admission",
        _waited(lambda waits: waits.quantile(0.95, "linear")),
    ),
    Metric(
        "waited_p99_ns",
        "ns",
        "arrival to first admission",
        _waited(lambda waits: waits.quantile(0.99, "linear")),
    ),
    Metric("waited_max_ns", "ns", "arrival to first admission", _waited(pl.Series.max)),
)

SAMPLE_METRICS: tuple[Metric, ...] = (
    Metric("sample_saved_share", "share", "blocks saved by sharing / blocks without, by time", _unshared(_saved_share)),
    Metric(
        "sample_unshared_mean_bytes", "bytes", "blocks without sharing; weighted by time", _unshared(_mean_unshared)
    ),
    Metric(
        "sample_unshared_peak_bytes",
        "bytes",
        "blocks without sharing; the most",
        _unshared(lambda unshared, _run: unshared.peak_bytes),
    ),
    Metric("sample_copies", "times", "a block was copied", _unshared(lambda unshared, _run: unshared.num_copies)),
)
"""Of runs with several outputs from one prompt alone."""


def metrics_of(totals: Totals) -> dict[str, Number]:
    """All figures of a run by name."""
    metrics = METRICS if totals.unshared is None else (*METRICS, *SAMPLE_METRICS)
    return {metric.name: metric.of(totals) for metric in metrics}
