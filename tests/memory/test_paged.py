from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.errors import InvariantError
from kvsim.memory.allocator import Hit, Occupancy, Shortfall
from kvsim.memory.groups import LayerGroup
from kvsim.memory.paged import PagedAllocator
from kvsim.model.attention import Attention
from kvsim.workload.request import Content, Request, Source, Span, merged
from tests.makers import make_request


def make_allocator(blocks: int = 33, block_size: int = 16, prefix_sharing: bool = True) -> PagedAllocator:
    """`blocks` counts the null block. A token takes one byte, so that live bytes are written slots."""
    return PagedAllocator(blocks, block_size, prefix_sharing)


def make_hit(num_tokens: int = 0, blocks: list[int] | None = None) -> Hit:
    return Hit(num_tokens, (blocks or [],))


def make_occupancy(allocated: int, cached: int, blank: int, *, live: int, logical: int) -> Occupancy:
    """Of an allocator whose blocks are all of one kind and stay until the request leaves."""
    return Occupancy(allocated, cached, blank, live, 0, logical, 0)


def table(allocator: PagedAllocator, id: int) -> list[int]:
    return allocator.holdings[id].tables[0].blocks


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
    tables: dict[int, list[int]]
    occupancy: Occupancy


def snapshot(allocator: PagedAllocator) -> Snapshot:
    """All that can be seen of an allocator."""
    pool = allocator.pool
    return Snapshot(
        list(pool.free_queue()),
        [pool.ref_count(block) for block in range(pool.num_blocks)],
        pool.num_keys,
        {id: list(table(allocator, id)) for id in allocator.holdings},
        allocator.occupancy(),
    )


# one request


def test_a_hundred_tokens_at_block_size_16_hold_7_blocks_with_12_slots_of_tail_slack() -> None:
    allocator = make_allocator(blocks=33)
    admit(allocator, make_request(0, own=100))
    occupancy = allocator.occupancy()
    assert table(allocator, 0) == [1, 2, 3, 4, 5, 6, 7]
    assert occupancy == make_occupancy(7, 0, 25, live=100, logical=100)
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
    assert allocator.occupancy() == make_occupancy(0, 6, 26, live=0, logical=0)
    assert list(allocator.pool.free_queue()) == [7, *range(8, 33), 6, 5, 4, 3, 2, 1]


def test_without_prefix_sharing_all_blocks_go_to_the_front() -> None:
    allocator = make_allocator(prefix_sharing=False)
    run_and_leave(allocator, make_request(0, own=100))
    assert allocator.occupancy()[:3] == (0, 0, 32)
    assert list(allocator.pool.free_queue()) == [7, 6, 5, 4, 3, 2, 1, *range(8, 33)]
    assert allocator.find_hit(make_request(0, own=100), 100) == make_hit()
    assert allocator.pool.num_keys == 0


@pytest.mark.parametrize(("tokens", "fits"), [(1, True), (64, True), (65, False)])
def test_what_fits_in_an_empty_pool_is_what_its_usable_blocks_hold(tokens: int, fits: bool) -> None:
    allocator = make_allocator(blocks=5)
    assert allocator.fits_empty_pool(1, tokens) is fits
    admit(allocator, make_request(0, own=64))
    assert allocator.fits_empty_pool(1, tokens) is fits


# sharing


def test_two_requests_with_a_shared_prefix_hold_its_blocks_once() -> None:
    """64 shared tokens at block size 16 are 4 blocks; 36 and 20 own tokens take 3 and 2 more."""
    allocator = make_allocator(blocks=33)
    assert admit(allocator, make_request(0, shared=64, own=36)) == make_hit(0, [])
    assert admit(allocator, make_request(1, shared=64, own=20)) == make_hit(64, [1, 2, 3, 4])
    assert table(allocator, 1) == [1, 2, 3, 4, 8, 9]
    assert allocator.occupancy() == make_occupancy(9, 0, 23, live=100 + 20, logical=100 + 84)
    assert [allocator.pool.ref_count(block) for block in (1, 4, 5, 8)] == [2, 2, 1, 1]


def test_the_shared_blocks_stay_until_both_have_left() -> None:
    allocator = make_allocator(blocks=33)
    first, second = make_request(0, shared=64, own=36), make_request(1, shared=64, own=20)
    admit(allocator, first)
    admit(allocator, second)
    allocator.free(first)
    allocator.check()
    # Of the first one's own three blocks two were full.
    assert allocator.occupancy() == make_occupancy(6, 2, 24, live=84, logical=84)
    allocator.free(second)
    allocator.check()
    assert allocator.occupancy() == make_occupancy(0, 7, 25, live=0, logical=0)


def test_a_request_hits_what_another_has_left() -> None:
    allocator = make_allocator(blocks=33)
    run_and_leave(allocator, make_request(0, shared=64, own=36))
    assert admit(allocator, make_request(1, shared=64, own=20)) == make_hit(64, [1, 2, 3, 4])
    # The blank block 7 first, then those never used.
    assert table(allocator, 1) == [1, 2, 3, 4, 7, 8]
    assert allocator.occupancy() == make_occupancy(6, 2, 24, live=84, logical=84)


def test_a_prefix_that_ends_inside_a_block_is_shared_up_to_the_boundary_before() -> None:
    allocator = make_allocator()
    admit(allocator, make_request(0, shared=63, own=37))
    assert admit(allocator, make_request(1, shared=63, own=37)).num_tokens == 48


def test_a_fully_cached_prompt_recomputes_its_last_block_into_a_new_one() -> None:
    allocator = make_allocator()
    run_and_leave(allocator, make_request(0, shared=64))
    assert admit(allocator, make_request(1, shared=64)) == make_hit(48, [1, 2, 3])
    assert table(allocator, 1) == [1, 2, 3, 5]
    # The last block of the first request is still there, and still the one that is found.
    assert allocator.find_hit(make_request(2, shared=65), 65) == make_hit(64, [1, 2, 3, 4])
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
    assert allocator.find_hit(make_request(2, shared=65), 65) == make_hit(64, [1, 2, 4, 5])
    assert allocator.occupancy() == make_occupancy(7, 0, 25, live=7 * 16, logical=128)


# refusals


def test_admission_needs_room_for_all_that_must_fit() -> None:
    allocator = make_allocator(blocks=5)
    request = make_request(0, own=65)
    before = snapshot(allocator)
    assert not allocator.admit(request, make_hit(), 16, must_fit_tokens=65, spare_blocks=0)
    assert snapshot(allocator) == before
    assert allocator.admit(request, make_hit(), 16, must_fit_tokens=64, spare_blocks=0)


def test_admission_leaves_the_spare_blocks_over() -> None:
    allocator = make_allocator(blocks=5)
    request = make_request(0, own=48)
    before = snapshot(allocator)
    assert not allocator.admit(request, make_hit(), 48, 48, spare_blocks=2)
    assert snapshot(allocator) == before
    assert allocator.admit(request, make_hit(), 48, 48, spare_blocks=1)


def test_hits_in_the_free_queue_cost_a_free_block_each() -> None:
    """4 usable blocks, 3 of them cached: 2 hits out of the queue and 2 new ones fill it, 3 new ones do not fit."""
    allocator = make_allocator(blocks=5)
    run_and_leave(allocator, make_request(0, shared=48))
    too_long, fits = make_request(1, shared=32, own=33), make_request(2, shared=32, own=32)
    hit = allocator.find_hit(too_long, 65)
    assert hit == make_hit(32, [1, 2])
    before = snapshot(allocator)
    assert not allocator.admit(too_long, hit, 65, 65, 0)
    assert snapshot(allocator) == before
    assert admit(allocator, fits) == hit
    assert table(allocator, 2) == [1, 2, 4, 3]


def test_hits_in_use_cost_nothing() -> None:
    allocator = make_allocator(blocks=5)
    admit(allocator, make_request(0, shared=48))
    assert admit(allocator, make_request(1, shared=48, own=16)) == make_hit(48, [1, 2, 3])
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
    assert not allocator.admit(second, make_hit(), 64, 64, 0)
    allocator.free(first)
    assert admit(allocator, second) == make_hit()


def test_a_request_is_admitted_with_nothing_in_its_hands() -> None:
    allocator = make_allocator()
    request = make_request(0, own=16)
    admit(allocator, request)
    with pytest.raises(AssertionError, match="nothing in its hands"):
        allocator.admit(request, make_hit(), 16, 16, 0)


def test_questions_change_nothing() -> None:
    allocator = make_allocator()
    run_and_leave(allocator, make_request(0, shared=64, own=36))
    admit(allocator, make_request(1, shared=64))
    before = snapshot(allocator)
    allocator.find_hit(make_request(2, shared=64, own=20), 84)
    allocator.fits_empty_pool(100, 10_000)
    allocator.occupancy()
    allocator.blocks_for(100)
    assert snapshot(allocator) == before


@pytest.mark.parametrize("counter", ["_live_bytes", "_padding_held", "_logical_bytes", "_window_saving_bytes"])
def test_check_finds_a_wrong_counter(counter: str) -> None:
    allocator = make_allocator()
    admit(allocator, make_request(0, own=20))
    setattr(allocator, counter, 21)
    with pytest.raises(InvariantError, match=r"invariant (9|10) does not hold"):
        allocator.check()


# why memory said no


@pytest.mark.parametrize(
    ("num_tokens", "must_fit", "spare", "shortfall"),
    [
        # 5 blocks where 4 are free; the first 16 tokens alone would have fitted.
        (16, 65, 0, Shortfall(5, 4, 0, 1, 0, "gate")),
        (48, 48, 2, Shortfall(5, 4, 0, 1, 0, "watermark")),
        (16, 65, 4, Shortfall(9, 4, 0, 5, 0, "blocks")),
        (80, None, 0, Shortfall(5, 4, 0, 1, 0, "blocks")),
    ],
)
def test_a_refused_admission_says_what_would_have_sufficed(
    num_tokens: int, must_fit: int | None, spare: int, shortfall: Shortfall
) -> None:
    allocator = make_allocator(blocks=5)
    asked = make_request(0, own=100), make_hit(), num_tokens, must_fit, spare
    assert not allocator.admit(*asked)
    assert allocator.why_not_admitted(*asked) == shortfall


def test_a_refused_growth_says_what_was_free_and_what_lay_in_slack() -> None:
    allocator = make_allocator(blocks=4)
    first, second = make_request(0, own=16), make_request(1, own=20)
    admit(allocator, first)
    admit(allocator, second)
    assert not allocator.grow(first, 17)
    assert allocator.why_not_grown(first, 17) == Shortfall(1, 0, 0, 1, 12, "blocks")


# windows and several groups


def make_windowed(*groups: LayerGroup, blocks: int = 33) -> PagedAllocator:
    """Blocks of 4 slots; all full blocks get a key."""
    return PagedAllocator(blocks, 4, True, groups=groups, retention_interval=None)


WINDOW_OF_8 = Attention("sliding_window", 8)


def test_a_window_gives_back_the_blocks_it_has_passed_at_the_next_allocation() -> None:
    """Token 13 reads tokens 5 to 12 of the 12 before it, so block 0 with tokens 0 to 3 can go, and 4 with it not."""
    allocator = make_windowed(LayerGroup(WINDOW_OF_8))
    request = make_request(0, own=12)
    admit(allocator, request)
    assert table(allocator, 0) == [1, 2, 3]
    assert allocator.grow(request, 13)
    allocator.check()
    assert table(allocator, 0) == [0, 2, 3, 4]
    assert allocator.occupancy() == Occupancy(3, 1, 28, 9, 0, 13, 4)
    # It had a key, so it went to the end of the queue.
    assert list(allocator.pool.free_queue())[-1] == 1
    allocator.free(request)
    allocator.check()
    assert allocator.occupancy() == Occupancy(0, 3, 29, 0, 0, 0, 0)


def test_groups_draw_from_one_pool_in_their_order_and_smaller_ones_are_padded() -> None:
    """A block is 8 bytes: 4 tokens of 2 bytes in the first group, 4 of 1 byte and 4 bytes of padding in the other."""
    allocator = make_windowed(LayerGroup(token_bytes=2), LayerGroup(WINDOW_OF_8, token_bytes=1))
    admit(allocator, make_request(0, own=6))
    assert [one.blocks for one in allocator.holdings[0].tables] == [[1, 2], [3, 4]]
    assert allocator.block_bytes == 8
    assert allocator.occupancy() == Occupancy(4, 0, 28, 6 * 2 + 6, 2 * 4, 6 * 3, 0)


def test_all_groups_get_their_blocks_or_none_does() -> None:
    allocator = make_windowed(LayerGroup(), LayerGroup(WINDOW_OF_8), blocks=4)
    request = make_request(0, own=4)
    admit(allocator, request)
    before = snapshot(allocator)
    assert not allocator.grow(request, 5)
    assert snapshot(allocator) == before


@pytest.mark.parametrize(("computed", "blocks"), [(10, [1, 2, 3]), (11, [0, 2, 3]), (12, [0, 2, 3, 4])])
def test_a_block_can_go_when_the_next_token_does_not_read_its_last(computed: int, blocks: list[int]) -> None:
    """Of 11 computed tokens the next one reads itself and those from 4 on."""
    allocator = make_windowed(LayerGroup(WINDOW_OF_8))
    request = make_request(0, own=computed)
    admit(allocator, request)
    allocator.grow(request, computed + 1)
    assert table(allocator, 0) == blocks


@pytest.mark.parametrize(("computed", "blocks"), [(7, [1, 2]), (8, [0, 0, 3])])
def test_a_chunk_gives_back_the_chunk_before_it(computed: int, blocks: list[int]) -> None:
    allocator = make_windowed(LayerGroup(Attention("chunked_local", 8)))
    request = make_request(0, own=computed)
    admit(allocator, request)
    allocator.grow(request, computed + 1)
    allocator.check()
    assert table(allocator, 0) == blocks


def test_groups_are_freed_one_after_the_other() -> None:
    allocator = make_windowed(LayerGroup(), LayerGroup(WINDOW_OF_8), blocks=5)
    run_and_leave(allocator, make_request(0, own=8))
    assert list(allocator.pool.free_queue()) == [2, 1, 4, 3]


@pytest.mark.parametrize(
    ("attention", "most"),
    [
        (Attention("sliding_window", 8), 4),  # ceil((8 - 1 + 4) / 4) + 1
        (Attention("sliding_window", 9), 4),  # ceil((9 - 1 + 4) / 4) + 1
        (Attention("sliding_window", 10), 5),  # ceil((10 - 1 + 4) / 4) + 1
        (Attention("chunked_local", 8), 3),  # ceil((8 + 4) / 4)
        (Attention("chunked_local", 9), 4),  # ceil((9 + 4) / 4)
    ],
)
def test_the_gate_counts_a_window_no_further_than_it_reaches(attention: Attention, most: int) -> None:
    """A prompt of 25 blocks, computed 4 tokens a step."""
    request = make_request(0, own=100)
    for usable, admitted in ((most - 1, False), (most, True)):
        allocator = PagedAllocator(
            usable + 1, 4, True, groups=(LayerGroup(attention),), max_num_batched_tokens=4, retention_interval=None
        )
        assert allocator.admit(request, make_hit(), 4, 100, 0) == admitted


def test_a_window_hits_the_rightmost_run_that_fills_it_and_needs_nothing_before() -> None:
    """A window of 9 reads 8 tokens back: two blocks."""
    allocator = make_windowed(LayerGroup(Attention("sliding_window", 9)))
    run_and_leave(allocator, make_request(0, shared=16))
    hit = allocator.find_hit(make_request(1, shared=16, own=1), 17)
    assert hit == make_hit(16, [0, 0, 3, 4])
    assert admit(allocator, make_request(1, shared=16, own=1)) == hit
    assert table(allocator, 1)[:4] == [0, 0, 3, 4]


def test_a_run_that_does_not_fill_a_window_counts_where_it_begins_at_the_start() -> None:
    allocator = make_windowed(LayerGroup(Attention("sliding_window", 9)))
    run_and_leave(allocator, make_request(0, shared=4))
    assert allocator.find_hit(make_request(1, shared=16), 16) == make_hit(4, [1])


def test_with_retention_0_a_window_keeps_only_what_the_same_prompt_can_resume_from() -> None:
    """Of 17 prompt tokens 16 can be hit: the window keeps the two blocks before them, and a shorter prompt finds none
    of its own, although full attention has them all.
    """
    groups = (LayerGroup(), LayerGroup(Attention("sliding_window", 9)))
    allocator = PagedAllocator(33, 4, True, groups=groups, retention_interval=0)
    run_and_leave(allocator, make_request(0, shared=17))
    assert allocator.find_hit(make_request(1, shared=17), 17) == Hit(16, ([1, 2, 3, 4], [0, 0, 8, 9]))
    assert allocator.find_hit(make_request(2, shared=12, own=1), 13) == Hit(0, ([], []), boundary_tokens=12)


def test_full_attention_is_hit_no_further_than_the_windows_beside_it() -> None:
    allocator = make_windowed(LayerGroup(), LayerGroup(WINDOW_OF_8))
    run_and_leave(allocator, make_request(0, shared=16))
    hit = allocator.find_hit(make_request(1, shared=16, own=1), 17)
    assert (hit.num_tokens, hit.tables) == (16, ([1, 2, 3, 4], [0, 0, 7, 8]))


# random life

SOURCES = ("a", "b")


def explicit(content: Content) -> list[tuple[Source, int]]:
    return [(source, start + i) for source, start, length in content for i in range(length)]


class AllocatorAgainstTokens(RuleBasedStateMachine):
    """Random admissions, growth and departures against explicit tokens.

    `written` remembers what was computed into each block since it was last handed out as new: whoever is given a
    block as a hit must find its own tokens there.
    """

    @initialize(blocks=st.integers(2, 10), block_size=st.integers(1, 4), prefix_sharing=st.booleans())
    def make(self, blocks: int, block_size: int, prefix_sharing: bool) -> None:
        self.allocator = make_allocator(blocks, block_size, prefix_sharing)
        self.block_size = block_size
        self.prefix_sharing = prefix_sharing
        self.written: dict[int, list[tuple[Source, int]]] = {}
        self.inside: dict[int, tuple[Request, int]] = {}
        self.next_id = 0

    def resident(self, prefix: list[tuple[Source, int]]) -> bool:
        return prefix in self.written.values()

    def note(self, request: Request, num_tokens: int, new_blocks: list[int]) -> None:
        tokens = explicit(request.prompt + request.output)
        for block in new_blocks:
            self.written.pop(block, None)
        for index, block in enumerate(table(self.allocator, request.id)):
            self.written[block] = tokens[: min((index + 1) * self.block_size, num_tokens)]
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
        expected = 0
        ends = range(self.block_size, known, self.block_size) if self.prefix_sharing else ()
        for end in ends:
            if not self.resident(tokens[:end]):
                break
            expected = end
        hit = self.allocator.find_hit(request, known)
        assert hit.num_tokens == expected
        for index, block in enumerate(hit.tables[0]):
            assert self.written[block] == tokens[: (index + 1) * self.block_size]

        num_tokens = data.draw(st.integers(hit.num_tokens + 1, known))
        must_fit = data.draw(st.sampled_from([None, known]))
        before = snapshot(self.allocator)
        idle = sum(block in before.queue for block in hit.tables[0])
        need = -(-(must_fit or num_tokens) // self.block_size) - len(hit.tables[0]) + idle
        admitted = self.allocator.admit(request, hit, num_tokens, must_fit, spare)
        assert admitted == (need + spare <= len(before.queue))
        if not admitted:
            assert snapshot(self.allocator) == before
            return
        blocks = table(self.allocator, request.id)
        assert blocks[: len(hit.tables[0])] == hit.tables[0]
        new = blocks[len(hit.tables[0]) :]
        # New blocks come from the front of what the hits have left of the queue.
        assert new == [block for block in before.queue if block not in hit.tables[0]][: len(new)]
        self.note(request, num_tokens, new)

    @precondition(lambda self: self.inside)
    @rule(data=st.data(), more=st.integers(1, 4))
    def grow(self, data: st.DataObject, more: int) -> None:
        request, num_tokens = self.inside[data.draw(st.sampled_from(sorted(self.inside)))]
        num_tokens = min(num_tokens + more, request.prompt_tokens + request.output_tokens - 1)
        before = snapshot(self.allocator)
        held = len(before.tables[request.id])
        need = -(-num_tokens // self.block_size) - held
        grown = self.allocator.grow(request, num_tokens)
        assert grown == (need <= len(before.queue))
        if not grown:
            assert snapshot(self.allocator) == before
            return
        new = table(self.allocator, request.id)[held:]
        assert new == before.queue[: len(new)]
        self.note(request, num_tokens, new)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.inside)))
        request, num_tokens = self.inside.pop(id)
        blocks = list(table(self.allocator, id))
        self.allocator.free(request)
        for index, block in enumerate(blocks):
            full = (index + 1) * self.block_size <= num_tokens
            if self.allocator.pool.ref_count(block) == 0 and not (full and self.prefix_sharing):
                del self.written[block]

    @invariant()
    def agrees(self) -> None:
        allocator = self.allocator
        allocator.check()
        held = {block for id in allocator.holdings for block in table(allocator, id)}
        occupancy = allocator.occupancy()
        assert occupancy.allocated_blocks == len(held)
        assert sum(occupancy[:3]) == allocator.pool.num_blocks - 1
        assert occupancy.logical_bytes == sum(num_tokens for _request, num_tokens in self.inside.values())
        # Written slots of a block: what lies beyond the last boundary before its end.
        size = self.block_size
        assert occupancy.live_bytes == sum((len(self.written[block]) - 1) % size + 1 for block in held)


TestAllocatorAgainstTokens = AllocatorAgainstTokens.TestCase
