"""Who holds which block at one moment, to be looked at."""

from typing import Literal

from attrs import frozen

BlockState = Literal["held", "reserved", "unused", "cached", "blank"]
"""`reserved` and `unused` are kept for tokens that a request will still write, or never will (extents only)."""


@frozen
class BlockRun:
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

    `has_block_numbers` says that `first` is where a block lies in the pool; else blocks are counted off by who holds
    them, in order of admission, then cached ones from the next to be evicted on, then blank ones.
    """

    time_ns: int
    num_blocks: int
    block_size: int
    has_block_numbers: bool
    runs: tuple[BlockRun, ...]
