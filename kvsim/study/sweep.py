"""Many runs of one question: every combination of some values, with some seeds, and what each came to."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from kvsim.errors import KvsimError, OutputError
from kvsim.study.files import staged
from kvsim.study.sweep_folder import PICTURE, TABLE, SweepFolder, opened
from kvsim.study.sweep_plan import Run, SweepPlan, Vary, plan_sweep
from kvsim.study.sweep_plot import save_sweep_plot
from kvsim.study.sweep_record import FIGURES, Record, figure_column
from kvsim.study.sweep_result import Sweep
from kvsim.study.sweep_workers import run_all, tasks_of
from kvsim.study.vary import Scalar

Progress = Callable[[int, int], None]
"""Called with the number of runs that have ended, and of all."""


def sweep(
    scenario: str | Path,
    vary: Vary | None = None,
    *,
    overrides: Iterable[str] = (),
    seeds: int | None = None,
    out: str | Path | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    fresh: bool = False,
    on_progress: Progress | None = None,
) -> Sweep:
    """Run a scenario file with all combinations of the values in `vary`, each with `seeds` seeds from its own on.

    `vary` is a table of lists, {"memory.block_size": [8, 16]}, or texts such as "memory.block_size=8,16"; it and
    `seeds` are else what the scenario says in [study]. Runs are shared among `jobs` processes, one a processor if not
    given, or the workers of the Dask cluster at `dask`; the result is the same. In the folder `out` every run is kept
    as it ends, so that the same sweep goes on where it was stopped unless it is to begin `fresh`, and at last the
    results are written. A run that fails is a row that says why.

    Raises ScenarioError with the problems of all combinations, TraceError for a trace that cannot be used,
    OutputError where the folder holds another sweep.
    """
    if jobs is not None and (dask is not None or jobs < 1):
        raise KvsimError(f"jobs must be >= 1, got {jobs}" if jobs < 1 else "jobs and dask contradict each other")
    planned = plan_sweep(Path(scenario), vary, [overrides] if isinstance(overrides, str) else overrides, seeds)
    with ExitStack() as stack:
        if out is None:
            folder, staging = None, Path(stack.enter_context(TemporaryDirectory(prefix="kvsim-")))
        else:
            staging = stack.enter_context(staged(Path(out)))
            folder = stack.enter_context(opened(Path(out), planned.identity, fresh=fresh))
        records = {} if folder is None or fresh else _kept(folder, planned.runs)
        num_kept = len(records)
        with TemporaryDirectory(dir=staging) as packing:
            tasks = tasks_of([run for run in planned.runs if run.index not in records], Path(packing))
            report = on_progress or _nobody_watches
            report(len(records), len(planned.runs))
            with closing(run_all(tasks, jobs, dask)) as ended:
                for number, record in ended:
                    if folder is not None:
                        if len(records) == num_kept:  # the first: all is known to work
                            folder.begin(staging, fresh=fresh)
                        folder.keep(planned.runs[number], record)
                    records[number] = record
                    report(len(records), len(planned.runs))
        swept = _swept(planned, [records[run.index] for run in planned.runs], num_kept)
        if folder is not None:
            _write(swept, staging)
    return swept


def _kept(folder: SweepFolder, runs: Sequence[Run]) -> dict[int, Record]:
    found = ((run.index, folder.kept(run)) for run in runs)
    return {index: record for index, record in found if record is not None}


def _nobody_watches(_done: int, _total: int) -> None:
    pass


def _swept(planned: SweepPlan, records: Sequence[Record], num_kept: int) -> Sweep:
    columns = [
        *(_parameter_column(axis.key, [run.parameters[axis.key] for run in planned.runs]) for axis in planned.axes),
        pl.Series("seed", [run.scenario.seed for run in planned.runs], dtype=pl.Int64),
        pl.Series("outcome", [record.outcome for record in records], dtype=pl.String),
        pl.Series("error", [record.error for record in records], dtype=pl.String),
        *(figure_column(name, [record.figures.get(name) for record in records]) for name in FIGURES),
    ]
    return Sweep(
        question=planned.runs[0].scenario.question,
        axes=planned.axes,
        num_seeds=planned.num_seeds,
        table=pl.DataFrame(columns),
        notes=tuple(notes_of([run.name for run in planned.runs], records)),
        num_kept=num_kept,
        overrides=tuple(planned.identity["overrides"]),
    )


def notes_of(names: Sequence[str], records: Sequence[Record]) -> Iterator[str]:
    """Each note once, with the name of the run that it is about, or how many."""
    about: dict[str, list[str]] = {}
    for name, record in zip(names, records, strict=True):
        for note in record.notes:
            about.setdefault(note, []).append(name)
    for note, noted in about.items():
        if len(noted) == len(names):
            yield f"{note} (all runs)"
        elif len(noted) == 1:
            yield f"{note} ({noted[0]})"
        else:
            yield f"{note} ({len(noted):,} of {len(names):,} runs; the first is {noted[0]})"


def _parameter_column(key: str, values: Sequence[Scalar]) -> pl.Series:
    """Values of one type as they are, whole numbers among floats as floats, any others as text."""
    types = {type(value) for value in values}
    if types == {int, float}:
        return pl.Series(key, values, dtype=pl.Float64, strict=False)
    if len(types) > 1:
        return pl.Series(key, [str(value) for value in values])
    return pl.Series(key, values)


def _write(swept: Sweep, staging: Path) -> None:
    try:
        swept.table.write_parquet(staging / TABLE)
    except pl.exceptions.PolarsError as error:
        raise OutputError(f"{staging.parent}: cannot be written to: {error}") from None
    save_sweep_plot(swept, staging / PICTURE)
