"""Who runs the runs: the records are the same, and one that cannot be run takes no other with it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError
from kvsim.study.packed_trace import pack_trace
from kvsim.study.scenario import load_scenario
from kvsim.study.sweep_record import Record, record_of
from kvsim.study.sweep_workers import Done, Task, run_here, run_in_processes, run_on_cluster
from kvsim.workload.traces import Trace
from tests.study.makers import TINY_TRACE, write_scenario
from tests.study.sweeps import NEVER_ENDS, make_plan

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[Task]:
    """Two runs that do well and two that fail."""
    runs = make_plan(write_scenario(tmp_path_factory.mktemp("scenario")), NEVER_ENDS, seeds=2).runs
    return [Task(run.index, run.scenario, None) for run in runs]


@pytest.fixture
def replay(tmp_path: Path) -> Task:
    scenario = load_scenario(write_scenario(tmp_path, TINY_TRACE))
    assert isinstance(scenario.workload, Trace)
    pack_trace(scenario.workload, tmp_path, tmp_path / "packed")
    return Task(7, scenario, tmp_path / "packed")


class Deadly:
    """A scenario whose process dies of it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


def test_runs_here_come_in_order(tasks: list[Task]) -> None:
    done = list(run_here(tasks))
    assert done == [Done(task.number, record_of(task.scenario)) for task in tasks]
    assert [record.outcome for _, record in done] == ["finished", "finished", "failed", "failed"]


def test_processes_make_the_same_records(tasks: list[Task], replay: Task) -> None:
    assert sorted(run_in_processes([*tasks, replay], 2)) == [*run_here([*tasks, replay])]


def test_a_process_that_dies_fails_one_run_and_no_other(tasks: list[Task]) -> None:
    deadly = [Task(10, Deadly(), None), Task(11, Deadly(), None)]  # type: ignore[arg-type]  # what no scenario is
    done = dict(run_in_processes([tasks[0], deadly[0], *tasks[1:], deadly[1]], 2))
    died = Record.failed("its process died, as happens when memory runs out")
    assert {number: done[number] for number in (10, 11)} == {10: died, 11: died}
    assert {number: done[number] for number in range(4)} == dict(run_here(tasks))


def test_no_process_is_left_when_nobody_wants_the_rest(tasks: list[Task]) -> None:
    ended = run_in_processes(tasks * 20, 2)
    next(ended)
    assert children_of(os.getpid(), "loky")
    ended.close()  # type: ignore[attr-defined]  # a generator
    assert not children_of(os.getpid(), "loky")


def children_of(parent: int, name: str) -> list[int]:
    """Processes that live, and of which the command says the name, but for the one that watches over semaphores."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z" and name in words and "resource_tracker" not in words:
            found.append(int(folder.name))
    return found


def test_a_cluster_needs_its_package_an_address_and_a_scheduler(tasks: list[Task]) -> None:
    try:
        import distributed  # noqa: F401
    except ImportError:
        with pytest.raises(KvsimError, match=r"install it with: pip install 'kvsim\[dask\]'"):
            list(run_on_cluster(tasks, "tcp://127.0.0.1:1"))
        return
    with pytest.raises(KvsimError, match=r"^no Dask scheduler answers at tls://127\.0\.0\.1:1: "):
        list(run_on_cluster(tasks, "tls://127.0.0.1:1"))


@pytest.mark.parametrize(
    "address",
    ["nobody", "127.0.0.1:80", "ucx://a:1", "inproc://a:1", "tcp://[::1:80", "tcp://a:0", "tcp://a:65536", "tls://a"],
)
def test_an_address_that_is_none_is_refused(tasks: list[Task], address: str) -> None:
    with pytest.raises(KvsimError) as caught:
        list(run_on_cluster(tasks, address))
    assert str(caught.value) == (
        "the address of a Dask scheduler must be tcp://HOST:PORT or tls://HOST:PORT with a port from 1 to 65,535, "
        f"got {address!r}"
    )


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process of a cluster on this machine; none is left at the end."""
    pytest.importorskip("distributed", reason="the package distributed is not installed")
    processes = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        file = str(tmp_path / "scheduler.json")
        command = [sys.executable, "-m", *arguments, "--scheduler-file", file, "--no-dashboard"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(subprocess.Popen(command, env=environment, **quiet))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_cluster_makes_the_same_records(tasks: list[Task], replay: Task, start: Start, tmp_path: Path) -> None:
    from distributed import Client

    start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0")
    deadline = time.monotonic() + 60
    while not (tmp_path / "scheduler.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    address = json.loads((tmp_path / "scheduler.json").read_text())["address"]
    with pytest.raises(KvsimError, match="the cluster has no workers"):
        list(run_on_cluster(tasks, address))

    workers = [start("distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny") for _ in range(2)]
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
    expected = [*run_here([*tasks, replay])]
    assert sorted(run_on_cluster([*tasks, replay], address)) == expected
    ended = run_on_cluster([*tasks, replay], address)
    first = next(ended)
    workers[0].kill()  # the other one takes over
    assert sorted([first, *ended]) == expected
