"""What several kinds of attention can go on from together. Blocks have 4 tokens."""

from kvsim.memory.groups import CommonHit, HitRun, blocks_of_window, longest_common_hit
from kvsim.model.attention import Attention

FULL = Attention()
SHORT = Attention("sliding_window", 5)  # one block
LONG = Attention("sliding_window", 9)  # two blocks
CHUNK = Attention("chunked_local", 8)


def hit(cached: dict[Attention, set[int]], num_tokens: int = 20) -> CommonHit:
    """The hit where these blocks of each kind are cached."""
    return longest_common_hit(tuple(cached), num_tokens, 4, lambda kind, index: index in cached[kind])


def test_a_window_needs_as_many_blocks_as_the_next_token_reads() -> None:
    assert [blocks_of_window(Attention("sliding_window", window), 4) for window in (1, 2, 5, 6, 9)] == [0, 1, 1, 2, 2]


def test_full_attention_goes_from_the_start_to_the_first_gap() -> None:
    assert hit({FULL: {0, 1, 3}}) == CommonHit(8, {FULL: HitRun(0, 2)}, 8)
    assert hit({FULL: {1, 2}}) == CommonHit(0, {FULL: HitRun(0, 0)}, 0)


def test_only_whole_blocks_within_the_limit_count() -> None:
    assert hit({FULL: {0, 1, 2}}, num_tokens=11).num_tokens == 8


def test_a_window_takes_the_rightmost_run_that_is_long_enough() -> None:
    assert hit({LONG: {0, 1, 2, 4}}) == CommonHit(12, {LONG: HitRun(1, 3)}, 12)
    assert hit({LONG: {0, 3}}).runs == {LONG: HitRun(0, 1)}
    assert hit({LONG: {1, 3}}).num_tokens == 0


def test_a_chunk_needs_nothing_before_its_start() -> None:
    assert hit({CHUNK: {4}}) == CommonHit(20, {CHUNK: HitRun(4, 5)}, 20)
    assert hit({CHUNK: set()}) == CommonHit(16, {CHUNK: HitRun(4, 4)}, 16)


def test_full_attention_limits_where_windows_look() -> None:
    assert hit({FULL: {0, 1}, SHORT: {0, 1, 4}}) == CommonHit(8, {FULL: HitRun(0, 2), SHORT: HitRun(1, 2)}, 8)


def test_windows_cut_full_attention_to_what_they_find_and_the_longest_is_remembered() -> None:
    assert hit({FULL: {0, 1, 2, 3, 4}, SHORT: {1}}).num_tokens == 8
    assert hit({FULL: {0, 1, 2, 3, 4}, SHORT: {1}}).longest == 20


def test_where_one_kind_finds_less_all_look_again_below_that() -> None:
    """The short window would have its block 4, but the long one has nothing beyond block 1."""
    found = hit({FULL: {0, 1, 2, 3, 4}, SHORT: {0, 4}, LONG: {0, 1}})
    assert (found.num_tokens, found.longest) == (4, 20)
    assert found.runs[SHORT] == found.runs[LONG] == HitRun(0, 1)
