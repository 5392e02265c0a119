"""How commands print: pages for people, JSON for programs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_json(value: object) -> None:
    from json import dumps

    print(dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_page(page: "RenderableType") -> None:
    from rich.console import Console

    Console(highlight=False, markup=False).print(page)
