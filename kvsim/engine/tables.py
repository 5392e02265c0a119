"""The tables that a run leaves, in bytes and nanoseconds, and where they are kept."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Literal, Protocol

import numpy as np
import polars as pl
from attrs import frozen

from kvsim.engine.recorder import Pressure
from kvsim.engine.state import RequestState
from kvsim.engine.timeline import EVENTS, Rows


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
    "host_bytes",
    "running",
    "waiting",
    *EVENTS,
)
"""One row per instant at which anything changed, which holds until the next one."""


def timeline_frame(rows: Rows, shape: MemoryShape) -> pl.DataFrame:
    """Levels in bytes. A paged pool reserves nothing, and any free block serves."""
    allocated = rows["allocated_blocks"] * shape.block_bytes
    slack = allocated - rows["live_bytes"]
    nothing = np.zeros_like(slack)
    columns = {
        "time_ns": rows["time"],
        "pool_bytes": np.full_like(slack, shape.pool_bytes),
        "allocated_bytes": allocated,
        "live_bytes": rows["live_bytes"],
        "slack_bytes": slack,
        "tail_bytes": slack - rows["padding_bytes"],
        "reserved_bytes": nothing,
        "unused_bytes": nothing,
        "padding_bytes": rows["padding_bytes"],
        "external_bytes": nothing,
        "cached_bytes": rows["cached_blocks"] * shape.block_bytes,
        "blank_bytes": rows["blank_blocks"] * shape.block_bytes,
        "logical_bytes": rows["logical_bytes"],
        "window_saving_bytes": rows["window_saving_bytes"],
        "shared_saving_bytes": rows["logical_bytes"] - rows["window_saving_bytes"] - rows["live_bytes"],
        "host_bytes": rows["host_blocks"] * shape.block_bytes,
        "running": rows["running"],
        "waiting": rows["waiting"],
        **{name: rows[name] for name in EVENTS},
    }
    return pl.DataFrame({name: np.ascontiguousarray(columns[name]) for name in TIMELINE_COLUMNS})


REQUEST_COLUMNS: dict[str, tuple[Any, Callable[[RequestState], Any]]] = {
    "request_id": (pl.Int64, attrgetter("request.id")),
    "arrival_ns": (pl.Int64, attrgetter("request.arrival_ns")),
    "priority": (pl.Int64, attrgetter("request.priority")),
    "prompt_tokens": (pl.Int64, attrgetter("request.prompt_tokens")),
    "output_tokens": (pl.Int64, attrgetter("request.output_tokens")),
    "generated_tokens": (pl.Int64, attrgetter("num_output_tokens")),
    "outcome": (pl.String, attrgetter("outcome")),
    "reason": (pl.String, attrgetter("reason")),
    "admitted_ns": (pl.Int64, attrgetter("admitted_ns")),
    "first_token_ns": (pl.Int64, attrgetter("first_token_ns")),
    "ended_ns": (pl.Int64, attrgetter("ended_ns")),
    "hit_tokens": (pl.Int64, attrgetter("hit_tokens")),
    "resumed_hit_tokens": (pl.Int64, attrgetter("resumed_hit_tokens")),
    "refusals": (pl.Int64, attrgetter("refusals")),
    "refusal_cause": (pl.String, attrgetter("refusal_cause")),
    "blocked_ns": (pl.Int64, attrgetter("blocked_ns")),
    "preemptions": (pl.Int64, attrgetter("num_preemptions")),
    "recomputed_tokens": (pl.Int64, attrgetter("num_recomputed_tokens")),
    "swaps": (pl.Int64, attrgetter("num_swaps")),
    "swap_fallbacks": (pl.Int64, attrgetter("num_swap_fallbacks")),
    "swapped_out_bytes": (pl.Int64, attrgetter("swapped_out_bytes")),
    "swapped_in_bytes": (pl.Int64, attrgetter("swapped_in_bytes")),
    "swap_dropped_bytes": (pl.Int64, attrgetter("swap_dropped_bytes")),
}
"""One row per request, in order of arrival."""

PRESSURE_COLUMNS: dict[str, tuple[Any, Callable[[Pressure], Any]]] = {
    "time_ns": (pl.Int64, attrgetter("time_ns")),
    "event": (pl.String, attrgetter("event")),
    "request_id": (pl.Int64, attrgetter("request_id")),
    "cause": (pl.String, attrgetter("cause")),
    "steps": (pl.Int64, attrgetter("steps")),
    "need_blocks": (pl.Int64, attrgetter("shortfall.need")),
    "blank_blocks": (pl.Int64, attrgetter("shortfall.blank")),
    "evictable_blocks": (pl.Int64, attrgetter("shortfall.evictable")),
    "missing_blocks": (pl.Int64, attrgetter("shortfall.missing")),
    "slack_bytes": (pl.Int64, attrgetter("shortfall.slack_bytes")),
}
"""One row per preemption, and per run of steps in which one request was refused for one cause; in order of time."""


def requests_frame(states: list[RequestState]) -> pl.DataFrame:
    return _frame(states, REQUEST_COLUMNS)


def pressure_frame(pressure: list[Pressure]) -> pl.DataFrame:
    return _frame(pressure, PRESSURE_COLUMNS)


def _frame(rows: list[Any], columns: dict[str, tuple[Any, Callable[[Any], Any]]]) -> pl.DataFrame:
    return pl.DataFrame(
        {name: pl.Series(name, list(map(get, rows)), dtype=dtype) for name, (dtype, get) in columns.items()}
    )


TableName = Literal["timeline", "requests", "pressure"]

SCHEMAS: dict[TableName, dict[str, Any]] = {
    "timeline": dict.fromkeys(TIMELINE_COLUMNS, pl.Int64()),
    "requests": {name: dtype() for name, (dtype, _get) in REQUEST_COLUMNS.items()},
    "pressure": {name: dtype() for name, (dtype, _get) in PRESSURE_COLUMNS.items()},
}
"""Columns and types of the tables, in their order."""


class Tables(Protocol):
    """Where the tables of a run are kept; their rows come in parts, in order."""

    def add(self, name: TableName, part: pl.DataFrame) -> None: ...

    def close(self) -> None:
        """All rows have been added."""
        ...

    def parts(self, name: TableName, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        """The rows again, some at a time."""
        ...


class TablesInMemory:
    """Small enough to hold."""

    def __init__(self) -> None:
        self._parts: dict[TableName, list[pl.DataFrame]] = {name: [] for name in SCHEMAS}

    def add(self, name: TableName, part: pl.DataFrame) -> None:
        self._parts[name].append(part)

    def close(self) -> None:
        pass

    def parts(self, name: TableName, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        for part in self._parts[name]:
            yield part if columns is None else part.select(columns)


class NoTables:
    """Nobody asks for rows, only for figures."""

    def add(self, name: TableName, part: pl.DataFrame) -> None:
        pass

    def close(self) -> None:
        pass

    def parts(self, name: TableName, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        raise ValueError("the rows of this run were not kept: ask for tables when it is simulated")


def whole(tables: Tables, name: TableName) -> pl.DataFrame:
    """All rows of a table at once."""
    return pl.concat([pl.DataFrame(schema=SCHEMAS[name]), *tables.parts(name)], rechunk=True)
