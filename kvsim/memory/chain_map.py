"""The map of chains of blocks, which have no numbers: blocks are counted off by who holds them."""

from collections.abc import Iterator, Sequence

from kvsim.memory.block_map import Piece
from kvsim.memory.chain import Chain, Copy, Holder

Running = tuple[int, Holder, int]
"""A request, what it holds, and its computed tokens."""


def held_pieces(running: Sequence[Running], block_size: int, slot_bytes: int) -> Iterator[Piece]:
    """Every block that is held once, where the first to be admitted comes to it; all full blocks are published."""
    ends, holders = _ends(running), _holders_of_copies(running)
    drawn: set[Chain | Copy] = set()
    for request_id, holder, computed in running:
        for chain, end in holder.path:
            if min(end, holder.published) <= chain.first:
                continue
            if chain.copies is not None:
                for copy in (holder.copies or {}).get(chain, ()):
                    if copy not in drawn:
                        drawn.add(copy)
                        yield 1, "held", tuple(holders[copy]), block_size, slot_bytes
                continue
            if chain not in drawn:
                drawn.add(chain)
                yield from _stretches(chain, ends.get(chain, []), block_size, slot_bytes)
            if holder.spare is not None and holder.spare.chain is chain:
                yield 1, "held", (request_id,), block_size, slot_bytes
        written = computed - holder.published * block_size
        yield -(-written // block_size), "held", (request_id,), written, slot_bytes


def _stretches(chain: Chain, ends: list[tuple[int, int]], block_size: int, slot_bytes: int) -> Iterator[Piece]:
    """A chain cut where one of its holders holds no more of it."""
    at = chain.first
    for stop in sorted({stop for stop, _id in ends}):
        ids = tuple(request_id for held_to, request_id in ends if held_to >= stop)
        yield stop - at, "held", ids, (stop - at) * block_size, slot_bytes
        at = stop


def _ends(running: Sequence[Running]) -> dict[Chain, list[tuple[int, int]]]:
    """Up to where each holder holds a chain, and which request it is."""
    ends: dict[Chain, list[tuple[int, int]]] = {}
    for request_id, holder, _computed in running:
        for chain, end in holder.path:
            stop = min(end, holder.published)
            if holder.spare is not None and holder.spare.chain is chain:
                stop -= 1  # of that block it has one of its own
            if stop > chain.first and chain.copies is None:
                ends.setdefault(chain, []).append((stop, request_id))
    return ends


def _holders_of_copies(running: Sequence[Running]) -> dict[Copy, list[int]]:
    holders: dict[Copy, list[int]] = {}
    for request_id, holder, _computed in running:
        for copies in (holder.copies or {}).values():
            for copy in copies:
                holders.setdefault(copy, []).append(request_id)
    return holders
