"""The files of a run: they appear whole or not at all."""

import json
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import polars as pl
from attrs import astuple

from kvsim.engine.results import Results
from kvsim.engine.step import HeldBack
from kvsim.engine.tables import SCHEMAS, MemoryShape, TableName
from kvsim.engine.timeline import ROWS_AT_ONCE
from kvsim.engine.totals import Totals
from kvsim.engine.unshared import UnsharedTotals
from kvsim.errors import OutputError
from kvsim.rules import shown
from kvsim.study.block_maps import BlockMaps
from kvsim.study.parquet_stream import ParquetStream
from kvsim.study.plots import save_memory_plot
from kvsim.study.sums import SUMS, check_sum, write_sums

FILES: dict[str, str] = {
    "summary": "summary.json",
    "timeline": "timeline.parquet",
    "requests": "requests.parquet",
    "pressure": "pressure.parquet",
    "blocks": "blocks.parquet",
    "plot": "memory.png",
}
"""What a run writes, by the names that a scenario gives them."""

MEASURED = {"json": "measured.json", "plot": "measured.png"}
"""What kvsim compare-measured leaves beside them: it is of the run that is there."""


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
    for name in MEASURED.values():
        (directory / name).unlink(missing_ok=True)
    if not set(files) - {"plot"}:
        (directory / SUMS).unlink(missing_ok=True)


class TablesInFiles:
    """The tables of a run as Parquet files of a folder, written as rows come. Only the tables named are kept."""

    def __init__(self, directory: Path, names: Iterable[TableName]) -> None:
        self.directory = directory
        self._held: dict[TableName, pl.DataFrame] = {name: pl.DataFrame(schema=SCHEMAS[name]) for name in names}
        self._streams: dict[TableName, ParquetStream] = {}

    def add(self, name: TableName, part: pl.DataFrame) -> None:
        if name not in self._held:
            return
        held = pl.concat([self._held[name], part])
        with _written_to(self.directory):
            while held.height > ROWS_AT_ONCE:
                # Rows alone say what is a group, so that equal tables are equal files.
                self._stream(name).write(held[:ROWS_AT_ONCE])
                held = held[ROWS_AT_ONCE:]
        self._held[name] = held

    def _stream(self, name: TableName) -> ParquetStream:
        """Files of few rows need none."""
        stream = self._streams.get(name)
        if stream is None:
            path = self.directory / FILES[name]
            stream = self._streams[name] = ParquetStream(path, SCHEMAS[name], ROWS_AT_ONCE)
        return stream

    def close(self) -> None:
        with _written_to(self.directory):
            for name, held in self._held.items():
                stream = self._streams.get(name)
                if stream is None:
                    held.write_parquet(self.directory / FILES[name])
                else:
                    stream.write(held)
                    stream.close()
        self._held = {name: held.clear() for name, held in self._held.items()}

    def abandon(self) -> None:
        for stream in self._streams.values():
            stream.abandon()

    def parts(self, name: TableName, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        if name not in self._held:
            raise ValueError(f"the rows of {name} were not kept: name it among the tables when it is simulated")
        return parquet_parts(self.directory / FILES[name], columns)


@contextmanager
def _written_to(directory: Path) -> Iterator[None]:
    try:
        yield
    except pl.exceptions.PolarsError as error:
        raise OutputError(f"{directory}: cannot be written to: {error}") from None


def parquet_parts(path: Path, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
    """The rows of a Parquet file, some at a time."""
    num_rows = pl.scan_parquet(path).select(pl.len()).collect().item()
    for start in range(0, max(1, num_rows), ROWS_AT_ONCE):
        rows = pl.scan_parquet(path).slice(start, ROWS_AT_ONCE)
        yield (rows if columns is None else rows.select(columns)).collect()


def tables_of(files: tuple[str, ...]) -> list[TableName]:
    """The tables that must be written for these files of FILES: a picture is drawn from the timeline."""
    return [name for name in SCHEMAS if name in files or (name == "timeline" and "plot" in files)]


def write_results(
    results: Results, directory: Path, files: tuple[str, ...], block_maps: BlockMaps | None = None
) -> None:
    """Write those of FILES that are named, into the folder where the tables are. Equal results give equal bytes.

    Blocks are written only where `block_maps` were made while it ran.
    """
    if "summary" in files:
        (directory / FILES["summary"]).write_text(summary_json(results), encoding="utf-8")
    if "plot" in files:
        save_memory_plot(results, directory / FILES["plot"])
    if "blocks" in files and block_maps is not None:
        block_maps.write(directory / FILES["blocks"])
    if "timeline" not in files:
        (directory / FILES["timeline"]).unlink(missing_ok=True)
    write_sums(directory, (FILES[name] for name in FILES if name != "plot"))


def summary_json(results: Results) -> str:
    return json.dumps(results.summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_results(directory: Path) -> Results:
    """The results that a run wrote to a folder; raises OutputError where one of its files is missing or broken."""
    written = {"overrides": [], "scenario_text": "", "files": {}, **_read_summary(directory / FILES["summary"])}
    try:
        pool, metrics = written["pool"], written["metrics"]
        if not all(isinstance(override, str) for override in written["overrides"]):
            raise ValueError(f"its overrides are {shown(written['overrides'])}")
        for part in ("versions", "scenario", "files", "geometry", "pool"):
            if not isinstance(written[part], dict):
                raise ValueError(f"its {part} is {shown(written[part])}")
        sizes = (pool["num_blocks"], pool["block_size_tokens"], pool["block_bytes"], pool["bytes_per_token"])
        if not all(type(size) is int and size > 0 for size in sizes) or pool["num_blocks"] < 2:
            raise ValueError(f"pool has sizes {sizes}")
        num_null_blocks = pool["num_blocks"] - pool["usable_blocks"]
        totals = Totals(
            MemoryShape(*sizes, num_null_blocks),
            metrics["worst_case_bytes"],
            num_steps=metrics["steps"],
            moved_bytes=metrics["moved_bytes"],
            held_back_steps={cause: metrics[f"held_back_by_{cause}"] for cause in get_args(HeldBack)},
        )
        if "unshared" in written:
            totals.unshared = UnsharedTotals(**written["unshared"])
            if not all(type(figure) is int for figure in astuple(totals.unshared)):
                raise ValueError(f"unshared is {shown(written['unshared'])}")
        tables = _ReadTables(directory)
        totals.add_all(tables)
        results = Results(
            description={name: written[name] for name in DESCRIPTION},
            totals=totals,
            tables=tables,
            notes=tuple(written["notes"]),
            stalled=written["stalled"],
        )
        if not totals.has_timeline:
            raise ValueError("its timeline has no rows")
        if any(results.metrics[name] != metrics[name] for name in results.metrics):
            raise ValueError("its figures are not those of the tables beside it")
        for name in ("summary", *SCHEMAS):
            check_sum(directory / FILES[name])
    except (KeyError, TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise OutputError(f"{directory / FILES['summary']}: not a summary that kvsim run wrote: {error}") from None
    return results


DESCRIPTION = ("question", "overrides", "seed", "versions", "scenario", "scenario_text", "files", "geometry", "pool")
"""The parts of a summary that say what was put in."""


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(written, allow_nan=False)  # a number beyond all floats is read as one that cannot be written
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise OutputError(f"{path}: not a summary that kvsim run wrote: not JSON") from None
    if not isinstance(written, dict):
        raise OutputError(f"{path}: not a summary that kvsim run wrote: not a JSON object")
    return written


class _ReadTables:
    """The tables that a run has written to a folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def add(self, name: TableName, part: pl.DataFrame) -> None:
        raise AssertionError("these tables are read only")

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def parts(self, name: TableName, columns: Sequence[str] | None = None) -> Iterator[pl.DataFrame]:
        path = self.directory / FILES[name]
        try:
            schema = pl.read_parquet_schema(path)
            if list(schema.items()) != list(SCHEMAS[name].items()):
                raise OutputError(f"{path}: not a Parquet file that kvsim run wrote: it has other columns")
            yield from parquet_parts(path, columns)
        except OSError as error:
            raise OutputError(f"{path}: cannot be read: {error.strerror or 'No such file or directory'}") from None
        except (pl.exceptions.PolarsError, ValueError) as error:
            raise OutputError(f"{path}: not a Parquet file that kvsim run wrote: {shown(str(error))}") from None
