"""What commands share: pages for people, JSON for programs, names of pictures, bars on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import OutputError
from kvsim.rules import printable

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_json(value: object) -> None:
    from json import dumps

    print(dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_page(page: "RenderableType") -> None:
    from rich.console import Console
    from rich.segment import Segment, Segments

    console = Console(highlight=False, markup=False)
    # Names come out of files: what would move a cursor or colour a terminal is shown instead, cell for cell.
    lines = console.render_lines(page, pad=False, new_lines=True)
    shown = [Segment(printable(segment.text), segment.style) for line in lines for segment in line]
    console.print(Segments(shown), end="")


def need_picture_name(path: Path | None) -> None:
    """Raises OutputError for the name of a picture whose format it does not tell, before any work is done for it."""
    if path is not None and path.suffix not in (".png", ".svg", ".pdf"):
        raise OutputError(f"{path}: must end in .png, .svg or .pdf")


@contextmanager
def progress_bar(label: str, *, seconds: float = 30) -> Iterator[Callable[[int, int | None], None] | None]:
    """A bar on stderr with the time left, judged by so many last seconds, or nothing where that is not a terminal.

    It is told what is done, and of how many.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, speed_estimate_period=seconds) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
