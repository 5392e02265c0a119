"""What commands share: pages for people, JSON for programs, names of pictures, bars on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import OutputError

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_json(value: object) -> None:
    from json import dumps

    print(dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


_CONTROLS = {code: 0x2400 + code for code in range(32)} | {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
"""Characters that terminals act upon, as signs that show them."""


def harmless(text: str) -> str:
    """The text without what would have a terminal do something, but for new lines; names from files may have it."""
    return text.translate({code: sign for code, sign in _CONTROLS.items() if code != 0x0A})


def print_page(page: "RenderableType") -> None:
    """For people, on stdout; control characters in it are shown and not obeyed."""
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.segment import Segment

    class Harmless:
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for segment in console.render(page, options):
                yield segment if segment.control else Segment(harmless(segment.text), segment.style)

    Console(highlight=False, markup=False).print(Harmless())


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
