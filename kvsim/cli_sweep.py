"""The command that runs a question many times: it parses, calls the library, prints."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from attrs import define

from kvsim.cli_options import JobsOption, ScenarioArgument, SetOption, need_all
from kvsim.console import print_json, print_page, progress_bar

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.study.sweep_result import Sweep


def mount(app: typer.Typer) -> None:
    """Make the command one of an application."""
    app.command()(sweep)


def sweep(
    scenario: ScenarioArgument,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE.KEY=VALUES",
            help="Values 1,2,4 or START:STOP:STEP of a key; repeatable. Else what [study] vary says.",
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Seeds of each combination, from the scenario's own on; else [study] seeds or 1.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for sweep.parquet and sweep.png, in which finished runs are kept.")
    ] = None,
    set_: SetOption = None,
    jobs: JobsOption = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Scheduler of a Dask cluster that runs them instead.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, whatever sweep the folder holds.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print all runs as JSON on stdout, and nothing else.")] = False,
) -> None:
    """Run a scenario with every combination of some values, and say which serves best and at what price.

    A sweep into a folder that was stopped goes on where it was. A run that fails is named at the end, and the exit
    code is then 2.

    For example:

    - `kvsim sweep scenarios/quick_start.toml --vary memory.block_size=1,2,4,8,16,32,64,128,256 --out out/blocks`
    - `kvsim sweep scenarios/quick_start.toml --vary memory.block_size=16,128 --vary workload.rate=2:12:2 --seeds 5`
    - `kvsim sweep scenarios/how_much_does_a_watermark_help.toml --jobs 4 --json`
    """
    from kvsim.study.sweep import sweep as sweep_scenario
    from kvsim.study.sweep_table import sweep_json, sweep_page

    ended = _Ended()
    try:
        with progress_bar("runs", seconds=600) as on_progress:
            swept = sweep_scenario(
                scenario,
                vary,
                overrides=tuple(set_ or ()),
                seeds=seeds,
                out=out,
                jobs=jobs,
                dask=dask,
                fresh=fresh,
                on_progress=ended.told(on_progress),
            )
    except (KeyboardInterrupt, SystemExit):
        _report_stopped(ended, out, fresh=fresh)
        raise
    if json:
        print_json(sweep_json(swept))
    else:
        print_page(sweep_page(swept))
    _report(swept, out)


@define
class _Ended:
    """How many runs have ended, of all; None as long as nothing has begun."""

    num_ended: int = 0
    num_runs: int | None = None

    def told(self, on_progress: "Callable[[int, int | None], None] | None") -> "Callable[[int, int], None]":
        """Something to call as runs end, which tells `on_progress` too."""

        def tell(done: int, total: int) -> None:
            self.num_ended, self.num_runs = done, total
            if on_progress is not None:
                on_progress(done, total)

        return tell


def _report_stopped(ended: _Ended, out: Path | None, *, fresh: bool) -> None:
    """What is left of a sweep that was stopped, on stderr."""
    if ended.num_runs is None:
        return
    if out is None:
        print(f"{ended.num_ended:,} of {ended.num_runs:,} runs had ended; with --out they are kept", file=sys.stderr)
        return
    from kvsim.study.sweep_folder import num_kept_in

    # Before the first of a fresh sweep has ended, all that is there is of another.
    num_kept = num_kept_in(out) if ended.num_ended or not fresh else 0
    same = "the same command without --fresh" if fresh else "the same command"
    print(f"{num_kept:,} of {ended.num_runs:,} runs are kept in {out}; {same} goes on", file=sys.stderr)


def _report(swept: "Sweep", out: Path | None) -> None:
    """What is no result, on stderr; raises KvsimError that names the runs that failed."""
    if swept.num_kept:
        print(f"{swept.num_kept:,} of {swept.table.height:,} runs were kept from before", file=sys.stderr)
    if out is not None:
        print(f"wrote {out / 'sweep.parquet'} and {out / 'sweep.png'}", file=sys.stderr)
    need_all(swept.failures, swept.table.height)
