"""Eviction policies as their names are understood, by sorting everything: the judge of kvsim/memory/eviction.py."""

from collections.abc import Callable


class NaiveCachedOrder:
    """What is known of every block with a key, and of those that nobody holds when they were let go of."""

    def __init__(self, eviction: str) -> None:
        self._first_to_go = FIRST_TO_GO[eviction]
        self._now = 0
        self.published: dict[int, int] = {}
        self.hits: dict[int, int] = {}
        self.released: dict[int, tuple[int, int]] = {}  # which release it was, and which block of it

    def publish(self, blocks: list[int]) -> None:
        for block in blocks:
            self._now += 1
            self.published[block] = self._now
            self.hits[block] = 0

    def hit(self, blocks: list[int]) -> None:
        for block in blocks:
            self.hits[block] += 1
            self.released.pop(block, None)

    def release(self, blocks: list[int]) -> None:
        """Last block of the table first."""
        self._now += 1
        self.released.update({block: (self._now, place) for place, block in enumerate(blocks)})

    def evict(self, block: int) -> None:
        for known in (self.published, self.hits, self.released):
            del known[block]

    def cached(self) -> list[int]:
        """Blocks that nobody holds, the one that goes first first."""
        return sorted(self.released, key=lambda block: self._first_to_go(self, block))


FIRST_TO_GO: dict[str, Callable[[NaiveCachedOrder, int], object]] = {
    "lru": lambda known, block: known.released[block],
    "fifo": lambda known, block: known.published[block],
    "lfu": lambda known, block: (known.hits[block], known.released[block]),
    "tail_last_lru": lambda known, block: (known.released[block][0], -known.released[block][1]),
}
