"""Who holds which block at one moment, to be looked at."""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from attrs import frozen

BlockState = Literal["held", "reserved", "unused", "cached", "blank"]
"""`reserved` and `unused` are kept for tokens that a request will still write, or never will (extents only)."""


class BlockRun(NamedTuple):
    """Blocks `first ... first + num_blocks - 1` of a map, alike but for the last, which may be written in part.

    `written_tokens` counts them all together, so all but the last are full. `request_ids` are of those who hold them,
    in order of admission: several where the blocks are shared.
    """

    first: int
    num_blocks: int
    state: BlockState
    request_ids: tuple[int, ...] = ()
    written_tokens: int = 0


@frozen
class BlockMap:
    """All usable blocks of a pool at `time_ns`, as runs in order that leave nothing out.

    `has_block_numbers` says that `first` is where a block lies among the usable ones of the pool; else blocks are
    counted off by who holds them, in order of admission, then cached ones, then blank ones.
    """

    time_ns: int
    num_blocks: int
    block_size: int
    has_block_numbers: bool
    runs: tuple[BlockRun, ...]


Piece = tuple[int, BlockState, tuple[int, ...], int]
"""Blocks in a row that are alike but for the last: how many, their state, who holds them, tokens written in them."""


def block_map(
    time_ns: int, num_blocks: int, block_size: int, pieces: Iterable[Piece], *, has_block_numbers: bool
) -> BlockMap:
    """The pieces in order as runs that are as long as can be."""
    runs = tuple(_runs(pieces, block_size))
    covered = sum(run.num_blocks for run in runs)
    assert covered == num_blocks, f"{covered} of {num_blocks} blocks are in the map"
    return BlockMap(time_ns, num_blocks, block_size, has_block_numbers, runs)


def _runs(pieces: Iterable[Piece], block_size: int) -> Iterator[BlockRun]:
    first, num_blocks, written = 0, 0, 0
    state: BlockState = "blank"
    ids: tuple[int, ...] = ()
    for more, its_state, its_ids, its_written in pieces:
        if not more:
            continue
        is_full = state == "blank" or written == num_blocks * block_size
        if num_blocks and not (is_full and (state, ids) == (its_state, its_ids)):
            yield BlockRun(first, num_blocks, state, ids, written)
            first, num_blocks, written = first + num_blocks, 0, 0
        state, ids = its_state, its_ids
        num_blocks += more
        written += its_written
    if num_blocks:
        yield BlockRun(first, num_blocks, state, ids, written)
