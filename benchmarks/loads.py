"""Eight loads of 2,000 requests that all arrive at once, which the real engine's scheduler can be given too.

Blocks of 16 tokens, 256 seats, 8,192 tokens a step. In `a` to `c` all requests are alike, so that they also finish
together; in `va` to `vc` no two lengths go together.
"""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

from attrs import frozen

from kvsim.engine.clocked import ClockedScheduler
from kvsim.engine.collect import collect
from kvsim.engine.config import EngineConfig
from kvsim.engine.results import Results
from kvsim.engine.simulation import Simulation
from kvsim.engine.tables import MemoryShape, TablesInMemory
from kvsim.engine.totals import Totals
from kvsim.memory.chains import ChainAllocator
from kvsim.workload.request import Request, Span, make_request

NUM_REQUESTS = 2_000
BLOCK_SIZE = 16
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 8_192
MAX_MODEL_LEN = 8_192
TOKEN_BYTES = 131_072
"""Llama 3.1 8B in bf16."""


class Work(NamedTuple):
    """What a run has done: equal work, or times must not be compared."""

    steps: int
    preemptions: int
    hit_tokens: int
    """Found at the first admissions."""


@frozen
class Load:
    """`num_blocks` counts the null block; `shared_tokens` stand before every prompt of `lengths`."""

    name: str
    stresses: str
    num_blocks: int
    prefix_sharing: bool
    shared_tokens: int
    is_mixed: bool
    work: Work

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Own prompt tokens and output tokens of each request."""
        if not self.is_mixed:
            return [(512, 128)] * NUM_REQUESTS
        random = Random(7)
        return [(random.randint(256, 768), random.randint(16, 240)) for _ in range(NUM_REQUESTS)]


LOADS = {
    load.name: load
    for load in (
        Load("a", "scheduling alone", 20_000, False, 0, False, Work(1_037, 0, 0)),
        Load("a2", "publishing", 100_000, True, 0, False, Work(1_037, 0, 0)),
        Load("b", "hits", 100_000, True, 1_024, False, Work(1_037, 0, 2_046_976)),
        Load("c", "preemption", 6_000, True, 0, False, Work(1_677, 332, 0)),
        Load("va", "scheduling alone", 20_000, False, 0, True, Work(1_127, 0, 0)),
        Load("va2", "publishing", 100_000, True, 0, True, Work(1_127, 0, 0)),
        Load("vb", "hits", 100_000, True, 1_024, True, Work(1_127, 0, 2_046_976)),
        Load("vc", "preemption", 6_000, True, 0, True, Work(1_704, 129, 0)),
    )
}


def requests_of(load: Load, lengths: list[tuple[int, int]]) -> Iterator[Request]:
    head = (Span("sys", 0, load.shared_tokens),) if load.shared_tokens else ()
    for request_id, (prompt_tokens, output_tokens) in enumerate(lengths):
        yield make_request(request_id, 0, (*head, Span(f"user:{request_id}", 0, prompt_tokens)), output_tokens)


def simulate_load(load: Load, lengths: list[tuple[int, int]]) -> Results:
    """Make the requests, simulate them, and make all tables and figures of it.

    `lengths` are the load's own, drawn before the clock starts.
    """
    config = EngineConfig(
        max_model_len=MAX_MODEL_LEN, max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS
    )
    shape = MemoryShape(load.num_blocks, BLOCK_SIZE, BLOCK_SIZE * TOKEN_BYTES, TOKEN_BYTES)
    chains = ChainAllocator(load.num_blocks, BLOCK_SIZE, load.prefix_sharing, token_bytes=TOKEN_BYTES)
    simulation = Simulation(config, ClockedScheduler(config, chains), requests_of(load, lengths))
    tables = TablesInMemory()
    totals = Totals(shape, worst_case_bytes=MAX_NUM_SEQS * MAX_MODEL_LEN * TOKEN_BYTES)
    collect(simulation, tables, totals)
    results = Results(description={"load": load.name}, totals=totals, tables=tables, stalled=simulation.stalled)
    assert results.metrics["finished"] == len(lengths), "every request gets its whole output"
    return results


def work_of(results: Results) -> Work:
    sums = results.totals.sums
    return Work(results.totals.num_steps, sums["preemptions"], sums["hit_tokens"])
