"""A Parquet file that is written while its rows still come."""

from collections.abc import Iterator
from pathlib import Path
from queue import Full, Queue
from threading import Thread
from typing import Any

import polars as pl
from polars.io.plugins import register_io_source

_LOOK_AGAIN_SECONDS = 0.1


class ParquetStream:
    """Rows are compressed and written by polars in a thread of its own, a group of `rows_per_group` at a time.

    Whoever began it ends it: with `close`, or with `abandon`, which leaves a file of the rows that came. An error of
    the writing comes up in `write` or `close`, as polars raises it.
    """

    def __init__(self, path: Path, schema: dict[str, Any], rows_per_group: int) -> None:
        self._path = path
        self._schema = schema
        self._rows_per_group = rows_per_group
        self._frames: Queue[pl.DataFrame | None] = Queue(maxsize=1)
        self._error: BaseException | None = None
        self._thread = Thread(target=self._sink, name=f"writes {path.name}")
        self._thread.start()

    def _sink(self) -> None:
        try:
            rows = register_io_source(self._taken, schema=self._schema)
            rows.sink_parquet(self._path, row_group_size=self._rows_per_group)
        except BaseException as error:  # polars hears of Ctrl-C here too; it comes up where the rows come from
            self._error = error

    def _taken(
        self, with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        """As polars asks a source: here for all columns of all rows."""
        assert (with_columns, predicate, n_rows) == (None, None, None), "all is written"
        while (frame := self._frames.get()) is not None:
            yield frame

    def write(self, frame: pl.DataFrame) -> None:
        if not self._put(frame):
            assert self._error is not None, "it writes to the last frame"
            raise self._error

    def close(self) -> None:
        """All rows have come; returns when the file is whole."""
        self._put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Returns when nothing is written any more."""
        self._put(None)
        self._thread.join()

    def _put(self, frame: pl.DataFrame | None) -> bool:
        """Wait until it is taken; False where the writing has ended before."""
        while self._thread.is_alive():
            try:
                self._frames.put(frame, timeout=_LOOK_AGAIN_SECONDS)
            except Full:
                continue
            return True
        return False
