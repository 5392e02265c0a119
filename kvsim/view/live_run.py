"""A run in a process of its own, which can be looked at while it goes on and ended at once.

A thread would make the page wait: simulating is Python, and of a process one thread at a time runs that. The process
writes its tables to a folder, as `kvsim run` does, and tells about twice a second how far it is.
"""

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl
from attrs import frozen

from kvsim.engine.results import Results
from kvsim.engine.simulation import Simulation
from kvsim.engine.tables import SCHEMAS, MemoryShape, TableName
from kvsim.errors import InvariantError, KvsimError, ScenarioError
from kvsim.memory.block_map import BlockMap
from kvsim.study.block_maps import BlockMaps, read_block_maps
from kvsim.study.files import FILES, TablesInFiles, read_results, write_results
from kvsim.study.plan import plan
from kvsim.study.run import simulate
from kvsim.study.scenario import Scenario
from kvsim.view.faults import fault
from kvsim.view.packing import chosen_rows

MOST_ROWS = 2_000_000
"""A run with more instants is ended: its page would take gigabytes."""

MOST_SECONDS = 600
"""So is one that takes longer."""

MOST_ROWS_TOLD = 8_000
"""Rows of each table that are told while a run goes on, several for each pixel of a chart; its end has all of them."""

_SECONDS_BETWEEN = 0.4
_ROWS_AT_ONCE = 2**10


@frozen(eq=False)
class Seen:
    """How far a run is: requests that have ended, of how many (None if that is not known), and the time simulated.

    `timeline` and `pressure` are rows of its tables so far, a choice of them where they are many.
    """

    num_ended: int
    num_requests: int | None
    time_ns: int
    shape: MemoryShape
    timeline: pl.DataFrame
    pressure: pl.DataFrame
    blocks: BlockMap


@frozen(eq=False)
class Ended:
    """All of its results, whose tables can be read until the run is closed, and its blocks at some moments in order."""

    results: Results
    maps: Sequence[BlockMap]


@frozen
class Refused:
    """What was wrong with the scenario or what it names, a sentence each."""

    problems: tuple[str, ...]


class _Written(NamedTuple):
    """All files are there."""


State = Literal["running", "ended", "refused", "stopped"]


class LiveRun:
    """One run from its start to its end. `close` ends it in any case, and takes away what it has left.

    `latest` is what is known of it now: nothing yet, how far it is, or how it has ended. `on_news` is called by a
    thread whenever that has changed, and at the end.
    """

    def __init__(
        self,
        scenario: Scenario,
        on_news: Callable[[], None] | None = None,
        *,
        most_rows: int = MOST_ROWS,
        most_seconds: float = MOST_SECONDS,
    ) -> None:
        self.state: State = "running"
        self.latest: Seen | Ended | Refused | None = None
        self._on_news = on_news
        self._most_seconds = most_seconds
        self._folder = tempfile.TemporaryDirectory(prefix="kvsim-")
        context = get_context("spawn")
        told, telling = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_simulate, args=(scenario, Path(self._folder.name), telling, most_rows), daemon=True
        )
        self._process.start()
        telling.close()
        self._listener = threading.Thread(target=self._listen, args=(told,), daemon=True)
        self._listener.start()

    def stop(self) -> None:
        """End it at once; what was known of it stays."""
        if self.state == "running":
            self.state = "stopped"
            self._process.kill()

    def wait(self) -> None:
        """Until it has ended by itself or was stopped."""
        self._listener.join()

    def close(self) -> None:
        self.stop()
        self._listener.join()
        self._folder.cleanup()

    def _listen(self, told: Connection) -> None:
        """Take what comes as it comes, so that the run never waits for somebody to look."""
        until = time.monotonic() + self._most_seconds
        try:
            # polars has Ctrl-C end what it reads in any thread; the server ends by it, too.
            with told, suppress(EOFError, OSError, KeyboardInterrupt):
                while told.poll(max(0.0, until - time.monotonic())):
                    message = told.recv()
                    self._knows(_ended(Path(self._folder.name)) if isinstance(message, _Written) else message)
                sentence = f"a run in the app may take {self._most_seconds:,.4g} s: make it shorter, or use kvsim run"
                self._knows(Refused((sentence,)))
        except Exception as error:  # whoever waits for the run is told of it
            self._knows(Refused((fault(error),)))
        self._process.kill()
        self._process.join()
        self._knows(Refused(("the process of the run died, as happens when memory runs out",)))

    def _knows(self, latest: Seen | Ended | Refused) -> None:
        if self.state != "running":
            return
        if isinstance(latest, Ended):
            self.state = "ended"
        elif isinstance(latest, Refused):
            self.state = "refused"
        self.latest = latest
        if self._on_news is not None:
            self._on_news()


def _ended(folder: Path) -> Ended | Refused:
    try:
        results = read_results(folder)
        _ = results.timeline, results.pressure  # read by this thread, and held from then on
        return Ended(results, read_block_maps(folder / FILES["blocks"]))
    except KvsimError as error:
        return Refused((str(error),))


# in the other process


def _simulate(scenario: Scenario, folder: Path, telling: Connection, most_rows: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    try:
        telling.send(_told(scenario, folder, telling, most_rows))
    except BrokenPipeError:  # nobody listens any more, nor will look at the files
        shutil.rmtree(folder, ignore_errors=True)


def _end_with_parent(folder: Path) -> None:
    """Whatever the run waits for, a pipe that nobody writes to included."""
    parent = parent_process()
    assert parent is not None, "it was started by another process"
    parent.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _told(scenario: Scenario, folder: Path, telling: Connection, most_rows: int) -> _Written | Refused:
    """How it has ended."""
    try:
        return _run(scenario, folder, telling, most_rows)
    except ScenarioError as error:
        return Refused(tuple(error.problems))
    except (KvsimError, InvariantError, OSError) as error:
        return Refused((str(error),))
    except MemoryError:
        return Refused(("memory ran out",))
    except Exception as error:  # told, or else it would look like a process that was killed
        return Refused((fault(error),))


def _run(scenario: Scenario, folder: Path, telling: Connection, most_rows: int) -> _Written:
    look, maps = _Look(scenario, folder, telling, most_rows), BlockMaps()
    results = simulate(
        scenario,
        tables=look,
        on_progress=look.on_progress,
        moments=maps.moments(),
        on_moment=maps.add,
        rows_at_once=_ROWS_AT_ONCE,
        on_rows=look.on_rows,
    )
    write_results(results, folder, ("summary", "blocks", *SCHEMAS), maps)
    return _Written()


class _Look(TablesInFiles):
    """The tables of the run in files, and a choice of their rows at hand, to be told from time to time."""

    def __init__(self, scenario: Scenario, folder: Path, telling: Connection, most_rows: int) -> None:
        super().__init__(folder, SCHEMAS)
        self._shape = plan(scenario).shape
        self._telling = telling
        self._most_rows = most_rows
        self._num_rows = 0
        self._num_requests: int | None = None
        self._told = 0.0
        self._at_hand = {name: pl.DataFrame(schema=SCHEMAS[name]) for name in ("timeline", "pressure")}

    def add(self, name: TableName, part: pl.DataFrame) -> None:
        super().add(name, part)
        if name == "timeline":
            self._num_rows += part.height
            if self._num_rows > self._most_rows:
                raise KvsimError(
                    f"the run has more than {self._most_rows:,} instants, as many as a page can show: "
                    "make it shorter, or use kvsim run"
                )
        if name in self._at_hand:
            held = pl.concat([self._at_hand[name], part])
            self._at_hand[name] = held if held.height <= 2 * MOST_ROWS_TOLD else _choice(name, held)

    def on_progress(self, _num_ended: int, num_requests: int | None) -> None:
        self._num_requests = num_requests

    def on_rows(self, simulation: Simulation) -> None:
        """Tell of them, if nothing has been told for a while."""
        if time.monotonic() - self._told < _SECONDS_BETWEEN:
            return
        self._telling.send(
            Seen(
                simulation.recorder.num_ended,
                self._num_requests,
                simulation.now,
                self._shape,
                _choice("timeline", self._at_hand["timeline"]),
                _choice("pressure", self._at_hand["pressure"]),
                simulation.block_map(),
            )
        )
        self._told = time.monotonic()


def _choice(name: str, rows: pl.DataFrame) -> pl.DataFrame:
    """At most about so many as are told: of the timeline those with the most and the least allocated."""
    if rows.height <= MOST_ROWS_TOLD:
        return rows
    if name == "timeline":
        times, allocated = rows["time_ns"].to_numpy(), rows["allocated_bytes"].to_numpy()
        return rows[chosen_rows(times, [allocated], MOST_ROWS_TOLD)]
    # Some that are alike become the first of them, with the steps of all, so that their sum stays as it is.
    kind = ["event", "cause"]
    together = -(-rows.height // MOST_ROWS_TOLD)
    part = (pl.int_range(pl.len()).over(kind) // together).alias("part")
    first = pl.exclude("steps", *kind, "part").first()
    joined = rows.with_columns(part).group_by(*kind, "part", maintain_order=True).agg(first, pl.col("steps").sum())
    return joined.sort("time_ns", maintain_order=True).select(rows.columns)
