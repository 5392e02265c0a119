"""Where extents are placed: small pools that can be drawn, and random ones against a map of all slots."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.memory.extents import PLACEMENTS, Buddy, Extent, Placement


def take(placement: Placement, size: int) -> Extent:
    extent = placement.find(size)
    assert extent is not None
    placement.take(extent)
    placement.check()
    return extent


def give_back(placement: Placement, extent: Extent) -> None:
    placement.give_back(extent)
    placement.check()


def free(placement: Placement) -> list[tuple[int, int]]:
    return [(extent.start, extent.size) for extent in placement.free_extents()]


def with_holes(kind: str, *sizes: int) -> Placement:
    """A pool of extents that lie one after the other, with every second of them, from the first on, given back."""
    placement = PLACEMENTS[kind](sum(sizes))
    start = 0
    for number, size in enumerate(sizes):
        if number % 2:
            placement.take(Extent(start, size))
        start += size
    placement.check()
    return placement


@pytest.mark.parametrize("kind", PLACEMENTS)
@pytest.mark.parametrize("num_slots", [1, 2, 22, 64])
def test_an_empty_pool_is_free_in_the_pieces_of_its_kind(kind: str, num_slots: int) -> None:
    placement = PLACEMENTS[kind](num_slots)
    placement.check()
    assert placement.num_free == sum(size for _start, size in free(placement)) == num_slots
    assert placement.largest_free == placement.largest_possible
    assert placement.find(placement.largest_possible) == Extent(0, placement.largest_possible)
    assert placement.find(placement.largest_possible + 1) is None


def test_a_pool_of_any_size_is_cut_into_zones_of_powers_of_two() -> None:
    assert free(Buddy(22)) == [(0, 16), (16, 4), (20, 2)]
    assert Buddy(22).largest_possible == 16
    assert free(Buddy(1)) == [(0, 1)]


def test_a_block_is_halved_and_what_is_beyond_the_exact_size_goes_back() -> None:
    """As it is drawn at the class."""
    buddy = Buddy(22)
    assert take(buddy, 5) == Extent(0, 5)
    assert free(buddy) == [(5, 1), (6, 2), (8, 8), (16, 4), (20, 2)]
    assert (buddy.num_free, buddy.largest_free) == (17, 8)


def test_the_smallest_block_that_is_large_enough_is_taken_and_of_equals_the_first() -> None:
    buddy = Buddy(22)
    assert take(buddy, 2) == Extent(20, 2)
    assert take(buddy, 1) == Extent(16, 1)
    assert free(buddy) == [(0, 16), (17, 1), (18, 2)]
    assert take(buddy, 9) == Extent(0, 9)
    # Seven slots in a row are free, but in no block of eight.
    assert free(buddy) == [(9, 1), (10, 2), (12, 4), (17, 1), (18, 2)]
    assert buddy.find(5) is None
    assert buddy.is_free(Extent(9, 7))


def test_halves_become_one_again_up_to_their_zone() -> None:
    buddy = Buddy(22)
    held = [take(buddy, size) for size in (3, 4, 1, 8, 4, 2)]
    assert (free(buddy), buddy.num_free, buddy.largest_free) == ([], 0, 0)
    for extent in held:
        give_back(buddy, extent)
    assert free(buddy) == [(0, 16), (16, 4), (20, 2)]


@pytest.mark.parametrize("kind", ["first_fit", "best_fit"])
def test_free_runs_are_as_long_as_can_be(kind: str) -> None:
    placement = with_holes(kind, 2, 3, 4, 5, 6)
    assert free(placement) == [(0, 2), (5, 4), (14, 6)]
    give_back(placement, Extent(2, 3))
    assert free(placement) == [(0, 9), (14, 6)]
    give_back(placement, Extent(10, 2))
    assert free(placement) == [(0, 9), (10, 2), (14, 6)]
    give_back(placement, Extent(12, 2))
    assert free(placement) == [(0, 9), (10, 10)]
    give_back(placement, Extent(9, 1))
    assert free(placement) == [(0, 20)]


def test_first_fit_takes_the_first_run_and_best_fit_the_shortest_that_are_long_enough() -> None:
    sizes = (6, 1, 4, 1, 5, 1, 4)
    assert with_holes("first_fit", *sizes).find(4) == Extent(0, 4)
    assert with_holes("best_fit", *sizes).find(4) == Extent(7, 4)
    assert with_holes("best_fit", *sizes).find(5) == Extent(12, 5)
    assert with_holes("first_fit", *sizes).find(7) is None
    assert with_holes("best_fit", *sizes).find(7) is None


@pytest.mark.parametrize("kind", PLACEMENTS)
def test_slots_may_be_taken_where_they_are(kind: str) -> None:
    """Behind an extent, across blocks and zones, up to the end of the pool."""
    placement = PLACEMENTS[kind](22)
    placement.take(Extent(0, 3))
    assert placement.is_free(Extent(3, 19))
    assert not placement.is_free(Extent(3, 20))
    assert not placement.is_free(Extent(2, 1))
    placement.take(Extent(3, 15))
    placement.check()
    assert not placement.is_free(Extent(17, 2))
    assert placement.num_free == 4
    # As one, whatever the parts in which they were taken.
    give_back(placement, Extent(0, 18))
    assert placement.largest_free == placement.largest_possible


@pytest.mark.parametrize("kind", PLACEMENTS)
def test_slots_that_are_held_cannot_be_taken(kind: str) -> None:
    placement = PLACEMENTS[kind](8)
    placement.take(Extent(2, 3))
    with pytest.raises(AssertionError, match="asked for free slots first"):
        placement.take(Extent(4, 2))


# against a map of all slots


def find_in_map(kind: str, is_free: list[bool], size: int) -> int | None:
    """Where an extent goes, by looking at every slot."""
    if kind == "buddy":
        fitting = [(free, start) for start, free in buddy_blocks(is_free) if free >= size]
        return min(fitting)[1] if fitting else None
    starts = [
        start
        for start in range(len(is_free) - size + 1)
        if all(is_free[start : start + size]) and (start == 0 or not is_free[start - 1])
    ]
    if kind == "best_fit":
        starts.sort(key=lambda start: [*is_free[start:], False].index(False))
    return starts[0] if starts else None


def buddy_blocks(is_free: list[bool]) -> list[tuple[int, int]]:
    """Start and size of the largest free blocks: a zone or, as long as it is not free as a whole, its halves."""

    def in_block(start: int, size: int) -> list[tuple[int, int]]:
        if all(is_free[start : start + size]):
            return [(start, size)]
        half = size // 2
        return in_block(start, half) + in_block(start + half, half) if half else []

    found, start = [], 0
    for bit in reversed(range(len(is_free).bit_length())):
        if len(is_free) >> bit & 1:
            found += in_block(start, 1 << bit)
            start += 1 << bit
    return found


class PlacementAgainstMap(RuleBasedStateMachine):
    kind = ""

    @initialize(num_slots=st.integers(1, 70))
    def begin(self, num_slots: int) -> None:
        self.placement = PLACEMENTS[self.kind](num_slots)
        self.is_free = [True] * num_slots
        self.held: list[Extent] = []

    def mark(self, extent: Extent, is_free: bool) -> None:
        assert self.is_free[extent.start : extent.end] == [not is_free] * extent.size
        self.is_free[extent.start : extent.end] = [is_free] * extent.size

    @rule(size=st.integers(1, 8) | st.integers(1, 80))
    def place(self, size: int) -> None:
        extent = self.placement.find(size)
        start = find_in_map(self.kind, self.is_free, size)
        assert extent == (None if start is None else Extent(start, size))
        if extent is not None:
            self.placement.take(extent)
            self.mark(extent, False)
            self.held.append(extent)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=st.integers(1, 12))
    def extend(self, data: st.DataObject, more: int) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        behind = Extent(self.held[at].end, more)
        slots = self.is_free[behind.start : behind.end]
        is_free = len(slots) == more and all(slots)
        assert self.placement.is_free(behind) == is_free
        if is_free:
            self.placement.take(behind)
            self.mark(behind, False)
            self.held[at] = Extent(self.held[at].start, self.held[at].size + more)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        extent = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.placement.give_back(extent)
        self.mark(extent, True)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave_in_part(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.held) - 1))
        extent = self.held[at]
        if extent.size > 1:
            kept = data.draw(st.integers(1, extent.size - 1))
            rest = Extent(extent.start + kept, extent.size - kept)
            self.placement.give_back(rest)
            self.mark(rest, True)
            self.held[at] = Extent(extent.start, kept)

    @invariant()
    def agrees(self) -> None:
        self.placement.check()
        assert self.placement.num_free == sum(self.is_free)
        pieces = free(self.placement)
        covered = [slot for start, size in pieces for slot in range(start, start + size)]
        assert covered == [slot for slot, is_free in enumerate(self.is_free) if is_free]
        if self.kind == "buddy":
            assert pieces == buddy_blocks(self.is_free)
        assert self.placement.largest_free == max((size for _start, size in pieces), default=0)
        for size in (self.placement.largest_free, self.placement.largest_free + 1):
            if size:
                assert (self.placement.find(size) is not None) == (size <= self.placement.largest_free)


def machine(kind: str) -> Any:
    return type(f"Against{kind}", (PlacementAgainstMap,), {"kind": kind}).TestCase


TestBuddyAgainstMap = machine("buddy")
TestFirstFitAgainstMap = machine("first_fit")
TestBestFitAgainstMap = machine("best_fit")


def test_every_placement_is_held_against_the_map() -> None:
    assert set(PLACEMENTS) == {"buddy", "first_fit", "best_fit"}
