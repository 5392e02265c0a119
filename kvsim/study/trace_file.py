"""A trace file that is looked at rather than replayed: what it is, what it lacks, its rows."""

from collections.abc import Iterator
from pathlib import Path

from attrs import define, field, frozen

from kvsim.errors import TraceError
from kvsim.study.servegen import servegen_windows
from kvsim.workload.traces import Options, Row
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.readers import known_format, reader_of, rows_of


@define
class Reading:
    """What has been found out so far: rows passed over, and the tokens that an id of a block stands for."""

    bad_rows: int = 0
    block_tokens: int | None = None


@frozen
class TraceFile:
    """A file and its format, named or recognised."""

    path: Path
    format: str
    options: Options = field(factory=Options)
    skip_bad_rows: bool = False
    reading: Reading = field(factory=Reading, init=False, eq=False)
    """The last time that `rows` was read."""

    @classmethod
    def of(
        cls, path: Path, format: str | None = None, options: Options | None = None, *, skip_bad_rows: bool = False
    ) -> "TraceFile":
        """Raises TraceError where the file cannot be read, its format is not known, or an option changes nothing."""
        options = options or Options()
        try:
            known = known_format(path, format, options)
        except TraceError:
            windows = servegen_windows(path) if format is None and path.is_file() else None
            if windows is None:
                raise
            raise TraceError(
                f"{path}: has {windows.format} by window, not requests; a generated [workload] draws from it: "
                f"{windows.how_to_draw}"
            ) from None
        return cls(path, known, options, skip_bad_rows)

    @property
    def has_content(self) -> bool:
        return reader_of(self.format, self.options).has_content

    def rows(self) -> Iterator[Row]:
        """The rows that a replay takes; at the first that it does not, raises TraceError or passes it over."""
        return self._read(Lines(self.path, skip_bad_rows=self.skip_bad_rows), self.reading)

    def all_rows(self, reading: Reading) -> Iterator[Row]:
        """Rows without tokens too; those that break a rule of the format are passed over and counted."""
        return self._read(Lines(self.path, skip_bad_rows=True, least_tokens=0), reading)

    def lengths(self, *, by_time: bool) -> Iterator[Row]:
        """Rows without tokens too, in the order of `rows`, or else as they stand in the file, of which then none need
        be held; at the first that breaks a rule of the format, raises TraceError or passes it over.
        """
        lines = Lines(self.path, skip_bad_rows=self.skip_bad_rows, least_tokens=0)
        return self._read(lines, self.reading, sort=by_time)

    def _read(self, lines: Lines, reading: Reading, *, sort: bool = True) -> Iterator[Row]:
        reader = reader_of(self.format, self.options)
        for row in rows_of(reader if sort else reader._replace(unsorted=False), lines, self.options):
            reading.bad_rows, reading.block_tokens = lines.skipped, lines.block_tokens
            yield row
        reading.bad_rows = lines.skipped

    def need_content(self) -> None:
        """Raises TraceError where the format does not say what prompts contain, or the file is not of that format."""
        if not self.has_content:
            next(self.rows(), None)
            raise TraceError(f"{self.path}: has no content: the format {self.format} does not say what prompts share")
