"""Block maps for tests: any, and what a reader must be told of each of their blocks."""

from collections.abc import Iterator
from typing import NamedTuple

from hypothesis import strategies as st

from kvsim.memory.block_map import BlockMap, BlockState, Piece, block_map


class Cell(NamedTuple):
    """A block by itself."""

    state: BlockState
    request_ids: tuple[int, ...]
    written: int


def cells(some: BlockMap) -> Iterator[Cell]:
    """Block after block."""
    for run in some.runs:
        left = run.written_tokens
        for _ in range(run.num_blocks):
            written = min(some.block_size, left)
            left -= written
            yield Cell(run.state, run.request_ids, written)


def map_of(*pieces: Piece, block_size: int = 16, time_ns: int = 0, numbered: bool = True) -> BlockMap:
    num_blocks = sum(piece[0] for piece in pieces)
    return block_map(time_ns, num_blocks, block_size, pieces, has_block_numbers=numbered)


@st.composite
def block_maps(draw: st.DrawFn, num_blocks: int | None = None, block_size: int | None = None) -> BlockMap:
    """Runs of any states in order that leave nothing out, as many blocks as asked for."""
    size = draw(st.sampled_from([1, 4, 16])) if block_size is None else block_size
    left = draw(st.integers(1, 60)) if num_blocks is None else num_blocks
    pieces: list[Piece] = []
    while left:
        more = draw(st.integers(1, min(left, 9)))
        state: BlockState = draw(st.sampled_from(["held", "held", "held", "reserved", "unused", "cached", "blank"]))
        ids: tuple[int, ...] = ()
        written = 0
        if state in ("held", "reserved", "unused"):
            ids = tuple(sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=6))))
        if state == "held":
            written = more * size - draw(st.integers(0, size - 1))
        elif state == "cached":
            written = more * size
        pieces.append((more, state, ids, written))
        left -= more
    return map_of(*pieces, block_size=size, time_ns=draw(st.integers(0, 10**12)), numbered=draw(st.booleans()))
