"""A trace file that is looked at rather than replayed: what it is, what it lacks, its rows."""

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from kvsim.errors import TraceError
from kvsim.workload.traces import READERS, Row, read_rows


@frozen
class TraceFile:
    """A file and its format, named or recognised."""

    path: Path
    format: str

    @classmethod
    def of(cls, path: Path, format: str | None = None) -> "TraceFile":
        """Raises TraceError where the file cannot be read or its format is not known."""
        if format is None:
            format = _recognised(path)
        if format not in READERS:
            raise TraceError(f"the format of a trace must be one of {', '.join(READERS)}, got {format!r}")
        return cls(path, format)

    @property
    def has_content(self) -> bool:
        return READERS[self.format].has_content

    def rows(self) -> Iterator[Row]:
        return read_rows(self.path, self.format)

    def need_content(self) -> None:
        """Raises TraceError where the format does not say what prompts contain."""
        if not self.has_content:
            raise TraceError(f"{self.path}: has no content: the format {self.format} does not say what prompts share")


def _recognised(path: Path) -> str:
    """The first format whose reader takes the first row."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    for format in READERS:
        try:
            next(read_rows(path, format), None)
        except TraceError:
            continue
        return format
    raise TraceError(f"{path}: its format is not recognised; name one of {', '.join(READERS)}")
