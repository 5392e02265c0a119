"""What an infinite cache would find, at any size of block: whole blocks of the longest prefix seen before."""

from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest

from kvsim.memory.prefix import PrefixTree, block_keys
from kvsim.workload.request import Content, num_tokens
from kvsim.workload.traces import Row, Trace, read_rows
from tests.workload.traces.test_lineage import tokens

ROWS = 200


def hit_tokens(prompts: list[Content], block_size: int) -> int:
    """Leading full blocks whose keys were there before."""
    tree = PrefixTree()
    seen: set[int] = set()
    found = 0
    for prompt in prompts:
        for key in (keys := block_keys(tree.intern(prompt), block_size, num_tokens(prompt))):
            if key not in seen:
                break
            found += block_size
        seen.update(keys)
    return found


def common_prefixes(prompts: list[Content]) -> list[int]:
    """The longest prefix, in tokens, that each prompt has in common with one before it; token by token."""
    numbers: dict[tuple[object, int], int] = {}
    arrays = [
        np.array([numbers.setdefault(token, len(numbers)) for token in tokens(prompt)], dtype=np.int64)
        for prompt in prompts
    ]
    longest = []
    for index, prompt in enumerate(arrays):
        best = 0
        for earlier in arrays[:index]:
            most = min(len(prompt), len(earlier))
            differing = np.flatnonzero(prompt[:most] != earlier[:most])
            best = max(best, int(differing[0]) if differing.size else most)
        longest.append(best)
    return longest


@pytest.fixture(scope="module")
def prompts(shared: Path) -> list[Content]:
    rows = islice(read_rows(shared / "traces/mooncake/conversation_trace.jsonl.gz"), ROWS)
    return [row.prompt or () for row in rows]


@pytest.fixture(scope="module")
def common(prompts: list[Content]) -> list[int]:
    return common_prefixes(prompts)


@pytest.mark.parametrize("block_size", [16, 64, 128, 256, 512, 768, 1024])
def test_blocks_of_any_size_find_what_token_by_token_is_there(
    block_size: int, prompts: list[Content], common: list[int]
) -> None:
    assert sum(common) > 0
    assert hit_tokens(prompts, block_size) == sum(length // block_size * block_size for length in common)


def test_sizes_that_divide_512_differ_only_by_partial_last_blocks_that_are_shared(
    prompts: list[Content], common: list[int]
) -> None:
    """Prompts part at the end of a 512-token block, or where one ends in a partial block that both have."""
    partial = [length % 512 for length in common]
    for block_size in (16, 64, 128, 256, 512):
        more = sum(length // block_size * block_size for length in partial)
        assert hit_tokens(prompts, block_size) == hit_tokens(prompts, 512) + more


def test_a_whole_trace_finds_what_its_ids_say(shared: Path) -> None:
    rows = read_rows(shared / "traces/mooncake/mooncake_trace_1000.jsonl")
    prompts = [row.prompt or () for row in rows]
    seen: set[object] = set()
    found = 0
    for prompt in prompts:
        full = [span for span in prompt if span.length == 512]
        found += 512 * sum(span.source in seen for span in full)
        seen.update(span.source for span in full)
    assert hit_tokens(prompts, 512) == found


def contents(rows: list[Row]) -> list[Content]:
    """Prompts, and after each all that was computed of it and its output."""
    return list(chain.from_iterable((row.prompt or (), (*(row.prompt or ()), *(row.output or ()))) for row in rows))


def test_what_was_generated_is_found_in_the_next_turn(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(
        '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 20, "output_length": 30, '
        '"hash_ids": [1, 2]}\n'
        '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 9, "input_length": 70, "output_length": 5, '
        '"hash_ids": [1, 3, 4, 5, 6]}\n'
    )
    first, second = read_rows(tmp_path / "t")
    assert common_prefixes(contents([first, second]))[2] == 50
    requests = list(Trace(path="t").requests(tmp_path))
    assert (*requests[0].prompt, *requests[0].output) == tuple(
        span for span in requests[1].prompt if span.source in (1, 2, "answer:1")
    )


def test_agents_find_again_what_they_generated(shared: Path) -> None:
    rows = list(read_rows(shared / "traces/agentic/tracelab_example_round_trace.jsonl"))
    first, second = rows[0], rows[1]
    assert common_prefixes(contents([first, second]))[2] == 9_600
    assert first.prompt_tokens == 9_324
