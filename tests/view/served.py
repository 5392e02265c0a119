"""The app as it is started by hand, and ended by Ctrl-C."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from kvsim.cli import main; main()", "app", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


@contextmanager
def served(folder: Path, *options: str) -> Iterator[str]:
    """The address of a running app. It ends without an error, and has said no more than was expected of it."""
    process = subprocess.Popen(
        command(folder, "--port", "0", "--no-open", *options), env=environment(), stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said.startswith("kvsim app: http://"), said + process.stderr.read()
    try:
        yield said.split()[2]
    finally:
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in rest
