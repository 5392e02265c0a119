"""Results of runs for tests, made by hand from rows.

time_ns     0 ...... 10 ................ 40 .. 50
allocated   0        400                 800   0       bytes, of a pool of 4,000
live        0        300                 700   0
running     0        1                   2     0
waiting     2        1                   0     0
"""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from kvsim.engine.results import Results
from kvsim.engine.tables import SCHEMAS, MemoryShape, TablesInMemory
from kvsim.engine.totals import Totals

TIMELINE = {
    "time_ns": [0, 10, 40, 50],
    "pool_bytes": [4000] * 4,
    "allocated_bytes": [0, 400, 800, 0],
    "live_bytes": [0, 300, 700, 0],
    "slack_bytes": [0, 100, 100, 0],
    "tail_bytes": [0, 30, 100, 0],
    "reserved_bytes": [0, 40, 0, 0],
    "unused_bytes": [0, 10, 0, 0],
    "padding_bytes": [0, 20, 0, 0],
    "external_bytes": [0, 200, 0, 0],
    "cached_bytes": [0, 0, 400, 800],
    "blank_bytes": [4000, 3600, 2800, 3200],
    "logical_bytes": [0, 300, 1000, 0],
    "window_saving_bytes": [0, 0, 100, 0],
    "shared_saving_bytes": [0, 0, 200, 0],
    "running": [0, 1, 2, 0],
    "waiting": [2, 1, 0, 0],
}

DESCRIPTION: dict[str, Any] = {
    "question": "Which?",
    "overrides": [],
    "seed": 0,
    "versions": {"kvsim": "0.1.0"},
    "scenario": {"question": "Which?", "seed": 0, "memory": {"budget": 4400, "block_size": 4}},
    "geometry": {"name": "tiny", "bytes_per_token": 100},
    "pool": {"num_blocks": 11, "block_bytes": 400},
}


def request(**changes: Any) -> dict[str, Any]:
    """A row of a request that came at once, was let in at 10 ns and finished at 50 ns."""
    row: dict[str, Any] = dict.fromkeys(SCHEMAS["requests"], 0)
    row |= {"prompt_tokens": 100, "output_tokens": 10, "outcome": "finished", "reason": None, "refusal_cause": None}
    return row | {"admitted_ns": 10, "ended_ns": 50} | changes


def refusals(cause: str, steps: int) -> dict[str, Any]:
    return {**dict.fromkeys(SCHEMAS["pressure"], 0), "event": "refused", "cause": cause, "steps": steps}


REQUESTS = (request(), request(admitted_ns=40, hit_tokens=64, refusals=3, refusal_cause="blocks", blocked_ns=7))
PRESSURE = (refusals("blocks", 3),)


def make_results(
    *,
    timeline: Mapping[str, Sequence[int]] = TIMELINE,
    requests: Sequence[Mapping[str, Any]] = REQUESTS,
    pressure: Sequence[Mapping[str, Any]] = PRESSURE,
    held_back: Mapping[str, int] | None = None,
    num_steps: int = 20,
    description: Mapping[str, Any] = DESCRIPTION,
    stalled: str | None = None,
    notes: tuple[str, ...] = (),
) -> Results:
    num_rows = len(timeline["time_ns"])
    levels = {name: timeline.get(name, [0] * num_rows) for name in SCHEMAS["timeline"]}
    tables = TablesInMemory()
    tables.add("timeline", pl.DataFrame(levels, schema=SCHEMAS["timeline"]))
    tables.add("requests", pl.DataFrame(list(requests), schema=SCHEMAS["requests"]))
    tables.add("pressure", pl.DataFrame(list(pressure), schema=SCHEMAS["pressure"]))
    totals = Totals(
        MemoryShape(num_blocks=11, block_size=4, block_bytes=400, token_bytes=100),
        worst_case_bytes=12_000,
        num_steps=num_steps,
        held_back_steps={"preemption": 0, "max_num_seqs": 0, "token_budget": 0, **(held_back or {})},
    )
    totals.add_all(tables)
    return Results(description=dict(description), totals=totals, tables=tables, notes=notes, stalled=stalled)


def make_quiet_results(**rest: Any) -> Results:
    """The same with both requests let in at 10 ns, without a hit and a refusal."""
    timeline = TIMELINE | {"waiting": [2, 0, 0, 0]}
    return make_results(timeline=timeline, requests=(request(), request()), pressure=(), **rest)
