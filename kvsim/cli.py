"""The command line: each command parses, calls the library, prints. Every one can be done from Python too."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim import __version__
from kvsim.errors import KvsimError

if TYPE_CHECKING:
    from kvsim.engine.results import Results
    from kvsim.study.run import Progress

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)


def main() -> None:
    """Entry point: what kvsim refuses is one message on stderr and exit code 2."""
    try:
        app(prog_name="kvsim")
    except KvsimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kvsim {__version__}")
        raise typer.Exit


@app.callback()
def kvsim(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How much KV-cache memory your model and traffic need, and how much of it is waste.

    kvsim replays requests through a PagedAttention-style block manager and scheduler that decide as vLLM's do, and
    says what was allocated, written, shared, refused and preempted. It is a sizing model, not an out-of-memory
    predictor and not a throughput benchmark.
    """


@app.command()
def run(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (TOML).")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for summary.json, timeline.parquet, requests.parquet and memory.png."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override a key; an empty value removes it. Repeatable."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout, and nothing else.")
    ] = False,
) -> None:
    """Simulate a scenario and say what became of memory and requests.

    For example:

    - `kvsim run scenarios/quick_start.toml --out out/quick_start`
    - `kvsim run scenarios/quick_start.toml --set memory.block_size=128 --set workload.rate=8`
    - `kvsim run scenarios/quick_start.toml --json`
    """
    from kvsim.study.files import staged, summary_json, write_results
    from kvsim.study.run import simulate
    from kvsim.study.scenario import load_scenario

    loaded = load_scenario(scenario, tuple(set_ or ()))
    with staged(out) if out else nullcontext() as folder:
        with _progress_bar("simulating requests") as on_progress:
            results = simulate(loaded, on_progress=on_progress)
        if folder is not None:
            write_results(results, folder, loaded.study.write)
    if json:
        sys.stdout.write(summary_json(results))
    else:
        _print_results(results)


@app.command()
def plot(
    directory: Annotated[Path, typer.Argument(help="Folder that kvsim run wrote to.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the picture goes; memory.png in the folder if not given.")
    ] = None,
) -> None:
    """Draw memory over time again from the files of a run."""
    from kvsim.study.files import PLOT, read_results, staged
    from kvsim.study.plots import save_memory_plot

    target = out or directory / PLOT
    results = read_results(directory)
    with staged(target.parent) as folder:
        save_memory_plot(results, folder / target.name)
    print(f"wrote {target}", file=sys.stderr)


def _print_results(results: "Results") -> None:
    from rich.console import Console

    from kvsim.study.console import results_table

    Console(highlight=False).print(results_table(results))


@contextmanager
def _progress_bar(label: str) -> Iterator["Progress"]:
    """A bar on stderr, or nothing where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
