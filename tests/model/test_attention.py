"""What attention reaches back to, against token by token definitions."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.model.attention import Attention, AttentionReach


def reads(attention: Attention, reader: int, token: int) -> bool:
    """Whether token number `reader` (0 first) attends to `token`: the definition of each kind."""
    if token > reader:
        return False
    if attention.kind == "full":
        return True
    assert attention.window is not None
    if attention.kind == "sliding_window":
        return reader - token < attention.window
    return reader // attention.window == token // attention.window


def blocks_still_read(attention: Attention, num_computed: int, num_tokens: int, block_size: int) -> int:
    """Blocks of `num_tokens` tokens that a token from number `num_computed` on may read or fill (rule 27)."""
    needed = {
        token // block_size
        for reader in range(num_computed, num_tokens)
        for token in range(num_tokens)
        if reads(attention, reader, token) or token >= num_computed
    }
    # Whole blocks are given back from the front, so what lies behind the first needed one stays.
    return -(-num_tokens // block_size) - min(needed)


attentions = st.one_of(
    st.just(Attention()),
    st.builds(Attention, st.sampled_from(["sliding_window", "chunked_local"]), st.integers(1, 12)),
)


@pytest.mark.parametrize(
    ("kind", "window", "first"),
    [
        # After 0, 1, 2 ... 9 tokens.
        ("full", None, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("sliding_window", 3, [0, 0, 0, 0, 1, 2, 3, 4, 5, 6]),
        ("sliding_window", 1, [0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
        ("chunked_local", 4, [0, 0, 0, 0, 0, 4, 4, 4, 4, 8]),
    ],
)
def test_first_needed_token(kind: AttentionReach, window: int | None, first: list[int]) -> None:
    attention = Attention(kind, window)
    assert [attention.first_needed_token(num_tokens) for num_tokens in range(10)] == first


@given(attentions, st.integers(1, 60))
def test_first_needed_token_is_the_first_that_the_last_one_reads(attention: Attention, num_tokens: int) -> None:
    last = num_tokens - 1
    expected = next(token for token in range(num_tokens) if reads(attention, last, token))
    assert attention.first_needed_token(num_tokens) == expected


@pytest.mark.parametrize(
    ("attention", "passed"),
    [
        (Attention("sliding_window", 10), lambda computed: max(0, computed - 10 + 1)),
        (Attention("chunked_local", 10), lambda computed: computed // 10 * 10),
    ],
)
def test_what_the_next_token_has_passed_is_rule_27(attention: Attention, passed: Callable[[int], int]) -> None:
    for computed in range(100):
        assert attention.first_needed_token(computed + 1) == passed(computed)


@pytest.mark.parametrize(
    ("attention", "num_tokens", "in_flight", "blocks"),
    [
        (Attention(), 100, 8, 25),
        (Attention(), 101, 8, 26),
        # ceil(min(10 - 1 + 8, n) / 4) + 1
        (Attention("sliding_window", 10), 100, 8, 6),
        (Attention("sliding_window", 10), 17, 8, 6),
        (Attention("sliding_window", 10), 16, 8, 5),
        # ceil(min(10 + 8, n) / 4)
        (Attention("chunked_local", 10), 100, 8, 5),
        (Attention("chunked_local", 10), 16, 8, 4),
    ],
)
def test_max_blocks_is_rule_28(attention: Attention, num_tokens: int, in_flight: int, blocks: int) -> None:
    assert attention.max_blocks(num_tokens, in_flight, 4) == blocks


@given(attentions, st.integers(1, 50), st.integers(1, 10), st.integers(1, 6), st.data())
def test_no_step_holds_more_than_max_blocks(
    attention: Attention, num_tokens: int, budget: int, block_size: int, data: st.DataObject
) -> None:
    """In steps of up to `budget` tokens. Chunks that do not begin with a block may hold one more than the rule says."""
    unaligned = attention.kind == "chunked_local" and attention.window is not None and attention.window % block_size
    most = attention.max_blocks(num_tokens, budget, block_size) + bool(unaligned)
    computed = 0
    while computed < num_tokens:
        after = min(num_tokens, computed + data.draw(st.integers(1, budget)))
        assert blocks_still_read(attention, computed, after, block_size) <= most
        computed = after


@pytest.mark.parametrize(
    ("attention", "num_tokens", "block_size", "blocks"),
    [
        (Attention(), 9, 4, 3),
        # Five tokens that may begin with the last one of a block.
        (Attention("sliding_window", 5), 100, 4, 2),
        (Attention("sliding_window", 6), 100, 4, 3),
        (Attention("sliding_window", 6), 8, 4, 2),
        # Chunks begin at a block, at every second token of one, at any.
        (Attention("chunked_local", 8), 100, 4, 2),
        (Attention("chunked_local", 6), 100, 4, 2),
        (Attention("chunked_local", 7), 100, 4, 3),
    ],
)
def test_max_blocks_in_decode(attention: Attention, num_tokens: int, block_size: int, blocks: int) -> None:
    assert attention.max_blocks_in_decode(num_tokens, block_size) == blocks


@given(attentions, st.integers(1, 6), st.integers(1, 120))
def test_max_blocks_in_decode_is_the_most_of_any_step(attention: Attention, block_size: int, num_tokens: int) -> None:
    """Token by token; it is reached once every position in a block has come round, and never exceeded before."""
    held = [blocks_still_read(attention, count - 1, count, block_size) for count in range(1, num_tokens + 1)]
    most = attention.max_blocks_in_decode(num_tokens, block_size)
    assert max(held) <= most
    if attention.window is None or num_tokens >= (attention.window + 1) * block_size + attention.window:
        assert max(held) == most


@pytest.mark.parametrize(("kind", "window"), [("full", 4), ("sliding_window", None), ("chunked_local", None)])
def test_all_but_full_attention_has_a_window(kind: AttentionReach, window: int | None) -> None:
    with pytest.raises(AssertionError, match="all but full attention has a window"):
        Attention(kind, window)


def test_a_window_holds_a_token_at_least() -> None:
    with pytest.raises(ValueError, match="window"):
        Attention("sliding_window", 0)
