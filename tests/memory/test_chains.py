"""Chains of blocks, in worlds so small that every key can be written out, and against real blocks in random ones.

A token is a letter, and a key is told by all letters up to its end: with 2 slots to a block the text "abcdef" has the
keys "ab", "abcd" and "abcdef". Blocks have 2 slots unless a test says otherwise.
"""

import pytest
from hypothesis import settings
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
from kvsim.memory.allocator import Hit, Occupancy, Shortfall
from kvsim.memory.chains import ChainAllocator
from kvsim.memory.groups import LayerGroup
from kvsim.memory.paged import PagedAllocator
from kvsim.memory.prefix import Node
from kvsim.workload.request import Request
from tests.memory.makers import Asker, Pool, cached_order, check_in_a_copy, content, make_pool, text_of


def is_contested(asker: Asker) -> list[bool]:
    return [chain.copies is not None for chain, _end in asker.holder.path]


# counts


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_a_block_begun_is_a_block(tokens: int, blocks: int) -> None:
    assert make_pool(block_size=4).allocator.blocks_for(tokens) == blocks


def test_the_null_block_is_not_usable() -> None:
    allocator = ChainAllocator(10, 2, True)
    assert (allocator.num_usable, allocator.num_blank, allocator.num_cached, allocator.num_free) == (9, 9, 0, 9)


@pytest.mark.parametrize(("prompt", "tokens", "fits"), [(18, 18, True), (1, 19, False), (19, 1, False), (18, 1, True)])
def test_what_fits_the_empty_pool_has_room_for_prompt_and_length(prompt: int, tokens: int, fits: bool) -> None:
    assert make_pool(9).allocator.fits_empty_pool(prompt, tokens) is fits


def test_levels_close_over_a_life() -> None:
    """A token has 3 bytes and a block 2 more than its tokens. Somebody else holds 2 of the 3 blocks."""
    pool = make_pool(9, token_bytes=3, block_bytes=8)
    occupancy = pool.allocator.occupancy
    assert occupancy() == Occupancy(0, 0, 9, 0, 0, 0, 0)
    first = pool.start("abcde", "fgh")
    assert occupancy() == Occupancy(3, 0, 6, 5 * 3, 3 * 2, 5 * 3, 0)
    second = pool.start("abcdx", "yzw")
    assert occupancy() == Occupancy(4, 0, 5, 6 * 3, 4 * 2, 10 * 3, 0)
    pool.tick()
    assert occupancy() == Occupancy(4, 0, 5, 8 * 3, 4 * 2, 12 * 3, 0)
    pool.tick()
    assert occupancy() == Occupancy(6, 0, 3, 10 * 3, 6 * 2, 14 * 3, 0)
    pool.leave(first)
    assert occupancy() == Occupancy(4, 1, 4, 7 * 3, 4 * 2, 7 * 3, 0)
    pool.leave(second)
    assert occupancy() == Occupancy(0, 4, 5, 0, 0, 0, 0)
    pool.admit(pool.ask("abcd", "e"))
    assert occupancy() == Occupancy(2, 3, 4, 4 * 3, 2 * 2, 4 * 3, 0)


def test_without_sharing_counts_are_enough() -> None:
    pool = make_pool(9, prefix_sharing=False, token_bytes=3)
    asker = pool.start("abc", "def")
    assert pool.found(asker) == (0, 0)
    pool.tick(2)
    assert pool.allocator.occupancy() == Occupancy(3, 0, 6, 15, 0, 15, 0)
    same = pool.start("abc", "def")
    assert pool.allocator.occupancy() == Occupancy(5, 0, 4, 24, 0, 24, 0)
    pool.leave(asker, same)
    assert pool.allocator.occupancy() == Occupancy(0, 0, 9, 0, 0, 0, 0)
    assert pool.chains == [""]


def test_a_shortfall_says_what_there_is_and_what_is_missing() -> None:
    """Of 6 blocks 2 are held, with 1 slot empty; 2 are cached and 2 blank."""
    pool = make_pool(6, "abcd", token_bytes=3, block_bytes=8)
    pool.admit(pool.ask("xyz"))
    assert pool.free == (2, 2)
    assert pool.allocator.shortfall(7, "gate") == Shortfall(7, 2, 2, 3, 2 * 8 - 3 * 3, "gate")


@pytest.mark.parametrize(("taken", "blank", "evictable"), [(1, 1, 2), (2, 0, 2), (3, 0, 1), (4, 0, 0)])
def test_a_shortfall_after_more_has_been_taken_and_written(taken: int, blank: int, evictable: int) -> None:
    """Blank blocks are gone first."""
    pool = make_pool(6, "abcd", token_bytes=3, block_bytes=8)
    pool.admit(pool.ask("xyz"))
    slack_bytes = (2 + taken) * 8 - (3 + 5) * 3
    assert pool.allocator.shortfall(9, "blocks", taken, 5) == Shortfall(
        9, blank, evictable, 9 - blank - evictable, slack_bytes, "blocks"
    )
    assert pool.free == (2, 2)


# look-ups


@pytest.mark.parametrize(("known", "found"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2), (7, 3), (8, 3), (9, 3)])
def test_whole_blocks_are_found_and_never_the_last_token(known: int, found: int) -> None:
    """Rule 18. All 3 blocks of "abcdef" are there."""
    pool = make_pool(9, "abcdef")
    assert pool.found(pool.ask("abcdefghi"[:known])) == (found, 0)


def test_a_look_up_goes_on_from_chain_to_chain_and_ends_at_the_first_block_that_is_missing() -> None:
    pool = make_pool(20, "abcdefgh", "abcdxyzw", "abcdxyuv")
    assert pool.chains == ["abcdefgh.", "abcdxyzw.", "abcdxyuv."]
    assert pool.found(pool.ask("abcdxyuvk")) == (4, 0)
    assert pool.found(pool.ask("abcdxyu")) == (3, 0)
    assert pool.found(pool.ask("abcdxyqqq")) == (3, 0)
    assert pool.found(pool.ask("abcdqqqqq")) == (2, 0)
    assert pool.found(pool.ask("abcqqqqqq")) == (1, 0)
    assert pool.found(pool.ask("aqqqqqqqq")) == (0, 0)


def test_a_look_up_names_the_chain_of_the_first_missing_block() -> None:
    pool = make_pool(9, "abcd")
    asker = pool.ask("abcdef", "gh")
    (chain, end), *_rest = asker.holder.path
    assert end == 2
    child = asker.holder.path[1][0]
    assert pool.allocator.find(asker.holder, 6) == (2, 0, None)
    assert pool.allocator.find(asker.holder, 7) == (2, 0, child)
    pool.allocator.take(7 + 1)
    assert pool.allocator.find(asker.holder, 6) == (1, 0, chain)
    assert pool.allocator.find(asker.holder, 3) == (1, 0, None)


def test_a_look_up_ends_with_what_can_ever_be_computed() -> None:
    """The last token of an output is not: of "abcdef" with "f" to be generated only 2 blocks are ever full."""
    pool = make_pool(9, "abcdefgh")
    asker = pool.ask("abcde", "f")
    assert [end for _chain, end in asker.holder.path] == [2]
    assert pool.allocator.find(asker.holder, 5) == (2, 0, None)


def test_what_others_hold_is_told_from_what_lies_cached() -> None:
    """Rule 11: only the former costs nothing."""
    pool = make_pool(9, "abcdefgh")
    pool.admit(pool.ask("abcdx"))
    assert pool.found(pool.ask("abcdefghi")) == (4, 2)
    assert pool.found(pool.ask("abcde")) == (2, 2)
    assert pool.found(pool.ask("abc")) == (1, 1)
    pool.admit(pool.ask("abcdefq"))
    assert pool.found(pool.ask("abcdefghi")) == (4, 3)


def test_what_others_hold_is_added_up_over_chains() -> None:
    pool = make_pool(20, "abcdefgh", "abcdxyzw")
    pool.admit(pool.ask("abcdxyq"))
    assert pool.found(pool.ask("abcdxyzwv")) == (4, 3)
    assert pool.found(pool.ask("abcdefghi")) == (4, 2)


def test_a_question_changes_nothing() -> None:
    pool = make_pool(9, "abcdef")
    before = pool.cached, pool.allocator.occupancy()
    asker = pool.ask("abcdefg")
    assert pool.found(asker) == pool.found(asker) == (3, 0)
    assert (pool.cached, pool.allocator.occupancy()) == before


# hits and what releases leave


def test_a_release_is_evicted_from_its_end() -> None:
    assert make_pool(9, "abcdef").cached == ["abcdef", "abcd", "ab"]


def test_a_release_over_several_chains_is_evicted_from_its_end() -> None:
    pool = make_pool(9, "abcdefgh")
    asker = pool.ask("abcdxyz", "w")
    pool.admit(asker)
    assert pool.cached == ["abcdefgh", "abcdef"]
    pool.leave(asker)
    assert pool.cached == ["abcdefgh", "abcdef", "abcdxy", "abcd", "ab"]


def test_the_oldest_release_is_evicted_first() -> None:
    assert make_pool(9, "abcd", "xyzw").cached == ["abcd", "ab", "xyzw", "xy"]


def test_a_hit_trims_a_run_that_keeps_its_place() -> None:
    pool = make_pool(9, "abcdef", "xy")
    asker = pool.ask("abc")
    assert pool.admit(asker) == 1
    assert pool.cached == ["abcdef", "abcd", "xy"]
    assert pool.free == (5 - 1, 3)
    pool.leave(asker)
    assert pool.cached == ["abcdef", "abcd", "xy", "ab"]


def test_a_hit_takes_whole_runs_out_of_the_order_and_trims_the_next() -> None:
    """Three releases have left three runs of one chain, the deepest first."""
    pool = make_pool(9, "abcdefgh")
    for text in ("abcdef", "abcd"):
        pool.remember(text + "!")
    assert pool.cached == ["abcdefgh", "abcdef", "abcd", "ab"]
    pool.admit(pool.ask("ab?"))
    assert pool.cached == ["abcdefgh", "abcdef", "abcd"]
    pool.admit(pool.ask("abcdef?"))
    assert pool.cached == ["abcdefgh"]
    pool.admit(pool.ask("abcdefgh?"))
    assert pool.cached == []


def test_a_hit_exactly_up_to_the_end_of_a_run_leaves_the_next_as_it_is() -> None:
    pool = make_pool(9, "abcdefgh", "abcd!")
    (chain,) = [chain for chain in pool.allocator._tree if chain.parent is None]
    assert [(run.low, run.high) for run in chain.runs] == [(2, 4), (0, 2)]
    pool.admit(pool.ask("abcd?"))
    assert [(run.low, run.high) for run in chain.runs] == [(2, 4)]


def test_a_hit_in_use_takes_nothing_out_of_the_order() -> None:
    pool = make_pool(9, "abcdef")
    pool.admit(pool.ask("abcd?"))
    assert pool.admit(pool.ask("ab!")) == 1
    assert pool.cached == ["abcdef"]
    assert pool.free == (9 - 3 - 2, 1)


def test_only_what_nobody_else_holds_comes_into_the_order() -> None:
    pool = make_pool(9)
    long = pool.start("abcdef", "gh")
    short = pool.start("abcd!", "?")
    pool.leave(long)
    assert pool.cached == ["abcdef"]
    pool.leave(short)
    assert pool.cached == ["abcdef", "abcd", "ab"]


def test_who_held_less_leaves_nothing() -> None:
    pool = make_pool(9)
    long = pool.start("abcdef", "gh")
    short = pool.start("abcd!", "?")
    pool.leave(short)
    assert pool.cached == []
    pool.leave(long)
    assert pool.cached == ["abcdef", "abcd", "ab"]


def test_a_partly_filled_block_is_blank_when_it_is_released() -> None:
    pool = make_pool(9, "abcde")
    assert pool.cached == ["abcd", "ab"]
    assert pool.free == (7, 2)


# eviction


def test_blank_blocks_are_taken_before_cached_ones() -> None:
    pool = make_pool(6, "abcd", "xyzw")
    pool.take(2)
    assert pool.cached == ["abcd", "ab", "xyzw", "xy"]
    assert pool.free == (0, 4)
    pool.take(1)
    assert pool.cached == ["ab", "xyzw", "xy"]
    assert pool.found(pool.ask("abcde")) == (1, 0)
    pool.take(2)
    assert pool.cached == ["xy"]
    assert pool.found(pool.ask("abcde")) == (0, 0)
    assert pool.found(pool.ask("xyzwv")) == (1, 0)


def test_blank_and_cached_blocks_are_taken_at_once() -> None:
    pool = make_pool(6, "abcd", "xyzw")
    pool.take(2 + 3)
    assert pool.cached == ["xy"]
    assert pool.free == (0, 1)


def test_one_eviction_may_empty_a_run_exactly() -> None:
    pool = make_pool(4, "abcd", "xyzw")
    pool.take(2)
    assert pool.cached == ["xyzw", "xy"]
    pool.take(2)
    assert pool.cached == []


def test_the_deepest_run_of_a_chain_goes_first() -> None:
    pool = make_pool(4, "abcdefgh", "abcd!")
    pool.take(1)
    assert pool.cached == ["abcdef", "abcd", "ab"]
    pool.take(2)
    assert pool.found(pool.ask("abcdefghi")) == (1, 0)


def test_hits_are_touched_before_anything_is_taken() -> None:
    """Rule 14: the request that needs the pool's last blocks does not evict its own hit."""
    pool = make_pool(4, "abcd", "xyzw")
    assert pool.admit(pool.ask("abcdefgh")) == 2
    assert pool.cached == []
    assert pool.found(pool.ask("abcdefghi")) == (4, 4)


# publication


def test_a_prompt_is_published_chunk_by_chunk() -> None:
    """Rule 21: a block has its key from the allocation on that fills it."""
    pool = make_pool(9)
    asker = pool.ask("abcdefgh")
    other = pool.ask("abcdefghi")
    pool.admit(asker, 3)
    assert pool.found(other) == (1, 1)
    pool.extend(asker, 4)
    assert pool.found(other) == (2, 2)
    pool.extend(asker, 7)
    assert pool.found(other) == (3, 3)
    assert pool.free == (5, 0)


def test_who_decodes_publishes_when_somebody_looks() -> None:
    pool = make_pool(9)
    writer = pool.start("abc", "defgh")
    (chain, _end), *_rest = writer.holder.path
    pool.tick(3)
    assert (writer.holder.published, chain.resident) == (1, 1)
    assert pool.found(pool.ask("abcdefg")) == (3, 3)
    assert (writer.holder.published, chain.resident) == (3, 3)


def test_what_was_never_looked_at_is_published_at_the_end() -> None:
    pool = make_pool(9)
    writer = pool.start("abc", "defgh")
    pool.tick(4)
    pool.leave(writer)
    assert pool.cached == ["abcdef", "abcd", "ab"]
    assert pool.free == (6, 3)


def test_a_writer_publishes_in_all_chains_that_it_goes_through() -> None:
    """Its output leaves the text of a request that was looked up and never came in."""
    pool = make_pool(9)
    pool.ask("abcdefgh")
    writer = pool.start("abc", "defxyzw")
    assert len(writer.holder.path) == 2
    pool.tick(2)
    assert pool.found(pool.ask("abcdefghi")) == (2, 2)
    pool.tick(4)
    assert pool.found(pool.ask("abcdefghi")) == (3, 3)
    assert pool.found(pool.ask("abcdefxyz")) == (4, 4)


def test_whose_end_is_at_a_block_boundary_writes_no_chain_that_it_has_filled() -> None:
    pool = make_pool(9)
    writer = pool.start("abcd", "e")
    (chain, end), *_rest = writer.holder.path
    assert (chain.writer, end) == (None, 2)
    goes_on = pool.start("abcde", "fg")
    assert chain.writer is goes_on.holder
    assert pool.allocator.eager == {}


def test_a_writer_that_has_left_writes_no_more() -> None:
    pool = make_pool(9)
    writer = pool.start("abc", "def")
    (chain, _end), *_rest = writer.holder.path
    assert chain.writer is writer.holder
    pool.preempt(writer)
    assert chain.writer is None
    pool.forget(writer)
    again = pool.start("abc", "def")
    assert chain.writer is again.holder
    assert pool.allocator.eager == {}


def test_who_decodes_nothing_that_becomes_full_is_no_writer() -> None:
    pool = make_pool(9)
    writer = pool.start("abcd", "ef")
    assert [(chain.writer, end) for chain, end in writer.holder.path] == [(None, 2)]
    pool.tick()
    pool.leave(writer)
    assert pool.cached == ["abcd", "ab"]


# spares: the last full block of a prompt that was cached as a whole


def make_spare(pool: Pool) -> Asker:
    """It finds "ab" of "abcd", and computes "abcd" once more."""
    asker = pool.ask("abcd", "!")
    assert pool.admit(asker) == 1
    return asker


def test_the_last_block_of_a_prompt_that_is_there_as_a_whole_is_computed_once_more() -> None:
    pool = make_pool(9, "abcd")
    asker = make_spare(pool)
    assert not any(is_contested(asker))
    assert pool.cached == ["abcd"]
    assert pool.free == (7 - 1, 1)
    pool.leave(asker)
    assert pool.cached == ["abcd", "abcd", "ab"]


def test_a_spare_that_is_evicted_leaves_the_key_to_the_other() -> None:
    """The other was hit meanwhile, and so released later."""
    pool = make_pool(4, "abcd")
    spare = make_spare(pool)
    pool.admit(hitting := pool.ask("abcdx"))
    pool.leave(spare)
    assert pool.cached == ["abcd"]
    pool.leave(hitting)
    assert pool.cached == ["abcd", "abcd", "ab"]
    pool.take(2)
    assert pool.cached == ["abcd", "ab"]
    assert pool.found(pool.ask("abcde")) == (2, 0)


def test_a_spare_in_the_order_stands_in_when_the_first_is_evicted() -> None:
    pool = make_pool(3, "abcd")
    pool.leave(make_spare(pool))
    assert pool.cached == ["abcd", "abcd", "ab"]
    pool.take(1)
    assert pool.cached == ["abcd", "ab"]
    assert pool.found(asker := pool.ask("abcde")) == (2, 0)
    assert pool.admit(asker, 4) == 2
    assert pool.cached == []


def test_a_spare_in_use_stands_in_when_the_first_is_evicted() -> None:
    pool = make_pool(3, "abcd")
    asker = make_spare(pool)
    assert pool.found(other := pool.ask("abcde")) == (2, 1)
    pool.take(1)
    assert pool.cached == []
    assert pool.found(other) == (2, 2)
    assert asker.holder.spare is None
    pool.leave(asker)
    assert pool.cached == ["abcd", "ab"]


def test_a_spare_that_is_the_first_block_stands_in_for_all_that_its_owner_holds() -> None:
    pool = make_pool(2, "ab")
    asker = pool.ask("ab", "!")
    assert pool.admit(asker) == 0
    assert pool.cached == ["ab"]
    pool.take(1)
    assert pool.found(pool.ask("abc")) == (1, 1)
    pool.leave(asker)
    assert pool.cached == ["ab"]


def test_a_spare_that_is_the_first_block_is_released_alone() -> None:
    pool = make_pool(2, "ab")
    asker = pool.ask("ab", "!")
    pool.admit(asker)
    pool.leave(asker)
    assert pool.cached == ["ab", "ab"]
    pool.take(1)
    assert pool.cached == ["ab"]
    assert pool.found(pool.ask("abc")) == (1, 0)
    pool.take(1)
    assert pool.found(pool.ask("abc")) == (0, 0)


def test_spares_stand_in_by_order_of_publication() -> None:
    """The first to be published is the last to be released."""
    pool = make_pool(4, "abcd")
    first, second = make_spare(pool), make_spare(pool)
    pool.take(1)
    assert (first.holder.spare, second.holder.spare is None) == (None, False)
    pool.leave(second)
    assert pool.cached == ["abcd"]
    assert pool.found(pool.ask("abcde")) == (2, 2)
    pool.leave(first)
    assert pool.cached == ["abcd", "abcd", "ab"]
    pool.take(1)
    assert pool.found(pool.ask("abcde")) == (2, 0)


def test_blocks_above_a_spare_are_evicted_one_by_one_until_it_stands_in() -> None:
    pool = make_pool(5, "abcdef", block_size=2)
    asker = make_spare(pool)
    assert pool.cached == ["abcdef", "abcd"]
    pool.take(1 + 1)
    assert pool.cached == ["abcd"]
    assert pool.found(other := pool.ask("abcdefg")) == (2, 1)
    pool.take(1)
    assert pool.cached == []
    assert pool.found(other) == (2, 2)
    pool.leave(asker)
    assert pool.cached == ["abcd", "ab"]


def test_a_spare_joins_the_contest_of_its_chain() -> None:
    """In order: the block of the first request, the spare, and that of who computes it a third time."""
    pool = make_pool(9, "abcdefg")
    spare = make_spare(pool)
    cached_spare = make_spare(pool)
    pool.leave(cached_spare)
    assert pool.cached == ["abcdef", "abcd", "abcd"]
    third = pool.ask("abcd", "efgh")
    assert pool.admit(third) == 1
    assert is_contested(third)[0]
    assert (spare.holder.spare, pool.cached) == (None, ["abcdef", "abcd", "abcd"])
    assert pool.found(pool.ask("abcde")) == (2, 1)
    pool.take(pool.free[0] + 2)
    assert pool.cached == ["abcd"]
    assert pool.found(pool.ask("abcde")) == (2, 2)
    pool.leave(third)
    assert pool.cached == ["abcd", "abcd"]
    pool.leave(spare)
    assert pool.cached == ["abcd", "abcd", "abcd", "ab"]


# contested chains


def test_a_follow_up_overtakes_the_one_that_still_writes_what_it_asks() -> None:
    pool = make_pool(12)
    writer = pool.start("ab", "cdefgh")
    pool.tick(1)
    follow_up = pool.ask("abcdef", "!")
    assert pool.found(follow_up) == (1, 1)
    pool.admit(follow_up)
    assert is_contested(follow_up) == [True, False]
    assert list(pool.allocator.eager) == [writer.holder]
    assert pool.found(pool.ask("abcdefg")) == (3, 3)
    pool.tick(1)
    pool.leave(follow_up)
    assert pool.cached == ["abcdef", "abcd"]
    assert pool.found(pool.ask("abcdefg")) == (3, 1)
    pool.tick(3)
    pool.leave(writer)
    assert pool.cached == ["abcdef", "abcd", "abcdef", "abcd", "ab"]
    assert pool.allocator.eager == {}


def test_who_does_not_overtake_comes_behind_what_was_not_published_yet() -> None:
    """The follow-up computes its prompt in two chunks, and meanwhile nobody has looked at the writer."""
    pool = make_pool(12)
    writer = pool.start("ab", "cdefgh")
    follow_up = pool.ask("abcdef", "!")
    pool.admit(follow_up, 3)
    pool.tick(2)
    assert writer.holder.published == 1
    pool.extend(follow_up, 6)
    (chain, _end), *_rest = follow_up.holder.path
    assert chain.copies is not None
    assert [len(chain.copies[index]) for index in range(3)] == [1, 2, 1]
    pool.leave(follow_up)
    assert pool.cached == ["abcdef", "abcd"]
    assert pool.found(pool.ask("abcdefg")) == (3, 2)


def test_who_overtakes_is_found_first_and_hits_leave_the_order_one_by_one() -> None:
    """The copies of the writer came later; those of the follow-up are hit where they lie."""
    pool = make_pool(12)
    writer = pool.start("ab", "cdefgh")
    follow_up = pool.ask("abcdef", "!")
    pool.admit(follow_up)
    pool.leave(follow_up)
    pool.tick(4)
    assert pool.cached == ["abcdef", "abcd"]
    late = pool.ask("abcde", "?")
    assert pool.admit(late) == 2
    assert pool.cached == ["abcdef"]
    pool.leave(writer)
    assert pool.cached == ["abcdef", "abcdef", "abcd"]
    pool.leave(late)
    assert pool.cached == ["abcdef", "abcdef", "abcd", "abcd", "ab"]
    pool.admit(last := pool.ask("abcdefg"))
    assert pool.cached == ["abcdef", "abcd"]
    pool.leave(last)
    assert pool.cached == ["abcdef", "abcd", "abcdef", "abcd", "ab"]


def test_two_that_generate_the_same_publish_block_by_block() -> None:
    pool = make_pool(12)
    first = pool.start("abc", "defg")
    (chain, _end), *_rest = first.holder.path
    assert pool.allocator.eager == {}
    second = pool.start("abc", "defg")
    assert is_contested(first) == is_contested(second) == [True]
    assert list(pool.allocator.eager) == [first.holder, second.holder]
    assert chain.writer is None
    pool.tick(1)
    assert [len(chain.copies[index]) for index in (0, 1)] == [1, 2]
    pool.tick(2)
    assert [len(chain.copies[index]) for index in (0, 1, 2)] == [1, 2, 2]
    pool.leave(first)
    assert pool.cached == ["abcdef", "abcd"]
    assert pool.found(pool.ask("abcdefg")) == (3, 1)
    pool.leave(second)
    assert pool.cached == ["abcdef", "abcd", "abcdef", "abcd", "ab"]


def test_writers_of_a_contest_publish_in_the_order_of_their_admission() -> None:
    """The second was made eager first, as the first did not write what is contested yet."""
    pool = make_pool(20)
    first = pool.ask("abc", "defg")
    pool.admit(first)
    second = pool.start("abc", "defg")
    pool.begin_decode(first)
    assert list(pool.allocator.eager) == [second.holder, first.holder]
    pool.tick(1)
    (chain, _end), *_rest = first.holder.path
    copies = chain.copies[1]
    assert first.holder.copies is not None
    assert second.holder.copies is not None
    assert copies == [first.holder.copies[chain][1], second.holder.copies[chain][1]]


def test_a_request_that_computes_again_what_others_have_left_makes_copies() -> None:
    """Preempted with "abcd" known, it comes back when "abcd" is cached and goes on where that does."""
    pool = make_pool(12)
    asker = pool.start("abc", "defgh")
    pool.preempt(asker)
    assert pool.cached == ["ab"]
    pool.remember("abcdefg")
    assert pool.cached == ["abcdef", "abcd", "ab"]
    assert is_contested(asker) == [False]
    assert pool.admit(asker) == 1
    assert is_contested(asker) == [True]
    assert pool.cached == ["abcdef", "abcd"]
    pool.begin_decode(asker)
    assert list(pool.allocator.eager) == [asker.holder]
    pool.tick(2)
    pool.leave(asker)
    assert pool.cached == ["abcdef", "abcd", "abcdef", "abcd", "ab"]


def test_whose_output_is_there_already_writes_copies_of_it() -> None:
    """Nobody else runs; the cached blocks stand first."""
    pool = make_pool(12, "abcdef")
    asker = pool.start("abc", "defgh")
    assert is_contested(asker) == [True, False]
    pool.tick(3)
    assert pool.found(pool.ask("abcdefg")) == (3, 1)
    pool.leave(asker)
    assert pool.cached == ["abcdef", "abcd", "abcdef", "abcd", "ab"]


def test_runs_keep_their_places_when_a_chain_becomes_contested() -> None:
    pool = make_pool(12, "abcdefgh", "xy", "abcd!")
    before = pool.cached
    assert before == ["abcdefgh", "abcdef", "xy", "abcd", "ab"]
    asker = pool.start("abc", "defgh")
    assert is_contested(asker)[0]
    assert pool.cached == ["abcdefgh", "abcdef", "xy", "abcd"]


def test_the_copies_of_a_key_are_evicted_one_by_one_and_the_key_with_the_last() -> None:
    pool = make_pool(5, "abcdef")
    asker = pool.start("abc", "defgh")
    pool.tick(2)
    pool.leave(asker)
    assert pool.cached == ["abcdef", "abcd", "abcd", "ab"]
    pool.take(1 + 1)
    assert pool.found(pool.ask("abcdefg")) == (2, 0)
    pool.take(1)
    assert pool.found(pool.ask("abcdefg")) == (2, 0)
    pool.take(1)
    assert pool.cached == ["ab"]
    assert pool.found(pool.ask("abcdefg")) == (1, 0)
    pool.take(1)
    assert pool.found(pool.ask("abcdefg")) == (0, 0)


def test_a_contest_ends_when_all_of_it_is_forgotten() -> None:
    pool = make_pool(9, "qqqq")
    first, second = pool.start("abc", "defg"), pool.start("abc", "defg")
    assert is_contested(first)[-1]
    pool.tick(3)
    pool.leave(first, second)
    pool.take(9)
    assert pool.chains == ["qqqq."]
    pool.allocator.num_blank = pool.allocator.num_usable = 9
    assert is_contested(pool.start("abc", "defg")) == [False]


# what is forgotten


def test_the_tree_shrinks_to_its_root_when_nothing_is_resident() -> None:
    pool = make_pool(9, "ab", "cdefgh", "cdxyzw", "cdxyuv")
    assert pool.chains == ["ab.", "cdefgh.", "cdxyzw.", "cdxyuv."]
    assert pool.cached == ["ab", "cdefgh", "cdef", "cdxyzw", "cdxyuv", "cdxy", "cd"]
    pool.take(2 + 2)
    assert pool.chains == ["ab.", "cdefgh.", "cdxyzw.", "cdxyuv."]
    pool.take(2)
    assert pool.cached == ["cdxyuv", "cdxy", "cd"]
    pool.take(3)
    assert pool.chains == ["ab."]


def test_a_chain_is_forgotten_when_its_last_block_is_evicted() -> None:
    pool = make_pool(9, "ab", "cd", "ce", "xy")
    assert pool.chains == ["ab.", "cd.", "ce.", "xy."]
    pool.take(5 + 2)
    assert pool.chains == ["ab.", "cd.", "ce.", "xy."]
    pool.take(1)
    assert pool.chains == ["ab.", "xy."]


def test_a_parent_without_full_blocks_stays_while_a_child_is_resident() -> None:
    """ "abcdij" is looked up and leaves the text of the root in its second block; "abcdixyz" goes on from there."""
    pool = make_pool(9, "abcdefgh", block_size=4)
    parent = pool.ask("abcdijk")
    child = pool.ask("abcdixyz")
    assert pool.chains == ["abcdefgh.", "abcdijk.", "abcdixyz."]
    pool.admit(child)
    pool.forget(parent)
    pool.leave(child)
    assert pool.chains == ["abcdefgh.", "abcdijk.", "abcdixyz."]
    assert pool.cached == ["abcdefgh", "abcdixyz", "abcd"]
    pool.take(6 + 2)
    assert pool.chains == ["abcdefgh."]


def test_who_waits_keeps_its_content_known() -> None:
    pool = make_pool(9, "ab")
    waiting = pool.ask("cdef")
    pool.remember("cdef")
    pool.take(9)
    assert pool.chains == ["ab.", "cdef."]
    pool.forget(waiting)
    assert pool.chains == ["ab."]


def test_who_leaves_without_a_full_block_is_forgotten_at_once() -> None:
    pool = make_pool(9, "ab")
    pool.remember("c")
    assert pool.chains == ["ab."]
    assert pool.free == (8, 1)


def test_who_leaves_something_is_forgotten_later() -> None:
    pool = make_pool(9, "ab")
    pool.remember("cd")
    assert pool.chains == ["ab.", "cd."]


def test_content_that_comes_again_after_it_was_forgotten_is_another_chain() -> None:
    pool = make_pool(2, "ab")
    first = pool.ask("cd")
    (chain, _end) = first.holder.path[0]
    pool.forget(first)
    (again, _end) = pool.ask("cd").holder.path[0]
    assert again is not chain
    assert again.id != chain.id


def test_a_spare_keeps_its_chain_known() -> None:
    pool = make_pool(9, "xy", "ab")
    asker = pool.ask("ab", "!")
    pool.admit(asker)
    pool.leave(asker)
    assert pool.cached == ["xy", "ab", "ab"]
    pool.take(6 + 2)
    assert pool.chains == ["xy.", "ab."]
    pool.take(1)
    assert pool.chains == ["xy."]


# recounts


@pytest.mark.parametrize(
    ("counter", "number", "finds"),
    [
        ("num_blank", 2, "{} blocks are neither in use nor cached, counted {}"),
        ("live_tokens", 9, "{} tokens are written, counted {}"),
        ("logical_tokens", 10, "{} logical tokens, counted {}"),
        ("num_cached", 14, "{} blocks are cached, counted {}"),
    ],
)
@pytest.mark.parametrize("prefix_sharing", [True, False])
@pytest.mark.parametrize("off_by", [1, -1])
def test_check_finds_a_wrong_counter(counter: str, number: int, finds: str, prefix_sharing: bool, off_by: int) -> None:
    pool = make_pool(9, "abcdef", prefix_sharing=prefix_sharing)
    asker = pool.start("abc", "xyz")
    right = getattr(pool.allocator, counter)
    setattr(pool.allocator, counter, right + off_by)
    with pytest.raises(
        InvariantError, match=f"^invariant {number} does not hold: {finds.format(right, right + off_by)}$"
    ):
        pool.allocator.check([(asker.holder, asker.computed)])


def test_check_finds_who_runs_and_holds_nothing() -> None:
    pool = make_pool(9)
    asker = pool.start("abc", "xyz")
    with pytest.raises(InvariantError, match=r"^invariant 11 does not hold: other requests hold memory than run$"):
        pool.allocator.check([])
    pool.allocator.check([(asker.holder, 3)])


# random life


class ChainsAgainstBlocks(RuleBasedStateMachine):
    """The same life in chains and in real blocks: admissions, chunks, ticks, preemptions and ends.

    Texts are of few letters, start alike, are cut at block boundaries, go on where others end, and are generated twice.
    """

    @initialize(
        block_size=st.integers(1, 5),
        blocks=st.integers(3, 14),
        prefix_sharing=st.sampled_from([True, True, True, True, False]),
        heads=st.lists(st.text("ab", min_size=15, max_size=15), min_size=1, max_size=2),
    )
    def make(self, block_size: int, blocks: int, prefix_sharing: bool, heads: list[str]) -> None:
        self.size = block_size
        block_bytes = 3 * block_size + 2
        self.chains = ChainAllocator(blocks + 1, block_size, prefix_sharing, token_bytes=3, block_bytes=block_bytes)
        self.paged = PagedAllocator(
            blocks + 1, block_size, prefix_sharing, groups=(LayerGroup(token_bytes=3),), block_bytes=block_bytes
        )
        self.shares = prefix_sharing
        self.texts = heads
        self.waiting: list[Asker] = []
        self.running: list[Asker] = []
        self.num_asked = 0

    # who comes and goes

    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        """Somebody comes and waits."""
        text = data.draw(st.sampled_from(self.texts))
        if data.draw(st.booleans()):
            cut = data.draw(st.integers(0, 4)) * self.size + data.draw(st.sampled_from([0, 0, 1, -1]))
            text = text[: max(0, cut)]
        text += data.draw(st.sampled_from(["", "", "c"])) or ""
        text = (text + data.draw(st.text("ab", max_size=self.size)) or "a")[: 7 * self.size]
        others = [whole[len(text) :] for whole in self.texts if whole.startswith(text)]
        output = data.draw(st.sampled_from([*others, "a", "b" * self.size, "ab" * self.size]))
        output = output[: data.draw(st.integers(1, 3 * self.size))] or "a"
        if text + output not in self.texts:
            self.texts.append(text + output)
        request = Request(self.num_asked, 0, content(text), content(output))
        self.num_asked += 1
        self.waiting.append(Asker(request, self.chains.look_up(request, request.prompt_tokens + len(output) - 1)))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        """Somebody who waits asks what is there of it."""
        asker = data.draw(st.sampled_from(self.waiting))
        self.find(asker)

    def find(self, asker: Asker) -> Hit:
        hit = self.paged.find_hit(asker.request, asker.known)
        (blocks,) = hit.tables
        found, in_use, missing = self.chains.find(asker.holder, asker.known)
        assert (found, in_use) == (len(blocks), len(blocks) - self.paged.pool.num_idle(blocks))
        if missing is not None:
            assert found < (asker.known - 1) // self.size
        return hit

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        """Refused, nothing changes in either."""
        asker = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        hit = self.find(asker)
        new = asker.known - hit.num_tokens
        total = hit.num_tokens + (new if data.draw(st.booleans()) else data.draw(st.integers(1, new)))
        if not self.paged.admit(asker.request, hit, total, None, 0):
            self.waiting.append(asker)
            shortfall = self.paged.why_not_admitted(asker.request, hit, total, None, 0)
            assert self.chains.shortfall(shortfall.need, shortfall.least_change) == shortfall
            return
        self.chains.admit(asker.holder, hit.num_tokens // self.size)
        self.chains.extend(asker.holder, hit.num_tokens, total)
        asker.computed = total
        self.running.append(asker)

    @precondition(lambda self: self.partial())
    @rule(data=st.data())
    def chunk(self, data: st.DataObject) -> None:
        """Who is in the middle of its prompt gets on."""
        asker = data.draw(st.sampled_from(self.partial()))
        total = data.draw(st.integers(asker.computed + 1, asker.known))
        if self.paged.grow(asker.request, total):
            self.chains.extend(asker.holder, asker.computed, total)
            asker.computed = total

    def partial(self) -> list[Asker]:
        return [asker for asker in self.running if asker.computed < asker.known and not asker.decodes]

    def decoding(self) -> list[Asker]:
        return [asker for asker in self.running if asker.decodes]

    @precondition(lambda self: any(asker.computed == asker.known for asker in self.running))
    @rule()
    def sample(self) -> None:
        """A step ends: whose known tokens are computed has one more, and decodes or is done."""
        for asker in list(self.running):
            if asker.computed == asker.known:
                asker.known += 1
                if asker.computed == asker.stop:
                    self.end(asker)
                    continue
                asker.decodes = True
                if self.shares:
                    self.chains.begin_decode(asker.holder, asker.computed)

    @precondition(lambda self: self.decoding())
    @rule(most=st.integers(1, 6))
    def tick(self, most: int) -> None:
        """As many ticks as nobody ends in, blocks suffice for, and until somebody who publishes eagerly does."""
        decoding = self.decoding()
        most = min(most, *(asker.stop - asker.computed for asker in decoding), 99)
        for holder in self.chains.eager:
            assert holder.offset is not None
            most = min(most, self.size - (holder.offset + self.chains.ticks) % self.size)
        need = 0
        while most and (need := self.need(decoding, most)) > self.chains.num_free:
            most -= 1
        if not most:
            return
        self.chains.decode(most, len(decoding), need)
        for _ in range(most):
            for asker in decoding:
                asker.computed += 1
                asker.known += 1
                assert self.paged.grow(asker.request, asker.computed)
        for asker in decoding:
            if asker.computed == asker.stop:
                self.end(asker)

    def need(self, decoding: list[Asker], num_ticks: int) -> int:
        blocks_for = self.chains.blocks_for
        return sum(blocks_for(asker.computed + num_ticks) - blocks_for(asker.computed) for asker in decoding)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        asker = data.draw(st.sampled_from(self.running))
        self.give_back(asker)
        self.waiting.append(asker)

    def give_back(self, asker: Asker) -> None:
        self.running.remove(asker)
        self.chains.release(asker.holder, asker.computed)
        self.paged.free(asker.request)
        asker.computed, asker.decodes = 0, False

    def end(self, asker: Asker) -> None:
        self.give_back(asker)
        self.chains.forget(asker.holder)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.running)))

    @precondition(lambda self: len(self.waiting) > 3)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        asker = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self.chains.forget(asker.holder)

    # what both have

    @invariant()
    def agrees(self) -> None:
        chains, paged, pool = self.chains, self.paged, self.paged.pool
        paged.check()
        assert chains.occupancy() == paged.occupancy()
        assert chains.num_free == pool.num_free
        copied = check_in_a_copy(chains, self.running)
        assert sum(chain.resident - chain.first for chain in copied._tree) == pool.num_keys
        assert copied.occupancy() == paged.occupancy()
        nodes: dict[int, Node] = {} if paged._tree is None else {node.id: node for node in paged._tree}
        cached = []
        for block in pool._cached:
            key = pool.key(block)
            assert key is not None
            cached.append(text_of(nodes[key >> 32], (key % 2**32 + 1) * self.size))
        assert cached_order(chains) == cached
        assert cached_order(copied) == cached
        for chain in chains._tree:
            # Content is known as long as somebody can come back to it.
            assert chain.parent is None or not chain.is_forgettable

    def teardown(self) -> None:
        """When all have left and all was evicted, nothing is known but the root."""
        if not hasattr(self, "chains"):
            return
        for asker in list(self.running):
            self.end(asker)
        for asker in self.waiting:
            self.chains.forget(asker.holder)
        self.waiting = []
        self.agrees()
        self.chains.take(self.chains.num_free)
        (root,) = self.chains._tree
        assert (root.parent, root.resident, root.num_children, root.num_paths) == (None, 0, 0, 0)


def test_chains_against_blocks() -> None:
    machine = settings(max_examples=150, stateful_step_count=30)
    run_state_machine_as_test(ChainsAgainstBlocks, settings=machine)
