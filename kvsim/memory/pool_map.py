"""The map of a pool whose blocks have numbers, from who holds which of them."""

from collections.abc import Iterable, Iterator

from kvsim.memory.block_map import BlockMap, Piece, block_map
from kvsim.memory.pool import BlockPool

Held = tuple[int, int, int, int]
"""A request, a block that it holds, how many slots of the block are written, and bytes of a slot."""


def map_of_pool(time_ns: int, pool: BlockPool, block_size: int, block_bytes: int, held: Iterable[Held]) -> BlockMap:
    """`held` comes in order of admission, and names a block once for each request that holds it."""
    holders: dict[int, tuple[int, ...]] = {}
    written: dict[int, tuple[int, int]] = {}
    for request_id, block, slots, slot_bytes in held:
        holders[block] = (*holders.get(block, ()), request_id)
        written[block] = slots, slot_bytes

    def pieces() -> Iterator[Piece]:
        for block in range(1, pool.num_blocks):
            if block in holders:
                yield 1, "held", holders[block], *written[block]
            elif pool.key(block) is not None:
                yield 1, "cached", (), block_size, 0
            else:
                yield 1, "blank", (), 0, 0

    return block_map(time_ns, pool.num_blocks - 1, block_size, block_bytes, pieces(), has_block_numbers=True)
