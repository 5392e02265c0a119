"""Windows, single steps on the clock, and the block-by-block judge leave the same rows, over random worlds."""

from typing import Any

import polars as pl
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine.clocked import ClockedScheduler
from kvsim.engine.config import EngineConfig
from kvsim.engine.latency import LatencyModel
from kvsim.engine.scheduler import Scheduler, StepScheduler
from kvsim.engine.simulation import Simulation
from kvsim.engine.tables import MemoryShape, pressure_frame, requests_frame, timeline_frame
from kvsim.memory.chains import ChainAllocator
from kvsim.memory.paged import PagedAllocator
from kvsim.workload.request import Request, make_request, merged
from tests.engine.worlds import worlds
from tests.oracle import World
from tests.replay import case_config, case_requests, watermark_blocks

MOST_NS = 20_000
TOKEN_BYTES = 3


def scheduler_for(world: World, config: EngineConfig, form: str) -> StepScheduler:
    case = world["config"]
    shape = case["num_gpu_blocks"], case["block_size"], case["enable_prefix_caching"]
    block_bytes = TOKEN_BYTES * case["block_size"] + 2
    if form == "plain":
        from kvsim.memory.groups import LayerGroup

        paged = PagedAllocator(
            *shape,
            groups=(LayerGroup(token_bytes=TOKEN_BYTES),),
            block_bytes=block_bytes,
            max_num_batched_tokens=case["max_num_batched_tokens"],
            max_model_len=case["max_model_len"],
        )
        return Scheduler(config, paged, watermark_blocks(world))
    chains = ChainAllocator(*shape, token_bytes=TOKEN_BYTES, block_bytes=block_bytes)
    return ClockedScheduler(config, chains, watermark_blocks(world))


class Clients:
    """Closed loop: whoever has ended asks again, some at once, what went before and a little more."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.next_id = 1000

    def follow_ups(self, now: int, ended: Request, complete: bool) -> list[Request]:
        if not self.left:
            return []
        self.left -= 1
        self.next_id += 1
        prompt = (*ended.prompt, *ended.output) if complete else ended.prompt
        pause = (ended.id * 7 + now) % 4
        return [make_request(self.next_id, now + pause, merged(prompt[-3:]), 1 + ended.id % 5)]


def run(world: World, config: EngineConfig, form: str, clients: int, check: bool = True) -> dict[str, Any]:
    scheduler = scheduler_for(world, config, form)
    simulation = Simulation(
        config,
        scheduler,
        case_requests(world),
        follow_ups=Clients(clients).follow_ups if clients else None,
        fast_forward=form == "windows",
        check=check,
    )
    recorder = simulation.run(MOST_NS)
    shape = MemoryShape(world["config"]["num_gpu_blocks"], world["config"]["block_size"], 10, TOKEN_BYTES)
    rows = timeline_frame(recorder.take_rows(), shape)
    return {
        "requests": requests_frame(recorder.take_states(all=True)),
        "pressure": pressure_frame(recorder.take_pressure(all=True)),
        "timeline": rows,
        "held_back": recorder.held_back_steps,
        "num_steps": recorder.num_steps,
        "stalled": simulation.stalled,
    }


def same(expected: dict[str, Any], got: dict[str, Any]) -> str | None:
    """The first difference."""
    for name, value in expected.items():
        if not isinstance(value, pl.DataFrame):
            if value != got[name]:
                return f"{name}: {value} {got[name]}"
        elif not value.equals(got[name]):
            other = got[name]
            for index in range(max(value.height, other.height)):
                a = value.row(index, named=True) if index < value.height else None
                b = other.row(index, named=True) if index < other.height else None
                if a != b:
                    if a is None or b is None:
                        return f"{name}[{index}]: {a} {b}"
                    return f"{name}[{index}]: {[(key, a[key], b[key]) for key in a if a[key] != b[key]]} in {a}"
    return None


LATENCIES = st.sampled_from(
    [
        LatencyModel(1, 0, 0, 0),
        LatencyModel(3, 0, 0, 0),
        LatencyModel(2, 1, 0, 0),
        LatencyModel(1, 1, 1, 1),
        LatencyModel(7, 2, 1, 3),
    ]
)


@st.composite
def clocked_worlds(draw: st.DrawFn) -> tuple[World, EngineConfig, int]:
    world = draw(worlds())
    world["config"] |= {"policy": "fcfs", "long_prefill_token_threshold": 0}
    if not world["config"]["enable_chunked_prefill"]:
        world["config"]["max_num_batched_tokens"] = max(
            world["config"]["max_num_batched_tokens"], draw(st.integers(1, 40))
        )
    scale = draw(st.sampled_from([1, 1, 1, 5, 17]))
    for request in world["requests"]:
        request["arrival_step"] *= scale
        if "abort_step" in request:
            request["abort_step"] = request["abort_step"] * scale + draw(st.integers(0, 5))
    config = evolve(
        case_config(world),
        latency=draw(LATENCIES),
        timeout=draw(st.none() | st.none() | st.integers(1, 60)),
        max_waiting=draw(st.none() | st.none() | st.integers(1, 4)),
        reject_unservable=draw(st.booleans()),
    )
    clients = (
        0 if any("abort_step" in request for request in world["requests"]) else draw(st.sampled_from([0, 0, 5, 20]))
    )
    return world, config, clients


# Hard cases are rare: a night looks at twenty thousand worlds.
@settings(max_examples=500 if settings.default.max_examples <= 200 else 20_000)
@given(clocked_worlds())
def test_windows_and_steps_and_blocks_one_by_one_leave_the_same(drawn: tuple[World, EngineConfig, int]) -> None:
    world, config, clients = drawn
    plain = run(world, config, "plain", clients, check=False)
    steps = run(world, config, "steps", clients, check=False)
    assert same(plain, steps) is None
    windows = run(world, config, "windows", clients, check=False)
    assert same(plain, windows) is None
    assert same(plain, run(world, config, "windows", clients, check=True)) is None
