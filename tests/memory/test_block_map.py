"""Runs of blocks are as long as can be and leave nothing out; maps of tiny pools, to the block."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.memory.block_map import BlockMap, BlockRun, Piece, block_map
from kvsim.memory.contiguous import ReservingAllocator
from kvsim.memory.paged import PagedAllocator
from kvsim.memory.samples import SampleAllocator
from kvsim.workload.request import Request
from tests.makers import make_request

SIZE = 4


def taken(allocator: PagedAllocator | ReservingAllocator | SampleAllocator, request: Request, num_tokens: int) -> None:
    hit = allocator.find_hit(request, request.prompt_tokens)
    assert allocator.admit(request, hit, num_tokens, None, 0)


def pieces() -> st.SearchStrategy[Piece]:
    def held(ids: int, num_blocks: int, empty: int) -> Piece:
        return num_blocks, "held", (ids,), max(0, num_blocks * SIZE - empty), 1 + ids % 2

    free = st.sampled_from(["cached", "blank"])
    return st.builds(held, st.integers(0, 2), st.integers(0, 3), st.integers(0, SIZE - 1)) | st.builds(
        lambda state, num: (num, state, (), num * SIZE if state == "cached" else 0, 0), free, st.integers(0, 3)
    )


@given(st.lists(pieces()))
def test_runs_say_of_every_block_what_the_pieces_say(drawn: list[Piece]) -> None:
    def blocks(parts: list[Piece]) -> list[tuple[str, tuple[int, ...], int, int]]:
        return [
            (state, ids, max(0, min(SIZE, written - SIZE * place)), slot_bytes)
            for num_blocks, state, ids, written, slot_bytes in parts
            for place in range(num_blocks)
        ]

    num_blocks = sum(piece[0] for piece in drawn)
    shown = block_map(7, num_blocks, SIZE, 99, drawn, has_block_numbers=True)
    assert blocks([block_run[1:] for block_run in shown.runs]) == blocks(drawn)
    assert [block_run.first for block_run in shown.runs] == [
        sum(before.num_blocks for before in shown.runs[:place]) for place in range(len(shown.runs))
    ]
    for one, other in zip(shown.runs, shown.runs[1:], strict=False):
        is_full = one.state == "blank" or one.written_tokens == one.num_blocks * SIZE
        assert not is_full or (one.state, one.request_ids) != (other.state, other.request_ids)


def test_what_the_pieces_leave_out_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="3 of 4 blocks"):
        block_map(0, 4, SIZE, 99, [(3, "blank", (), 0, 0)], has_block_numbers=False)


def test_a_paged_pool_shows_where_blocks_lie() -> None:
    paged = PagedAllocator(9, SIZE, True)
    first, second = make_request(1, 5, shared=4), make_request(2, 1, shared=4)
    taken(paged, first, 9)
    taken(paged, second, 5)
    assert paged.block_map(5) == BlockMap(
        5,
        8,
        SIZE,
        SIZE,
        True,
        (
            BlockRun(0, 1, "held", (1, 2), 4, 1),
            BlockRun(1, 2, "held", (1,), 5, 1),
            BlockRun(3, 1, "held", (2,), 1, 1),
            BlockRun(4, 4, "blank"),
        ),
    )
    paged.free(first)
    # Its second block was full, and can still be found; its last was not.
    assert paged.block_map(6).runs == (
        BlockRun(0, 1, "held", (2,), 4, 1),
        BlockRun(1, 1, "cached", (), 4),
        BlockRun(2, 1, "blank"),
        BlockRun(3, 1, "held", (2,), 1, 1),
        BlockRun(4, 4, "blank"),
    )


def test_an_extent_is_written_reserved_and_unused_from_its_start_on() -> None:
    extents = ReservingAllocator(30, "max", "first_fit", 12)
    taken(extents, make_request(1, 6, output=3), 6)
    taken(extents, make_request(2, 4, output=20), 4)
    assert extents.block_map(5) == BlockMap(
        5,
        30,
        1,
        1,
        True,
        (
            BlockRun(0, 6, "held", (1,), 6, 1),
            BlockRun(6, 2, "reserved", (1,), 0, 1),
            BlockRun(8, 4, "unused", (1,), 0, 1),
            BlockRun(12, 4, "held", (2,), 4, 1),
            BlockRun(16, 7, "reserved", (2,), 0, 1),
            BlockRun(23, 1, "unused", (2,), 0, 1),
            BlockRun(24, 6, "blank"),
        ),
    )


def test_samples_of_a_request_hold_its_blocks_together() -> None:
    samples = SampleAllocator(9, SIZE, 2)
    request = make_request(1, 5, output=4)
    taken(samples, request, 5)
    assert samples.block_map(0).runs == (BlockRun(0, 2, "held", (1,), 5, 1), BlockRun(2, 6, "blank"))
    assert samples.grow(request, 6)
    # The first sample has copied the last block, the second writes into it.
    assert samples.block_map(0).runs == (
        BlockRun(0, 2, "held", (1,), 6, 1),
        BlockRun(2, 1, "held", (1,), 2, 1),
        BlockRun(3, 5, "blank"),
    )
