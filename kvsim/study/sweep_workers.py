"""Who runs the runs of a sweep or a comparison: this process, processes beside it, or the workers of a Dask cluster.

Each gives the records as they come, in any order.
"""

import os
import re
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from kvsim import __version__
from kvsim.errors import KvsimError
from kvsim.rules import shown
from kvsim.study.packed_trace import pack_trace, parsed_alike
from kvsim.study.scenario import Scenario
from kvsim.study.sweep_plan import Run
from kvsim.study.sweep_record import Packed, Record, record_of
from kvsim.workload.traces import Trace

_SECONDS_TO_CONNECT = 10
_ADDRESS = re.compile(r"(?:tcp|tls)://(?:\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+):([0-9]{1,5})")
_LAST_PORT = 65_535


Measure = Callable[[Scenario, Packed], Record]
"""Runs a scenario; a function of a module, so that other processes find it."""


class Task(NamedTuple):
    """One run; `number` is its index, `packed` the file of its trace, where it has one."""

    number: int
    scenario: Scenario
    packed: Path | None
    measure: Measure = record_of


class Done(NamedTuple):
    number: int
    record: Record


def tasks_of(runs: Sequence[Run], packing: Path, measure: Measure = record_of) -> list[Task]:
    """Traces are parsed here, once, however many runs replay them; `packing` is a folder for what comes of it."""
    packed: dict[Trace, Path] = {}
    tasks = []
    for run in runs:
        workload, file = run.scenario.workload, None
        if isinstance(workload, Trace):
            trace = parsed_alike(workload)
            if trace not in packed:
                packed[trace] = packing / str(len(packed))
                pack_trace(trace, run.scenario.base, packed[trace])
            file = packed[trace]
        tasks.append(Task(run.index, run.scenario, file, measure))
    return tasks


def run_all(tasks: Sequence[Task], jobs: int | None, dask: str | None = None) -> Generator[Done, None, None]:
    """By `jobs` processes, one a processor if not given, or the cluster at `dask`."""
    if not tasks:
        return
    if dask is not None:
        yield from run_on_cluster(tasks, dask)
        return
    if jobs is None:
        import joblib

        jobs = joblib.cpu_count()
    yield from run_here(tasks) if min(jobs, len(tasks)) == 1 else run_in_processes(tasks, jobs)


def run_here(tasks: Sequence[Task]) -> Iterator[Done]:
    for task in tasks:
        yield Done(task.number, task.measure(task.scenario, task.packed))


def run_in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[Done]:
    """A process that dies takes those with it that run beside it; each of them is then run alone, so that only the
    one that cannot be run fails.
    """
    waiting = list(tasks)
    while waiting:
        suspects, waiting = yield from _run_together(waiting, jobs)
        for suspect in suspects:
            again, _ = yield from _run_together([suspect], 1)
            if again:
                yield Done(suspect.number, Record.failed("its process died, as happens when memory runs out"))


_LOOK_AGAIN_SECONDS = 0.2
"""polars has the kernel go on with a wait that Ctrl-C has broken off: one without an end would not hear of it."""


class _Left(NamedTuple):
    """When a process has died: the tasks that were handed out, and those that were not."""

    suspects: list[Task]
    waiting: list[Task]


def _run_together(tasks: Sequence[Task], jobs: int) -> Generator[Done, None, _Left]:
    # joblib's own pool: unlike the standard one it does not run a script again that lacks `if __name__ == ...`.
    from joblib.externals.loky import ProcessPoolExecutor

    pool = ProcessPoolExecutor(min(jobs, len(tasks)), initializer=_begin_worker, initargs=(os.getpid(),))
    waiting = deque(tasks)
    running: dict[Future[Record], Task] = {}
    ended_well = False
    try:
        while waiting or running:
            # No more than the pool hands on at once: it cannot be stopped cleanly while it holds others.
            while waiting and len(running) < 2 * jobs:
                task = waiting.popleft()
                running[pool.submit(task.measure, task.scenario, task.packed)] = task
            for future in wait(running, _LOOK_AGAIN_SECONDS, FIRST_COMPLETED).done:
                yield Done(running[future].number, future.result())
                del running[future]
        ended_well = True
    except BrokenProcessPool:
        pass
    finally:
        pool.shutdown(kill_workers=not ended_well)
    return _Left(list(running.values()), list(waiting))


def _begin_worker(parent: int) -> None:
    """Ctrl-C is the parent's to answer; without it, even if it was killed, a worker has nothing to do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def run_on_cluster(tasks: Sequence[Task], address: str) -> Iterator[Done]:
    """Traces are sent to the workers; other files that scenarios name must be where they are here.

    Raises KvsimError where there is no cluster with workers of this version.
    """
    with _cluster(address) as client:
        from distributed import as_completed

        files = {task.packed for task in tasks if task.packed is not None}
        sent: dict[Path | None, Any] = {
            file: client.scatter(file.read_bytes(), broadcast=True) for file in sorted(files)
        }
        numbers = {
            client.submit(task.measure, task.scenario, sent.get(task.packed), pure=False): task.number for task in tasks
        }
        for future in as_completed(numbers, loop=client.loop):
            try:
                record = future.result()
            except CancelledError:
                record = Record.failed("the cluster was lost before it had an answer")
            except Exception as error:
                record = Record.failed(f"the cluster failed: {type(error).__name__}: {error}")
            yield Done(numbers[future], record)


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    match = _ADDRESS.fullmatch(address)
    if match is None or not 1 <= int(match[1]) <= _LAST_PORT:
        raise KvsimError(
            f"the address of a Dask scheduler must be tcp://HOST:PORT or tls://HOST:PORT with a port from 1 to "
            f"{_LAST_PORT:,}, got {shown(address)}"
        )
    try:
        from distributed import Client
    except ImportError:
        raise KvsimError("a Dask cluster needs distributed; install it with: pip install 'kvsim[dask]'") from None
    client = Client.__new__(Client)  # held before it connects, so that what is half made can be closed
    try:
        client.__init__(address, timeout=_SECONDS_TO_CONNECT, set_as_default=False)  # type: ignore[misc]  # its own
    except Exception as error:
        with suppress(Exception):
            client.close()
        raise KvsimError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        try:
            versions = client.run(_version)
        except Exception as error:
            raise KvsimError(f"{address}: its workers cannot run kvsim: {type(error).__name__}: {error}") from None
        if not versions:
            raise KvsimError(f"{address}: the cluster has no workers")
        for worker, version in versions.items():
            if version != __version__:
                raise KvsimError(f"{worker}: has kvsim {version}, and this is {__version__}")
        yield client


def _version() -> str:
    return __version__
