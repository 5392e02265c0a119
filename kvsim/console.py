"""What commands share: pages for people, JSON for programs, names of pictures."""

from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import OutputError

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_json(value: object) -> None:
    from json import dumps

    print(dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_page(page: "RenderableType") -> None:
    from rich.console import Console

    Console(highlight=False, markup=False).print(page)


def need_picture_name(path: Path | None) -> None:
    """Raises OutputError for the name of a picture whose format it does not tell, before any work is done for it."""
    if path is not None and path.suffix not in (".png", ".svg", ".pdf"):
        raise OutputError(f"{path}: must end in .png, .svg or .pdf")
