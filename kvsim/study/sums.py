"""The digests of a run's files, as `sha256sum --check` reads them: a folder is of one run, as it was written."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from kvsim.errors import OutputError

SUMS = "SHA256SUMS"


def write_sums(directory: Path, names: Iterable[str]) -> None:
    """Of those of the files that are there; no file if there are none."""
    lines = [f"{sha256_of(directory / name)}  {name}\n" for name in sorted(names) if (directory / name).is_file()]
    if lines:
        (directory / SUMS).write_text("".join(lines), encoding="utf-8")


def check_sum(path: Path) -> None:
    """Raises OutputError unless a file is as `write_sums` found it in its folder."""
    sums = path.parent / SUMS
    try:
        listed = sums.read_text(encoding="utf-8").splitlines()
        if f"{sha256_of(path)}  {path.name}" not in listed:
            raise OutputError(
                f"{path}: is not as kvsim run wrote it (its SHA-256 is not in {SUMS} beside it): run it again"
            )
    except OSError as error:
        hint = ", and what was changed since the run is not read: run it again" if error.filename == str(sums) else ""
        raise OutputError(f"{error.filename}: cannot be read: {error.strerror}{hint}") from None
    except UnicodeDecodeError:
        raise OutputError(f"{sums}: is not as kvsim run wrote it: not UTF-8 text") from None


def sha256_of(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
