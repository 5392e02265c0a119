"""What every allocator keeps, whatever it gives out: one contract, over all of them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.memory.allocator import Allocator
from kvsim.memory.contiguous import RESERVE, Prediction, ReservingAllocator
from kvsim.memory.extents import PLACEMENTS
from kvsim.memory.groups import LayerGroup
from kvsim.memory.paged import PagedAllocator
from kvsim.model.attention import Attention
from tests.makers import make_request

MAX_MODEL_LEN = 24
TOKEN_BYTES = 3


def paged(block_size: int, prefix_sharing: bool) -> Callable[[int], Allocator]:
    """So many slots are usable at least, in blocks that have some bytes to spare."""

    def make(num_slots: int) -> Allocator:
        groups = (LayerGroup(token_bytes=TOKEN_BYTES),)
        num_blocks = 1 + -(-num_slots // block_size)
        return PagedAllocator(
            num_blocks, block_size, prefix_sharing, groups=groups, block_bytes=block_size * TOKEN_BYTES + 2
        )

    return make


def hybrid(num_slots: int) -> Allocator:
    groups = (LayerGroup(token_bytes=2), LayerGroup(Attention("sliding_window", 6), token_bytes=1))
    return PagedAllocator(2 + num_slots // 2, 4, True, groups=groups, block_bytes=8, retention_interval=None)


def reserving(reserve: str, placement: str) -> Callable[[int], Allocator]:
    def make(num_slots: int) -> Allocator:
        return ReservingAllocator(
            num_slots, reserve, placement, MAX_MODEL_LEN, token_bytes=TOKEN_BYTES, prediction=Prediction(0.8)
        )

    return make


ALLOCATORS: dict[str, Callable[[int], Allocator]] = {
    **{f"paged {size}": paged(size, True) for size in (1, 4, 16)},
    "paged 4, not shared": paged(4, False),
    "hybrid": hybrid,
    **{f"{reserve}, {placement}": reserving(reserve, placement) for reserve in RESERVE for placement in PLACEMENTS},
}


class Users:
    """Requests of an allocator, which is asked, told and recounted; whatever it says, the contract is held."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.running: dict[int, int] = {}
        self.requests = [
            make_request(id, shared=4 * (id % 3), own=1 + id % 7, output=1 + 5 * id % 11) for id in range(40)
        ]
        self.pool_blocks = sum(allocator.occupancy()[:3])
        self.check()

    def last(self, id: int) -> int:
        """Tokens that it ever computes."""
        request = self.requests[id]
        return min(request.prompt_tokens + request.output_tokens, MAX_MODEL_LEN) - 1

    def admit(self, id: int, chunk: int, gated: bool, spare: int) -> None:
        request, allocator = self.requests[id], self.allocator
        before = self.seen()
        hit = allocator.find_hit(request, request.prompt_tokens)
        assert hit.num_tokens < request.prompt_tokens
        num_tokens = min(request.prompt_tokens, hit.num_tokens + chunk)
        asked = request, hit, num_tokens, request.prompt_tokens if gated else None, spare
        assert self.seen() == before, "a question changes nothing"
        if allocator.admit(*asked):
            self.running[id] = num_tokens
        else:
            shortfall = allocator.why_not_admitted(*asked)
            assert self.seen() == before, "neither does a refused action"
            occupancy = allocator.occupancy()
            assert (shortfall.blank, shortfall.evictable) == (occupancy.blank_blocks, occupancy.cached_blocks)
            free = shortfall.blank + shortfall.evictable
            assert shortfall.missing == max(0, shortfall.need - free)
            assert (shortfall.missing == 0) == (shortfall.least_change == "extent")
        self.check()

    def grow(self, id: int, more: int) -> None:
        request, allocator = self.requests[id], self.allocator
        num_tokens = min(self.running[id] + more, self.last(id))
        before = self.seen()
        if allocator.grow(request, num_tokens):
            self.running[id] = num_tokens
        else:
            assert allocator.why_not_grown(request, num_tokens).need > 0
            assert self.seen()[1] == before[1], "it holds what it held"
        self.check()

    def leave(self, id: int) -> None:
        del self.running[id]
        self.allocator.free(self.requests[id])
        self.check()

    def seen(self) -> object:
        return self.allocator.occupancy(), self.allocator.held_tokens(), self.allocator.moved_bytes

    def check(self) -> None:
        allocator, occupancy = self.allocator, self.allocator.occupancy()
        allocator.check()
        assert allocator.held_tokens() == self.running
        assert sum(occupancy[:3]) == self.pool_blocks
        assert min(occupancy) >= 0
        assert occupancy.external_bytes == 0, "it is known where the head of the queue is tried"
        assert occupancy.logical_bytes == sum(self.running.values()) * allocator.token_bytes
        assert occupancy.live_bytes <= occupancy.logical_bytes
        self.check_map()
        if not self.running:
            assert occupancy[0] == 0
            assert not any(occupancy[3:])

    def check_map(self) -> None:
        """Blocks by state are those that are counted, and everybody who runs, and nobody else, holds some."""
        occupancy, runs = self.allocator.occupancy(), self.allocator.block_map(7).runs

        def count(*states: str) -> int:
            return sum(block_run.num_blocks for block_run in runs if block_run.state in states)

        assert count("held", "reserved", "unused") == occupancy.allocated_blocks
        assert (count("cached"), count("blank")) == (occupancy.cached_blocks, occupancy.blank_blocks)
        assert count("reserved") * TOKEN_BYTES == occupancy.reserved_bytes
        assert count("unused") * TOKEN_BYTES == occupancy.unused_bytes
        assert {id for block_run in runs for id in block_run.request_ids} == set(self.running)
        if len(getattr(self.allocator, "groups", "1")) == 1:  # else slots are not all of one size
            written = sum(block_run.written_tokens for block_run in runs if block_run.state == "held")
            assert written * TOKEN_BYTES == occupancy.live_bytes


@pytest.mark.parametrize("name", ALLOCATORS)
@given(data=st.data())
def test_every_allocator_keeps_the_contract(name: str, data: st.DataObject) -> None:
    users = Users(ALLOCATORS[name](data.draw(st.integers(1, 70), "slots")))
    coming = iter(range(len(users.requests)))
    for _ in range(data.draw(st.integers(0, 40), "actions")):
        action = data.draw(st.sampled_from(["admit", "admit", "grow", "grow", "leave"]))
        if action == "admit":
            id = next(coming, None)
            if id is not None:
                chunk = data.draw(st.integers(1, 20))
                users.admit(id, chunk, data.draw(st.booleans()), data.draw(st.sampled_from([0, 0, 3])))
        elif users.running:
            id = data.draw(st.sampled_from(sorted(users.running)))
            if action == "grow":
                users.grow(id, data.draw(st.integers(0, 5)))
            else:
                users.leave(id)
    for id in list(users.running):
        users.leave(id)


@pytest.mark.parametrize("name", ALLOCATORS)
def test_slack_is_what_is_reserved_unused_padding_or_the_tail_of_a_block(name: str) -> None:
    """One request with 6 + 9 tokens, token by token: the tail is less than a block, where there are blocks at all."""
    users = Users(ALLOCATORS[name](200))
    request = users.requests[13] = make_request(13, own=6, output=9)
    users.admit(13, 6, True, 0)
    block_bytes = getattr(users.allocator, "block_bytes", TOKEN_BYTES)
    for _ in range(8):
        users.grow(13, 1)
        occupancy = users.allocator.occupancy()
        slack = occupancy.allocated_blocks * block_bytes - occupancy.live_bytes
        tail = slack - occupancy.reserved_bytes - occupancy.unused_bytes - occupancy.padding_bytes
        if isinstance(users.allocator, ReservingAllocator):
            assert tail == 0
        else:
            assert occupancy.reserved_bytes == occupancy.unused_bytes == 0
            assert 0 <= tail < 2 * block_bytes
    assert users.running[13] == request.prompt_tokens + request.output_tokens - 1
    assert users.allocator.occupancy().reserved_bytes == 0 or name.startswith("predicted")


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("num_slots", [3, 9, 20, 30])
def test_what_fits_an_empty_pool_is_served_alone(name: str, num_slots: int) -> None:
    """Preempted once on the way, whatever is left in the cache."""
    for id in range(40):
        users = Users(ALLOCATORS[name](num_slots))
        request = users.requests[id]
        if not users.allocator.fits_empty_pool(request.prompt_tokens, users.last(id)):
            assert not users.allocator.fits_all_up_to(request.prompt_tokens + request.output_tokens)
            continue
        for _ in range(2):
            users.admit(id, request.prompt_tokens, True, 0)
            while users.running[id] < users.last(id):
                before = users.running[id]
                users.grow(id, 1)
                if users.running[id] == before:
                    users.leave(id)
                    users.running[id] = before
                    hit = users.allocator.find_hit(request, before + 1)
                    assert users.allocator.admit(request, hit, before + 1, before + 1, 0)
                    users.running[id] = before + 1
            users.leave(id)
