"""Sweeps for tests: small ones that run, and outcomes made by hand."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from kvsim.study.sweep_plan import SweepPlan, plan_sweep
from kvsim.study.sweep_record import FIGURES, figure_column
from kvsim.study.sweep_result import Sweep
from kvsim.study.vary import read_axes

NEVER_ENDS = "engine.latency.base=9 ms,100000 h"
"""A sound scenario whose times outgrow 64 bits while it runs, after one that does well."""


def make_plan(path: Path, *vary: str, seeds: int | None = None, overrides: Sequence[str] = ()) -> SweepPlan:
    return plan_sweep(path, vary, overrides, seeds)


def make_sweep(vary: Mapping[str, list[Any]], *runs: Mapping[str, Any], seeds: int = 1, **rest: Any) -> Sweep:
    """The outcome of a sweep from figures of its runs; those left out are 0, and a run without any has failed."""
    keys = list(vary)
    combinations = [dict(zip(keys, values, strict=True)) for values in product(*vary.values()) for _ in range(seeds)]
    assert len(combinations) == len(runs), "a run for every combination and seed"
    zeros = dict.fromkeys(FIGURES, 0) | {"slack_share": 0.0, "hit_share": 0.0, "block_size_tokens": 1}
    figures = [zeros | dict(run) if run else dict.fromkeys(FIGURES) for run in runs]
    columns = [
        *(pl.Series(key, [combination[key] for combination in combinations]) for key in keys),
        pl.Series("seed", [1 + place % seeds for place in range(len(runs))], dtype=pl.Int64),
        pl.Series("outcome", ["finished" if run else "failed" for run in runs]),
        pl.Series("error", [None if run else "it broke" for run in runs], dtype=pl.String),
        *(figure_column(name, [run[name] for run in figures]) for name in FIGURES),
    ]
    known = {"question": "Which?", "notes": (), "num_kept": 0}
    return Sweep(axes=read_axes(vary), num_seeds=seeds, table=pl.DataFrame(columns), **(known | rest))
