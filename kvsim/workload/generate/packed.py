"""Files of rates and lengths, plain or gzip."""

import gzip
from pathlib import Path
from typing import BinaryIO, cast


def open_unpacked(path: Path) -> BinaryIO:
    """The bytes of a file, or those that are packed in it."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")
