"""The host pool against a plain dict of what is there."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvsim.memory.host_pool import HostPool, SwappedOut


def test_all_blocks_of_a_request_or_none() -> None:
    pool = HostPool(5)
    assert pool.put(1, SwappedOut(12, (0,), 3))
    assert not pool.put(2, SwappedOut(12, (0,), 3))
    assert (pool.num_used, pool.moved_out, pool.held_tokens()) == (3, 3, {1: 12})
    assert pool.put(2, SwappedOut(5, (0,), 2))
    assert pool.num_used == 5
    pool.check()


def test_what_does_not_move_back_is_dropped() -> None:
    pool = HostPool(5)
    pool.put(1, SwappedOut(12, (0,), 3))
    assert pool.get(1) == SwappedOut(12, (0,), 3)
    assert pool.give_back(1, 2) == 1
    assert (pool.num_used, pool.moved_out, pool.moved_in, pool.dropped) == (0, 3, 2, 1)
    assert pool.get(1) is None
    pool.check()


@pytest.mark.parametrize("num_blocks", [1, 2, 100])
def test_a_pool_of_no_blocks_takes_nothing(num_blocks: int) -> None:
    pool = HostPool(0)
    assert not pool.put(1, SwappedOut(4 * num_blocks, (0,), num_blocks))
    assert (pool.num_used, pool.moved_out) == (0, 0)


class Blocks(RuleBasedStateMachine):
    """Requests come and go at random; bytes are never lost."""

    @initialize(num_blocks=st.integers(0, 20))
    def begin(self, num_blocks: int) -> None:
        self.pool = HostPool(num_blocks)
        self.there: dict[int, int] = {}
        self.out = self.back = self.dropped = self.next_id = 0

    @rule(num_blocks=st.integers(0, 8))
    def put(self, num_blocks: int) -> None:
        fits = sum(self.there.values()) + num_blocks <= self.pool.num_blocks
        assert self.pool.put(self.next_id, SwappedOut(4 * num_blocks, (0,), num_blocks)) == fits
        if fits:
            self.there[self.next_id] = num_blocks
            self.out += num_blocks
        self.next_id += 1

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        if not self.there:
            return
        id = data.draw(st.sampled_from(sorted(self.there)))
        num_blocks = self.there.pop(id)
        num_moved = data.draw(st.integers(0, num_blocks))
        assert self.pool.give_back(id, num_moved) == num_blocks - num_moved
        self.back += num_moved
        self.dropped += num_blocks - num_moved

    @invariant()
    def agrees(self) -> None:
        pool = self.pool
        pool.check()
        assert pool.held_tokens() == {id: 4 * num_blocks for id, num_blocks in self.there.items()}
        counted = pool.num_used, pool.moved_out, pool.moved_in, pool.dropped
        assert counted == (sum(self.there.values()), self.out, self.back, self.dropped)


TestBlocks = Blocks.TestCase


@given(st.integers(0, 9), st.integers(0, 9))
def test_no_more_comes_back_than_there_is(num_blocks: int, num_moved: int) -> None:
    pool = HostPool(9)
    pool.put(1, SwappedOut(4 * num_blocks, (0,), num_blocks))
    if num_moved > num_blocks:
        with pytest.raises(AssertionError):
            pool.give_back(1, num_moved)
    else:
        assert pool.give_back(1, num_moved) == num_blocks - num_moved
