"""A recorded case goes through the simulation, and a log in the format of the case comes out.

The format is that of tests/golden/vllm_scheduler/README.md. A step lasts one nanosecond, so times are step
numbers: what step k decides is decided at time k, and its outputs are there at time k + 1.
"""

import gzip
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvsim.engine.config import EngineConfig
from kvsim.engine.latency import LatencyModel
from kvsim.engine.recorder import Recorder
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.simulation import Simulation
from kvsim.engine.state import RequestState
from kvsim.engine.step import Sampled, Step
from kvsim.memory.groups import LayerGroup
from kvsim.memory.paged import PagedAllocator
from kvsim.model.attention import Attention
from kvsim.workload.request import Content, Request, Span, merged

Case = dict[str, Any]
"""A case as its file has it: config, requests, and what was decided for them."""

NEVER = 10**9
"""More futile cycles than any log has: the recorded engine does not notice that it goes round in circles."""

AT_ONCE = 2**60
"""Bytes per second that take no time, as steps are counted and not timed."""

DIGEST_EVERY = 100


def read_case(path: Path) -> Case:
    data = path.read_bytes()
    case: Case = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return case


def case_config(case: Case) -> EngineConfig:
    config = case["config"]
    same_name = (
        "max_model_len",
        "max_num_seqs",
        "max_num_active_seqs",
        "max_num_batched_tokens",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
        "scheduler_reserve_full_isl",
        "policy",
    )
    beyond_the_rules = (
        "admission",
        "max_output_tokens",
        "expected_output_tokens",
        "admission_margin",
        "preemption",
    )
    one_ns_a_step = LatencyModel(base=1, per_prefill_token=0, per_decode_seq=0, per_context_token=0)
    return EngineConfig(
        **{name: config[name] for name in same_name},
        **{name: config[name] for name in beyond_the_rules if name in config},
        swap_bandwidth=AT_ONCE,
        reject_unservable=False,
        latency=one_ns_a_step,
    )


def case_requests(case: Case) -> list[Request]:
    """In order of arrival; of those of one step, in the order of the case."""
    requests = [
        Request(
            id=row["id"],
            arrival_ns=row["arrival_step"],
            prompt=token_runs(row["prompt_runs"]),
            output=token_runs([[row["output_base"], row["output_len"]]]),
            priority=row.get("priority", 0),
            abort_ns=row.get("abort_step"),
        )
        for row in case["requests"]
    ]
    return sorted(requests, key=lambda request: request.arrival_ns)


def token_runs(runs: list[list[int]]) -> Content:
    """Runs of token ids: a token id is a position in the one source that has all tokens."""
    return merged(Span("tokens", first, count) for first, count in runs)


def replay(case: Case, *, check: bool = True) -> Case:
    """What the simulation decides for a case, in the words of the case; `check` recounts invariants in every step.

    A log that is cut (`truncated`) is followed up to where it was cut.
    """
    return _Replay(case, check).run()


class _LogEnds(Exception):
    """The simulation goes on where the log has ended."""


class _Replay:
    def __init__(self, case: Case, check: bool) -> None:
        config = case["config"]
        self.last_step = case["steps"][-1]["step"] if case["steps"] else -1
        self.check = check
        self.caching = config["enable_prefix_caching"]
        self.allocator = case_allocator(case)
        self.scheduler = Scheduler(case_config(case), self.allocator, watermark_blocks(case))
        self.simulation = Simulation(
            self.scheduler.config,
            self.scheduler,
            case_requests(case),
            on_step=self.on_step,
            on_outputs=self.on_outputs,
            check=check,
            futile_cycles=NEVER,
        )
        self.recorder: Recorder = self.simulation.recorder
        self.steps: list[Case] = []
        self.states: dict[int, RequestState] = {}
        self.table_lengths: dict[int, int] = {}
        self.tells_swaps = "preemption" in config
        self.swapped: dict[int, tuple[int, int, int]] = {}
        self.on_host: set[int] = set()
        self.end: Case = self.how_it_ends()

    def run(self) -> Case:
        try:
            self.simulation.run()
        except _LogEnds:
            return {**self.end, "truncated": True}
        ends = [state.ended_ns or 0 for state in self.recorder.states if state.outcome == "aborted"]
        self.repeat_idle_steps(max(ends, default=0))
        if self.check:
            self.scheduler.check()
        return {**self.how_it_ends(), "stalled": self.simulation.stalled is not None}

    def how_it_ends(self) -> Case:
        states = self.recorder.states
        return {
            "steps": self.steps,
            "outcome": [outcome(state) for state in states if state.outcome != "rejected"],
            "rejected_by_front_end": [state.request.id for state in states if state.outcome == "rejected"],
            "final_free_queue": list(self.allocator.pool.free_queue()),
        }

    def on_step(self, now: int, step: Step) -> None:
        if now > self.last_step:
            raise _LogEnds
        self.repeat_idle_steps(now)
        holdings = self.allocator.holdings
        running = [state.request.id for state in self.scheduler.running]
        admitted = {state.request.id for state, _hit in step.admitted + step.resumed}
        self.states.update((state.request.id, state) for state, _hit in step.admitted)
        alloc = []
        for state in step.scheduled:
            id = state.request.id
            appended = holdings[id].tables[0].blocks[0 if id in admitted else self.table_lengths[id] :]
            if appended:
                alloc.append([id, appended])
        self.table_lengths = {id: len(holding.tables[0].blocks) for id, holding in holdings.items()}
        record = {
            "step": now,
            "aborted": aborted_at(self.recorder.states, now),
            "sched": [[state.request.id, num_tokens] for state, num_tokens in step.scheduled.items()],
            "new": [[state.request.id, hit.num_tokens] for state, hit in step.admitted],
            "resumed": [[state.request.id, hit.num_tokens] for state, hit in step.resumed],
            "preempted": [state.request.id for state in step.preempted],
            "running": running,
            "waiting": [state.request.id for state in self.scheduler.waiting],
            "free": self.allocator.pool.num_free,
            "nblocks": [self.by_group(len(table.blocks) for table in holdings[id].tables) for id in running],
            "alloc": alloc,
            "tables": [self.by_group(list(table.blocks) for table in holdings[id].tables) for id in running],
            "finished": [],
        }
        if self.tells_swaps:
            record |= self.moved(step)
        if self.caching:
            record["keys"] = self.allocator.pool.num_keys
        self.steps.append(record)
        self.note_free_blocks()

    def moved(self, step: Step) -> Case:
        """Blocks that each request has moved to the host and from it in this step, and what is there now."""
        moved: Case = {"swapped_out": [], "swapped_in": [], "host": self.allocator.host.num_used}
        for state in (*step.preempted, *(state for state, _hit in step.resumed)):
            id, now = state.request.id, (state.swapped_out_bytes, state.swapped_in_bytes, state.num_swaps)
            out, back, swaps = (a - b for a, b in zip(now, self.swapped.get(id, (0, 0, 0)), strict=True))
            self.swapped[id] = now
            if swaps:
                moved["swapped_out"].append([id, out // self.allocator.block_bytes])
            elif id in self.on_host:
                moved["swapped_in"].append([id, back // self.allocator.block_bytes])
        self.on_host = set(self.allocator.host.held_tokens())
        return moved

    def by_group(self, values: Iterable[Any]) -> Any:
        """A list with a value a group, or the value itself where there is one group."""
        listed = list(values)
        return listed if len(listed) > 1 else listed[0]

    def on_outputs(self, now: int, sampled: Sampled) -> None:
        self.steps[-1]["finished"] = [state.request.id for state in sampled.finished]
        self.note_free_blocks()
        if now > self.last_step:
            self.end = self.how_it_ends()

    def note_free_blocks(self) -> None:
        """The free queue at the end of the step, as far as the step has got."""
        self.steps[-1]["free_end"] = self.allocator.pool.num_free
        self.steps[-1]["free_queue"] = list(self.allocator.pool.free_queue())

    def repeat_idle_steps(self, until: int) -> None:
        """The recorded engine tries in vain in every step; the simulation sleeps until something changes."""
        while self.steps and not self.steps[-1]["sched"] and not self.steps[-1]["preempted"]:
            step = self.steps[-1]["step"] + 1
            if step >= until or not is_anyone_there(self.recorder.states, step):
                return
            self.steps.append({**self.steps[-1], "step": step, "aborted": []})


def is_anyone_there(states: Iterable[RequestState], step: int) -> bool:
    return any(
        state.request.arrival_ns <= step and (state.ended_ns is None or state.ended_ns > step) for state in states
    )


def aborted_at(states: Iterable[RequestState], step: int) -> list[int]:
    return [state.request.id for state in states if state.outcome == "aborted" and state.ended_ns == step]


def outcome(state: RequestState) -> Case:
    """The row of a request in a log that has ended."""
    gone = state.ended_ns is not None
    aborted = state.outcome == "aborted"
    return {
        "id": state.request.id,
        "cached": None if state.admitted_ns is None else state.hit_tokens,
        "first_token_step": None if state.first_token_ns is None else state.first_token_ns - 1,
        "finish_step": state.ended_ns if aborted or state.ended_ns is None else state.ended_ns - 1,
        "preemptions": state.num_preemptions,
        "output_len": state.num_output_tokens if gone else 0,
        "reason": ("abort" if aborted else "length") if gone else None,
    }


def case_allocator(case: Case) -> PagedAllocator:
    config = case["config"]
    groups = tuple(
        LayerGroup(Attention(group["type"], group.get("window", group.get("chunk")))) for group in config["groups"]
    )
    return PagedAllocator(
        config["num_gpu_blocks"],
        config["block_size"],
        config["enable_prefix_caching"],
        groups=groups,
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        retention_interval=config["prefix_cache_retention_interval"],
        eviction=config.get("eviction", "lru"),
        host_blocks=config.get("host_blocks", 0),
    )


def watermark_blocks(case: Case) -> int:
    """Rule 13."""
    return int(case["config"]["watermark"] * case["config"]["num_gpu_blocks"])


def replay_scale(case: Case) -> Case:
    """Totals of a long run, and a digest over all steps so far after every hundred and at the end.

    Invariants are recounted with each digest: the pools are too large to do so in every step.
    """
    allocator = case_allocator(case)
    digest = hashlib.sha256()
    digests: list[list[Any]] = []
    totals = dict.fromkeys(("steps", "scheduled_tokens", "preemptions", "hit_tokens_new", "hit_tokens_resumed"), 0)
    totals["least_free_blocks"] = case["config"]["num_gpu_blocks"]
    record: list[Any] = []

    def on_step(now: int, step: Step) -> None:
        new = [[state.request.id, hit.num_tokens] for state, hit in step.admitted]
        resumed = [[state.request.id, hit.num_tokens] for state, hit in step.resumed]
        preempted = [state.request.id for state in step.preempted]
        sched = [[state.request.id, num_tokens] for state, num_tokens in step.scheduled.items()]
        record[:] = [now, sched, new, resumed, preempted]
        totals["steps"] += 1
        totals["scheduled_tokens"] += sum(num_tokens for _id, num_tokens in sched)
        totals["preemptions"] += len(preempted)
        totals["hit_tokens_new"] += sum(num_tokens for _id, num_tokens in new)
        totals["hit_tokens_resumed"] += sum(num_tokens for _id, num_tokens in resumed)
        totals["least_free_blocks"] = min(totals["least_free_blocks"], allocator.pool.num_free)

    def on_outputs(now: int, sampled: Sampled) -> None:
        line = [*record, [state.request.id for state in sampled.finished], allocator.pool.num_free]
        digest.update((json.dumps(line, separators=(",", ":")) + "\n").encode())
        if totals["steps"] % DIGEST_EVERY == 0:
            digests.append([totals["steps"], digest.hexdigest()])
            scheduler.check()

    scheduler = Scheduler(case_config(case), allocator, watermark_blocks(case))
    simulation = Simulation(
        scheduler.config,
        scheduler,
        case_requests(case),
        on_step=on_step,
        on_outputs=on_outputs,
        futile_cycles=NEVER,
    )
    simulation.run()
    if totals["steps"] % DIGEST_EVERY:
        digests.append([totals["steps"], digest.hexdigest()])
    return {"totals": totals, "digests": digests}
