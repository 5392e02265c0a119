"""Where extents of contiguous slots are placed: one class a way of placing them, and a line in PLACEMENTS.

A pool has slots 0 ... num_slots - 1. Every way finds room for an extent of any size up to `largest_free`, and for no
larger one; it gives out exactly the slots asked for, so that nothing is lost inside an extent, only between them.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from kvsim.invariants import hold


class Extent(NamedTuple):
    """Slots `start ... start + size - 1`."""

    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class Placement(Protocol):
    """Questions change nothing. `num_slots` is a whole number from 1 on, of any kind."""

    num_slots: int
    num_free: int

    def __init__(self, num_slots: int) -> None: ...

    @property
    def largest_free(self) -> int:
        """The largest size that can be placed now."""
        ...

    @property
    def largest_possible(self) -> int:
        """The largest size that can be placed while nothing is taken."""
        ...

    def find(self, size: int) -> Extent | None:
        """Where an extent of so many slots would be placed."""
        ...

    def is_free(self, extent: Extent) -> bool:
        """Whether all of these slots are there and free."""
        ...

    def take(self, extent: Extent) -> None:
        """Take slots that are free, wherever they are."""
        ...

    def give_back(self, extent: Extent) -> None:
        """Slots that were taken, at once or in parts, become free and one with what is free around them."""
        ...

    def free_extents(self) -> Iterator[Extent]:
        """The free slots in ascending order, in the pieces that they are kept in."""
        ...

    def check(self) -> None:
        """Recount invariant 19."""
        ...


class _FreeRuns:
    """Free slots as runs that are as long as can be, in order of their start."""

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 1, "a pool has at least one slot"
        self.num_slots = num_slots
        self.num_free = num_slots
        self._starts = [0]
        self._sizes = [num_slots]

    @property
    def largest_free(self) -> int:
        return max(self._sizes, default=0)

    @property
    def largest_possible(self) -> int:
        return self.num_slots

    def is_free(self, extent: Extent) -> bool:
        at = bisect_right(self._starts, extent.start) - 1
        return at >= 0 and extent.end <= self._starts[at] + self._sizes[at]

    def take(self, extent: Extent) -> None:
        assert self.is_free(extent), "the caller asked for free slots first"
        at = bisect_right(self._starts, extent.start) - 1
        start, end = self._starts[at], self._starts[at] + self._sizes[at]
        left = [Extent(start, extent.start - start), Extent(extent.end, end - extent.end)]
        kept = [piece for piece in left if piece.size]
        self._starts[at : at + 1] = [piece.start for piece in kept]
        self._sizes[at : at + 1] = [piece.size for piece in kept]
        self.num_free -= extent.size

    def give_back(self, extent: Extent) -> None:
        starts, sizes = self._starts, self._sizes
        first = last = bisect_left(starts, extent.start)
        start, end = extent
        end += start
        if first and starts[first - 1] + sizes[first - 1] == start:
            first -= 1
            start = starts[first]
        if last < len(starts) and starts[last] == end:
            end += sizes[last]
            last += 1
        starts[first:last] = [start]
        sizes[first:last] = [end - start]
        self.num_free += extent.size

    def free_extents(self) -> Iterator[Extent]:
        return map(Extent, self._starts, self._sizes)

    def check(self) -> None:
        end = -1
        for extent in self.free_extents():
            hold(19, end < extent.start and extent.size > 0, f"free slots from {extent.start} on are not one run")
            end = extent.end
        hold(19, end <= self.num_slots, f"slot {end - 1} is free and not in the pool")
        _check_num_free(self.free_extents(), self.num_free)


class FirstFit(_FreeRuns):
    """At the beginning of the first run that is long enough."""

    def find(self, size: int) -> Extent | None:
        fitting = (start for start, free in zip(self._starts, self._sizes, strict=True) if free >= size)
        start = next(fitting, None)
        return None if start is None else Extent(start, size)


class BestFit(_FreeRuns):
    """At the beginning of the shortest run that is long enough, and of equals the first."""

    def find(self, size: int) -> Extent | None:
        fitting = [(free, start) for start, free in zip(self._starts, self._sizes, strict=True) if free >= size]
        return Extent(min(fitting)[1], size) if fitting else None


class Buddy:
    """At the beginning of the smallest free block of 2^k slots, and of equals the first.

    A pool of any size is cut into zones of descending powers of two, its first blocks. A block that is larger than
    needed is halved; of the last one the slots beyond the exact size go back at once, as smaller blocks. Two free
    halves become one again.

        22 slots    |               16              |   4   | 2 |       zones
        take 5      |#########| 1 | 2   |     8     |   4   | 2 |
    """

    def __init__(self, num_slots: int) -> None:
        assert num_slots >= 1, "a pool has at least one slot"
        self.num_slots = num_slots
        self.num_free = num_slots
        self._free: list[list[int]] = [[] for _ in range(num_slots.bit_length())]
        """Starts of the free blocks of 2^k slots, in ascending order."""
        for start, order in _blocks(Extent(0, num_slots)):
            self._free[order].append(start)

    @property
    def largest_free(self) -> int:
        orders = range(len(self._free) - 1, -1, -1)
        return next((1 << order for order in orders if self._free[order]), 0)

    @property
    def largest_possible(self) -> int:
        return 1 << (self.num_slots.bit_length() - 1)

    def find(self, size: int) -> Extent | None:
        for starts in self._free[(size - 1).bit_length() :]:
            if starts:
                return Extent(starts[0], size)
        return None

    def is_free(self, extent: Extent) -> bool:
        slot = extent.start
        while slot < extent.end:
            block = self._block_with(slot)
            if block is None:
                return False
            slot = block.end
        return True

    def take(self, extent: Extent) -> None:
        slot = extent.start
        while slot < extent.end:
            block = self._block_with(slot)
            assert block is not None, "the caller asked for free slots first"
            self._remove(block.start, block.size.bit_length() - 1)
            for piece in (Extent(block.start, slot - block.start), Extent(extent.end, block.end - extent.end)):
                for start, order in _blocks(piece):
                    insort(self._free[order], start)
            slot = block.end
        self.num_free -= extent.size

    def give_back(self, extent: Extent) -> None:
        for start, order in _blocks(extent):
            while self._is_block(start ^ 1 << order, order):
                self._remove(start ^ 1 << order, order)
                start &= ~(1 << order)
                order += 1
            insort(self._free[order], start)
        self.num_free += extent.size

    def free_extents(self) -> Iterator[Extent]:
        return iter(sorted(Extent(start, 1 << order) for order, starts in enumerate(self._free) for start in starts))

    def check(self) -> None:
        end = 0
        for extent in self.free_extents():
            hold(19, end <= extent.start, f"slot {extent.start} is free twice")
            hold(19, extent.start % extent.size == 0, f"slots from {extent.start} on are no block of {extent.size}")
            order = extent.size.bit_length() - 1
            halved = self._is_block(extent.start ^ extent.size, order)
            hold(19, not halved, f"slot {extent.start} begins a free half of {extent.size} beside the other one")
            end = extent.end
        hold(19, end <= self.num_slots, f"slot {end - 1} is free and not in the pool")
        _check_num_free(self.free_extents(), self.num_free)

    def _block_with(self, slot: int) -> Extent | None:
        """The free block that a slot is in."""
        for order in range(len(self._free)):
            start = slot >> order << order
            if self._is_block(start, order):
                return Extent(start, 1 << order)
        return None

    def _is_block(self, start: int, order: int) -> bool:
        """Whether 2^order slots are one free block. Zones differ in size, so no block has a buddy in another."""
        if order >= len(self._free):
            return False
        starts = self._free[order]
        at = bisect_left(starts, start)
        return at < len(starts) and starts[at] == start

    def _remove(self, start: int, order: int) -> None:
        starts = self._free[order]
        del starts[bisect_left(starts, start)]


def _blocks(extent: Extent) -> Iterator[tuple[int, int]]:
    """Start and k of the largest aligned blocks of 2^k slots that make up an extent (none where it is empty)."""
    start, end = extent.start, extent.end
    while start < end:
        order = (end - start).bit_length() - 1
        if start:
            order = min(order, (start & -start).bit_length() - 1)
        yield start, order
        start += 1 << order


def _check_num_free(extents: Iterator[Extent], num_free: int) -> None:
    free = sum(extent.size for extent in extents)
    hold(19, free == num_free, f"{free} slots are free, counted {num_free}")


DEFAULT_PLACEMENT = "buddy"
"""As in the PagedAttention paper."""

PLACEMENTS: dict[str, type[Placement]] = {"buddy": Buddy, "first_fit": FirstFit, "best_fit": BestFit}
