"""The files of a run: they appear whole or not at all."""

import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import polars as pl

from kvsim.engine.results import Results
from kvsim.engine.scheduler import HeldBack
from kvsim.engine.tables import SCHEMAS, MemoryShape
from kvsim.errors import OutputError
from kvsim.rules import shown
from kvsim.study.plots import save_memory_plot

FILES = {
    "summary": "summary.json",
    "timeline": "timeline.parquet",
    "requests": "requests.parquet",
    "pressure": "pressure.parquet",
    "plot": "memory.png",
}
"""What a run writes, by the names that a scenario gives them."""


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """A fresh folder beside `directory`, whose files are moved into it if the block ends well and vanish if not.

    Raises OutputError at once where nothing can be written, and before anything is moved where a file would take the
    place of something that is not a regular file.
    """
    missing: list[Path] = []
    try:
        missing = [parent for parent in (directory, *directory.parents) if not parent.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".kvsim-", dir=directory))
    except OSError as error:
        _remove_empty(missing)
        raise OutputError(f"{directory}: cannot be written to: {error.strerror or error}") from None
    try:
        yield staging
        files = sorted(staging.iterdir())
        for file in files:
            target = directory / file.name
            if target.is_symlink() or (target.exists() and not target.is_file()):
                raise OutputError(f"{target}: is there already, and is not a regular file")
        with _interrupts_put_off():
            for file in files:
                os.replace(file, directory / file.name)
        missing = []
    except OSError as error:
        raise OutputError(f"{directory}: cannot be written to: {error.strerror or error}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        _remove_empty(missing)


@contextmanager
def staged_file(path: Path) -> Iterator[Path]:
    """Where to write a single file, which then appears at `path`; as `staged`."""
    with staged(path.parent) as folder:
        yield folder / path.name


@contextmanager
def _interrupts_put_off() -> Iterator[None]:
    """Ctrl-C waits until the block has ended, so that files of two runs are not mixed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            raise KeyboardInterrupt


def _remove_empty(directories: list[Path]) -> None:
    """Innermost first; those that somebody else has put something into stay."""
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return


def remove_other_results(directory: Path, files: tuple[str, ...]) -> None:
    """Take away what an earlier run has left of the files that this one does not write: a folder is of one run."""
    for name in set(FILES) - set(files):
        (directory / FILES[name]).unlink(missing_ok=True)


def write_results(results: Results, directory: Path, files: tuple[str, ...]) -> None:
    """Write those of FILES that are named. Equal results give equal bytes."""
    tables = {"timeline": results.timeline, "requests": results.requests, "pressure": results.pressure}
    try:
        for name in files:
            path = directory / FILES[name]
            if name in tables:
                tables[name].write_parquet(path)
            elif name == "summary":
                path.write_text(summary_json(results), encoding="utf-8")
            else:
                save_memory_plot(results, path)
    except pl.exceptions.PolarsError as error:
        raise OutputError(f"{directory}: cannot be written to: {error}") from None


def summary_json(results: Results) -> str:
    return json.dumps(results.summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_results(directory: Path) -> Results:
    """The results that a run wrote to a folder; raises OutputError where one of its files is missing or broken."""
    written = _read_summary(directory / FILES["summary"])
    try:
        pool, metrics = written["pool"], written["metrics"]
        sizes = (pool["num_blocks"], pool["block_size_tokens"], pool["block_bytes"], pool["bytes_per_token"])
        if not all(type(size) is int and size > 0 for size in sizes) or pool["num_blocks"] < 2:
            raise ValueError(f"pool has sizes {sizes}")
        results = Results(
            description={name: written[name] for name in DESCRIPTION},
            shape=MemoryShape(*sizes),
            worst_case_bytes=metrics["worst_case_bytes"],
            num_steps=metrics["steps"],
            timeline=_read_parquet(directory, "timeline"),
            requests=_read_parquet(directory, "requests"),
            pressure=_read_parquet(directory, "pressure"),
            held_back_steps={cause: metrics[f"held_back_by_{cause}"] for cause in get_args(HeldBack)},
            notes=tuple(written["notes"]),
            stalled=written["stalled"],
        )
        if results.timeline.is_empty():
            raise ValueError("its timeline has no rows")
        if any(results.metrics[name] != metrics[name] for name in results.metrics):
            raise ValueError("its figures are not those of the tables beside it")
    except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise OutputError(f"{directory / FILES['summary']}: not a summary that kvsim run wrote: {error}") from None
    return results


DESCRIPTION = ("question", "seed", "versions", "scenario", "geometry", "pool")
"""The parts of a summary that say what was put in."""


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise OutputError(f"{path}: not a summary that kvsim run wrote: not JSON") from None
    if not isinstance(written, dict):
        raise OutputError(f"{path}: not a summary that kvsim run wrote: not a JSON object")
    return written


def _read_parquet(directory: Path, name: str) -> pl.DataFrame:
    path = directory / FILES[name]
    try:
        frame = pl.read_parquet(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or 'No such file or directory'}") from None
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise OutputError(f"{path}: not a Parquet file that kvsim run wrote: {shown(str(error))}") from None
    if list(frame.schema.items()) != list(SCHEMAS[name].items()):
        raise OutputError(f"{path}: not a Parquet file that kvsim run wrote: it has other columns")
    return frame
