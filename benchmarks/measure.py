"""Whole processes with their peak memory, and several runs compared in turn."""

import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

_WATCH = """
import json, os, subprocess, sys, time
began = time.perf_counter()
child = subprocess.Popen(sys.argv[2:])
_, status, used = os.wait4(child.pid, 0)
seconds = time.perf_counter() - began
with open(sys.argv[1], "w") as file:
    json.dump([os.waitstatus_to_exitcode(status), seconds, used.ru_utime + used.ru_stime, used.ru_maxrss], file)
"""
"""Starts the process from one that is small itself: the peak that the system reports of a child is at least that of
the process it was started from."""

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024

T = TypeVar("T")


class Ran(NamedTuple):
    """A process that has ended well. `cpu_seconds` do not count what others did at the same time."""

    stdout: str
    seconds: float
    cpu_seconds: float
    peak_mib: float


def kvsim_command(*arguments: object) -> list[str]:
    """The command line as its entry point would start it, also where kvsim is not installed."""
    return [sys.executable, "-c", "from kvsim.cli import main; main()", *map(str, arguments)]


def run_kvsim(*arguments: object) -> Ran:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "used.json")
        watched = [sys.executable, "-I", "-S", "-c", _WATCH, str(report), *kvsim_command(*arguments)]
        ran = subprocess.run(watched, capture_output=True, text=True, check=True)
        code, seconds, cpu_seconds, peak = json.loads(report.read_text())
    assert code == 0, ran.stderr
    return Ran(ran.stdout, seconds, cpu_seconds, peak * _MAXRSS_UNIT / 2**20)


def cpu_seconds(run: Callable[[], T]) -> tuple[float, T]:
    """Seconds of processor time that this process took for it, and what came out."""
    gc.collect()
    began = time.process_time()
    value = run()
    return time.process_time() - began, value


def in_turn(runs: Mapping[str, Callable[[], object]], rounds: int = 3) -> dict[str, float]:
    """The least processor seconds of each, where all are run one after the other and then again."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], cpu_seconds(run)[0])
    return best


def machine() -> str:
    described = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        described = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return f"{platform.system()}, {os.cpu_count()} processors, {described}"
