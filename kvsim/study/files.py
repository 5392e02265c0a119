"""The files of a run: they appear whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import polars as pl

from kvsim.engine.results import Results
from kvsim.engine.scheduler import HeldBack
from kvsim.engine.tables import MemoryShape
from kvsim.errors import OutputError
from kvsim.study.plots import save_memory_plot

SUMMARY, TIMELINE, REQUESTS = "summary.json", "timeline.parquet", "requests.parquet"
PRESSURE, PLOT = "pressure.parquet", "memory.png"


@contextmanager
def staged(directory: Path) -> Iterator[Path]:
    """A fresh folder beside `directory`, whose files are moved into it if the block ends well and vanish if not.

    Raises OutputError at once where nothing can be written.
    """
    missing = [parent for parent in (directory, *directory.parents) if not parent.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".kvsim-", dir=directory))
    except OSError as error:
        _remove_empty(missing)
        raise OutputError(f"{directory}: cannot be written to: {error.strerror}") from None
    try:
        yield staging
        for file in sorted(staging.iterdir()):
            os.replace(file, directory / file.name)
        missing = []
    except OSError as error:
        raise OutputError(f"{directory}: cannot be written to: {error.strerror}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        _remove_empty(missing)


def _remove_empty(directories: list[Path]) -> None:
    """Innermost first; those that somebody else has put something into stay."""
    for directory in directories:
        try:
            directory.rmdir()
        except OSError:
            return


def write_results(results: Results, directory: Path, files: tuple[str, ...]) -> None:
    """Write those of summary, timeline, requests, pressure and plot that are named. Equal results give equal bytes."""
    if "summary" in files:
        (directory / SUMMARY).write_text(summary_json(results), encoding="utf-8")
    if "timeline" in files:
        results.timeline.write_parquet(directory / TIMELINE)
    if "requests" in files:
        results.requests.write_parquet(directory / REQUESTS)
    if "pressure" in files:
        results.pressure.write_parquet(directory / PRESSURE)
    if "plot" in files:
        save_memory_plot(results, directory / PLOT)


def summary_json(results: Results) -> str:
    return json.dumps(results.summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_results(directory: Path) -> Results:
    """The results that a run wrote to a folder; raises OutputError where one of its files is missing or broken."""
    written = _read_summary(directory / SUMMARY)
    try:
        pool = written["pool"]
        shape = MemoryShape(
            pool["num_blocks"],
            pool["block_size_tokens"],
            pool["block_bytes"],
            written["geometry"]["bytes_per_token"],
        )
        return Results(
            description={name: written[name] for name in DESCRIPTION},
            shape=shape,
            worst_case_bytes=written["metrics"]["worst_case_bytes"],
            num_steps=written["metrics"]["steps"],
            timeline=_read_parquet(directory / TIMELINE),
            requests=_read_parquet(directory / REQUESTS),
            pressure=_read_parquet(directory / PRESSURE),
            held_back_steps={cause: written["metrics"][f"held_back_by_{cause}"] for cause in get_args(HeldBack)},
            notes=tuple(written["notes"]),
            stalled=written["stalled"],
        )
    except (KeyError, TypeError) as error:
        raise OutputError(f"{directory / SUMMARY}: not a summary that kvsim run wrote: {error}") from None


DESCRIPTION = ("question", "seed", "versions", "scenario", "geometry", "pool")
"""The parts of a summary that say what was put in."""


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:
        raise OutputError(f"{path}: not a summary that kvsim run wrote: not JSON") from None
    if not isinstance(written, dict):
        raise OutputError(f"{path}: not a summary that kvsim run wrote: not a JSON object")
    return written


def _read_parquet(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or 'No such file or directory'}") from None
    except pl.exceptions.PolarsError as error:
        raise OutputError(f"{path}: not a Parquet file that kvsim run wrote: {error}") from None
