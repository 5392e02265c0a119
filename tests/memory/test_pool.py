from collections.abc import Callable, Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvsim.errors import InvariantError
from kvsim.memory.eviction import EVICTION
from kvsim.memory.pool import NULL_BLOCK, BlockPool
from tests.memory.naive_eviction import NaiveCachedOrder


def make_pool(blocks: int = 8, eviction: str = "lru") -> BlockPool:
    """`blocks` blocks with the null block, so that 1 ... blocks - 1 can be taken."""
    return BlockPool(blocks, eviction)


def queue(pool: BlockPool) -> list[int]:
    pool.check()
    return list(pool.free_queue())


def take_published(pool: BlockPool, keys: list[int]) -> list[int]:
    """A table whose blocks are all full."""
    blocks = pool.take(len(keys))
    pool.publish(blocks, keys)
    return blocks


def test_the_queue_starts_in_order_without_the_null_block() -> None:
    pool = make_pool(blocks=5)
    assert NULL_BLOCK == 0
    assert queue(pool) == [1, 2, 3, 4]
    assert (pool.num_free, pool.num_blank, pool.num_cached, pool.num_keys) == (4, 4, 0, 0)


def test_blocks_are_taken_from_the_front() -> None:
    pool = make_pool()
    assert pool.take(3) == [1, 2, 3]
    assert pool.take(2) == [4, 5]
    assert queue(pool) == [6, 7]
    assert [pool.ref_count(block) for block in range(8)] == [0, 1, 1, 1, 1, 1, 0, 0]


def test_taking_nothing_changes_nothing() -> None:
    pool = make_pool()
    assert pool.take(0) == []
    assert queue(pool) == [1, 2, 3, 4, 5, 6, 7]


def test_more_than_there_is_cannot_be_taken() -> None:
    pool = make_pool()
    with pytest.raises(AssertionError, match="asked for free blocks first"):
        pool.take(8)
    assert queue(pool) == [1, 2, 3, 4, 5, 6, 7]


def test_unpublished_blocks_go_to_the_front_with_the_last_of_the_table_foremost() -> None:
    pool = make_pool()
    table = pool.take(3)
    assert pool.release(table) == 3
    assert queue(pool) == [3, 2, 1, 4, 5, 6, 7]


def test_published_blocks_go_to_the_end_with_the_tail_before_the_head() -> None:
    pool = make_pool()
    table = take_published(pool, [101, 102, 103])
    assert pool.release(table) == 3
    assert queue(pool) == [4, 5, 6, 7, 3, 2, 1]
    assert (pool.num_blank, pool.num_cached, pool.num_keys) == (4, 3, 3)


def test_a_table_with_a_partly_filled_end_is_split_between_front_and_end() -> None:
    pool = make_pool()
    table = pool.take(4)
    pool.publish(table[:2], [101, 102])
    pool.release(table)
    assert queue(pool) == [4, 3, 5, 6, 7, 2, 1]


def test_freed_tail_is_evicted_before_its_head() -> None:
    pool = make_pool(blocks=4)
    pool.release(take_published(pool, [101, 102, 103]))
    assert pool.take(1) == [3]
    assert pool.find([101, 102, 103]) == [1, 2]
    assert pool.take(1) == [2]
    assert pool.find([101, 102, 103]) == [1]


def test_blank_blocks_are_taken_before_cached_ones_freed_earlier() -> None:
    pool = make_pool(blocks=4)
    cached = take_published(pool, [101])
    blank = pool.take(2)
    pool.release(cached)
    pool.release(blank)
    assert queue(pool) == [3, 2, 1]
    assert pool.take(3) == [3, 2, 1]


def test_of_two_tables_the_one_freed_first_is_evicted_first() -> None:
    pool = make_pool(blocks=5)
    first = take_published(pool, [101, 102])
    second = take_published(pool, [201, 202])
    pool.release(second)
    pool.release(first)
    assert pool.take(4) == [4, 3, 2, 1]


def test_a_key_is_lost_only_when_its_block_is_taken() -> None:
    pool = make_pool(blocks=3)
    pool.release(take_published(pool, [101, 102]))
    assert pool.find([101, 102]) == [1, 2]
    pool.take(1)
    assert (pool.find([101, 102]), pool.num_keys) == ([1], 1)


def test_a_block_behind_an_evicted_one_stays_but_is_not_found() -> None:
    pool = make_pool(blocks=4)
    head = take_published(pool, [101])
    tail = take_published(pool, [102])
    pool.release(head)
    pool.release(tail)
    pool.take(1 + 1)  # the last blank block and the head
    assert pool.find([101, 102]) == []
    assert pool.find([102]) == tail
    assert pool.num_keys == 1


def test_a_hit_takes_blocks_out_of_the_middle_of_the_queue() -> None:
    pool = make_pool(blocks=6)
    pool.release(take_published(pool, [101, 102, 103]))
    assert queue(pool) == [4, 5, 3, 2, 1]
    assert pool.num_idle([1, 2]) == 2
    assert pool.touch([1, 2]) == 2
    assert queue(pool) == [4, 5, 3]


def test_a_hit_on_a_block_in_use_costs_no_free_block() -> None:
    pool = make_pool()
    table = take_published(pool, [101, 102])
    assert pool.num_idle(table) == 0
    assert pool.touch(table) == 0
    assert pool.ref_count(1) == 2
    assert queue(pool) == [3, 4, 5, 6, 7]


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = make_pool()
    table = take_published(pool, [101])
    pool.touch(table)
    assert pool.release(table) == 0
    assert queue(pool) == [2, 3, 4, 5, 6, 7]
    assert pool.release(table) == 1
    assert queue(pool) == [2, 3, 4, 5, 6, 7, 1]


def test_a_block_that_was_hit_takes_its_place_by_its_latest_release() -> None:
    pool = make_pool(blocks=4)
    first = take_published(pool, [101])
    second = take_published(pool, [201])
    pool.release(first)
    pool.release(second)
    pool.touch(first)
    pool.release(first)
    assert queue(pool) == [3, 2, 1]


def test_of_equal_keys_the_block_published_first_is_found() -> None:
    pool = make_pool()
    first, second, third = (take_published(pool, [101]) for _ in range(3))
    assert pool.find([101]) == first
    assert pool.num_keys == 1
    pool.release(first)
    assert pool.find([101]) == first
    pool.take(pool.num_free)  # evicts the first
    assert pool.find([101]) == second
    pool.release(third)
    pool.take(1)  # evicts the third
    assert pool.find([101]) == second
    pool.release(second)
    pool.take(1)
    assert (pool.find([101]), pool.num_keys) == ([], 0)


def test_a_duplicate_published_again_stands_behind_those_still_there() -> None:
    pool = make_pool(blocks=4)
    first, second = take_published(pool, [101]), take_published(pool, [101])
    pool.release(first)
    pool.take(2)  # the blank block, then the first, which loses the key
    pool.publish(first, [101])
    assert pool.find([101]) == second


def test_a_block_is_published_once() -> None:
    pool = make_pool()
    table = take_published(pool, [101])
    with pytest.raises(AssertionError, match="published once"):
        pool.publish(table, [102])


def test_finding_stops_at_the_first_key_that_is_missing() -> None:
    pool = make_pool()
    take_published(pool, [101, 103])
    assert pool.find([101, 102, 103]) == [1]
    assert pool.find([]) == []


def test_a_key_behind_a_gap_is_there_and_has_its_first_block() -> None:
    """Windows look for blocks anywhere, not only from the front."""
    pool = make_pool(blocks=4)
    first = take_published(pool, [101, 103])
    second = take_published(pool, [103])
    assert [pool.has(key) for key in (101, 102, 103)] == [True, False, True]
    assert (pool.first_block(101), pool.first_block(103)) == (1, 2)
    pool.release(first)
    pool.take(1)
    assert pool.first_block(103) == second[0]
    pool.release(second)
    pool.take(2)
    assert [pool.has(key) for key in (101, 102, 103)] == [False, False, False]


def test_the_null_block_is_in_no_queue() -> None:
    pool = make_pool()
    pool.release(take_published(pool, [101, 102]))
    assert pool.num_idle([NULL_BLOCK, 1, NULL_BLOCK, 2]) == 2


def test_finding_changes_nothing() -> None:
    pool = make_pool()
    pool.release(take_published(pool, [101, 102]))
    before = queue(pool)
    pool.find([101, 102])
    pool.has(101)
    pool.first_block(102)
    pool.num_idle([1, 2])
    assert queue(pool) == before
    assert pool.ref_count(1) == 0


@pytest.mark.parametrize(
    ("damage", "number", "finds"),
    [
        (lambda pool: pool._blank.append(NULL_BLOCK), 1, "the null block is free"),
        (lambda pool: pool._cached.add([NULL_BLOCK]), 1, "the null block is free"),
        (lambda pool: pool._ref_counts.__setitem__(NULL_BLOCK, 1), 1, "the null block is referenced"),
        (lambda pool: pool._ref_counts.__setitem__(7, 1), 2, "block 7 is free and referenced, or neither"),
        (lambda pool: pool._blank.remove(7), 2, "block 7 is free and referenced, or neither"),
        (lambda pool: pool._cached.remove([1]), 2, "block 1 is free and referenced, or neither"),
        (lambda pool: pool._blank.append(7), 3, "a block is in the free queue twice"),
        (lambda pool: pool._cached.add([7]), 3, "a block is in the free queue twice"),
        (lambda pool: pool._keys.__setitem__(7, 999), 4, "blank block 7 has a key"),
        (lambda pool: pool._keys.__setitem__(1, None), 4, "cached block 1 has no key"),
        (lambda pool: pool._first_block.update({999: 6}), 5, "keys are not listed under their blocks"),
        (lambda pool: pool._first_block.clear(), 5, "keys are not listed under their blocks"),
        (lambda pool: pool._keys.__setitem__(1, 999), 5, "keys are not listed under their blocks"),
        (lambda pool: pool._later_blocks.update({101: [6]}), 5, "keys are not listed under their blocks"),
        (lambda pool: pool._later_blocks.update({101: []}), 5, "key 101 has later blocks only, or an empty list"),
        (lambda pool: pool._later_blocks.update({999: [6]}), 5, "key 999 has later blocks only, or an empty list"),
    ],
)
def test_check_finds_damage(damage: Callable[[BlockPool], object], number: int, finds: str) -> None:
    pool = make_pool()
    pool.release(take_published(pool, [101]))
    pool.check()
    damage(pool)
    with pytest.raises(InvariantError, match=f"^invariant {number} does not hold: {finds}$") as caught:
        pool.check()
    assert caught.value.number == number


class PoolAgainstCounts(RuleBasedStateMachine):
    """Random takes, hits, publications and releases against plain dicts and lists.

    References are pins: a block that someone holds is neither free nor loses its key.
    """

    eviction = "lru"

    @initialize(blocks=st.integers(2, 12))
    def make(self, blocks: int) -> None:
        self.pool = make_pool(blocks, self.eviction)
        self.order = NaiveCachedOrder(self.eviction)
        self.refs = dict.fromkeys(range(1, blocks), 0)
        self.keys: dict[int, int] = {}
        self.publications: list[int] = []  # blocks with a key, published first first
        self.blank = list(range(1, blocks))
        self.tables: list[list[int]] = []

    @property
    def queue(self) -> list[int]:
        return self.blank + self.order.cached()

    def tables_to_publish(self) -> Iterator[int]:
        return (index for index, table in enumerate(self.tables) if self.keyless(table))

    def keyless(self, table: list[int]) -> list[int]:
        return [block for block in table if block not in self.keys]

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.queue)))
        expected = self.queue[:count]
        assert self.pool.take(count) == expected
        self.blank = self.blank[count:]
        for block in expected:
            self.refs[block] = 1
            if self.keys.pop(block, None) is not None:
                self.publications.remove(block)
                self.order.evict(block)
        if expected:
            self.tables.append(expected)

    @precondition(lambda self: list(self.tables_to_publish()))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """The next block of some table becomes full; few keys, so that many are equal."""
        table = self.tables[data.draw(st.sampled_from(list(self.tables_to_publish())))]
        block = self.keyless(table)[0]
        key = data.draw(st.integers(0, 3))
        self.pool.publish([block], [key])
        self.keys[block] = key
        self.publications.append(block)
        self.order.publish([block])

    @rule(keys=st.lists(st.integers(0, 3), max_size=3, unique=True))
    def hit(self, keys: list[int]) -> None:
        expected = []
        for key in keys:
            carriers = [block for block in self.publications if self.keys[block] == key]
            if not carriers:
                break
            expected.append(carriers[0])
        assert self.pool.find(keys) == expected
        idle = [block for block in expected if block in self.queue]
        assert self.pool.num_idle(expected) == len(idle)
        assert self.pool.touch(expected) == len(idle)
        for block in expected:
            self.refs[block] += 1
        self.order.hit(expected)
        if expected:
            self.tables.append(expected)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        to_front, to_end = [], []
        for block in reversed(table):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                (to_end if block in self.keys else to_front).append(block)
        self.blank = to_front + self.blank
        self.order.release(to_end)
        assert self.pool.release(table) == len(to_front) + len(to_end)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        assert {block: self.pool.ref_count(block) for block in self.refs} == self.refs
        assert list(self.pool.free_queue()) == self.queue
        assert self.pool.num_cached == sum(block in self.keys for block in self.queue)
        assert self.pool.num_blank == len(self.queue) - self.pool.num_cached
        assert self.pool.num_keys == len(set(self.keys.values()))


@pytest.mark.parametrize("eviction", EVICTION)
def test_the_pool_against_counts_and_lists(eviction: str) -> None:
    machine = type("PoolAgainstCountsWith" + eviction, (PoolAgainstCounts,), {"eviction": eviction})
    run_state_machine_as_test(machine)
