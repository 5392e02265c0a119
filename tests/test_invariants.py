"""Each numbered invariant is broken once, on the structures of a real engine, and must be the first that is named."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given

from kvsim import invariants
from kvsim.engine.config import EngineConfig
from kvsim.engine.latency import LatencyModel
from kvsim.engine.scheduler import Scheduler, Step, check_invariants
from kvsim.engine.simulation import Simulation
from kvsim.engine.state import RequestState
from kvsim.errors import InvariantError
from kvsim.invariants import hold
from kvsim.memory.groups import LayerGroup
from kvsim.memory.paged import PagedAllocator
from kvsim.memory.pool import NULL_BLOCK
from kvsim.model.attention import Attention
from kvsim.workload.request import Request
from tests.check_decisions import case_files
from tests.engine.worlds import worlds
from tests.makers import make_request
from tests.oracle import World
from tests.replay import Case, case_allocator, case_config, case_requests, read_case, watermark_blocks

GOLDEN = Path(__file__).parent / "golden" / "vllm_scheduler"
CASES = [case for case in map(read_case, case_files(GOLDEN)) if "steps" in case]

CONFIG = EngineConfig(
    max_model_len=100,
    max_num_batched_tokens=14,
    latency=LatencyModel(base=1, per_prefill_token=0, per_decode_seq=0, per_context_token=0),
)
GROUPS = LayerGroup(Attention(), token_bytes=100), LayerGroup(Attention("sliding_window", 5), token_bytes=50)


class Engine:
    """A scheduler between two decisions: 0 has left, 1 and 2 share a head and run, 3 waits.

    Blocks have 4 slots. Full attention keeps all and the window of 5 has passed the first block of 1:

        id   computed   full attention   window
        1        9      1  2  9          0  4  10
        2        9      1  2  11         0  4  12
    """

    def __init__(self) -> None:
        self.allocator = PagedAllocator(
            20, 4, True, groups=GROUPS, block_bytes=400, max_num_batched_tokens=14, retention_interval=None
        )
        self.scheduler = Scheduler(CONFIG, self.allocator)
        self.states: list[RequestState] = []
        self.submit(make_request(0, shared=8, own=1, output=1))
        self.scheduler.complete(self.scheduler.schedule())
        for id in (1, 2, 3):
            self.submit(make_request(id, shared=8, own=id * id, output=9))
        self.scheduler.complete(self.scheduler.schedule())

    def submit(self, request: Request) -> None:
        state = RequestState(request, len(self.states), 100)
        self.states.append(state)
        self.scheduler.submit(state)

    def table(self, id: int, group: int) -> list[int]:
        return self.allocator.holdings[id].tables[group].blocks
