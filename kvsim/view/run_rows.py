"""What a page is given of a run over time: its rows, packed, and what a reader needs to know of them."""

from typing import NamedTuple

import numpy as np
import polars as pl

from kvsim.engine.tables import PRESSURE_COLUMNS, TIMELINE_COLUMNS, MemoryShape
from kvsim.engine.timeline import EVENTS
from kvsim.study.colours import COLOURS
from kvsim.units import BYTE_UNITS, TIME_UNITS, byte_axis_unit, time_axis_unit
from kvsim.view.packing import Integers, chosen_rows, pack

MOST_ROWS = 600_000
"""Rows of a table that a page holds; of longer ones it holds a choice, and says so."""

AREAS = {
    "live": "live",
    "tail": "slack: tail",
    "reserved": "slack: reserved",
    "unused": "slack: unused",
    "padding": "slack: padding",
    "cached": "cached",
    "blank": "blank",
    "external": "external",
}
"""Levels that are stacked, from below, and what they are called. What is external is a part of what is blank."""

COUNTS = ("running", "waiting")

_OF_THE_PAGE = ("pool", "allocated", "blank")
"""What has the colours of the page's text and ground."""

_BESIDE = ("slack", "logical", "window_saving", "shared_saving", "host")
"""Levels that are read off and not drawn as they are."""


class Lane(NamedTuple):
    """A line of marks: what happened to requests, and for want of what."""

    event: str
    cause: str


LANES = {
    Lane("refused", "blocks"): "the pool has too few free blocks; more of them would have let the request in",
    Lane("refused", "gate"): "its first chunk would have fitted, but the gate asks for room for the whole prompt",
    Lane("refused", "watermark"): "it would have fitted, but spare blocks must stay free (memory.watermark)",
    Lane("refused", "extent"): "enough is free, but not in one piece, and a reservation needs one extent",
    Lane("refused", "reservation"): "enough is free, but promised to those that run, for tokens still to come",
    Lane(
        "preempted", "blocks"
    ): "a running request needed a block and none was free, so a request gave back all of its own",
}
"""In this order from above, others follow; and what each means, where the least change that would have let a request in
is the cause of its refusal."""


class Units(NamedTuple):
    """Of the axes: names of BYTE_UNITS and TIME_UNITS."""

    bytes: str
    time: str

    @classmethod
    def of(cls, shape: MemoryShape, timeline: pl.DataFrame) -> "Units":
        end_ns = int(timeline["time_ns"][-1]) if len(timeline) else 0
        return cls(byte_axis_unit(shape.pool_bytes), time_axis_unit(end_ns))


def lanes_of(pressure: pl.DataFrame) -> dict[Lane, int]:
    """How often memory said no, by event and cause: every step that refused a request counts, as in a run's figures."""
    counts = pressure.group_by("event", "cause").agg(pl.col("steps").sum())
    times = {Lane(event, cause): int(steps) for event, cause, steps in counts.iter_rows()}
    places = {lane: at for at, lane in enumerate(LANES)}

    def place(lane: Lane) -> tuple[int, Lane]:
        return (places.get(lane, len(places)), lane)

    return {lane: times[lane] for lane in sorted(times, key=place)}


def packed_rows(
    shape: MemoryShape,
    timeline: pl.DataFrame,
    pressure: pl.DataFrame,
    *,
    name: str,
    marks_at: float,
    most_rows: int = MOST_ROWS,
) -> bytes:
    """For `static/timeline.js`: the rows of both tables, in order of time, and how to draw and read them.

    `name` says whose run it is; `marks_at` is the place of a mark within the height of its lane. Of more than
    `most_rows` (at least 4) a choice is packed.
    """
    units = Units.of(shape, timeline)
    lanes = list(lanes_of(pressure))
    columns = {column: timeline[column].to_numpy() for column in TIMELINE_COLUMNS}
    held = chosen_rows(columns["time_ns"], [columns["allocated_bytes"]], most_rows)
    note = {
        "name": name,
        "num_rows": timeline.height,
        "num_marks": pressure.height,
        "block_bytes": str(shape.block_bytes),
        "time": {"unit": units.time, "ns": TIME_UNITS[units.time]},
        "axis_bytes": BYTE_UNITS[units.bytes],
        "byte_units": [(unit, BYTE_UNITS[unit]) for unit in ("TiB", "GiB", "MiB", "KiB")],
        "levels": _levels(timeline),
        "beside": [_beside(name) for name in _BESIDE if _happens(timeline, f"{name}_bytes")],
        "events": EVENTS,
        "lanes": [{"event": lane.event, "cause": lane.cause, "colour": COLOURS[lane.event]} for lane in lanes],
        "marks_at": marks_at,
    }
    tables = {
        "timeline": {column: values[held] for column, values in columns.items()},
        "pressure": _pressure_columns(_chosen_pressure(pressure, most_rows), lanes),
    }
    return pack(tables, note)


def _happens(timeline: pl.DataFrame, column: str) -> bool:
    return bool((timeline[column] > 0).any())


def _levels(timeline: pl.DataFrame) -> list[dict[str, object]]:
    """What a reader may show and hide: lines, and the areas that are anywhere more than nothing."""
    areas = [name for name in AREAS if name == "live" or _happens(timeline, f"{name}_bytes")]
    return [
        {
            "name": name,
            "column": name if name in COUNTS else f"{name}_bytes",
            "label": AREAS.get(name, name),
            "colour": None if name in _OF_THE_PAGE else COLOURS[name],
            "is_line": name not in AREAS,
            "has_blocks": name in ("pool", "allocated", "cached", "blank"),
            "of": "pool",
        }
        for name in ("pool", "allocated", *areas, *COUNTS)
    ]


def _beside(name: str) -> dict[str, object]:
    return {
        "name": name,
        "column": f"{name}_bytes",
        "label": name.replace("_", " "),
        "of": "allocated" if name == "slack" else "pool",
    }


def _chosen_pressure(pressure: pl.DataFrame, most_rows: int) -> pl.DataFrame:
    """All rows, or the first of each lane in equal parts of time if they are more than `most_rows`."""
    if pressure.height <= most_rows:
        return pressure
    first, last = int(pressure["time_ns"][0]), int(pressure["time_ns"][-1])
    num_parts = max(1, most_rows // len(lanes_of(pressure)))
    part = (pl.col("time_ns") - first) // ((last - first) // num_parts + 1)
    return pressure.group_by(part.alias("part"), "event", "cause", maintain_order=True).first().select(pressure.columns)


def _pressure_columns(pressure: pl.DataFrame, lanes: list[Lane]) -> dict[str, Integers]:
    """Its whole numbers, and of each row the number of its lane."""
    number = {lane: at for at, lane in enumerate(lanes)}
    rows = zip(pressure["event"], pressure["cause"], strict=True)
    columns = {name: pressure[name].to_numpy() for name, dtype in PRESSURE_COLUMNS.items() if dtype == pl.Int64}
    return columns | {"lane": np.array([number[Lane(*row)] for row in rows], dtype=np.int64)}
