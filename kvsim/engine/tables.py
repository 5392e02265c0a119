"""The two tables that a run leaves, in bytes and nanoseconds."""

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from attrs import frozen

from kvsim.engine.recorder import EVENTS, Pressure, Recorder, RequestRecord


@frozen
class MemoryShape:
    """The pool that was simulated; sizes are bytes on one device.

    `num_blocks` counts the null block. `token_bytes` is what a token takes in all groups of layers together, and a
    block belongs to one group at a time, so with several groups a block holds less than `block_size x token_bytes`.
    """

    num_blocks: int
    block_size: int
    block_bytes: int
    token_bytes: int

    @property
    def pool_bytes(self) -> int:
        """Usable bytes: the null block is held back."""
        return (self.num_blocks - 1) * self.block_bytes


@frozen(eq=False)
class RunTables:
    """`timeline` has a row per instant at which anything changed, which holds until the next row; `requests` has a
    row per request, in order of arrival; `pressure` a row per preemption and per run of steps in which one request was
    refused for one cause. `held_back_steps` counts steps in which the head of the queue was not tried, by cause.
    """

    shape: MemoryShape
    worst_case_bytes: int
    num_steps: int
    held_back_steps: dict[str, int]
    timeline: pl.DataFrame
    requests: pl.DataFrame
    pressure: pl.DataFrame


TIMELINE_COLUMNS = (
    "time_ns",
    "pool_bytes",
    "allocated_bytes",
    "live_bytes",
    "slack_bytes",
    "tail_bytes",
    "reserved_bytes",
    "unused_bytes",
    "padding_bytes",
    "external_bytes",
    "cached_bytes",
    "blank_bytes",
    "logical_bytes",
    "window_saving_bytes",
    "shared_saving_bytes",
    "running",
    "waiting",
    *EVENTS,
)


def timeline_frame(recorder: Recorder, shape: MemoryShape) -> pl.DataFrame:
    """The recorder's levels in bytes. A paged pool reserves nothing, and any free block serves."""
    level = {name: np.frombuffer(column, dtype=np.int64) for name, column in recorder.levels.items()}
    allocated = level["allocated_blocks"] * shape.block_bytes
    slack = allocated - level["live_bytes"]
    nothing = np.zeros_like(slack)
    columns = {
        "time_ns": np.frombuffer(recorder.times, dtype=np.int64),
        "pool_bytes": np.full_like(slack, shape.pool_bytes),
        "allocated_bytes": allocated,
        "live_bytes": level["live_bytes"],
        "slack_bytes": slack,
        "tail_bytes": slack - level["padding_bytes"],
        "reserved_bytes": nothing,
        "unused_bytes": nothing,
        "padding_bytes": level["padding_bytes"],
        "external_bytes": nothing,
        "cached_bytes": level["cached_blocks"] * shape.block_bytes,
        "blank_bytes": level["blank_blocks"] * shape.block_bytes,
        "logical_bytes": level["logical_bytes"],
        "window_saving_bytes": level["window_saving_bytes"],
        "shared_saving_bytes": level["logical_bytes"] - level["window_saving_bytes"] - level["live_bytes"],
        "running": level["running"],
        "waiting": level["waiting"],
        **{name: np.frombuffer(recorder.events[name], dtype=np.int64) for name in EVENTS},
    }
    return pl.DataFrame({name: columns[name] for name in TIMELINE_COLUMNS})


REQUEST_COLUMNS: dict[str, tuple[Any, Callable[[RequestRecord], Any]]] = {
    "request_id": (pl.Int64, lambda r: r.request.id),
    "arrival_ns": (pl.Int64, lambda r: r.request.arrival_ns),
    "priority": (pl.Int64, lambda r: r.request.priority),
    "prompt_tokens": (pl.Int64, lambda r: r.request.prompt_tokens),
    "output_tokens": (pl.Int64, lambda r: r.request.output_tokens),
    "generated_tokens": (pl.Int64, lambda r: r.generated_tokens),
    "outcome": (pl.String, lambda r: r.outcome),
    "reason": (pl.String, lambda r: r.reason),
    "admitted_ns": (pl.Int64, lambda r: r.admitted_ns),
    "first_token_ns": (pl.Int64, lambda r: r.first_token_ns),
    "ended_ns": (pl.Int64, lambda r: r.ended_ns),
    "hit_tokens": (pl.Int64, lambda r: r.hit_tokens),
    "resumed_hit_tokens": (pl.Int64, lambda r: r.resumed_hit_tokens),
    "refusals": (pl.Int64, lambda r: r.refusals),
    "refusal_cause": (pl.String, lambda r: max(r.refusal_causes, key=r.refusal_causes.__getitem__, default=None)),
    "blocked_ns": (pl.Int64, lambda r: r.blocked_ns),
    "preemptions": (pl.Int64, lambda r: r.preemptions),
    "recomputed_tokens": (pl.Int64, lambda r: r.recomputed_tokens),
}


PRESSURE_COLUMNS: dict[str, tuple[Any, Callable[[Pressure], Any]]] = {
    "time_ns": (pl.Int64, lambda p: p.time_ns),
    "event": (pl.String, lambda p: p.event),
    "request_id": (pl.Int64, lambda p: p.request_id),
    "cause": (pl.String, lambda p: p.cause),
    "steps": (pl.Int64, lambda p: p.steps),
    "need_blocks": (pl.Int64, lambda p: p.shortfall.need),
    "blank_blocks": (pl.Int64, lambda p: p.shortfall.blank),
    "evictable_blocks": (pl.Int64, lambda p: p.shortfall.evictable),
    "missing_blocks": (pl.Int64, lambda p: p.shortfall.missing),
    "slack_bytes": (pl.Int64, lambda p: p.shortfall.slack_bytes),
}


def requests_frame(recorder: Recorder) -> pl.DataFrame:
    """One row a request, in order of arrival."""
    return _frame(list(recorder.records.values()), REQUEST_COLUMNS)


def pressure_frame(recorder: Recorder) -> pl.DataFrame:
    """One row a preemption or run of refusals, in order of time."""
    return _frame(recorder.pressure, PRESSURE_COLUMNS)


def _frame(rows: list[Any], columns: dict[str, tuple[Any, Callable[[Any], Any]]]) -> pl.DataFrame:
    return pl.DataFrame(
        {name: pl.Series(name, [get(row) for row in rows], dtype=dtype) for name, (dtype, get) in columns.items()}
    )


SCHEMAS: dict[str, dict[str, Any]] = {
    "timeline": dict.fromkeys(TIMELINE_COLUMNS, pl.Int64()),
    "requests": {name: dtype() for name, (dtype, _get) in REQUEST_COLUMNS.items()},
    "pressure": {name: dtype() for name, (dtype, _get) in PRESSURE_COLUMNS.items()},
}
"""Columns and types of the tables, in their order."""
