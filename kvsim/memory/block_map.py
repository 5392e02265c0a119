"""Who holds which block at one moment, to be looked at."""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from attrs import frozen

BlockState = Literal["held", "reserved", "unused", "cached", "blank"]
"""`reserved` and `unused` are kept for tokens that a request will still write, or never will (extents only)."""


class BlockRun(NamedTuple):
    """Blocks `first ... first + num_blocks - 1` of a map, alike but for the last, which may be written in part.

    `written_tokens` counts them all together, so all but the last are full. `request_ids` are of those who hold them,
    in order of admission: several where the blocks are shared. A token takes `slot_bytes`, which groups of layers may
    have more of or fewer; 0 where nobody holds the blocks.
    """

    first: int
    num_blocks: int
    state: BlockState
    request_ids: tuple[int, ...] = ()
    written_tokens: int = 0
    slot_bytes: int = 0

    def slack_bytes(self, block_bytes: int) -> int:
        """What is held or kept and not written, padding included, in blocks of so many bytes."""
        is_taken = self.state in ("held", "reserved", "unused")
        return self.num_blocks * block_bytes - self.written_tokens * self.slot_bytes if is_taken else 0


@frozen
class BlockMap:
    """All usable blocks of `block_bytes` of a pool at `time_ns`, as runs in order that leave nothing out.

    `has_block_numbers` says that `first` is where a block lies among the usable ones of the pool; else blocks are
    counted off by who holds them, in order of admission, then cached ones, then blank ones.
    """

    time_ns: int
    num_blocks: int
    block_size: int
    block_bytes: int
    has_block_numbers: bool
    runs: tuple[BlockRun, ...]


Piece = tuple[int, BlockState, tuple[int, ...], int, int]
"""Blocks in a row that are alike but for the last: how many, their state, who holds them, tokens written in them, and
bytes of a slot."""


def block_map(
    time_ns: int,
    num_blocks: int,
    block_size: int,
    block_bytes: int,
    pieces: Iterable[Piece],
    *,
    has_block_numbers: bool,
) -> BlockMap:
    """The pieces in order as runs that are as long as can be."""
    runs = tuple(_runs(pieces, block_size))
    covered = sum(run.num_blocks for run in runs)
    assert covered == num_blocks, f"{covered} of {num_blocks} blocks are in the map"
    return BlockMap(time_ns, num_blocks, block_size, block_bytes, has_block_numbers, runs)


def _runs(pieces: Iterable[Piece], block_size: int) -> Iterator[BlockRun]:
    first, num_blocks, written = 0, 0, 0
    kind: tuple[BlockState, tuple[int, ...], int] = "blank", (), 0
    for more, state, ids, its_written, slot_bytes in pieces:
        if not more:
            continue
        its_kind = state, ids, slot_bytes
        is_full = kind[0] == "blank" or written == num_blocks * block_size
        if num_blocks and not (is_full and kind == its_kind):
            yield BlockRun(first, num_blocks, kind[0], kind[1], written, kind[2])
            first, num_blocks, written = first + num_blocks, 0, 0
        kind = its_kind
        num_blocks += more
        written += its_written
    if num_blocks:
        yield BlockRun(first, num_blocks, kind[0], kind[1], written, kind[2])
