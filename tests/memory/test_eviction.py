"""One contract for all eviction policies, and the order that each of them is named after."""

from collections.abc import Callable

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

from kvsim.memory.eviction import EVICTION, EvictionPolicy
from kvsim.memory.pool import BlockPool
from tests.memory.naive_eviction import FIRST_TO_GO, NaiveCachedOrder

every_policy = pytest.mark.parametrize("policy", EVICTION)


def test_every_policy_has_a_naive_judge() -> None:
    assert list(FIRST_TO_GO) == list(EVICTION)


def let_go(*tables: list[int], policy: str) -> EvictionPolicy:
    """Tables whose blocks were found for the first time and let go of, one after the other."""
    order = EVICTION[policy]()
    for table in tables:
        order.publish(table)
    for table in tables:
        order.add(table[::-1])
    return order


@every_policy
def test_a_policy_begins_with_nothing(policy: str) -> None:
    order = EVICTION[policy]()
    assert (len(order), list(order), order.pop(0)) == (0, [], [])


@every_policy
def test_blocks_go_in_the_order_that_was_told(policy: str) -> None:
    order = let_go([1, 2, 3], [4, 5], [6], policy=policy)
    told = list(order)
    assert sorted(told) == [1, 2, 3, 4, 5, 6]
    assert order.pop(2) == told[:2]
    assert list(order) == told[2:]
    assert order.pop(4) == told[2:]
    assert len(order) == 0


@every_policy
def test_asking_changes_nothing(policy: str) -> None:
    order = let_go([1, 2, 3], policy=policy)
    assert (list(order), len(order)) == (list(order), 3)


@every_policy
def test_a_block_that_is_held_does_not_go(policy: str) -> None:
    order = let_go([1, 2, 3], policy=policy)
    order.hit([1, 2])
    order.remove([1, 2])
    assert (len(order), order.pop(1), len(order)) == (1, [3], 0)


@every_policy
def test_a_block_comes_back_as_if_it_had_never_been_there(policy: str) -> None:
    order = let_go([1, 2], policy=policy)
    for _ in range(3):
        order.hit([1, 2])
        order.remove([1, 2])
        order.add([2, 1])
    order.pop(2)
    order.publish([2])
    order.publish([1])
    order.add([2])
    order.add([1])
    assert order.pop(2) == [2, 1]


def after_hits(policy: str) -> list[int]:
    """Table 1, 2, 3 is let go of, then 4, 5; the first two blocks of the first are hit, twice, then 4 once."""
    order = let_go([1, 2, 3], [4, 5], policy=policy)
    for found in ([1, 2], [1, 2], [4]):
        order.hit(found)
        order.remove(found)
        order.add(found[::-1])
    return list(order)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("lru", [3, 5, 2, 1, 4]),
        ("fifo", [1, 2, 3, 4, 5]),
        ("lfu", [3, 5, 4, 2, 1]),
        ("tail_last_lru", [3, 5, 1, 2, 4]),
    ],
)
def test_the_order_is_that_of_the_name(policy: str, expected: list[int]) -> None:
    assert after_hits(policy) == expected


def test_a_hit_on_a_block_in_use_counts_too() -> None:
    order = EVICTION["lfu"]()
    order.publish([1, 2])
    order.hit([1])  # while its first holder still has it
    order.add([2, 1])
    order.publish([3])
    order.add([3])
    assert list(order) == [2, 3, 1]


def test_ranks_that_nobody_has_any_more_do_not_pile_up() -> None:
    order = let_go([1, 2], policy="lfu")
    for _ in range(1000):
        order.hit([1])
        order.remove([1])
        order.add([1])
    assert len(order._heap) <= 2 * 2 + 16  # type: ignore[attr-defined]
    assert order.pop(2) == [2, 1]


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ("lru", [1, 2]),
        ("fifo", []),
        ("lfu", [1, 2]),
        ("tail_last_lru", []),
    ],
)
def test_a_chain_whose_head_is_gone_is_not_found(policy: str, found: list[int]) -> None:
    """One block of three is evicted: what is left of the chain, and what of it can be found."""
    pool = BlockPool(4, policy)
    table = pool.take(3)
    pool.publish(table, [101, 102, 103])
    pool.release(table)
    pool.take(1)
    assert pool.num_keys == 2
    assert pool.find([101, 102, 103]) == found


def test_content_that_comes_back_stands_behind_what_is_left_of_it() -> None:
    """The head goes, the tail stays; the prompt is computed again, and hit whole with the old tail behind a new head."""
    pool = BlockPool(8, "fifo")
    first = pool.take(3)
    pool.publish(first, [101, 102, 103])
    pool.release(first)
    pool.take(4)
    assert pool.take(1) == [first[0]]
    assert pool.find([101, 102, 103]) == []
    pool.release([first[0]])
    again = pool.take(1)
    pool.publish(again, [101])
    assert pool.find([101, 102, 103]) == [again[0], first[1], first[2]]
    pool.check()


class OrderAgainstSorting(RuleBasedStateMachine):
    """Random publications, hits, releases and evictions of a handful of blocks, some of which are held several times."""

    policy = "lru"

    @initialize()
    def make(self) -> None:
        self.order = EVICTION[self.policy]()
        self.naive = NaiveCachedOrder(self.policy)
        self.holders: dict[int, int] = {}

    def held(self) -> list[int]:
        return [block for block, holders in self.holders.items() if holders]

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        """Of a table that one request holds; blocks that went may come back under their number."""
        free = [block for block in range(1, 10) if block not in self.holders][:count]
        self.order.publish(free)
        self.naive.publish(free)
        self.holders.update(dict.fromkeys(free, 1))

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def hit(self, data: st.DataObject) -> None:
        found = data.draw(st.lists(st.sampled_from(sorted(self.holders)), unique=True, max_size=4))
        self.order.hit(found)
        self.order.remove([block for block in found if not self.holders[block]])
        self.naive.hit(found)
        for block in found:
            self.holders[block] += 1

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = data.draw(st.lists(st.sampled_from(self.held()), unique=True, max_size=4))
        for block in table:
            self.holders[block] -= 1
        idle = [block for block in table if not self.holders[block]]
        self.order.add(idle)
        self.naive.release(idle)

    @rule(data=st.data())
    def pop(self, data: st.DataObject) -> None:
        expected = self.naive.cached()[: data.draw(st.integers(0, 5))]
        assert self.order.pop(len(expected)) == expected
        for block in expected:
            self.naive.evict(block)
            del self.holders[block]

    @invariant()
    def agrees(self) -> None:
        expected = self.naive.cached()
        assert list(self.order) == expected
        assert len(self.order) == len(expected)


@every_policy
def test_a_policy_against_sorting_everything(policy: str) -> None:
    machine: Callable[[], OrderAgainstSorting] = type("Order_" + policy, (OrderAgainstSorting,), {"policy": policy})
    run_state_machine_as_test(machine)
