"""Looking at memory at some moments changes nothing, and shows what the rows of the timeline count."""

from collections import Counter

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.config import EngineConfig
from kvsim.engine.latency import LatencyModel
from kvsim.memory.block_map import BlockMap, BlockRun
from tests.engine.test_clocked import MOST_NS, TOKEN_BYTES, Run, clocked_worlds, run, same
from tests.makers import make_request
from tests.oracle import World

Block = tuple[str, tuple[int, ...], int]


def blocks_of(shown: BlockMap) -> Counter[Block]:
    """How many blocks there are in each state, held by the same, with as many tokens."""
    blocks: Counter[Block] = Counter()
    for block_run in shown.runs:
        left = block_run.written_tokens
        for _ in range(block_run.num_blocks):
            written = min(left, shown.block_size)
            left -= written
            blocks[block_run.state, tuple(sorted(block_run.request_ids)), written] += 1
        assert left == 0
    return blocks


def check_against_row(shown: BlockMap, timeline: pl.DataFrame, block_bytes: int) -> None:
    """The row that holds at the moment."""
    row = timeline.filter(pl.col("time_ns") <= shown.time_ns).tail(1).to_dicts()[0]
    count = dict.fromkeys(("held", "cached", "blank"), 0)
    for block_run in shown.runs:
        count[block_run.state] += block_run.num_blocks
    assert {state: num * block_bytes for state, num in count.items()} == {
        "held": row["allocated_bytes"],
        "cached": row["cached_bytes"],
        "blank": row["blank_bytes"],
    }
    written = sum(block_run.written_tokens for block_run in shown.runs if block_run.state == "held")
    assert written * TOKEN_BYTES == row["live_bytes"]
    assert {block_run.slot_bytes for block_run in shown.runs if block_run.state == "held"} <= {TOKEN_BYTES}
    ids = {id for block_run in shown.runs for id in block_run.request_ids}
    assert len(ids) == row["running"]


@given(
    clocked_worlds(), st.lists(st.integers(0, 120) | st.integers(0, MOST_NS - 1), min_size=1, max_size=12).map(sorted)
)
def test_all_forms_show_the_same_and_go_on_as_if_nobody_had_looked(
    drawn: tuple[World, EngineConfig, int], moments: list[int]
) -> None:
    world, config, clients = drawn
    alone = run(world, config, "windows", clients)
    plain, steps, windows = (
        run(world, config, form, clients, moments=moments) for form in ("plain", "steps", "windows")
    )
    for seen in (plain, steps, windows):
        assert same(alone.left, seen.left) is None
    assert [shown.time_ns for shown in windows.maps] == moments
    assert steps.maps == windows.maps
    for numbered, counted in zip(plain.maps, windows.maps, strict=True):
        assert blocks_of(numbered) == blocks_of(counted)
        # Of the frame that Run makes, where a block is 10 bytes.
        check_against_row(counted, windows.left["timeline"], block_bytes=10)
        ends = [block_run.first + block_run.num_blocks for block_run in counted.runs]
        assert [0, *ends] == [*(block_run.first for block_run in counted.runs), counted.num_blocks]


def test_a_window_stops_in_the_step_that_is_looked_at() -> None:
    config = EngineConfig(
        max_num_seqs=2, max_num_batched_tokens=100, max_model_len=64, latency=LatencyModel(10, 0, 0, 0)
    )
    request = make_request(0, 6, output=20)
    seen = Run(config, [request], blocks=9, moments=[0, 9, 10, 45, 50, 51])
    # The prompt in the step that begins at 0, then a token in each step of 10 ns.
    assert [shown.runs for shown in seen.maps] == [
        (BlockRun(0, 2, "held", (0,), written, TOKEN_BYTES), BlockRun(2, 6, "blank", (), 0)) for written in (6, 6, 7)
    ] + [
        (BlockRun(0, 3, "held", (0,), written, TOKEN_BYTES), BlockRun(3, 5, "blank", (), 0)) for written in (10, 11, 11)
    ]
    assert sum(ticks for _now, ticks in seen.decisions) == 20


def test_what_two_requests_share_is_held_by_both() -> None:
    config = EngineConfig(
        max_num_seqs=2, max_num_batched_tokens=100, max_model_len=64, latency=LatencyModel(10, 0, 0, 0)
    )
    requests = [make_request(id, 2, shared=8, output=9, arrival=id * 10) for id in range(2)]
    seen = Run(config, requests, blocks=12, moments=[15, 35, 500])
    assert seen.maps[0].runs == (
        BlockRun(0, 2, "held", (0, 1), 8, TOKEN_BYTES),
        BlockRun(2, 1, "held", (0,), 3, TOKEN_BYTES),
        BlockRun(3, 1, "held", (1,), 2, TOKEN_BYTES),
        BlockRun(4, 7, "blank"),
    )
    assert [block_run.state for block_run in seen.maps[2].runs] == ["cached", "blank"]
