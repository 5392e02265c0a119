"""The tables that a run leaves, in bytes and nanoseconds, and where they are kept."""

from collections.abc import Iterator, Sequence
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

    `num_blocks` counts the null block, of which pools that are not paged have none. `token_bytes` is what a token takes
    in all groups of layers together, and a block belongs to one group at a time, so with several groups a block holds
    less than `block_size x token_bytes`.
    """

    num_blocks: int
    block_size: int
    block_bytes: int
    token_bytes: int
    num_null_blocks: int = 1

    @property
    def usable_blocks(self) -> int:
        return self.num_blocks - self.num_null_blocks

    @property
    def pool_bytes(self) -> int:
        """Usable bytes: the null block is held back."""
        return self.usable_blocks * self.block_bytes


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
    """Levels in bytes. What is allocated, not written, not reserved and no padding is the tail of a block."""
    allocated = rows["allocated_blocks"] * shape.block_bytes
    slack = allocated - rows["live_bytes"]
    columns = {
        "time_ns": rows["time"],
        "pool_bytes": np.full_like(slack, shape.pool_bytes),
        "allocated_bytes": allocated,
        "live_bytes": rows["live_bytes"],
        "slack_bytes": slack,
        "tail_bytes": slack - rows["padding_bytes"] - rows["reserved_bytes"] - rows["unused_bytes"],
        "reserved_bytes": rows["reserved_bytes"],
        "unused_bytes": rows["unused_bytes"],
        "padding_bytes": rows["padding_bytes"],
        "external_bytes": rows["external_bytes"],
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


_ORDINARY_COLUMNS: dict[str, Any] = {
    "request_id": pl.Int64,
    "arrival_ns": pl.Int64,
    "priority": pl.Int64,
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "generated_tokens": pl.Int64,
    "outcome": pl.String,
    "reason": pl.String,
    "admitted_ns": pl.Int64,
    "first_token_ns": pl.Int64,
    "ended_ns": pl.Int64,
    "hit_tokens": pl.Int64,
    "resumed_hit_tokens": pl.Int64,
    "refusals": pl.Int64,
    "refusal_cause": pl.String,
    "blocked_ns": pl.Int64,
    "preemptions": pl.Int64,
    "recomputed_tokens": pl.Int64,
}

_SWAP_COLUMNS: dict[str, Any] = {
    "swaps": pl.Int64,
    "swap_fallbacks": pl.Int64,
    "swapped_out_bytes": pl.Int64,
    "swapped_in_bytes": pl.Int64,
    "swap_dropped_bytes": pl.Int64,
}

REQUEST_COLUMNS = _ORDINARY_COLUMNS | _SWAP_COLUMNS
"""One row per request, in order of arrival; `RequestState.row` has the values, and `swap_row` those from `swaps` on."""

PRESSURE_COLUMNS: dict[str, Any] = {
    "time_ns": pl.Int64,
    "event": pl.String,
    "request_id": pl.Int64,
    "cause": pl.String,
    "steps": pl.Int64,
    "need_blocks": pl.Int64,
    "blank_blocks": pl.Int64,
    "evictable_blocks": pl.Int64,
    "missing_blocks": pl.Int64,
    "slack_bytes": pl.Int64,
}
"""One row per preemption, and per run of steps in which one request was refused for one cause; in order of time."""


_pressure_row = attrgetter(
    "time_ns",
    "event",
    "request_id",
    "cause",
    "steps",
    "shortfall.need",
    "shortfall.blank",
    "shortfall.evictable",
    "shortfall.missing",
    "shortfall.slack_bytes",
)


def requests_frame(states: list[RequestState]) -> pl.DataFrame:
    """Columns of swaps cost nothing where nobody was preempted."""
    frame = _frame([state.row() for state in states], _ORDINARY_COLUMNS)
    if any(state.num_preemptions for state in states):
        return frame.hstack(_frame([state.swap_row() for state in states], _SWAP_COLUMNS))
    nothing = np.zeros(len(states), dtype=np.int64)
    return frame.hstack([pl.Series(name, nothing) for name in _SWAP_COLUMNS])


def pressure_frame(pressure: list[Pressure]) -> pl.DataFrame:
    return _frame(list(map(_pressure_row, pressure)), PRESSURE_COLUMNS)


def _frame(rows: list[tuple[Any, ...]], columns: dict[str, Any]) -> pl.DataFrame:
    if not rows:
        return pl.DataFrame(schema=columns)
    series = zip(columns.items(), zip(*rows, strict=True), strict=True)
    return pl.DataFrame([pl.Series(name, values, dtype=dtype) for (name, dtype), values in series])


TableName = Literal["timeline", "requests", "pressure"]

SCHEMAS: dict[TableName, dict[str, Any]] = {
    "timeline": dict.fromkeys(TIMELINE_COLUMNS, pl.Int64()),
    "requests": {name: dtype() for name, dtype in REQUEST_COLUMNS.items()},
    "pressure": {name: dtype() for name, dtype in PRESSURE_COLUMNS.items()},
}
"""Columns and types of the tables, in their order."""


class Tables(Protocol):
    """Where the tables of a run are kept; their rows come in parts, in order."""

    def add(self, name: TableName, part: pl.DataFrame) -> None: ...

    def close(self) -> None:
        """All rows have been added."""
        ...

    def abandon(self) -> None:
        """The run has failed; no more rows will come."""
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

    def abandon(self) -> None:
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

    def abandon(self) -> None:
        pass

    def parts(self, name: TableName, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        raise ValueError("the rows of this run were not kept: ask for tables when it is simulated")


def whole(tables: Tables, name: TableName) -> pl.DataFrame:
    """All rows of a table at once."""
    return pl.concat([pl.DataFrame(schema=SCHEMAS[name]), *tables.parts(name)], rechunk=True)
