"""A call: what the larger benchmarks are made of."""

from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kvsim.engine.latency import LatencyModel
from kvsim.memory.chain import Holder
from kvsim.memory.chains import ChainAllocator
from kvsim.memory.prefix import PrefixTree
from kvsim.workload.request import Request, Span, make_request
from loads import BLOCK_SIZE, LOADS, requests_of

pytestmark = pytest.mark.benchmark(group="a call")


def made(load_name: str) -> list[Request]:
    load = LOADS[load_name]
    return list(requests_of(load, load.lengths))


def test_make_2000_requests(benchmark: BenchmarkFixture) -> None:
    requests = benchmark(made, "b")
    assert len(requests) == 2_000
    assert {request.prompt_tokens for request in requests} == {1_024 + 512}


def test_intern_2000_prompts(benchmark: BenchmarkFixture) -> None:
    requests = made("b")

    def intern() -> set[int]:
        tree = PrefixTree()
        return {tree.intern(request.prompt)[-1][0] for request in requests}

    assert len(benchmark(intern)) == 2_000, "no two prompts are equal to their end"


def test_duration_of_a_step(benchmark: BenchmarkFixture) -> None:
    assert (
        benchmark(LatencyModel().step_ns, 8_000, 192, 200_000) == 8_000_000 + 8_000 * 40_000 + 192 * 2_000 + 8_000_000
    )


@pytest.mark.parametrize("tokens", [1_024, 131_072])
def test_admit_and_release_a_cached_prompt(tokens: int, benchmark: BenchmarkFixture) -> None:
    """At a cost that does not grow with its blocks."""
    memory = ChainAllocator(2**15, BLOCK_SIZE, True, token_bytes=1)
    prompt = (Span("sys", 0, tokens), Span("user", 0, 1))
    num_blocks = tokens // BLOCK_SIZE
    first = memory.look_up(make_request(0, 0, prompt, 1), tokens + 1)
    memory.admit(first, 0)
    memory.extend(first, 0, tokens + 1)
    memory.release(first, tokens + 1)

    def hold(holder: Holder) -> Iterator[int]:
        found, _in_use, _missing = memory.find(holder, tokens + 1)
        memory.admit(holder, found)
        memory.extend(holder, found * BLOCK_SIZE, tokens + 1)
        yield found
        memory.release(holder, tokens + 1)

    assert benchmark(lambda: list(hold(first))) == [num_blocks]
    assert (memory.num_cached, memory.live_tokens) == (num_blocks, 0)
