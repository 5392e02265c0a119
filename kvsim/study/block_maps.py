"""The block maps of a run, and the file that keeps them."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import polars as pl

from kvsim.errors import OutputError
from kvsim.memory.block_map import BlockMap, BlockRun
from kvsim.rules import shown
from kvsim.study.sums import check_sum

MOST_MAPS = 64
_FIRST_STEP_NS = 10_000_000

COLUMNS: dict[str, Any] = {
    "time_ns": pl.Int64(),
    "usable_blocks": pl.Int64(),
    "block_size_tokens": pl.Int64(),
    "block_bytes": pl.Int64(),
    "has_block_numbers": pl.Boolean(),
    "first_block": pl.Int64(),
    "num_blocks": pl.Int64(),
    "state": pl.String(),
    "request_ids": pl.List(pl.Int64()),
    "written_tokens": pl.Int64(),
    "slot_bytes": pl.Int64(),
}
"""One row per run of blocks that are alike but for the last; the runs of a moment cover all usable blocks."""

_OF_THE_MAP = 5
"""The first columns are those of a moment, the others of a run."""


class BlockMaps:
    """Maps of moments that are as far apart as keeps them fewer than MOST_MAPS, however long the run turns out to be.

    Moments are multiples of a step of 10 ms, which doubles, and every other map is let go of, whenever there are too
    many. So there are at least half as many in the end, but for runs of less than a second.
    """

    def __init__(self) -> None:
        self.maps: list[BlockMap] = []
        self._step_ns = _FIRST_STEP_NS

    def moments(self) -> Iterator[int]:
        """For `simulate`, without end."""
        moment_ns = 0
        while True:
            yield moment_ns
            moment_ns += self._step_ns - moment_ns % self._step_ns

    def add(self, block_map: BlockMap) -> None:
        """For `simulate`, at each of these moments."""
        self.maps.append(block_map)
        if len(self.maps) == MOST_MAPS:
            self.maps = self.maps[::2]
            self._step_ns *= 2

    def write(self, path: Path) -> None:
        rows = [
            (each.time_ns, each.num_blocks, each.block_size, each.block_bytes, each.has_block_numbers, *block_run)
            for each in self.maps
            for block_run in each.runs
        ]
        pl.DataFrame(rows, schema=COLUMNS, orient="row").write_parquet(path)


def read_block_maps(path: Path) -> list[BlockMap]:
    """In order of time; raises OutputError for a file that is not as a run wrote it."""
    if not path.is_file():
        raise OutputError(f"{path}: cannot be read: not a file")
    check_sum(path)
    try:
        table = pl.read_parquet(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be read: {error.strerror or 'No such file or directory'}") from None
    except pl.exceptions.PolarsError as error:
        raise OutputError(f"{path}: not a Parquet file that kvsim run wrote: {shown(str(error))}") from None
    if list(table.schema.items()) != list(COLUMNS.items()):
        raise OutputError(f"{path}: not a Parquet file that kvsim run wrote: it has other columns")
    maps = []
    for moment, rows in groupby(table.iter_rows(), key=itemgetter(*range(_OF_THE_MAP))):
        time_ns, num_blocks, block_size, block_bytes, is_numbered = moment
        runs = (row[_OF_THE_MAP:] for row in rows)
        numbered = [
            BlockRun(first, num, state, tuple(ids), written, slot) for first, num, state, ids, written, slot in runs
        ]
        maps.append(BlockMap(time_ns, num_blocks, block_size, block_bytes, is_numbered, tuple(numbered)))
    return maps
