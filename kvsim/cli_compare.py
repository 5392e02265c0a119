"""The command that sets allocators side by side on the same traffic: it parses, calls the library, prints."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli_options import JobsOption, JsonOption, ScenarioArgument, SetOption, need_all
from kvsim.console import need_picture_name, print_json, print_page, progress_bar


def mount(app: typer.Typer) -> None:
    """Make the command one of an application."""
    app.command()(compare)


def compare(
    scenario: ScenarioArgument,
    allocators: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Any of paged:B, max, pow2, oracle, predicted:ERROR; see above. If nothing varies either, paging in "
            "the scenario's own blocks, max, pow2 and oracle.",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE.KEY=VALUES",
            help="Values 1,2,4 or START:STOP:STEP of a key; repeatable. Each with every allocator.",
        ),
    ] = None,
    set_: SetOption = None,
    jobs: JobsOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw what the pools consisted of, and what became of the requests, here.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run the same traffic through several allocators, or with several values of any key, and say what each costs.

    All runs have the same seed and pools of the same bytes, and digests of arrivals, lengths and content show that
    they were asked the same. A run that fails is named at the end, and the exit code is then 2.

    What an allocator gives a request:

    - `paged:B`: blocks of B tokens, taken as they are written (PagedAttention)
    - `max`: an extent of engine.max_model_len slots, one a token
    - `pow2`: an extent for its prompt and the next power of two >= its output
    - `oracle`: an extent for its prompt and its output, as if that were known
    - `predicted:ERROR`: an extent for its prompt and a guess of its output, off by up to ERROR, such as 0.25 of it

    Where extents are placed is for memory.placement: `buddy`, `first_fit` or `best_fit`.

    For example:

    - `kvsim compare scenarios/what_does_paging_buy.toml --plot paging.png`
    - `kvsim compare scenarios/quick_start.toml --allocators paged:16,paged:128,max,pow2,oracle --json`
    - `kvsim compare scenarios/what_does_paging_buy.toml --allocators oracle --vary memory.placement=buddy,best_fit`
    - `kvsim compare scenarios/what_breaks_under_memory_pressure.toml --vary memory.eviction=lru,fifo`
    """
    from kvsim.study.compare import compare as compare_runs
    from kvsim.study.compare_table import comparison_json, comparison_page

    need_picture_name(plot)
    with progress_bar("runs", seconds=600) as on_progress:
        comparison = compare_runs(
            scenario, allocators, vary, overrides=tuple(set_ or ()), jobs=jobs, on_progress=on_progress
        )
    if plot is not None:
        from kvsim.study.compare_plot import save_comparison_plot
        from kvsim.study.files import staged_file

        with staged_file(plot) as staging:
            save_comparison_plot(comparison, staging)
        print(f"wrote {plot}", file=sys.stderr)
    if json:
        print_json(comparison_json(comparison))
    else:
        print_page(comparison_page(comparison))
    need_all(comparison.failures, len(comparison.rows))
