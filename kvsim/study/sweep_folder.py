"""The folder of a sweep keeps every run that has ended, so that a sweep that was stopped goes on where it was.

sweep.json                 what tells this sweep from another
runs/00000.json            a run, numbered in the order of the results
sweep.parquet, sweep.png   the results, once all have run
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from kvsim.errors import OutputError
from kvsim.rules import shown
from kvsim.study.files import staged_file
from kvsim.study.sweep_plan import Run
from kvsim.study.sweep_record import Record

TABLE, PICTURE = "sweep.parquet", "sweep.png"
_IDENTITY, _RUNS = "sweep.json", "runs"
_HALF_WRITTEN = ".kvsim-*"
_RUN_FILES = "[0-9]*.json"


@frozen
class SweepFolder:
    """A folder that is of one sweep, and of one process while it is open."""

    path: Path
    identity: Mapping[str, Any]

    def begin(self, staging: Path, *, fresh: bool) -> None:
        """Say whose folder it is, and remove what was half written, but for `staging`; all that a sweep has left, if
        this one is to begin `fresh`.
        """
        if fresh:
            _clear(self.path)
        for folder in (self.path, self.path / _RUNS):
            for left in set(folder.glob(_HALF_WRITTEN)) - {staging}:
                shutil.rmtree(left, ignore_errors=True)
        _write_json(self.path / _IDENTITY, self.identity)

    def kept(self, run: Run) -> Record | None:
        """The record of a run that has ended before; None where there is none that is whole.

        Raises OutputError where it is not a regular file.
        """
        try:
            written = _read_json(self._file_of(run))
            record = Record.of_json(written)
            is_kept = _told_by(run).items() <= written.items() and record.outcome != "failed"
            return record if is_kept else None
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None

    def keep(self, run: Run, record: Record) -> None:
        """A run that failed is not kept: it may do better another time."""
        if record.outcome == "failed":
            return
        _write_json(self._file_of(run), {**_told_by(run), **record.to_json()})

    def _file_of(self, run: Run) -> Path:
        return self.path / _RUNS / f"{run.index:05}.json"


def _told_by(run: Run) -> dict[str, Any]:
    return {"parameters": run.parameters, "seed": run.scenario.seed}


def num_kept_in(path: Path) -> int:
    """How many runs a folder holds."""
    return len(list((path / _RUNS).glob(_RUN_FILES)))


@contextmanager
def opened(path: Path, identity: Mapping[str, Any], *, fresh: bool) -> Iterator[SweepFolder]:
    """A folder that is there, for a sweep. Raises OutputError where another one is at work in it, or was and has
    left its runs, which are only in the way of a sweep that is to begin `fresh`.
    """
    with _alone_in(path):
        if not fresh and (differs := _difference(path, identity)):
            raise OutputError(f"{path}: holds another sweep ({differs}); --fresh starts over")
        yield SweepFolder(path, identity)


@contextmanager
def _alone_in(path: Path) -> Iterator[None]:
    """The lock ends with the process, however that ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"{path}: another sweep is at work in it") from None
        except OSError:  # a file system without locks
            pass
        yield
    finally:
        os.close(folder)


def _clear(path: Path) -> None:
    """What sweeps write and nothing else; whose folder it is comes last, so that a part of it is no other sweep."""
    for file in (path / _RUNS).glob(_RUN_FILES):
        file.unlink()
    for name in (TABLE, PICTURE, _IDENTITY):
        (path / name).unlink(missing_ok=True)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    with staged_file(path) as staging:
        staging.write_text(text, encoding="utf-8")


def _read_json(path: Path) -> Any:
    """Raises OutputError for what may never end, such as a device."""
    if path.exists() and not path.is_file():
        raise OutputError(f"{path}: must be a regular file")
    return json.loads(path.read_text(encoding="utf-8"))


def _difference(path: Path, identity: Mapping[str, Any]) -> str:
    """How the sweep that a folder holds differs from this one; "" where it is the same or there is none."""
    try:
        written = _read_json(path / _IDENTITY)
    except FileNotFoundError:
        return f"it has runs, but no {_IDENTITY}" if any((path / _RUNS).glob(_RUN_FILES)) else ""
    except (ValueError, RecursionError):
        return f"its {_IDENTITY} is damaged"
    if not isinstance(written, dict):
        return f"its {_IDENTITY} is damaged"
    return "; ".join(_differences(written, identity))


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    if there.get("kvsim") != here["kvsim"]:
        yield f"of kvsim {there.get('kvsim')}, and this is {here['kvsim']}"
    if there.get("scenario") != here["scenario"]:
        yield "the text of the scenario is another"
    for name, option in (("overrides", "--set"), ("seeds", "seeds")):
        if there.get(name) != here[name]:
            yield f"{option} was {shown(there.get(name))} and is {shown(here[name])}"
    for name, what in (("vary", "the values of"), ("files", "the file")):
        before = there.get(name)
        before = before if isinstance(before, dict) else {}
        for key in {**before, **here[name]}:
            if before.get(key) != here[name].get(key):
                yield f"{what} {key} {_change(before.get(key), here[name].get(key))}"


def _change(before: object, after: object) -> str:
    if before is None or after is None:
        return "only here" if before is None else "only there"
    return "changed"
