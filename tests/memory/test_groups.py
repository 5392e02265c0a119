"""What of a prefix each kind of attention can go on from, and all of them together. Blocks hold 4 tokens."""

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.memory.groups import CommonHit, HitRun, blocks_of_window, longest_common_hit
from kvsim.model.attention import Attention

FULL = Attention()


def sliding(window: int) -> Attention:
    return Attention("sliding_window", window)


def chunked(window: int) -> Attention:
    return Attention("chunked_local", window)


Cached = dict[Attention, Collection[int]]


def hit(cached: Cached, num_tokens: int, block_size: int = 4) -> CommonHit:
    """The common hit of kinds in the order given, where these block indices are cached for each."""
    return longest_common_hit(
        tuple(cached), num_tokens, block_size, lambda attention, index: index in cached[attention]
    )


def run(attention: Attention, cached: Collection[int], num_tokens: int) -> tuple[int, int]:
    """Where the hit of one kind alone begins and ends, in blocks."""
    found = hit({attention: cached}, num_tokens)
    first, end = found.runs[attention]
    assert found.num_tokens == found.longest == end * 4
    return first, end


# one kind


@pytest.mark.parametrize(
    ("cached", "num_tokens", "end"),
    [
        ([], 40, 0),
        ([0, 1, 2], 40, 3),
        ([0, 1, 3, 4], 40, 2),
        ([1, 2], 40, 0),
        ([0, 1, 2], 12, 3),
        ([0, 1, 2], 11, 2),
        ([0], 3, 0),
    ],
)
def test_full_attention_hits_from_block_0_to_the_first_that_is_missing(
    cached: list[int], num_tokens: int, end: int
) -> None:
    assert run(FULL, cached, num_tokens) == (0, end)


@pytest.mark.parametrize(("window", "blocks"), [(1, 0), (2, 1), (5, 1), (6, 2), (9, 2), (10, 3)])
def test_the_next_token_reads_one_token_less_than_the_window_from_blocks(window: int, blocks: int) -> None:
    assert blocks_of_window(sliding(window), 4) == blocks


@pytest.mark.parametrize(
    ("cached", "num_tokens", "first", "end"),
    [
        # A window of 9 needs two blocks in a row.
        ([4, 5], 40, 4, 6),
        ([1, 2, 4, 5, 7], 40, 4, 6),
        ([1, 2, 4, 5, 7, 8], 40, 7, 9),
        ([1, 2, 4, 5, 7, 8], 35, 4, 6),
        # Of a longer run the end.
        ([1, 2, 3, 4, 5], 40, 4, 6),
        # No two in a row: only a run that starts at block 0 counts.
        ([0, 2, 4], 40, 0, 1),
        ([2, 4], 40, 0, 0),
        ([0, 1], 7, 0, 1),
        ([], 40, 0, 0),
        ([0, 1], 3, 0, 0),
    ],
)
def test_a_sliding_window_hits_the_rightmost_run_that_fills_it(
    cached: list[int], num_tokens: int, first: int, end: int
) -> None:
    assert run(sliding(9), cached, num_tokens) == (first, end)


def test_a_window_of_one_token_hits_the_last_block_that_is_there() -> None:
    """It reads nothing before the token itself, but where nothing is cached the engine does not look for a hit."""
    assert run(sliding(1), [1, 3], 40) == (3, 4)
    assert run(sliding(1), [], 40) == (0, 0)


@pytest.mark.parametrize(
    ("chunk", "cached", "num_tokens", "first", "end"),
    [
        # The chunk of token 20 begins at 16.
        (8, [4], 20, 4, 5),
        (8, [], 20, 4, 4),
        (8, [0, 1, 2, 3], 20, 4, 4),
        (8, [5], 24, 6, 6),
        (8, [4, 5], 23, 4, 5),
        (8, [0, 1], 7, 0, 1),
        (8, [1], 7, 0, 0),
        # Chunks of 6 begin inside a block: token 18 does in block 4.
        (6, [4, 5], 22, 4, 5),
        (6, [], 22, 4, 4),
        (100, [0, 1, 3], 40, 0, 2),
        (2, [], 3, 0, 0),
    ],
)
def test_a_chunk_needs_nothing_before_it_and_then_hits_what_is_there(
    chunk: int, cached: list[int], num_tokens: int, first: int, end: int
) -> None:
    assert run(chunked(chunk), cached, num_tokens) == (first, end)


# several kinds


def test_full_attention_limits_the_window() -> None:
    """Blocks 4 and 5 of the window are of no use, as full attention ends at block 3."""
    found = hit({FULL: range(3), sliding(9): [1, 2, 4, 5]}, 40)
    assert found == CommonHit(12, {FULL: HitRun(0, 3), sliding(9): HitRun(1, 3)}, 12)


def test_a_window_that_finds_less_cuts_full_attention() -> None:
    found = hit({FULL: range(8), sliding(9): [1, 2, 7]}, 40)
    assert (found.num_tokens, found.longest) == (12, 32)
    assert found.runs[sliding(9)] == HitRun(1, 3)


def test_one_window_without_a_hit_leaves_none() -> None:
    assert hit({FULL: range(8), sliding(9): []}, 40).num_tokens == 0
    assert hit({FULL: range(8), sliding(9): range(8), sliding(5): []}, 40).num_tokens == 0


def test_windows_look_again_until_they_agree() -> None:
    """The first has 8 blocks, the second 6 of them; of 6 the first has 3, and so has the second."""
    first, second = sliding(9), sliding(5)
    found = hit({FULL: range(10), first: [1, 2, 6, 7], second: [2, 4, 5]}, 40)
    assert (found.num_tokens, found.longest) == (12, 40)
    assert found.runs[first] == HitRun(1, 3)
    assert found.runs[second] == HitRun(2, 3)


def test_without_full_attention_the_first_kind_is_the_limit() -> None:
    found = hit({sliding(9): [1, 2, 6, 7], sliding(5): [2, 5]}, 40)
    assert (found.num_tokens, found.longest) == (12, 32)


def test_of_full_attention_and_one_other_kind_the_other_is_asked_once() -> None:
    """Chunks of 6, full attention has 14 blocks. Token 54 begins a chunk inside block 13, so 13 are hit unseen. Asked
    again for 52 tokens the chunk of 48 would begin at block 12, which is not there.
    """
    assert hit({FULL: range(14), chunked(6): []}, 60).num_tokens == 52
    # Asked along with another kind, it is asked until all agree.
    assert hit({FULL: range(14), chunked(6): [], sliding(2): range(14)}, 60).num_tokens == 48


def test_chunks_and_windows_agree_where_both_can_go_on() -> None:
    """Chunks of 8 go on from every second block boundary unseen; the window has only what ends at block 6 and 3."""
    found = hit({chunked(8): [], sliding(5): [2, 5]}, 40)
    assert found.num_tokens == 24
    assert (found.runs[chunked(8)], found.runs[sliding(5)]) == (HitRun(6, 6), HitRun(5, 6))
    assert hit({chunked(8): [], sliding(5): [2]}, 40).num_tokens == 0
    assert hit({chunked(8): [2], sliding(5): [2]}, 40).num_tokens == 12


# against brute force


def alone(attention: Attention, cached: Collection[int], num_tokens: int, block_size: int) -> HitRun:
    """The hit of one kind, from all runs of blocks there are."""
    whole = num_tokens // block_size
    if attention.kind == "sliding_window":
        assert attention.window is not None
        # So many blocks hold the window without the next token.
        full_window = max(1, next(n for n in range(100) if n * block_size >= attention.window - 1))
        fits = [
            HitRun(end - full_window, end)
            for end in range(full_window, whole + 1)
            if all(index in cached for index in range(end - full_window, end))
        ]
        if fits:
            return fits[-1]
    first = 0
    if attention.kind == "chunked_local":
        assert attention.window is not None
        start = max(token for token in range(num_tokens + 1) if token % attention.window == 0)
        first = max(index for index in range(whole + 1) if index * block_size <= start)
    ends = [end for end in range(first, whole + 1) if all(index in cached for index in range(first, end))]
    return HitRun(first, ends[-1])


def agreed(cached: Cached, num_tokens: int, block_size: int) -> int:
    """The most tokens that all kinds, asked for just that, can go on from."""
    kinds = list(cached)
    limit = alone(kinds[0], cached[kinds[0]], num_tokens, block_size).end * block_size
    if len(kinds) == 1:
        return limit
    if len(kinds) == 2 and kinds[0] == FULL:
        return alone(kinds[1], cached[kinds[1]], limit, block_size).end * block_size
    return max(
        length
        for length in range(0, limit + 1, block_size)
        if all(alone(kind, cached[kind], length, block_size).end * block_size == length for kind in kinds)
    )


windowed = st.builds(Attention, st.sampled_from(["sliding_window", "chunked_local"]), st.integers(1, 20))


@st.composite
def caches(draw: st.DrawFn) -> Cached:
    """Up to four kinds, full attention first, each with most or few of 12 blocks cached."""
    kinds = draw(st.lists(windowed, min_size=0, max_size=3, unique=True))
    if not kinds or draw(st.booleans()):
        kinds = [FULL, *kinds]
    indices = st.integers(0, 11)
    some = st.frozensets(indices) | st.frozensets(indices, max_size=3).map(lambda gone: frozenset(range(12)) - gone)
    return {kind: draw(some) for kind in kinds}


@given(caches(), st.integers(0, 50), st.integers(1, 5))
def test_the_common_hit_is_that_of_brute_force(cached: Cached, num_tokens: int, block_size: int) -> None:
    num_tokens = min(num_tokens, 12 * block_size + block_size - 1)
    found = hit(cached, num_tokens, block_size)
    assert found.num_tokens == agreed(cached, num_tokens, block_size)
    end = found.num_tokens // block_size
    for kind in cached:
        first = found.runs[kind].first
        assert first <= end
        assert all(index in cached[kind] for index in range(first, end))
        if kind != FULL:
            assert found.runs[kind].end == end
    # The longest is what the first kind found, as every other kind is asked for no more than that.
    kinds = list(cached)
    assert found.longest == alone(kinds[0], cached[kinds[0]], num_tokens, block_size).end * block_size
