"""Block ids, reference counts, and the free queue.

vLLM keeps one free queue: blocks without a key go to its front when freed, blocks with a key to its end, and
blocks are taken from the front. That is the same as a stack of *blank* blocks, used first, and an ordered map
of *cached* blocks, oldest release first. Rule numbers are those of tests/golden/vllm_scheduler/README.md.

    next to be taken                                            last
    [ blank: last freed ... first freed | cached: first freed ... last freed ]

Another policy of `eviction.py` may order the cached blocks; blank ones still go before all of them.
"""

from collections.abc import Iterator, Sequence

from kvsim.invariants import hold
from kvsim.memory.eviction import EVICTION

NULL_BLOCK = 0
"""Held back from the start, never handed out, never freed (rule 22)."""


class BlockPool:
    """`num_blocks` blocks, the null block included, so that `num_blocks - 1` are usable.

    `eviction` names the order in which cached ones go, "lru" being that of the real engine.
    """

    def __init__(self, num_blocks: int, eviction: str = "lru") -> None:
        assert num_blocks >= 2, "a pool has the null block and at least one more"
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._keys: list[int | None] = [None] * num_blocks
        self._blank = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._cached = EVICTION[eviction]()
        self._first_block: dict[int, int] = {}
        self._later_blocks: dict[int, list[int]] = {}

    @property
    def num_blank(self) -> int:
        """Free blocks without a key."""
        return len(self._blank)

    @property
    def num_cached(self) -> int:
        """Free blocks that can still be found by their key."""
        return len(self._cached)

    @property
    def num_free(self) -> int:
        return len(self._blank) + len(self._cached)

    @property
    def num_keys(self) -> int:
        """Distinct keys that can be found."""
        return len(self._first_block)

    def free_queue(self) -> Iterator[int]:
        """Free blocks, next to be taken first."""
        yield from reversed(self._blank)
        yield from self._cached

    def ref_count(self, block: int) -> int:
        return self._ref_counts[block]

    def find(self, keys: Sequence[int]) -> list[int]:
        """First blocks of the leading keys that are there (rule 17)."""
        blocks = []
        get = self._first_block.get
        for key in keys:
            block = get(key)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def has(self, key: int) -> bool:
        return key in self._first_block

    def first_block(self, key: int) -> int:
        """Of the blocks that carry a key, the one published first (rule 19)."""
        return self._first_block[key]

    def num_idle(self, blocks: Sequence[int]) -> int:
        """How many of these findable blocks are in the free queue; the null block is in no queue."""
        counts = self._ref_counts
        return sum(not counts[block] for block in blocks if block)

    def take(self, num_blocks: int) -> list[int]:
        """Take blocks from the front of the queue; cached ones lose their key only now (rule 25)."""
        assert num_blocks <= self.num_free, "the caller asked for free blocks first"
        blank = self._blank
        from_blank = min(num_blocks, len(blank))
        blocks = blank[len(blank) - from_blank :]
        blocks.reverse()
        del blank[len(blank) - from_blank :]
        if from_blank < num_blocks:
            evicted = self._cached.pop(num_blocks - from_blank)
            for block in evicted:
                self._forget_key(block)
            blocks += evicted
        counts = self._ref_counts
        for block in blocks:
            counts[block] = 1
        return blocks

    def touch(self, blocks: Sequence[int]) -> int:
        """Reference blocks that were hit; returns how many left the free queue for it (rule 20)."""
        counts = self._ref_counts
        woken = [block for block in blocks if not counts[block]]
        for block in blocks:
            counts[block] += 1
        self._cached.hit(blocks)
        self._cached.remove(woken)
        return len(woken)

    def publish(self, blocks: Sequence[int], keys: Sequence[int]) -> None:
        """Make full blocks findable; where a key is there already, the block stands behind its others."""
        for block, key in zip(blocks, keys, strict=True):
            assert self._keys[block] is None, "a block is published once"
            self._keys[block] = key
            if key in self._first_block:
                self._later_blocks.setdefault(key, []).append(block)
            else:
                self._first_block[key] = block
        self._cached.publish(blocks)

    def release(self, table: Sequence[int]) -> int:
        """Drop one reference to each block of a table, last block first (rule 23).

        Blocks that reach zero go to the end of the queue (or where the policy has them) if they have a key, else
        to its front, the last block of the table foremost. Returns how many reached zero.
        """
        counts, keys = self._ref_counts, self._keys
        to_front, cached = [], []
        for block in reversed(table):
            counts[block] -= 1
            if counts[block] == 0:
                if keys[block] is None:
                    to_front.append(block)
                else:
                    cached.append(block)
        to_front.reverse()
        self._blank.extend(to_front)
        self._cached.add(cached)
        return len(to_front) + len(cached)

    def _forget_key(self, block: int) -> None:
        key = self._keys[block]
        assert key is not None, "cached blocks have a key"
        self._keys[block] = None
        later = self._later_blocks.get(key)
        if self._first_block[key] == block:
            if later:
                self._first_block[key] = later.pop(0)
            else:
                del self._first_block[key]
        else:
            assert later is not None, "a block that has a key is listed under it"
            later.remove(block)
        if later is not None and not later:
            del self._later_blocks[key]

    def check(self) -> None:
        """Recount invariants 1 to 5."""
        blank, cached = set(self._blank), set(self._cached)
        hold(1, NULL_BLOCK not in blank | cached, "the null block is free")
        hold(1, self._ref_counts[NULL_BLOCK] == 0, "the null block is referenced")
        hold(3, len(blank) == len(self._blank) and not blank & cached, "a block is in the free queue twice")
        for block in range(1, self.num_blocks):
            free = block in blank or block in cached
            hold(2, free == (self._ref_counts[block] == 0), f"block {block} is free and referenced, or neither")
            hold(4, block not in blank or self._keys[block] is None, f"blank block {block} has a key")
            hold(4, block not in cached or self._keys[block] is not None, f"cached block {block} has no key")
        listed = {block: key for key, block in self._first_block.items()}
        for key, later in self._later_blocks.items():
            hold(5, bool(later) and key in self._first_block, f"key {key} has later blocks only, or an empty list")
            listed.update(dict.fromkeys(later, key))
        held = {block: key for block, key in enumerate(self._keys) if key is not None}
        hold(5, listed == held, "keys are not listed under their blocks")

    def key(self, block: int) -> int | None:
        return self._keys[block]
