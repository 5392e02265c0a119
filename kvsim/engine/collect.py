"""Run a simulation, and put what it records into tables and figures as it comes."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvsim.engine.simulation import Simulation
from kvsim.engine.tables import Tables, pressure_frame, requests_frame, timeline_frame
from kvsim.engine.totals import Totals


def collect(
    simulation: Simulation, tables: Tables, totals: Totals, on_rows: Callable[[Simulation], None] | None = None
) -> None:
    """Run to the end; no more is held than what is under way, but for what `tables` keeps.

    `on_rows` is told each time rows have gone to the tables while the run goes on.
    """
    recorder = simulation.recorder

    def hand_over(before_ns: int | None) -> None:
        """What is complete: rows before an instant, or at the end all of them."""
        is_end = before_ns is None
        timeline = timeline_frame(recorder.take_rows(before_ns), totals.shape)
        requests = requests_frame(recorder.take_states(all=is_end))
        pressure = pressure_frame(recorder.take_pressure(all=is_end))
        totals.add_timeline(timeline)
        totals.add_requests(requests)
        totals.add_pressure(pressure)
        tables.add("timeline", timeline)
        tables.add("requests", requests)
        tables.add("pressure", pressure)
        if on_rows is not None and not is_end:
            on_rows(simulation)

    try:
        with _no_search_for_cycles():
            simulation.run(on_full=hand_over)
            hand_over(None)
        tables.close()
    except BaseException:
        tables.abandon()
        raise
    totals.num_steps = recorder.num_steps
    totals.held_back_steps = recorder.held_back_steps
    totals.moved_bytes = simulation.memory.moved_bytes


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """What a run lets go of is free of cycles, and looking for them takes a tenth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
