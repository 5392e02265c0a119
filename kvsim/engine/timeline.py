"""Levels and events over time, written down by stretches and read back by instants.

What memory holds changes where a step begins. A *stretch* is one step, a window of alike decode steps, or a time of
idleness; requests come and go at *instants* of their own, which change the queue and not memory. A row of the
timeline is an instant at which either happened. Rows are made by columns, so a step inside a window costs next to
nothing.

    stretch      |  step  | window of 4 steps     | idle
    time         0        10    15    20    25    30
    instants              ^           ^ ^
    rows         0        10    15    20 22 25    30
"""

from array import array
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from kvsim.memory.allocator import Occupancy

Array = npt.NDArray[np.int64]

Event = Literal[
    "arrived", "admitted", "resumed", "preempted", "refused", "finished", "rejected", "timed_out", "aborted"
]
"""Things counted in each row of the timeline; `finished` includes the cut ones."""

EVENTS: tuple[str, ...] = get_args(Event)

LEVELS = (*Occupancy._fields, "running", "waiting")

ROWS_AT_ONCE = 2**15
"""How many rows of the timeline are made together: enough for columns to pay, few enough to hold."""

_STRETCH = (
    "time",
    "ticks",
    "tick_ns",
    "longer_ns",
    *Occupancy._fields,
    "running",
    "written_bytes",
    "padding_bytes_per_block",
    "taken_at",
    "taken_every",
    "admitted",
    "resumed",
    "preempted",
    "refused",
    "finished",
)


class Decoding(NamedTuple):
    """A window of `num_ticks` decode steps: the first lasts `tick_ns`, each further one `longer_ns` more.

    Every step writes `written_bytes`; step j takes `blocks_taken[j % len]` blocks, each with `padding_bytes`.
    """

    num_ticks: int
    tick_ns: int
    longer_ns: int
    written_bytes: int
    blocks_taken: list[int]
    padding_bytes: int

    def begins_ns(self, tick: int) -> int:
        """When a tick (0 the first) begins, or with `num_ticks` the window ends, after its beginning."""
        return tick * self.tick_ns + self.longer_ns * (tick * (tick - 1) // 2)


class Pending:
    """Events of steps since the last stretch was written down."""

    def __init__(self) -> None:
        self.admitted = 0
        self.resumed = 0
        self.preempted = 0
        self.refused = 0
        self.finished = 0


Rows = dict[str, Array]
"""Columns `time`, those of LEVELS and those of EVENTS, in whole numbers of equal count."""


class Timeline:
    """Stretches and instants that have not been taken out yet."""

    def __init__(self) -> None:
        self.instants = {name: array("q") for name in (*_AT_INSTANTS, "left_running")}
        """Times of events apart from steps; of the aborted, `left_running` has those that were not waiting."""
        self.pending = Pending()
        self.num_rows = 0
        self._stretches = array("q")
        self._taken = array("q")
        self._waiting = 0
        self._end_ns = 0

    @property
    def end_ns(self) -> int:
        """The last instant so far."""
        last = [times[-1] for times in self.instants.values() if times]
        if self._stretches:
            last.append(self._stretches[-len(_STRETCH)])
        return max(last, default=self._end_ns)

    def observe(self, now: int, occupancy: Occupancy, running: int, decoding: Decoding | None = None) -> None:
        """A stretch begins with these levels (of a window: those before its first step), after all pending events."""
        pending = self.pending
        events = (pending.admitted, pending.resumed, pending.preempted, pending.refused, pending.finished)
        if decoding is None:
            self.num_rows += 1
            self._stretches.extend((now, 1, 0, 0, *occupancy, running, 0, 0, -1, 1, *events))
        else:
            num_ticks, tick_ns, longer_ns, written, taken, padding = decoding
            self.num_rows += num_ticks
            at = len(self._taken) if taken else -1
            every = len(taken) or 1
            self._taken.extend(taken)
            self._stretches.extend(
                (now, num_ticks, tick_ns, longer_ns, *occupancy, running, written, padding, at, every, *events)
            )
        pending.admitted = pending.resumed = pending.preempted = pending.refused = pending.finished = 0

    def take(self, before_ns: int | None) -> Rows:
        """All rows before an instant at which a stretch is about to begin, or all there are; forgets them."""
        table = np.frombuffer(self._stretches, dtype=np.int64).reshape(-1, len(_STRETCH))
        stretches = dict(zip(_STRETCH, table.T, strict=True))
        taken = np.frombuffer(self._taken, dtype=np.int64)
        instants = {name: np.frombuffer(times, dtype=np.int64) for name, times in self.instants.items()}
        later = {name: times[:0] for name, times in instants.items()}
        if before_ns is not None:
            later = {name: times[times >= before_ns] for name, times in instants.items()}
            instants = {name: times[times < before_ns] for name, times in instants.items()}
        rows = _rows(stretches, taken, instants, self._waiting)
        if len(rows["waiting"]):
            self._waiting, self._end_ns = int(rows["waiting"][-1]), int(rows["time"][-1])
        self.instants = {name: array("q", times.tobytes()) for name, times in later.items()}
        self._stretches, self._taken, self.num_rows = array("q"), array("q"), 0
        return rows


_AT_INSTANTS = ("arrived", "rejected", "timed_out", "aborted")
_WITH_STEPS = ("admitted", "resumed", "preempted", "refused", "finished")


def _rows(stretches: Rows, taken: Array, instants: Rows, waiting: int) -> Rows:
    """One row per instant; where several stretches begin at one, the last says the levels."""
    steps = _steps(stretches, taken)
    begins = steps["time"]
    # Nearly in order already, which this kind of sort makes use of.
    times = np.sort(np.concatenate([begins, *(instants[name] for name in _AT_INSTANTS)]), kind="stable")
    times = times[np.flatnonzero(np.diff(times, prepend=times[:1] - 1))]
    row_of_step = np.searchsorted(times, begins)
    holds = np.zeros(len(times), dtype=np.int64)
    holds[row_of_step] = np.arange(len(begins))
    holds = np.maximum.accumulate(holds)
    rows = {"time": times} | {name: steps[name][holds] for name in (*Occupancy._fields, "running")}
    events = {name: _counted(row_of_step, steps[name], len(times)) for name in _WITH_STEPS}
    for name, happened in instants.items():
        events[name] = _counted(np.searchsorted(times, happened), np.ones_like(happened), len(times))
    left = events["rejected"] + events["timed_out"] + events["aborted"] - events.pop("left_running")
    came = events["arrived"] + events["preempted"]
    rows["waiting"] = waiting + np.cumsum(came - left - events["admitted"] - events["resumed"])
    return rows | {name: events[name] for name in EVENTS}


def _counted(rows: Array, counts: Array, num_rows: int) -> Array:
    """Counts added up by row; most rows have none."""
    total = np.zeros(num_rows, dtype=np.int64)
    some = np.flatnonzero(counts)
    np.add.at(total, rows[some], counts[some])
    return total


def _steps(stretches: Rows, taken: Array) -> Rows:
    """Every stretch step by step: when it begins, and the levels that hold from then on."""
    ticks = stretches["ticks"]
    if (ticks == 1).all() and not len(taken) and not stretches["written_bytes"].any():
        return stretches
    of = np.repeat(np.arange(len(ticks)), ticks)
    first = np.cumsum(ticks) - ticks
    tick = np.arange(len(of)) - first[of]
    steps = {name: stretches[name][of] for name in (*Occupancy._fields, "running", "refused")}
    steps["time"] = (
        stretches["time"][of] + tick * stretches["tick_ns"][of] + stretches["longer_ns"][of] * (tick * (tick - 1) // 2)
    )
    blocks = _blocks_taken_so_far(stretches, taken, of, first, tick)
    written = (tick + 1) * stretches["written_bytes"][of]
    blank = steps["blank_blocks"]
    steps["allocated_blocks"] = steps["allocated_blocks"] + blocks
    steps["cached_blocks"] = steps["cached_blocks"] - np.maximum(0, blocks - blank)
    steps["blank_blocks"] = np.maximum(0, blank - blocks)
    steps["live_bytes"] = steps["live_bytes"] + written
    steps["padding_bytes"] = steps["padding_bytes"] + blocks * stretches["padding_bytes_per_block"][of]
    steps["logical_bytes"] = steps["logical_bytes"] + written
    for name in ("admitted", "resumed", "preempted", "finished"):  # these happen at the beginning of a stretch
        steps[name] = np.zeros_like(of)
        steps[name][first] = stretches[name]
    return steps


def _blocks_taken_so_far(stretches: Rows, taken: Array, of: Array, first: Array, tick: Array) -> Array:
    """Blocks that a stretch has taken up to and with each of its steps."""
    at = stretches["taken_at"][of]
    now = np.zeros_like(of)
    some = at >= 0
    now[some] = taken[at[some] + tick[some] % stretches["taken_every"][of][some]]
    total = np.cumsum(now)
    return total - (total[first] - now[first])[of]
