"""Paths that somebody types into a page: only what lies in the folder that the app was started in."""

from pathlib import Path

from kvsim.errors import KvsimError
from kvsim.rules import shown


def inside(folder: Path, text: str) -> Path:
    """The path that `text` names in `folder`, with all links followed; it need not be there.

    An absolute path is taken if it lies in the folder. Raises KvsimError for one that does not, for any "..",
    for a link that leads out, and for what is no path at all.
    """
    if not text.strip() or "\0" in text:
        raise KvsimError(f"{shown(text)}: is not a path")
    if ".." in Path(text).parts:
        raise KvsimError(f"{shown(text)}: must not have .. in it")
    try:
        root = folder.resolve()
        path = (root / text).resolve()
    except (OSError, RuntimeError):  # a name that is too long, links in a circle
        raise KvsimError(f"{shown(text)}: is not a path") from None
    if not path.is_relative_to(root):
        raise KvsimError(f"{shown(text)}: lies outside the folder that the app was started in")
    return path
