"""Comparisons for tests, made by hand from figures."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.study.allocators import parse_allocators
from kvsim.study.compare import Comparison, Row
from kvsim.study.compare_plan import plan_comparison
from kvsim.study.compare_record import POOL_PARTS, Measured
from kvsim.study.sweep_record import FIGURES, Record
from tests.study.makers import write_scenario

SAME = {"arrivals": "a", "lengths": "b", "content": "c"}


def make_comparison(
    folder: Path, allocators: str | None, *runs: Mapping[str, Any], vary: Any = None, **rest: Any
) -> Comparison:
    """Figures and parts of the pool (in byte x ns) of each run; what is left out is 0, and a run without any failed.

    `digests`, `outcome` and `error` may be said too.
    """
    specs = None if allocators is None else parse_allocators(allocators)
    planned = plan_comparison(write_scenario(folder), specs, vary, ())
    assert len(planned.runs) == len(runs), "figures of every run"
    rows = tuple(Row(run, _record(said)) for run, said in zip(planned.runs, runs, strict=True))
    known = {"question": "Which?", "notes": ()}
    return Comparison(axes=planned.axes, rows=rows, **(known | rest))


def _record(said: Mapping[str, Any]) -> Record:
    if not said:
        return Record.failed("it broke")
    figures = dict.fromkeys(FIGURES, 0) | {"pool_bytes": 2**30, "block_bytes": 2**10, "batched_mean": 1.0}
    return Measured(
        outcome=said.get("outcome", "finished"),
        error=said.get("error"),
        figures=figures | {name: value for name, value in said.items() if name in FIGURES},
        byte_ns={part: said.get(part, 0) for part in POOL_PARTS},
        digests=said.get("digests", SAME),
    )
