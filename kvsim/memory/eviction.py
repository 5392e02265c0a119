"""Which cached block goes first when a block is needed and no blank one is left.

vLLM's order is `lru`: blocks go in the order in which they were let go of, and of one request the last block first
(rules 23 and 25), so that a head outlives all that hangs on it: a prompt is only looked up from its first block on,
and what comes after a block that is gone is not found. The others are here to be compared with it; they decide nothing
but this order.

A policy knows blocks by number and nothing of their keys. Of several blocks with one key only the first is ever hit
(rule 19), so that its copies count as blocks that nobody asked for.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol


class EvictionPolicy(Protocol):
    """The order of the blocks that nobody holds and that can still be found.

    `add`, `remove` and `pop` say which these are; `publish` and `hit` tell what becomes of a block while it can be
    found, held or not. Iterating gives the blocks that go first first.
    """

    def publish(self, blocks: Sequence[int]) -> None:
        """Blocks of one request, in the order of its table, that can be found from now on."""
        ...

    def hit(self, blocks: Sequence[int]) -> None:
        """Blocks that a request has found, whoever else holds them."""
        ...

    def add(self, blocks: Sequence[int]) -> None:
        """Blocks that nobody holds any more, in the order of release: of one table the last block first."""
        ...

    def remove(self, blocks: Sequence[int]) -> None:
        """Blocks that somebody holds again."""
        ...

    def pop(self, num_blocks: int) -> list[int]:
        """Take out the blocks that go first, which can then be found no more; so many must be there."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...


class LRU:
    """In the order of release, as vLLM: what was in use last goes last."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def publish(self, blocks: Sequence[int]) -> None:
        """The order of release is all there is to know."""

    def hit(self, blocks: Sequence[int]) -> None:
        """The same."""

    def add(self, blocks: Sequence[int]) -> None:
        order = self._order
        for block in blocks:
            order[block] = None

    def remove(self, blocks: Sequence[int]) -> None:
        order = self._order
        for block in blocks:
            del order[block]

    def pop(self, num_blocks: int) -> list[int]:
        take_oldest = self._order.popitem
        return [take_oldest(last=False)[0] for _ in range(num_blocks)]

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)


class TailLastLRU(LRU):
    """The same with each table released from its first block on, so that a head goes before all that hangs on it.

    Nobody wants this: it shows what the order of release is worth.
    """

    def add(self, blocks: Sequence[int]) -> None:
        super().add(blocks[::-1])


Rank = tuple[int, ...]


class _Ranked:
    """Blocks by rank, the lowest first, at O(log n) a change.

    Places that a block has left stay in the heap until they come up, or until they are more than half of it.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, Rank] = {}
        self._heap: list[tuple[Rank, int]] = []

    def _place(self, block: int, rank: Rank) -> None:
        self._ranks[block] = rank
        heappush(self._heap, (rank, block))
        if len(self._heap) > 2 * len(self._ranks) + 16:
            self._heap = [(rank, block) for block, rank in self._ranks.items()]
            heapify(self._heap)

    def _take_lowest(self) -> int:
        while True:
            rank, block = heappop(self._heap)
            if self._ranks.get(block) == rank:
                del self._ranks[block]
                return block

    def remove(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            del self._ranks[block]

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._ranks, key=self._ranks.__getitem__))


class FIFO(_Ranked):
    """In the order in which blocks could first be found; a hit changes nothing.

    The blocks of a prompt are published head first, and so go.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_published = 0
        self._published: dict[int, int] = {}

    def publish(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._num_published += 1
            self._published[block] = self._num_published

    def hit(self, blocks: Sequence[int]) -> None:
        """First in, first out, whatever happens in between."""

    def add(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._place(block, (self._published[block],))

    def pop(self, num_blocks: int) -> list[int]:
        blocks = [self._take_lowest() for _ in range(num_blocks)]
        for block in blocks:
            del self._published[block]
        return blocks


class LFU(_Ranked):
    """Those with the fewest hits first, and of equal ones those released first.

    Hits are counted from the moment a block is published until it is taken; content that comes back starts at 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_released = 0
        self._num_hits: dict[int, int] = {}

    def publish(self, blocks: Sequence[int]) -> None:
        self._num_hits.update(dict.fromkeys(blocks, 0))

    def hit(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._num_hits[block] += 1

    def add(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._num_released += 1
            self._place(block, (self._num_hits[block], self._num_released))

    def pop(self, num_blocks: int) -> list[int]:
        blocks = [self._take_lowest() for _ in range(num_blocks)]
        for block in blocks:
            del self._num_hits[block]
        return blocks


EVICTION: dict[str, Callable[[], EvictionPolicy]] = {
    "lru": LRU,
    "fifo": FIFO,
    "lfu": LFU,
    "tail_last_lru": TailLastLRU,
}
