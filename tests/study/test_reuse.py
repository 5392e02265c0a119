"""Distances and the best evictions, against naive counts."""

from functools import cache

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvsim.study.reuse import NEVER, most_hits, stack_distances, touched_before

keys = st.lists(st.integers(0, 9), max_size=60)
prompts = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True), max_size=7)


def test_the_distance_is_the_number_of_different_keys_in_between() -> None:
    before = touched_before(np.array([7, 8, 9, 8, 8, 7]))
    assert before.tolist() == [-1, -1, -1, 1, 3, 0]
    assert stack_distances(before).tolist() == [NEVER, NEVER, NEVER, 1, 0, 2]


def test_no_touches_have_no_distances() -> None:
    assert stack_distances(touched_before(np.array([], dtype=np.int64))).tolist() == []


@given(keys)
def test_distances_are_those_of_a_naive_count(touched: list[int]) -> None:
    distances = stack_distances(touched_before(np.array(touched, dtype=np.int64))).tolist()
    for index, key in enumerate(touched):
        earlier = [at for at in range(index) if touched[at] == key]
        expected = len(set(touched[earlier[-1] + 1 : index])) if earlier else NEVER
        assert distances[index] == expected


@given(keys, st.integers(1, 4))
def test_the_optimum_tries_every_victim_one_touch_at_a_time(touched: list[int], capacity: int) -> None:
    touched = touched[:12]

    @cache
    def best(index: int, held: frozenset[int]) -> int:
        if index == len(touched):
            return 0
        key = touched[index]
        if key in held:
            return 1 + best(index + 1, held)
        if len(held) < capacity:
            return best(index + 1, held | {key})
        return max(best(index + 1, held - {victim} | {key}) for victim in held)

    before = touched_before(np.array(touched, dtype=np.int64))
    assert most_hits(before, [], capacity, at_once=False) == best(0, frozenset())


@given(prompts, st.integers(1, 4))
def test_the_optimum_tries_all_that_prompts_may_leave(asked: list[list[int]], capacity: int) -> None:
    @cache
    def best(index: int, held: frozenset[int]) -> int:
        if index == len(asked):
            return 0
        found = held & set(asked[index])
        return len(found) + max(best(index + 1, left) for left in subsets(held | set(asked[index]), capacity))

    groups = [0]
    for prompt in asked:
        groups.append(groups[-1] + len(prompt))
    before = touched_before(np.array([key for prompt in asked for key in prompt], dtype=np.int64))
    assert most_hits(before, groups, capacity, at_once=True) == best(0, frozenset())


@cache
def subsets(held: frozenset[int], size: int) -> tuple[frozenset[int], ...]:
    """The largest subsets of at most so many members; fewer are never better."""
    if len(held) <= size:
        return (held,)
    return tuple({subset for member in held for subset in subsets(held - {member}, size)})
