"""What sharing could give: exact figures of public traces, and naive caches on small ones."""

from collections import OrderedDict
from collections.abc import Iterable
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import TraceError
from kvsim.memory.eviction import EVICTION
from kvsim.study.hits import CapacityHits, HitCurve, Hits, Order, PolicyHits, Prompts, count_hits
from kvsim.study.reuse import found_under
from kvsim.workload.request import Content, Span
from kvsim.workload.traces import read_rows
from tests.memory.naive_eviction import NaiveCachedOrder
from tests.study.test_reuse import subsets

SIZES = (512, 256, 128, 64, 16)
FINITE = (1_000, 10_000, 30_000, 50_000, 100_000)


def interned(prompts: Iterable[Content]) -> Prompts:
    interned = Prompts()
    for prompt in prompts:
        interned.add(prompt)
    return interned


def from_file(path: Path) -> Prompts:
    return interned(row.prompt for row in read_rows(path, "mooncake") if row.prompt)


@pytest.fixture(scope="module")
def conversation(shared: Path) -> Prompts:
    return from_file(shared / "traces" / "mooncake" / "conversation_trace.jsonl.gz")


@pytest.fixture(scope="module")
def first_thousand(shared: Path) -> Path:
    return shared / "traces" / "mooncake" / "mooncake_trace_1000.jsonl"


@pytest.fixture(scope="module")
def magagent(shared: Path) -> Prompts:
    return from_file(shared / "traces" / "agentic" / "agent_magagent_blk16.jsonl.gz")


def blocks(hits: Hits) -> list[int]:
    return [result.hit_blocks for result in hits.results]


def test_hits_of_the_conversation_trace(conversation: Prompts) -> None:
    hits = count_hits(conversation, 512, (*FINITE, None))
    assert (hits.touches, hits.distinct_blocks, hits.prompt_tokens) == (288_500, 182_790, 144_793_823)
    assert blocks(hits) == [12_831, 60_921, 93_967, 102_290, 104_924, 105_710]
    assert hits.results[-1].hit_tokens == 54_098_411


def test_tail_first_hits_of_the_conversation_trace(conversation: Prompts) -> None:
    hits = count_hits(conversation, 512, (*FINITE, None), "tail")
    assert blocks(hits) == [12_847, 61_046, 93_978, 102_290, 104_924, 105_710]


@pytest.mark.parametrize("order", ["head", "tail"])
def test_the_optimum_of_the_conversation_trace_is_a_bound(conversation: Prompts, order: Order) -> None:
    for result in count_hits(conversation, 512, FINITE, order).results:
        assert result.optimum_hit_blocks is not None
        assert result.engine_hit_blocks <= result.hit_blocks <= result.optimum_hit_blocks <= 105_710


def test_hits_of_the_first_rows_of_the_older_trace(first_thousand: Path) -> None:
    hits = count_hits(from_file(first_thousand), 512, (None, 100, 500, 1_000, 5_000, 10_000))
    assert blocks(hits) == [7_479, 4_764, 5_528, 5_565, 6_286, 7_453]


def test_hits_of_an_agent_trace_with_ids_of_16_tokens(magagent: Prompts) -> None:
    capacities = (None, 500, 1_000, 2_000)
    hits = count_hits(magagent, 16, capacities)
    assert hits.touches == 108_860
    assert blocks(hits) == [91_787, 41_215, 70_901, 91_696]
    assert blocks(count_hits(magagent, 16, capacities, "tail")) == [91_787, 62_066, 78_648, 91_708]


def test_every_size_that_divides_the_ids_hits_the_same_tokens(conversation: Prompts) -> None:
    """Ids of partial last blocks are hit only together with their whole prompt here, so nothing differs at all."""
    assert {conversation.ideal_hit_tokens(size) for size in SIZES} == {54_098_411}


def test_where_an_id_ends_earlier_the_next_size_finds_more() -> None:
    """Two prompts that part at 40 of 64 tokens, inside a block: each size hits the full blocks before that."""
    same = Span("same", 0, 40)
    asked = interned([(same, Span("a", 0, 24)), (same, Span("b", 0, 24)), (same,)])
    assert {size: asked.ideal_hit_tokens(size) for size in (64, 32, 16, 8, 1)} == {64: 0, 32: 64, 16: 64, 8: 80, 1: 80}


@pytest.mark.parametrize("size", [768, 1_024])
def test_sizes_that_do_not_divide_the_ids_are_those_of_a_count_by_tokens(first_thousand: Path, size: int) -> None:
    """An id stands for all before it as well, so that (id, token in it) names a token and all before it."""
    seen: set[tuple[object, int]] = set()
    ended: set[tuple[object, int]] = set()
    expected = 0
    prompts = Prompts()
    for row in islice(read_rows(first_thousand, "mooncake"), 200):
        assert row.prompt is not None
        prompts.add(row.prompt)
        tokens = [(span.source, token) for span in row.prompt for token in range(span.length)]
        known = next((depth for depth, token in enumerate(tokens) if token not in seen), len(tokens))
        expected += known // size * size + (known % size if tokens[-1] in ended else 0)
        seen.update(tokens)
        ended.add(tokens[-1])
    assert expected > 0
    assert prompts.ideal_hit_tokens(size) == expected
    assert count_hits(prompts, size, [None]).results[0].hit_tokens == expected


# Prompts of a small world: chains of spans that share their heads, cut at any token.
chains = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), min_size=1, max_size=4)


@st.composite
def worlds(draw: st.DrawFn) -> list[Content]:
    asked = draw(st.lists(chains, max_size=9))
    return [tuple(Span(source, 0, length) for source, length in chain) for chain in asked]


def cut(prompt: Content, size: int) -> list[tuple[tuple[object, ...], bool]]:
    """Each block as all tokens up to its end, and whether it is full."""
    tokens = tuple((span.source, span.start + offset) for span in prompt for offset in range(span.length))
    return [(tokens[: start + size], start + size <= len(tokens)) for start in range(0, len(tokens), size)]


def num_tokens(found: Iterable[tuple[tuple[object, ...], bool]], size: int) -> int:
    return sum((len(tokens) - 1) % size + 1 for tokens, _full in found)


def plain_lru(prompts: list[Content], size: int, capacity: int) -> list[tuple[list, list]]:
    """For each prompt its blocks, and those of them that were hit, each looked up as it is touched."""
    held: OrderedDict = OrderedDict()
    out = []
    for prompt in prompts:
        found = []
        for block in cut(prompt, size):
            if block in held:
                found.append(block)
            held[block] = None
            held.move_to_end(block)
            if len(held) > capacity:
                held.popitem(last=False)
        out.append((cut(prompt, size), found))
    return out


def tail_first_lru(prompts: list[Content], size: int, capacity: int) -> list[tuple[list, list]]:
    """Looked up together up to the first that is missing; released tail first."""
    held: OrderedDict = OrderedDict()
    out = []
    for prompt in prompts:
        found = []
        for block in cut(prompt, size):
            if block not in held:
                break
            found.append(block)
        assert found == [block for block in cut(prompt, size) if block in held], "what is held is a prefix"
        for block in reversed(cut(prompt, size)):
            held[block] = None
            held.move_to_end(block)
        while len(held) > capacity:
            held.popitem(last=False)
        out.append((cut(prompt, size), found))
    return out


@pytest.mark.parametrize(("order", "naive"), [("head", plain_lru), ("tail", tail_first_lru)])
@given(prompts=worlds(), size=st.integers(1, 7), capacity=st.integers(1, 20))
def test_hits_are_those_of_a_naive_cache(order: Order, naive, prompts: list[Content], size: int, capacity: int) -> None:
    hits = count_hits(interned(prompts), size, [capacity], order)
    (result,) = hits.results
    cached = naive(prompts, size, capacity)
    assert hits.touches == sum(len(asked) for asked, _found in cached)
    assert hits.distinct_blocks == len({block for asked, _found in cached for block in asked})
    assert result.hit_blocks == sum(len(found) for _asked, found in cached)
    assert result.hit_tokens == sum(num_tokens(found, size) for _asked, found in cached)
    usable = 0
    for asked, found in cached:
        length = len(asked[-1][0])
        contiguous = next((at for at, block in enumerate(asked) if block not in found), len(asked))
        usable += min(contiguous, (length - 1) // size)
    assert result.engine_hit_blocks == usable
    assert result.engine_hit_tokens == usable * size
    assert result.optimum_hit_blocks is not None
    assert result.optimum_hit_blocks >= result.hit_blocks


def naive_cache(prompts: list[Content], size: int, capacity: int, policy: str) -> list[tuple[list, list]]:
    """For each prompt its blocks, and those of them that were there when it came."""
    numbers: dict = {}
    order = NaiveCachedOrder(policy)
    out = []
    for prompt in prompts:
        asked = cut(prompt, size)
        table = [numbers.setdefault(block, len(numbers)) for block in asked]
        there = order.cached()
        hit = [block for block in table if block in there]
        order.hit(hit)
        order.publish([block for block in table if block not in there])
        while len(order.published) > capacity and order.cached():
            order.evict(order.cached()[0])
        order.release(table[::-1])
        while len(order.published) > capacity:
            order.evict(order.cached()[0])
        out.append((asked, [block for block, number in zip(asked, table, strict=True) if number in hit]))
    return out


def usable_blocks(asked: list, found: list, size: int) -> int:
    """Of the blocks that were found, those that an engine hits."""
    contiguous = next((at for at, block in enumerate(asked) if block not in found), len(asked))
    return min(contiguous, (len(asked[-1][0]) - 1) // size)


@pytest.mark.parametrize("policy", EVICTION)
@given(prompts=worlds(), size=st.integers(1, 7), capacity=st.integers(1, 20))
def test_hits_under_a_policy_are_those_of_a_naive_cache(
    policy: str, prompts: list[Content], size: int, capacity: int
) -> None:
    (result,) = count_hits(interned(prompts), size, [capacity], "tail", policies=[policy]).results
    cached = naive_cache(prompts, size, capacity, policy)
    usable = sum(usable_blocks(asked, found, size) for asked, found in cached)
    assert result.policies == (
        PolicyHits(
            policy,
            sum(len(found) for _asked, found in cached),
            sum(num_tokens(found, size) for _asked, found in cached),
            usable,
            usable * size,
        ),
    )


@pytest.mark.parametrize("policy", EVICTION)
@given(prompts=worlds(), size=st.integers(1, 7), capacity=st.integers(1, 20))
def test_no_policy_is_above_the_optimum(policy: str, prompts: list[Content], size: int, capacity: int) -> None:
    hits = count_hits(interned(prompts), size, [capacity, None], "tail", policies=[policy])
    for result in hits.results:
        (under,) = result.policies
        assert result.optimum_hit_blocks is not None
        assert result.optimum_engine_hit_blocks is not None
        assert under.hit_blocks <= result.optimum_hit_blocks
        assert under.engine_hit_blocks <= result.optimum_engine_hit_blocks <= result.optimum_hit_blocks
        assert result.hit_blocks <= result.optimum_hit_blocks
        assert result.engine_hit_blocks <= result.optimum_engine_hit_blocks
    # A cache that never evicts leaves nothing to choose.
    assert hits.results[1].optimum_engine_hit_blocks == hits.results[1].policies[0].engine_hit_blocks


@given(prompts=worlds(), size=st.integers(1, 7), capacity=st.integers(1, 20))
def test_lru_in_one_pass_is_lru_block_by_block(prompts: list[Content], size: int, capacity: int) -> None:
    touches = interned(prompts).touches(size)
    found = found_under(EVICTION["lru"](), touches.keys, touches.groups.tolist(), capacity)
    assert found.tolist() == (touches.distances("tail") < capacity).tolist()


@st.composite
def little_worlds(draw: st.DrawFn) -> list[Content]:
    """So little that everything can be tried."""
    spans = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=2)
    asked = draw(st.lists(spans, max_size=6))
    return [tuple(Span(source, 0, length) for source, length in chain) for chain in asked]


@given(prompts=little_worlds(), size=st.integers(1, 2), capacity=st.integers(1, 4))
def test_the_optimum_of_an_engine_tries_all_that_prompts_may_leave(
    prompts: list[Content], size: int, capacity: int
) -> None:
    """Hits are contiguous prefixes of full blocks here, which the optimum is not told."""
    names: dict = {}
    asked = [cut(prompt, size) for prompt in prompts]
    tables = [[names.setdefault(block, len(names)) for block in blocks] for blocks in asked]

    @cache
    def best(index: int, held: frozenset[int]) -> int:
        if index == len(tables):
            return 0
        found = [block for block, name in zip(asked[index], tables[index], strict=True) if name in held]
        left = subsets(held | set(tables[index]), capacity)
        return usable_blocks(asked[index], found, size) + max(best(index + 1, some) for some in left)

    (result,) = count_hits(interned(prompts), size, [capacity], "tail").results
    assert result.optimum_engine_hit_blocks == best(0, frozenset())


def test_policies_of_the_conversation_trace(conversation: Prompts) -> None:
    """LFU is best in the small cache and worst in the larger; in neither is LRU near the bound."""
    hits = count_hits(conversation, 512, FINITE[:2], "tail", policies=list(EVICTION))

    def engine_blocks(result: CapacityHits) -> dict[str, int]:
        assert result.optimum_engine_hit_blocks is not None
        by_policy = {under.policy: under.engine_hit_blocks for under in result.policies}
        return by_policy | {"optimum": result.optimum_engine_hit_blocks}

    assert [engine_blocks(result) for result in hits.results] == [
        {"lru": 12_837, "fifo": 12_816, "lfu": 13_865, "tail_last_lru": 12_821, "optimum": 54_977},
        {"lru": 60_972, "fifo": 52_269, "lfu": 37_961, "tail_last_lru": 60_847, "optimum": 105_592},
    ]


def test_a_prompt_longer_than_the_cache_leaves_what_its_policy_keeps_of_it() -> None:
    """Four blocks go through a cache of two: LRU keeps the head, the others what cannot be found without it."""
    asked = interned([(Span("a", 0, 16),), (Span("a", 0, 17),)])
    (result,) = count_hits(asked, 4, [2], "tail", policies=list(EVICTION)).results
    found = {under.policy: (under.hit_blocks, under.engine_hit_blocks) for under in result.policies}
    assert found == {"lru": (2, 2), "fifo": (2, 0), "lfu": (2, 2), "tail_last_lru": (2, 0)}


def test_policies_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(TraceError, match="policy must be one of lru, fifo, lfu, tail_last_lru, got 'mru'"):
        count_hits(Prompts(), 4, [1], "tail", policies=["lru", "mru"])
    with pytest.raises(TraceError, match=r"policies are compared in the order tail, .* got order head"):
        count_hits(Prompts(), 4, [1], "head", policies=["lru"])


@given(prompts=worlds(), size=st.integers(1, 7))
def test_a_cache_that_never_evicts_is_the_ceiling(prompts: list[Content], size: int) -> None:
    asked = interned(prompts)
    (result,) = count_hits(asked, size, [None]).results
    assert result == count_hits(asked, size, [None], "tail").results[0]
    assert result.hit_tokens == asked.ideal_hit_tokens(size)
    assert result.optimum_hit_blocks == result.hit_blocks


def test_prompts_of_one_block_can_not_be_hit_in_an_engine() -> None:
    asked = interned([(Span("a", 0, 4),), (Span("a", 0, 4),), (Span("a", 0, 5),)])
    hits = count_hits(asked, 4, [None])
    assert (hits.prompts, hits.prompts_too_short, hits.smallest_prefix_tokens) == (3, 2, 4)
    assert (hits.results[0].hit_tokens, hits.results[0].engine_hit_tokens) == (8, 4)


def test_no_prompts_have_no_hits() -> None:
    hits = count_hits(Prompts(), 16, [1, None])
    assert (hits.touches, hits.prompt_tokens, blocks(hits)) == (0, 0, [0, 0])
    assert Prompts().ideal_hit_tokens(16) == 0


def test_the_usual_capacities_lie_below_what_is_ever_touched(conversation: Prompts) -> None:
    usual = HitCurve(conversation, 512).usual_capacities()
    assert usual == [100, 500, 1_000, 5_000, 10_000, 50_000, 100_000, None]
    assert HitCurve(interned([(Span("a", 0, 8),)]), 4).usual_capacities() == [1, None]
    assert HitCurve(Prompts(), 4).usual_capacities() == [None]


def test_a_long_trace_is_counted_without_its_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.study.hits.MOST_TOUCHES_FOR_OPTIMUM", 1)
    hits = count_hits(interned([(Span("a", 0, 8),)] * 2), 4, [1, None])
    assert [result.optimum_hit_blocks for result in hits.results] == [None, 2]


@pytest.mark.parametrize(("size", "capacity", "message"), [(0, 1, "block size must be between 1 and 1,000,000,000, got 0"), (2**63, 1, "block size must be between 1 and 1,000,000,000, got 9223372036854775808"), (1, 0, "capacity must be >= 1, got 0")])  # fmt: skip
def test_sizes_below_one_are_refused(size: int, capacity: int, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        count_hits(Prompts(), size, [capacity])
