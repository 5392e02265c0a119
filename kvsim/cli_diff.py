"""The command that explains what changed between two runs: it parses, calls the library, prints."""

from pathlib import Path
from typing import Annotated

import typer

from kvsim.cli_options import JsonOption
from kvsim.console import print_json, print_page


def mount(app: typer.Typer) -> None:
    """Make the command one of an application."""
    app.command()(diff)


def diff(
    before: Annotated[Path, typer.Argument(metavar="DIR1", help="Folder that kvsim run wrote to.")],
    after: Annotated[Path, typer.Argument(metavar="DIR2", help="Another.")],
    json: JsonOption = False,
) -> None:
    """Explain what changed between two runs: what matters most first, each with its causes.

    What was put in is compared key by key. What came out is taken apart into causes that add up to it exactly, the
    largest first: slack is tail, padding and what is reserved; steps that held back the head of the queue are told
    apart by what held it back; and so on.

    First stands what became of requests (lost, refused, preempted, waiting, prefix hits), then waste, what held the
    queue back, memory, time; in each what changed by the largest factor. Totals that changed by less than 1%, or 0.1%
    of all there was, follow even where their parts changed more. Peaks are last: each run has its own moment of them.

    For example:

    - `kvsim run scenarios/quick_start.toml --out out/before`
    - `kvsim run scenarios/quick_start.toml --set memory.block_size=128 --out out/after`
    - `kvsim diff out/before out/after`
    """
    from kvsim.study.diff import differences
    from kvsim.study.diff_table import differences_page
    from kvsim.study.files import read_results

    found = differences(read_results(before), read_results(after))
    if json:
        print_json(found.to_json())
    else:
        print_page(differences_page(found, str(before), str(after)))
