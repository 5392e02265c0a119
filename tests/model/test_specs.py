import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.makers import attention, mamba


def test_page_is_heads_times_both_widths_times_bytes_times_block():
    spec = attention(num_kv_heads=8, head_size=192, head_size_v=128, kv_dtype="bf16", block_size=16)
    assert spec.entry_bytes == 8 * (192 + 128) * 2
    assert spec.page_size_bytes == 81_920


def test_mla_keeps_one_vector():
    spec = attention("mla", head_size=576, head_size_v=0, kv_dtype="bf16", block_size=16)
    assert spec.page_size_bytes == 18_432


def test_packed_format_replaces_the_bytes_of_a_token():
    assert attention("mla", head_size=576, head_size_v=0, state_content_bytes=656).page_size_bytes == 4 * 656


def test_state_page_ignores_the_block_size():
    spec = mamba(shapes=((3, 8192), (8192, 16)), dtype_bytes=(2, 4))
    assert spec.page_size_bytes == 573_440
    assert mamba(page_size_padded=32).page_size_bytes == 32


@pytest.mark.parametrize(
    ("spec", "length", "in_flight", "blocks"),
    [
        (attention(), 33, 8, 9),
        (attention("mla"), 32, 8, 8),
        (attention("sliding_window", 10), 100, 7, 5),  # ceil(16 / 4) + 1: the window may start inside a block
        (attention("sliding_window", 10), 12, 7, 4),
        (attention("chunked_local", 10), 100, 7, 5),  # ceil(17 / 4)
        (attention("chunked_local", 10), 12, 7, 3),
        (mamba(), 100, 7, 1),
        (mamba(cache_mode="align"), 100, 7, 2),
        (mamba(cache_mode="all", block_size=10), 95, 7, 10),
    ],
)
def test_blocks_that_one_request_can_hold(spec, length, in_flight, blocks):
    assert spec.max_blocks(length, in_flight) == blocks


@pytest.mark.parametrize(
    ("spec", "num_tokens", "first", "blocks"),
    [
        (attention(), 9, 0, 3),
        (attention("sliding_window", 6), 6, 0, 2),
        (attention("sliding_window", 6), 9, 3, 3),  # tokens 3-8 lie in blocks 0, 1 and 2
        (attention("sliding_window", 6), 10, 4, 2),
        (attention("chunked_local", 6), 6, 0, 2),
        (attention("chunked_local", 6), 7, 6, 1),
        (attention("sliding_window", 6), 0, 0, 0),
    ],
)
def test_blocks_held_reach_from_the_first_needed_token(spec, num_tokens, first, blocks):
    assert spec.first_needed_token(num_tokens) == first
    assert spec.blocks_held(num_tokens) == blocks


@given(
    kind=st.sampled_from(["full", "sliding_window", "chunked_local"]),
    window=st.integers(1, 40),
    block_size=st.integers(1, 9),
    num_tokens=st.integers(0, 120),
)
def test_blocks_held_cover_the_need_and_stay_below_the_bound(kind, window, block_size, num_tokens):
    spec = attention(kind, None if kind == "full" else window, block_size=block_size)
    held = spec.blocks_held(num_tokens)
    assert held * spec.page_size_bytes >= spec.bytes_needed(num_tokens)
    # vLLM's bound for chunks takes every chunk to start with a block.
    unaligned = 1 if kind == "chunked_local" and window % block_size else 0
    assert held <= spec.max_blocks(max(1, num_tokens), 1) + unaligned
    assert spec.peak_bytes_needed(num_tokens) == max(spec.bytes_needed(t) for t in range(num_tokens + 1))


def test_state_is_needed_from_the_first_token_on():
    assert [mamba().bytes_needed(tokens) for tokens in (0, 1, 1000)] == [0, 24, 24]
    assert [mamba().blocks_held(tokens) for tokens in (0, 1, 1000)] == [0, 1, 1]


@pytest.mark.parametrize("size", ["block_size", "num_kv_heads", "head_size", "tokens_per_state"])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_below_one_are_refused(size, value):
    with pytest.raises(ValueError, match=size):
        attention(**{size: value})


def test_window_belongs_to_windowed_kinds_alone():
    with pytest.raises(ValueError, match="window must be given"):
        attention("full", 8)
    with pytest.raises(ValueError, match="window must be given"):
        attention("sliding_window")


def test_page_cannot_be_padded_down():
    with pytest.raises(ValueError, match="page_size_padded must be >= 32, got 31"):
        attention(page_size_padded=31)
