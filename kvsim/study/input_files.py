"""The files that scenarios name: with the scenario itself, all that a run is made of."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvsim.model.catalogue import HUB_PREFIX
from kvsim.study.scenario import Scenario, Workload, scenario_dict
from kvsim.study.sums import sha256_of
from kvsim.workload.traces import Trace
from kvsim.workload.traces.conversations import COMPONENTS

NAMES_A_FILE = ("path", "config", "tokenizer")
"""Keys of a scenario, at any depth, whose value may be the name of a file."""


def input_files(scenarios: Iterable[Scenario]) -> dict[str, dict[str, Any]]:
    """Size and digest of every file that the scenarios name or that goes with one, by the name that they give it."""
    files: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    known: set[Workload] = set()
    for scenario in scenarios:
        found: dict[str, Path] = {}
        for name in _texts(scenario_dict(scenario)):
            if name not in seen:
                seen.add(name)
                found |= _named_file(name, scenario.base)
        workload = scenario.workload
        if isinstance(workload, Trace) and workload not in known:
            known.add(workload)
            found |= _beside(workload, scenario.base)
        for name, path in found.items():
            stat = path.stat()
            files[name] = {"bytes": stat.st_size, "sha256": _sha256(path, stat.st_size, stat.st_mtime_ns)}
    return files


@lru_cache(maxsize=1024)
def _sha256(path: Path, _size: int, _changed_ns: int) -> str:
    """Of many runs over the same file only the first reads it for this."""
    return sha256_of(path)


def _named_file(name: str, base: Path) -> dict[str, Path]:
    """The file that a name stands for; a folder stands for its config.json, a model on the hub for what was fetched."""
    if name.startswith(HUB_PREFIX):
        from kvsim.model.hub import fetch_config

        return {name: fetch_config(name.removeprefix(HUB_PREFIX))}
    path = base / name
    if path.is_dir():
        name, path = f"{name.rstrip('/')}/config.json", path / "config.json"
    return {name: path} if path.is_file() else {}


def _beside(trace: Trace, base: Path) -> dict[str, Path]:
    """The files beside a trace that say how long its pieces are."""
    path = base / trace.path
    if not path.is_file() or trace.format_of(base) != "ragpulse":
        return {}
    return {(Path(trace.path).parent / other.name).as_posix(): other for other in files_beside(path) if other.is_file()}


def files_beside(trace: Path) -> list[Path]:
    """What may be read with a trace because it lies beside it, if its format is one that does so."""
    beside = (other for file_name, _ in COMPONENTS.values() for other in trace.parent.glob(f"*{file_name}.jsonl*"))
    return sorted(other for other in beside if other.name != trace.name)


def _texts(table: Mapping[str, Any]) -> Iterator[str]:
    """Values of the keys that may name a file, at any depth."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _texts(value)
        elif key in NAMES_A_FILE and isinstance(value, str):
            yield value
