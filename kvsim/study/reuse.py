"""How far apart two uses of a block lie, and which reuses a policy serves, and which the best of all evictions could.

A trace is seen as touches: one array of block keys, in the order in which blocks are used.

    key      a   b   c   b   a
    index    0   1   2   3   4
    before  -1  -1  -1   1   0        where the same key was touched before
    distance         -   1   2        different keys touched since then

An LRU cache of C blocks has a block that comes again if and only if its distance is less than C, so that the
distances of one pass answer for every capacity.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kvsim.memory.eviction import EvictionPolicy

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEVER = 2**62
"""The distance of a block that comes for the first time: no cache has it."""


def touched_before(keys: Ints) -> Ints:
    """For each touch the index of the last touch of the same key before it, -1 for the first."""
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    before = np.full(len(keys), -1, dtype=np.int64)
    before[order[1:][same]] = order[:-1][same]
    return before


def stack_distances(before: Ints) -> Ints:
    """For each touch the number of different keys since the last touch of its key; NEVER for a first touch.

    Of the touches between the two, those whose own last touch lies between them as well repeat a key and are taken
    off: they are the earlier touches t' with before[t'] > before[t].
    """
    again = np.flatnonzero(before >= 0)
    since = before[again]
    distances = np.full(len(before), NEVER, dtype=np.int64)
    distances[again] = again - since - 1 - _earlier_and_greater(since)
    return distances


def _earlier_and_greater(values: Ints) -> Ints:
    """For each of some different values, how many that stand before it are greater; O(log n) for each.

    The ranks of the values are sorted bit by bit from the top. While equal so far, they stand together in their old
    order, from position (rank without its lower bits) on; where two part, the pair is counted if the one came first.
    """
    count = len(values)
    ranks = np.empty(count, dtype=np.int64)
    ranks[np.argsort(values)] = np.arange(count)
    greater = np.zeros(count, dtype=np.int64)
    now, place = ranks, np.arange(count)
    for bit in reversed(range(max(count - 1, 0).bit_length())):
        start = now >> (bit + 1) << (bit + 1)
        one = now >> bit & 1
        ones = np.concatenate(([0], np.cumsum(one)))
        ones_before = ones[:-1] - ones[start]
        greater += np.where(one, 0, ones_before)
        goes_to = start + np.where(one, (1 << bit) + ones_before, place - start - ones_before)
        moved, moved_greater = np.empty_like(now), np.empty_like(greater)
        moved[goes_to], moved_greater[goes_to] = now, greater
        now, greater = moved, moved_greater
    return greater[ranks]


def found_under(order: EvictionPolicy, keys: Ints, groups: Sequence[int], capacity: int) -> Bools:
    """For each touch whether its block is there when its request comes, in a cache of `capacity` blocks.

    `order` is new. A request finds all of its blocks that are there, makes room for the others out of blocks that it
    has no use for, and lets go of its table last block first. Only of a request that is longer than the cache does
    anything go that has just been used.
    """
    there: set[int] = set()
    found: list[bool] = []
    touched = keys.tolist()
    for start, end in pairwise(groups):
        table = touched[start:end]
        is_there = [key in there for key in table]
        found += is_there
        hit = [key for key, known in zip(table, is_there, strict=True) if known]
        missing = [key for key, known in zip(table, is_there, strict=True) if not known]
        order.hit(hit)
        order.remove(hit)
        order.publish(missing)
        there.update(missing)
        there.difference_update(order.pop(min(len(order), max(0, len(there) - capacity))))
        order.add(table[::-1])
        there.difference_update(order.pop(max(0, len(there) - capacity)))
    return np.array(found, dtype=np.bool_)


def most_hits(before: Ints, groups: Sequence[int], capacity: int, *, at_once: bool, counts: Bools | None = None) -> int:
    """Hits of the best evictions there could be (Belady's): of two blocks, let go of the one needed later.

    `groups` says where each request's touches begin, and where the last one's end. Touched one by one, a block takes
    a place of the capacity while it is touched. `at_once`, a request finds what is there when it comes, whole, and
    what it leaves may be any `capacity` blocks; evicting the deeper of two that are needed by the same request keeps
    that a prefix of every prompt, so that the rule that only prefixes are hit costs nothing.

    `counts` says which touches may be hits, else all; the others bring their block into the cache all the same. Those
    of a request that may be must come before its others, for the prefixes' sake.
    """
    if capacity < 1:
        return 0
    last_uses = before.tolist()
    may_hit = [True] * len(last_uses) if counts is None else counts.tolist()
    following = [0] * len(last_uses)
    for index, last in enumerate(last_uses):
        if last >= 0 and may_hit[index]:
            following[last] = index
    steps = groups if at_once else range(len(last_uses) + 1)
    spare = capacity if at_once else capacity - 1
    kept = bytearray(len(last_uses) + 1)
    latest: list[int] = []
    held = hits = 0
    for start, end in pairwise(steps):
        found = sum(kept[start:end])
        hits += found
        held -= found
        while held > spare:
            kept[-heappop(latest)] = 0
            held -= 1
        for needed in following[start:end]:
            if needed:
                kept[needed] = 1
                heappush(latest, -needed)
                held += 1
        while held > capacity:
            kept[-heappop(latest)] = 0
            held -= 1
    return hits
