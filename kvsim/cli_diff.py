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
    """Explain what changed between two runs, largest cause first.

    What was put in is compared key by key. What came out is taken apart into causes that add up to it exactly:
    allocated memory is live, tail, padding and what is reserved; steps that held back the head of the queue are told
    apart by what held it back; and so on. Causes are ordered by how much of all there was of their kind they moved:
    of the pool, the requests, the steps, the tokens, the time.

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
