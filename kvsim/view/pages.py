"""What all pages are made of: the templates, and the scripts and styles in `static/`."""

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

STATIC = Path(__file__).with_name("static")

TEMPLATES = Environment(
    loader=PackageLoader("kvsim.view"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""Whatever is put into a page is escaped, and what is missing is a mistake."""


def static_text(name: str) -> str:
    """A script or style of kvsim's own."""
    return (STATIC / name).read_text(encoding="utf-8")
