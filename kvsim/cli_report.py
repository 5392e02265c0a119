"""kvsim report: a page to look at and send around."""

from pathlib import Path
from typing import Annotated

import typer

from kvsim.console import progress_bar


def mount(app: typer.Typer) -> None:
    app.command()(report)


def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders that kvsim run wrote to, at most 8.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="Where the page goes.")],
) -> None:
    """Say and draw all of a run in one HTML page, or of several side by side, with what differs explained.

    The page needs nothing beside it and asks nobody for anything: it opens from disk, without a network. It holds
    every row of the timeline, which is read off at any moment; of more than 600,000 rows it holds a selection, of each
    part of the time the first and last row and those with the most and least allocated, and says so. To print it, or to
    make a PDF, print from the browser (Ctrl-P): charts are laid out for paper, and all tables unfolded. Needs
    `pip install 'kvsim[app]'`. For example:

    - `kvsim report out/quick_start -o report.html`
    - `kvsim report out/block_16 out/block_128 -o block_sizes.html`
    """
    import sys

    from kvsim.errors import OutputError
    from kvsim.view import need_bokeh

    if out.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{out}: must end in .html")
    need_bokeh("kvsim report")
    from kvsim.study.files import staged_file
    from kvsim.view.report import read_run, run_names, write_report

    with progress_bar("reading runs") as on_progress:
        runs = []
        for directory, name in zip(directories, run_names(directories), strict=True):
            runs.append(read_run(directory, name))
            if on_progress is not None:
                on_progress(len(runs), len(directories))
    with staged_file(out) as staging:
        write_report(runs, staging)
    print(f"wrote {out}", file=sys.stderr)
