from typing import Any, NamedTuple

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
from kvsim.memory.allocator import Hit, LeastChange, Occupancy, Shortfall
from kvsim.memory.groups import LayerGroup, longest_common_hit
from kvsim.memory.paged import PagedAllocator
from kvsim.model.attention import Attention, AttentionReach
from kvsim.workload.request import Content, Request, Source, Span, merged
from tests.makers import make_request

NO_HIT = Hit(0, ([],))


def make_allocator(
    blocks: int = 33, block_size: int = 16, prefix_sharing: bool = True, **options: Any
) -> PagedAllocator:
    """`blocks` counts the null block."""
    return PagedAllocator(blocks, block_size, prefix_sharing, **options)


def table(allocator: PagedAllocator, id: int, group: int = 0) -> list[int]:
    return allocator.holdings[id].tables[group].blocks


def admit(allocator: PagedAllocator, request: Request, num_tokens: int | None = None) -> Hit:
    """Admit as a scheduler with an endless token budget would, all or the first `num_tokens` of the prompt."""
    hit = allocator.find_hit(request, request.prompt_tokens)
    num_tokens = num_tokens or request.prompt_tokens
    assert allocator.admit(request, hit, num_tokens, request.prompt_tokens, 0)
    allocator.check()
    return hit


def run_and_leave(allocator: PagedAllocator, request: Request, output: int = 1) -> None:
    """Prefill, decode `output` tokens, the last of which is never computed, and free."""
    admit(allocator, request)
    assert allocator.grow(request, request.prompt_tokens + output - 1)
    allocator.free(request)
    allocator.check()


class Snapshot(NamedTuple):
    queue: list[int]
    counts: list[int]
    num_keys: int
    tables: dict[int, list[list[int]]]
    occupancy: Occupancy


def snapshot(allocator: PagedAllocator) -> Snapshot:
    """All that can be seen of an allocator."""
    pool = allocator.pool
    return Snapshot(
        list(pool.free_queue()),
        [pool.ref_count(block) for block in range(pool.num_blocks)],
        pool.num_keys,
        {id: [list(table.blocks) for table in holding.tables] for id, holding in allocator.holdings.items()},
        allocator.occupancy(),
    )


# one request


def test_a_hundred_tokens_at_block_size_16_hold_7_blocks_with_12_slots_of_tail_slack() -> None:
    allocator = make_allocator(blocks=33)
    admit(allocator, make_request(0, own=100))
    occupancy = allocator.occupancy()
    assert table(allocator, 0) == [1, 2, 3, 4, 5, 6, 7]
    assert occupancy == Occupancy(
        allocated_blocks=7,
        cached_blocks=0,
        blank_blocks=25,
        live_bytes=100,
        padding_bytes=0,
        logical_bytes=100,
        window_saving_bytes=0,
    )
    assert occupancy.allocated_blocks * 16 - occupancy.live_bytes == 12


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_tokens_take_whole_blocks(tokens: int, blocks: int) -> None:
    allocator = make_allocator()
    assert allocator.blocks_for(tokens) == blocks
    admit(allocator, make_request(0, own=tokens))
    assert allocator.occupancy().allocated_blocks == blocks


def test_at_block_size_1_there_is_no_slack() -> None:
    allocator = make_allocator(blocks=33, block_size=1)
    admit(allocator, make_request(0, own=20))
    occupancy = allocator.occupancy()
    assert occupancy.allocated_blocks == occupancy.live_bytes == 20


def test_growing_inside_the_last_block_takes_none() -> None:
    allocator = make_allocator()
    request = make_request(0, own=14)
    admit(allocator, request)
    for num_tokens, blocks in ((15, [1]), (16, [1]), (17, [1, 2])):
        assert allocator.grow(request, num_tokens)
        allocator.check()
        assert table(allocator, 0) == blocks
        assert allocator.occupancy().live_bytes == num_tokens


def test_a_prompt_that_comes_in_chunks_holds_only_what_has_come() -> None:
    allocator = make_allocator()
    request = make_request(0, own=100)
    admit(allocator, request, num_tokens=40)
    assert allocator.occupancy()[:4] == (3, 0, 29, 40)
    assert allocator.grow(request, 100)
    assert allocator.occupancy()[:4] == (7, 0, 25, 100)


def test_what_a_request_leaves_is_cached_where_full_and_blank_where_not() -> None:
    allocator = make_allocator()
    run_and_leave(allocator, make_request(0, own=100))
    assert allocator.occupancy() == Occupancy(0, 6, 26, 0, 0, 0, 0)
    assert list(allocator.pool.free_queue()) == [7, *range(8, 33), 6, 5, 4, 3, 2, 1]


def test_without_prefix_sharing_all_blocks_go_to_the_front() -> None:
    allocator = make_allocator(prefix_sharing=False)
    run_and_leave(allocator, make_request(0, own=100))
    assert allocator.occupancy()[:3] == (0, 0, 32)
    assert list(allocator.pool.free_queue()) == [7, 6, 5, 4, 3, 2, 1, *range(8, 33)]
    assert allocator.find_hit(make_request(0, own=100), 100) == NO_HIT
    assert allocator.pool.num_keys == 0


@pytest.mark.parametrize(("tokens", "fits"), [(0, True), (1, True), (64, True), (65, False)])
def test_what_fits_in_an_empty_pool_is_what_its_usable_blocks_hold(tokens: int, fits: bool) -> None:
    allocator = make_allocator(blocks=5)
    assert allocator.fits_empty_pool(tokens, tokens) is fits
    admit(allocator, make_request(0, own=64))
    assert allocator.fits_empty_pool(tokens, tokens) is fits


# sharing


def test_two_requests_with_a_shared_prefix_hold_its_blocks_once() -> None:
    """64 shared tokens at block size 16 are 4 blocks; 36 and 20 own tokens take 3 and 2 more."""
    allocator = make_allocator(blocks=33)
    assert admit(allocator, make_request(0, shared=64, own=36)) == Hit(0, ([],))
    assert admit(allocator, make_request(1, shared=64, own=20)) == Hit(64, ([1, 2, 3, 4],))
    assert table(allocator, 1) == [1, 2, 3, 4, 8, 9]
    assert allocator.occupancy() == Occupancy(9, 0, 23, 100 + 20, 0, 100 + 84, 0)
    assert [allocator.pool.ref_count(block) for block in (1, 4, 5, 8)] == [2, 2, 1, 1]


def test_the_shared_blocks_stay_until_both_have_left() -> None:
    allocator = make_allocator(blocks=33)
    first, second = make_request(0, shared=64, own=36), make_request(1, shared=64, own=20)
    admit(allocator, first)
    admit(allocator, second)
    allocator.free(first)
    allocator.check()
    # Of the first one's own three blocks two were full.
    assert allocator.occupancy() == Occupancy(6, 2, 24, 84, 0, 84, 0)
    allocator.free(second)
    allocator.check()
    assert allocator.occupancy() == Occupancy(0, 7, 25, 0, 0, 0, 0)


def test_a_request_hits_what_another_has_left() -> None:
    allocator = make_allocator(blocks=33)
    run_and_leave(allocator, make_request(0, shared=64, own=36))
    assert admit(allocator, make_request(1, shared=64, own=20)) == Hit(64, ([1, 2, 3, 4],))
    # The blank block 7 first, then those never used.
    assert table(allocator, 1) == [1, 2, 3, 4, 7, 8]
    assert allocator.occupancy() == Occupancy(6, 2, 24, 84, 0, 84, 0)


def test_a_prefix_that_ends_inside_a_block_is_shared_up_to_the_boundary_before() -> None:
    allocator = make_allocator()
    admit(allocator, make_request(0, shared=63, own=37))
    assert admit(allocator, make_request(1, shared=63, own=37)).num_tokens == 48


def test_a_fully_cached_prompt_recomputes_its_last_block_into_a_new_one() -> None:
    allocator = make_allocator()
    run_and_leave(allocator, make_request(0, shared=64))
    assert admit(allocator, make_request(1, shared=64)) == Hit(48, ([1, 2, 3],))
    assert table(allocator, 1) == [1, 2, 3, 5]
    # The last block of the first request is still there, and still the one that is found.
    assert allocator.find_hit(make_request(2, shared=65), 65) == Hit(64, ([1, 2, 3, 4],))
    assert allocator.pool.num_keys == 4


@pytest.mark.parametrize(("known", "hit_tokens"), [(64, 48), (65, 64), (48, 32), (17, 16), (16, 0), (1, 0)])
def test_at_most_all_known_tokens_but_one_are_hit(known: int, hit_tokens: int) -> None:
    allocator = make_allocator()
    run_and_leave(allocator, make_request(0, shared=64, own=16))
    assert allocator.find_hit(make_request(1, shared=64, own=16), known).num_tokens == hit_tokens


def test_blocks_are_found_as_soon_as_they_are_allocated_full() -> None:
    """A request admitted later in the same step hits them; of a chunk, only what has been scheduled."""
    allocator = make_allocator()
    request = make_request(0, shared=64, own=36)
    admit(allocator, request, num_tokens=40)
    assert allocator.find_hit(make_request(1, shared=64), 64).num_tokens == 32
    allocator.grow(request, 47)
    assert allocator.find_hit(make_request(1, shared=64), 64).num_tokens == 32
    allocator.grow(request, 48)
    assert allocator.find_hit(make_request(1, shared=64), 64).num_tokens == 48


def test_a_later_turn_hits_the_output_of_an_earlier_one() -> None:
    allocator = make_allocator()
    first = make_request(0, own=40, output=30)
    run_and_leave(allocator, first, output=30)
    turn = Request(1, 0, merged([*first.prompt, *first.output, Span("user:1", 0, 20)]), (Span("out:1", 0, 1),))
    # 40 + 30 - 1 tokens were written: four full blocks.
    assert allocator.find_hit(turn, turn.prompt_tokens).num_tokens == 64


def test_equal_prompts_side_by_side_are_not_merged_afterwards() -> None:
    allocator = make_allocator()
    first, second = make_request(0, shared=64), make_request(1, shared=64)
    admit(allocator, first, num_tokens=16)
    admit(allocator, second, num_tokens=32)
    allocator.grow(first, 64)
    allocator.grow(second, 64)
    allocator.check()
    assert table(allocator, 0) == [1, 3, 4, 5]
    assert table(allocator, 1) == [1, 2, 6, 7]
    # Of equal blocks the one published first is found.
    assert allocator.find_hit(make_request(2, shared=65), 65).tables == ([1, 2, 4, 5],)
    assert allocator.occupancy() == Occupancy(7, 0, 25, 7 * 16, 0, 128, 0)


# refusals


def test_admission_needs_room_for_all_that_must_fit() -> None:
    allocator = make_allocator(blocks=5)
    request = make_request(0, own=65)
    before = snapshot(allocator)
    assert not allocator.admit(request, NO_HIT, 16, must_fit_tokens=65, spare_blocks=0)
    assert snapshot(allocator) == before
    assert allocator.admit(request, NO_HIT, 16, must_fit_tokens=64, spare_blocks=0)


def test_admission_leaves_the_spare_blocks_over() -> None:
    allocator = make_allocator(blocks=5)
    request = make_request(0, own=48)
    before = snapshot(allocator)
    assert not allocator.admit(request, NO_HIT, 48, 48, spare_blocks=2)
    assert snapshot(allocator) == before
    assert allocator.admit(request, NO_HIT, 48, 48, spare_blocks=1)


def test_hits_in_the_free_queue_cost_a_free_block_each() -> None:
    """4 usable blocks, 3 of them cached: 2 hits out of the queue and 2 new ones fill it, 3 new ones do not fit."""
    allocator = make_allocator(blocks=5)
    run_and_leave(allocator, make_request(0, shared=48))
    too_long, fits = make_request(1, shared=32, own=33), make_request(2, shared=32, own=32)
    hit = allocator.find_hit(too_long, 65)
    assert hit == Hit(32, ([1, 2],))
    before = snapshot(allocator)
    assert not allocator.admit(too_long, hit, 65, 65, 0)
    assert snapshot(allocator) == before
    assert admit(allocator, fits) == hit
    assert table(allocator, 2) == [1, 2, 4, 3]


def test_hits_in_use_cost_nothing() -> None:
    allocator = make_allocator(blocks=5)
    admit(allocator, make_request(0, shared=48))
    assert admit(allocator, make_request(1, shared=48, own=16)) == Hit(48, ([1, 2, 3],))
    assert allocator.pool.num_free == 0


def test_growth_may_use_the_last_block_and_is_refused_behind_it() -> None:
    allocator = make_allocator(blocks=3)
    request = make_request(0, own=16, output=20)
    admit(allocator, request)
    assert allocator.grow(request, 32)
    before = snapshot(allocator)
    assert not allocator.grow(request, 33)
    assert snapshot(allocator) == before


def test_a_refused_admission_is_not_remembered() -> None:
    allocator = make_allocator(blocks=5)
    first, second = make_request(0, own=64), make_request(1, own=64)
    admit(allocator, first)
    assert not allocator.admit(second, NO_HIT, 64, 64, 0)
    allocator.free(first)
    assert admit(allocator, second) == NO_HIT


def test_a_request_is_admitted_with_nothing_in_its_hands() -> None:
    allocator = make_allocator()
    request = make_request(0, own=16)
    admit(allocator, request)
    with pytest.raises(AssertionError, match="nothing in its hands"):
        allocator.admit(request, NO_HIT, 16, 16, 0)


def test_questions_change_nothing() -> None:
    allocator = make_allocator()
    run_and_leave(allocator, make_request(0, shared=64, own=36))
    admit(allocator, make_request(1, shared=64))
    before = snapshot(allocator)
    allocator.find_hit(make_request(2, shared=64, own=20), 84)
    allocator.fits_empty_pool(10_000, 10_000)
    allocator.occupancy()
    allocator.blocks_for(100)
    allocator.held_tokens()
    allocator.why_not_grown(make_request(1, shared=64), 10_000)
    late = make_request(3, shared=64, own=1000)
    allocator.why_not_admitted(late, allocator.find_hit(late, 1064), 1064, 1064, 7)
    assert snapshot(allocator) == before


# why memory said no


@pytest.mark.parametrize(
    ("num_tokens", "must_fit", "spare", "need", "change"),
    [
        (12, 12, 0, 3, "blocks"),
        (12, None, 0, 3, "blocks"),
        # Without the spare block 3 are still too many, and so is the first chunk with it.
        (12, 12, 1, 4, "blocks"),
        (8, 12, 1, 4, "blocks"),
        (4, 12, 2, 5, "blocks"),
        (4, 12, 0, 3, "gate"),
        (8, 12, 0, 3, "gate"),
        (4, 12, 1, 4, "gate"),
        (8, 8, 1, 3, "watermark"),
        (8, None, 1, 3, "watermark"),
        (1, 1, 3, 4, "watermark"),
        # Either would have sufficed; the watermark is named.
        (4, 8, 1, 3, "watermark"),
    ],
)
def test_the_least_change_is_what_would_have_let_a_request_in(
    num_tokens: int, must_fit: int | None, spare: int, need: int, change: LeastChange
) -> None:
    """2 of 5 usable blocks are blank; the 3 others have 9 of their 12 slots written."""
    allocator = make_allocator(blocks=6, block_size=4)
    admit(allocator, make_request(0, own=9))
    asked = make_request(1, own=12), NO_HIT, num_tokens, must_fit, spare
    assert not allocator.admit(*asked)
    assert allocator.why_not_admitted(*asked) == Shortfall(
        need=need, blank=2, evictable=0, missing=need - 2, slack_bytes=3, least_change=change
    )


def test_cached_blocks_are_evictable_and_hits_among_them_are_needed() -> None:
    """Two blocks lie cached and one is blank; 17 tokens need the 2 hits and 3 new ones."""
    allocator = make_allocator(blocks=6, block_size=4)
    run_and_leave(allocator, make_request(0, shared=8))
    admit(allocator, make_request(1, own=6))
    request = make_request(2, shared=8, own=9)
    hit = allocator.find_hit(request, 17)
    assert hit == Hit(8, ([1, 2],))
    assert allocator.why_not_admitted(request, hit, 17, 17, 0) == Shortfall(5, 1, 2, 2, 2, "blocks")
    # 4 new tokens and the hits would have had 3.
    assert allocator.why_not_admitted(request, hit, 12, 17, 0) == Shortfall(5, 1, 2, 2, 2, "gate")


def test_hits_in_use_are_no_part_of_the_need() -> None:
    allocator = make_allocator(blocks=4, block_size=4)
    admit(allocator, make_request(0, shared=8))
    request = make_request(1, shared=8, own=8)
    hit = allocator.find_hit(request, 16)
    assert allocator.why_not_admitted(request, hit, 16, 16, 0) == Shortfall(2, 1, 0, 1, 0, "blocks")


def test_growth_is_short_of_blocks() -> None:
    allocator = make_allocator(blocks=4, block_size=4)
    request = make_request(0, own=7)
    admit(allocator, request)
    run_and_leave(allocator, make_request(1, own=4))
    assert not allocator.grow(request, 17)
    assert allocator.why_not_grown(request, 17) == Shortfall(3, 0, 1, 2, 1, "blocks")


def test_a_shortfall_counts_all_groups_and_the_padding_is_slack() -> None:
    """8 tokens: 2 full blocks, and 2 of the window that are half empty, which makes 2 x 200 bytes."""
    allocator = hybrid(blocks=6)
    request = make_request(0, own=8)
    admit(allocator, request)
    # Rule 27 has given back the first block of the window where that growth began.
    assert not allocator.grow(request, 17)
    assert allocator.why_not_grown(request, 17) == Shortfall(6, 1, 1, 4, 200, "blocks")
    late = make_request(1, own=4)
    assert allocator.why_not_admitted(late, Hit(0, ([], [])), 4, 4, 1) == Shortfall(3, 1, 1, 1, 200, "watermark")


# groups and windows

FULL, WINDOW_OF_5 = Attention(), Attention("sliding_window", 5)


def hybrid(blocks: int = 20, **options: Any) -> PagedAllocator:
    """Blocks of 4: 400 bytes, which full attention fills with 100 a token and the window half with 50."""
    groups = LayerGroup(FULL, token_bytes=100), LayerGroup(WINDOW_OF_5, token_bytes=50)
    return make_allocator(blocks, 4, groups=groups, block_bytes=400, **options)


def windowed(blocks: int = 20, **options: Any) -> PagedAllocator:
    """A window of 5 in blocks of 4: a hit needs one block (rule 29)."""
    return make_allocator(blocks, 4, groups=(LayerGroup(WINDOW_OF_5),), **options)


def test_all_groups_draw_from_one_queue_in_their_order() -> None:
    allocator = hybrid()
    request = make_request(0, own=10)
    admit(allocator, request)
    assert (table(allocator, 0, 0), table(allocator, 0, 1)) == ([1, 2, 3], [4, 5, 6])
    assert allocator.grow(request, 13)
    # 10 tokens were computed: the next one reads from token 6 on. Block 4 comes back before any is taken.
    assert (table(allocator, 0, 0), table(allocator, 0, 1)) == ([1, 2, 3, 4], [0, 5, 6, 7])


def test_levels_of_several_groups_are_bytes_of_each() -> None:
    allocator = hybrid()
    request = make_request(0, own=10)
    admit(allocator, request)
    assert allocator.occupancy() == Occupancy(
        allocated_blocks=6,
        cached_blocks=0,
        blank_blocks=13,
        live_bytes=10 * 100 + 10 * 50,
        padding_bytes=3 * 200,
        logical_bytes=10 * 150,
        window_saving_bytes=0,
    )
    assert allocator.grow(request, 13)
    # A block of the window has gone: 4 x 50 bytes less are live. It was no boundary's, so it is blank.
    assert allocator.occupancy() == Occupancy(7, 0, 12, 13 * 150 - 200, 3 * 200, 13 * 150, 200)
    allocator.check()


def test_either_all_groups_get_their_blocks_or_none_does() -> None:
    allocator = hybrid(blocks=8)
    request = make_request(0, own=12, output=20)
    admit(allocator, request)
    # 7 usable, 3 + 3 held; with 12 computed the first two blocks of the window go back, one of them with a key.
    assert allocator.grow(request, 16)
    assert (table(allocator, 0, 0), table(allocator, 0, 1)) == ([1, 2, 3, 4], [0, 0, 6, 7])
    assert allocator.grow(request, 20)
    assert (table(allocator, 0, 0), table(allocator, 0, 1)) == ([1, 2, 3, 4, 6], [0, 0, 0, 7, 5])
    assert allocator.pool.num_free == 0
    assert not allocator.grow(request, 24)
    allocator.check()
    # What the window has passed was given back all the same; one block is not enough for two tables.
    assert (len(table(allocator, 0, 0)), table(allocator, 0, 1)[:4]) == (5, [0, 0, 0, 0])
    assert allocator.pool.num_free == 1


def test_passed_blocks_are_freed_from_the_highest_down_and_behind_what_lies_cached() -> None:
    allocator = windowed(blocks=10, retention_interval=None)
    request = make_request(0, own=20, output=9)
    admit(allocator, request, num_tokens=17)
    assert list(allocator.pool.free_queue()) == [6, 7, 8, 9]
    assert allocator.grow(request, 18)
    # 17 computed: tokens 13 ... are still read, so blocks 0 to 2 go.
    assert table(allocator, 0) == [0, 0, 0, 4, 5]
    assert list(allocator.pool.free_queue()) == [6, 7, 8, 9, 3, 2, 1]
    allocator.free(request)
    assert list(allocator.pool.free_queue()) == [5, 6, 7, 8, 9, 3, 2, 1, 4]


def test_passed_blocks_without_a_key_go_to_the_front() -> None:
    allocator = windowed(blocks=10, prefix_sharing=False)
    request = make_request(0, own=17, output=9)
    admit(allocator, request)
    assert allocator.grow(request, 18)
    assert list(allocator.pool.free_queue()) == [3, 2, 1, 6, 7, 8, 9]


def test_growth_by_nothing_gives_back_what_the_window_has_passed() -> None:
    allocator = windowed()
    request = make_request(0, own=17)
    admit(allocator, request)
    assert allocator.grow(request, 17)
    allocator.check()
    assert table(allocator, 0) == [0, 0, 0, 4, 5]
    assert allocator.occupancy().window_saving_bytes == 12


@pytest.mark.parametrize(
    ("groups", "fits"),
    [
        # max_model_len 100, budget 8, blocks of 4: ceil((5 - 1 + 8) / 4) + 1 blocks are asked for at most.
        ((LayerGroup(WINDOW_OF_5),), 4),
        # ceil((12 + 8) / 4)
        ((LayerGroup(Attention("chunked_local", 12)),), 5),
        # 40 tokens of full attention and the window.
        ((LayerGroup(FULL), LayerGroup(WINDOW_OF_5)), 10 + 4),
        ((LayerGroup(WINDOW_OF_5), LayerGroup(WINDOW_OF_5), LayerGroup(FULL)), 4 + 4 + 10),
    ],
)
def test_the_gate_asks_no_more_of_a_window_than_it_can_hold(groups: tuple[LayerGroup, ...], fits: int) -> None:
    """A prompt of 40 tokens, of which the first 8 are computed."""
    options: dict[str, Any] = {"groups": groups, "max_num_batched_tokens": 8, "max_model_len": 100}
    request = make_request(0, own=40, output=1)
    nothing = Hit(0, tuple([] for _ in groups))
    too_few = make_allocator(fits, 4, **options)
    before = snapshot(too_few)
    assert not too_few.fits_empty_pool(40, 40)
    assert not too_few.admit(request, nothing, 8, 40, 0)
    assert snapshot(too_few) == before
    allocator = make_allocator(1 + fits, 4, **options)
    assert allocator.fits_empty_pool(40, 40)
    assert allocator.admit(request, nothing, 8, 40, 0)
    allocator.check()


def test_without_a_gate_only_the_step_must_have_room() -> None:
    allocator = windowed(blocks=3, max_num_batched_tokens=100)
    request = make_request(0, own=40)
    nothing = Hit(0, ([],))
    assert not allocator.admit(request, nothing, 8, 40, 0)
    assert not allocator.admit(request, nothing, 8, None, 1)
    assert allocator.admit(request, nothing, 8, None, 0)


def test_a_window_that_is_short_serves_any_length_in_few_blocks() -> None:
    """At most 2 blocks hold 5 tokens in decode; the gate caps the prompt by the budget: ceil((4 + 8) / 4) + 1."""
    allocator = windowed(blocks=5, max_num_batched_tokens=8)
    assert allocator.fits_empty_pool(1000, 100_000)
    request = make_request(0, own=100, output=100)
    assert allocator.admit(request, Hit(0, ([],)), 8, 100, 0)
    for num_tokens in [*range(16, 100, 8), *range(100, 200)]:
        assert allocator.grow(request, num_tokens)
        allocator.check()
    assert allocator.occupancy().allocated_blocks == 2
    assert not windowed(blocks=4, max_num_batched_tokens=8).fits_empty_pool(1000, 100_000)


def test_a_hit_of_a_window_is_null_before_the_blocks_it_needs() -> None:
    allocator = windowed(retention_interval=None)
    run_and_leave(allocator, make_request(0, shared=16, own=4))
    hit = allocator.find_hit(make_request(1, shared=16, own=9), 25)
    assert hit == Hit(16, ([0, 0, 0, 4],))
    allocator.admit(make_request(1, shared=16, own=9), hit, 25, 25, 0)
    assert table(allocator, 1) == [0, 0, 0, 4, 6, 7, 8]
    # Null blocks cost nothing and count as given back.
    assert (allocator.occupancy().logical_bytes, allocator.occupancy().window_saving_bytes) == (25, 12)
    allocator.check()


def test_a_run_from_block_0_is_hit_up_to_where_the_window_begins() -> None:
    """No run fills a window of 12 (three blocks), so that from block 0 counts."""
    allocator = make_allocator(20, 4, groups=(LayerGroup(Attention("sliding_window", 12)),), retention_interval=None)
    run_and_leave(allocator, make_request(0, shared=8, own=4))
    assert admit(allocator, make_request(1, shared=8, own=9)) == Hit(8, ([1, 2],))
    assert table(allocator, 1)[:2] == [1, 2]


def test_hit_blocks_that_the_window_has_passed_are_null_and_not_touched() -> None:
    """A window of 1 reads nothing before the token itself, but its hit ends with a block that is there."""
    allocator = make_allocator(20, 4, groups=(LayerGroup(Attention("sliding_window", 1)),), retention_interval=None)
    run_and_leave(allocator, make_request(0, shared=16, own=4))
    assert admit(allocator, make_request(1, shared=16, own=1)) == Hit(16, ([0, 0, 0, 4],))
    assert table(allocator, 1) == [0, 0, 0, 0, 6]
    assert allocator.pool.ref_count(4) == 0


def test_hit_blocks_that_the_window_has_passed_cost_no_free_block() -> None:
    """Both usable blocks lie cached, the second is hit, and both are needed for what comes after it."""
    window = (LayerGroup(Attention("sliding_window", 1)),)
    allocator = make_allocator(3, 4, groups=window, max_num_batched_tokens=4, retention_interval=None)
    first, second = make_request(0, shared=8, own=1), make_request(1, shared=8, own=5)
    admit(allocator, first, 8)
    allocator.free(first)
    assert admit(allocator, second, 13) == Hit(8, ([0, 2],))
    assert table(allocator, 1) == [0, 0, 2, 1]


def test_what_lies_before_the_current_chunk_is_hit_without_being_there() -> None:
    """Chunks of 12 in blocks of 8: token 12 begins a chunk, inside block 1; block 0 is needed by nobody."""
    allocator = make_allocator(5, 8, groups=(LayerGroup(Attention("chunked_local", 12)),))
    request = make_request(0, own=13, output=1)
    assert admit(allocator, request) == Hit(8, ([0],))
    # The next token to be computed is token 8, of the chunk before: the block stays null all the same.
    assert table(allocator, 0) == [0, 1]
    assert allocator.occupancy()[3:7] == (13 - 8, 0, 13, 8)


def test_full_attention_hits_no_more_than_the_window() -> None:
    allocator = hybrid()
    run_and_leave(allocator, make_request(0, shared=17))
    # The window kept what ends at the last boundary below 17: block 3.
    assert admit(allocator, make_request(1, shared=17, own=5)) == Hit(16, ([1, 2, 3, 4], [0, 0, 0, 9]))
    other = make_request(2, shared=13, own=5)
    hit = allocator.find_hit(other, 18)
    # Of 13 shared tokens full attention has 3 blocks and the window none.
    assert hit == Hit(0, ([], []), boundary_tokens=12)


def test_a_longer_hit_of_full_attention_is_remembered_by_the_window() -> None:
    """Rule 32: the one after the next can hit what the next could not."""
    allocator = hybrid()
    run_and_leave(allocator, make_request(0, shared=17))
    run_and_leave(allocator, make_request(1, shared=13, own=9))
    assert allocator.find_hit(make_request(2, shared=13, own=9), 22).num_tokens == 12


def kept_blocks(retention_interval: int | None, prompt: int, num_tokens: int, window: int = 5) -> list[int]:
    """Which blocks of a window have a key when all tokens were computed at once."""
    group = LayerGroup(Attention("sliding_window", window))
    allocator = make_allocator(40, 4, groups=(group,), retention_interval=retention_interval)
    request = make_request(0, own=prompt, output=100)
    assert allocator.admit(request, Hit(0, ([],)), prompt, None, 0)
    index_of = {block: index for index, block in enumerate(table(allocator, 0))}
    for count in range(prompt + 1, num_tokens + 1):
        assert allocator.grow(request, count)
        index_of |= {block: index for index, block in enumerate(table(allocator, 0)) if block}
    allocator.free(request)
    allocator.check()
    cached = list(allocator.pool.free_queue())[allocator.pool.num_blank :]
    assert allocator.pool.num_keys == len(cached)
    return sorted(index_of[block] for block in cached)


@pytest.mark.parametrize(
    ("interval", "prompt", "num_tokens", "kept"),
    [
        (None, 16, 16, [0, 1, 2, 3]),
        (None, 16, 31, [0, 1, 2, 3, 4, 5, 6]),
        # The last block before the boundary at or below P - 1.
        (0, 16, 16, [2]),
        (0, 17, 17, [3]),
        (0, 17, 40, [3]),
        (0, 4, 4, []),
        # Segments of 3 blocks keep their last one, output included.
        (12, 17, 40, [2, 3, 5, 8]),
        (4, 17, 24, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_blocks_of_a_window_that_get_a_key(interval: int | None, prompt: int, num_tokens: int, kept: list[int]) -> None:
    assert kept_blocks(interval, prompt, num_tokens) == kept


def test_a_wider_window_keeps_more_blocks() -> None:
    """A window of 10 needs ceil(9 / 4) = 3 blocks."""
    assert kept_blocks(0, 30, 40, window=10) == [4, 5, 6]
    assert kept_blocks(20, 30, 40, window=10) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert kept_blocks(8, 30, 40, window=10) == list(range(10))


@pytest.mark.parametrize("kind", ["full", "chunked_local"])
def test_other_groups_publish_all_they_fill(kind: AttentionReach) -> None:
    group = LayerGroup(Attention(kind, None if kind == "full" else 100))
    allocator = make_allocator(40, 4, groups=(group,), retention_interval=0)
    run_and_leave(allocator, make_request(0, own=23))
    assert allocator.pool.num_keys == 5


def test_keys_are_per_group() -> None:
    """Equal tokens in two groups are two keys, and each group finds its own block."""
    allocator = make_allocator(20, 4, groups=(LayerGroup(FULL), LayerGroup(FULL)))
    run_and_leave(allocator, make_request(0, shared=9))
    assert allocator.pool.num_keys == 4
    assert allocator.find_hit(make_request(1, shared=9), 9) == Hit(8, ([1, 2], [4, 5]))


def test_groups_of_one_kind_hit_together() -> None:
    """The tail of the second group is evicted first, so the first group's is of no use."""
    allocator = make_allocator(7, 4, groups=(LayerGroup(FULL), LayerGroup(FULL)))
    run_and_leave(allocator, make_request(0, shared=12))
    assert list(allocator.pool.free_queue()) == [3, 2, 1, 6, 5, 4]
    assert allocator.pool.take(1) == [3]
    assert allocator.find_hit(make_request(1, shared=13), 13) == Hit(8, ([1, 2], [4, 5]))


def test_groups_give_back_one_after_the_other() -> None:
    allocator = hybrid(blocks=8, prefix_sharing=False)
    request = make_request(0, own=12)
    admit(allocator, request)
    allocator.free(request)
    assert list(allocator.pool.free_queue()) == [6, 5, 4, 3, 2, 1, 7]


@pytest.mark.parametrize(
    ("counter", "number", "finds"),
    [
        ("_live_bytes", 9, "{} bytes are written, counted {}"),
        ("_padding_held", 9, "{} bytes are padding, counted {}"),
        ("_logical_bytes", 10, "{} logical bytes, counted {}"),
        ("_window_saving_bytes", 10, "windows saved {}, counted {}"),
    ],
)
@pytest.mark.parametrize("off_by", [1, -1])
def test_check_finds_a_wrong_counter(counter: str, number: int, finds: str, off_by: int) -> None:
    allocator = hybrid()
    admit(allocator, make_request(0, own=20))
    right = getattr(allocator, counter)
    setattr(allocator, counter, right + off_by)
    sentence = finds.format(right, right + off_by)
    with pytest.raises(InvariantError, match=f"^invariant {number} does not hold: {sentence}$") as caught:
        allocator.check()
    assert caught.value.number == number


# random life

SOURCES = ("a", "b")

GROUPS = {
    "full": (LayerGroup(),),
    "sliding_window": (LayerGroup(Attention("sliding_window", 4)),),
    "chunked_local": (LayerGroup(Attention("chunked_local", 3)),),
    "two_full": (LayerGroup(FULL, 2), LayerGroup(FULL, 2)),
    "full_and_windows": (
        LayerGroup(Attention("sliding_window", 3), 1),
        LayerGroup(FULL, 2),
        LayerGroup(WINDOW_OF_5, 2),
    ),
    "windows_and_chunk": (
        LayerGroup(Attention("sliding_window", 2), 3),
        LayerGroup(Attention("chunked_local", 5), 1),
        LayerGroup(Attention("sliding_window", 2), 2),
    ),
}


def explicit(content: Content) -> list[tuple[Source, int]]:
    return [(source, start + i) for source, start, length in content for i in range(length)]


class AllocatorAgainstTokens(RuleBasedStateMachine):
    """Random admissions, growth and departures against explicit tokens.

    `written` remembers for which group and what was computed into each block since it was last handed out as new:
    whoever is given a block as a hit must find its own tokens there. Where not all full blocks get a key, more is
    written than can be found, so hits may be shorter.
    """

    def __init__(self, groups: tuple[LayerGroup, ...]) -> None:
        super().__init__()
        self.groups = groups

    @initialize(
        blocks=st.integers(2, 16),
        block_size=st.integers(1, 4),
        prefix_sharing=st.booleans(),
        interval=st.sampled_from([None, None, 0, 2]),
        budget=st.integers(1, 8),
    )
    def make(self, blocks: int, block_size: int, prefix_sharing: bool, interval: int | None, budget: int) -> None:
        self.allocator = make_allocator(
            blocks,
            block_size,
            prefix_sharing,
            groups=self.groups,
            block_bytes=block_size * max(group.token_bytes for group in self.groups) + 3,
            max_num_batched_tokens=budget,
            retention_interval=None if interval is None else interval * block_size,
        )
        self.block_size = block_size
        self.budget = budget
        self.prefix_sharing = prefix_sharing
        self.all_are_kept = interval is None or not any(g.attention.kind == "sliding_window" for g in self.groups)
        self.written: dict[int, tuple[int, list[tuple[Source, int]]]] = {}
        self.inside: dict[int, tuple[Request, int]] = {}
        self.next_id = 0

    def written_hit(self, tokens: list[tuple[Source, int]]) -> int:
        """Tokens that could be hit if all that is written and full could be found."""
        if not self.prefix_sharing:
            return 0

        def is_written(attention: Attention, index: int) -> bool:
            prefix = tokens[: (index + 1) * self.block_size]
            numbers = [number for number, group in enumerate(self.groups) if group.attention == attention]
            return all((number, prefix) in self.written.values() for number in numbers)

        kinds = sorted({group.attention: None for group in self.groups}, key=lambda kind: kind.kind != "full")
        return longest_common_hit(kinds, len(tokens) - 1, self.block_size, is_written).num_tokens

    def passed(self, number: int, num_computed: int) -> int:
        return self.groups[number].attention.first_needed_token(num_computed + 1) // self.block_size

    def tables(self, request: Request) -> list[list[int]]:
        return [list(table.blocks) for table in self.allocator.holdings[request.id].tables]

    def note(self, request: Request, num_tokens: int, new_blocks: list[int]) -> None:
        tokens = explicit(request.prompt + request.output)
        for block in new_blocks:
            self.written.pop(block, None)
        for number, table in enumerate(self.tables(request)):
            for index, block in enumerate(table):
                if block:
                    self.written[block] = number, tokens[: min((index + 1) * self.block_size, num_tokens)]
        self.inside[request.id] = request, num_tokens

    @rule(
        runs=st.lists(
            st.builds(Span, st.sampled_from(SOURCES), st.integers(0, 1), st.integers(1, 6)), min_size=1, max_size=3
        ),
        data=st.data(),
        spare=st.sampled_from([0, 0, 1]),
    )
    def admit(self, runs: list[Span], data: st.DataObject, spare: int) -> None:
        request = Request(self.next_id, 0, merged(runs), (Span(data.draw(st.sampled_from(SOURCES)), 6, 8),))
        self.next_id += 1
        known = request.prompt_tokens
        tokens = explicit(request.prompt)
        expected = self.written_hit(tokens)
        hit = self.allocator.find_hit(request, known)
        assert hit.num_tokens == expected if self.all_are_kept else hit.num_tokens <= expected
        for number, table in enumerate(hit.tables):
            assert len(table) * self.block_size == hit.num_tokens
            for index, block in enumerate(table):
                if block:
                    assert self.written[block] == (number, tokens[: (index + 1) * self.block_size])

        num_tokens = data.draw(st.integers(hit.num_tokens + 1, known))
        must_fit = data.draw(st.sampled_from([None, num_tokens, known]))
        before = snapshot(self.allocator)
        touched, in_step, gate = [], 0, 0
        for number, table in enumerate(hit.tables):
            touched += [block for block in table[self.passed(number, hit.num_tokens) :] if block]
            most = self.groups[number].attention.max_blocks(2**40, self.budget, self.block_size)
            in_step += max(0, -(-num_tokens // self.block_size) - len(table))
            gate += max(0, min(most, -(-(must_fit or 0) // self.block_size)) - len(table))
        idle = sum(block in before.queue for block in touched)
        admitted = self.allocator.admit(request, hit, num_tokens, must_fit, spare)
        assert admitted == (max(in_step, gate) + idle + spare <= len(before.queue))
        if not admitted:
            assert snapshot(self.allocator) == before
            return
        new = []
        for table, found in zip(self.tables(request), hit.tables, strict=True):
            assert table[: len(found)] == [block if block in touched else 0 for block in found]
            new += table[len(found) :]
        # New blocks come from the front of what the hits have left of the queue, group by group.
        assert new == [block for block in before.queue if block not in touched][: len(new)]
        self.note(request, num_tokens, new)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), more=st.integers(1, 4), give_back_first=st.booleans())
    def grow(self, data: st.DataObject, more: int, give_back_first: bool) -> None:
        request, computed = self.inside[data.draw(st.sampled_from(sorted(self.inside)))]
        num_tokens = min(computed + more, request.prompt_tokens + request.output_tokens - 1)
        before = snapshot(self.allocator)
        tables = before.tables[request.id]
        passed = [block for number, table in enumerate(tables) for block in table[: self.passed(number, computed)]]
        last_held = [block for block in passed if block and before.counts[block] == 1]
        kept = [[0 if block in passed else block for block in table] for table in tables]
        if give_back_first:
            assert self.allocator.grow(request, computed)
            assert self.tables(request) == kept
            self.let_go(last_held, computed)
            queue = list(self.allocator.pool.free_queue())
            assert sorted(queue) == sorted(before.queue + last_held)
            if not passed:
                assert snapshot(self.allocator) == before
            before = snapshot(self.allocator)
        wanted = -(-num_tokens // self.block_size)
        need = sum(wanted - len(table) for table in tables)
        grown = self.allocator.grow(request, num_tokens)
        if not give_back_first:
            self.let_go(last_held, computed)
        assert grown == (need <= len(before.queue) + (0 if give_back_first else len(last_held)))
        new = [block for table, old in zip(self.tables(request), tables, strict=True) for block in table[len(old) :]]
        assert [table[: len(old)] for table, old in zip(self.tables(request), tables, strict=True)] == kept
        if not grown:
            assert not new
            given_back = [] if give_back_first else last_held
            assert sorted(self.allocator.pool.free_queue()) == sorted(before.queue + given_back)
            assert snapshot(self.allocator) == before or any(passed)
            return
        if give_back_first or not last_held:
            assert new == before.queue[: len(new)]
        self.note(request, num_tokens, new)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.inside)))
        request, num_tokens = self.inside.pop(id)
        held = [block for table in self.tables(request) for block in table if block]
        self.allocator.free(request)
        self.let_go([block for block in held if self.allocator.pool.ref_count(block) == 0], num_tokens)

    def let_go(self, blocks: list[int], num_tokens: int) -> None:
        """Of what nobody holds any more only full blocks may be found again."""
        for block in blocks:
            full = len(self.written[block][1]) % self.block_size == 0
            if not (full and self.prefix_sharing):
                del self.written[block]

    @invariant()
    def agrees(self) -> None:
        allocator, size = self.allocator, self.block_size
        allocator.check()
        held = {
            block: number
            for holding in allocator.holdings.values()
            for number, table in enumerate(holding.tables)
            for block in table.blocks
            if block
        }
        token_bytes = [group.token_bytes for group in self.groups]
        occupancy = allocator.occupancy()
        assert occupancy.allocated_blocks == len(held)
        assert sum(occupancy[:3]) == allocator.pool.num_blocks - 1
        computed = sum(num_tokens for _request, num_tokens in self.inside.values())
        assert occupancy.logical_bytes == computed * sum(token_bytes)
        # Written slots of a block: what lies beyond the last boundary before its end.
        slots = {block: (len(self.written[block][1]) - 1) % size + 1 for block in held}
        assert occupancy.live_bytes == sum(slots[block] * token_bytes[number] for block, number in held.items())
        padding = [allocator.block_bytes - size * each for each in token_bytes]
        assert occupancy.padding_bytes == sum(padding[number] for number in held.values())
        assert occupancy.window_saving_bytes == sum(
            table.blocks.count(0) * size * token_bytes[number]
            for holding in allocator.holdings.values()
            for number, table in enumerate(holding.tables)
        )


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
def test_allocator_against_tokens(groups: tuple[LayerGroup, ...]) -> None:
    run_state_machine_as_test(lambda: AllocatorAgainstTokens(groups), settings=settings(max_examples=100))
