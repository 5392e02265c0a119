"""A recorded case goes through the clocked scheduler and chains of blocks, and a log comes out, without block ids.

Windows of steps are told step by step, from what they leave behind. What the log does not have are the fields that
name blocks, and the number of keys where a window passes over the moment.
"""

import hashlib
import json

from kvsim.engine.clocked import ClockedScheduler, can_be_clocked
from kvsim.engine.simulation import Simulation
from kvsim.engine.state import RequestState
from kvsim.engine.step import Sampled, Step
from kvsim.memory.chains import ChainAllocator
from tests.replay import (
    DIGEST_EVERY,
    NEVER,
    Case,
    aborted_at,
    case_config,
    case_requests,
    is_anyone_there,
    outcome,
    watermark_blocks,
)

NAMES_BLOCKS = ("alloc", "tables", "free_queue", "final_free_queue")


def is_in_scope(case: Case) -> bool:
    """One group of full attention, first come, first served, no cap on long prefills, vLLM's order of eviction."""
    config = case["config"]
    plain = config["groups"] == [{"type": "full"}] and config.get("eviction", "lru") == "lru"
    return plain and can_be_clocked(case_config(case), config["block_size"])


class RunsOn(Exception):
    """The simulation goes on where the log has ended."""


class ClockedReplay:
    """`fast_forward` takes windows; else step follows step, and the number of keys is told too."""

    def __init__(self, case: Case, *, fast_forward: bool, check: bool) -> None:
        config = case["config"]
        self.fast_forward = fast_forward
        self.check = check
        self.caching = config["enable_prefix_caching"]
        self.is_cut = bool(case.get("truncated"))
        self.last_step = case["steps"][-1]["step"] if case.get("steps") else NEVER
        self.allocator = ChainAllocator(config["num_gpu_blocks"], config["block_size"], self.caching)
        self.scheduler = ClockedScheduler(case_config(case), self.allocator, watermark_blocks(case))
        self.simulation = Simulation(
            self.scheduler.config,
            self.scheduler,
            case_requests(case),
            fast_forward=fast_forward,
            on_step=self.on_step,
            on_outputs=self.on_outputs,
            check=check,
            futile_cycles=NEVER,
        )
        self.states = self.simulation.recorder.states
        self.steps: list[Case] = []
        self.decided: tuple[int, Step] | None = None

    def run(self) -> Case:
        self.simulation.run(self.last_step + 2 if self.is_cut else None)
        ends = [state.ended_ns or 0 for state in self.states if state.outcome == "aborted"]
        self.repeat_idle_steps(max(ends, default=0))
        return {
            "steps": [step for step in self.steps if step["step"] <= self.last_step],
            "outcome": [outcome(state) for state in self.states if state.outcome != "rejected"],
            "rejected_by_front_end": [state.request.id for state in self.states if state.outcome == "rejected"],
            "truncated": self.is_cut and bool(self.scheduler.running or self.scheduler.waiting),
        }

    def on_step(self, now: int, step: Step) -> None:
        if now > self.last_step + 2:
            raise RunsOn
        self.repeat_idle_steps(now)
        self.decided = now, step
        self.steps += self.log(now, step)

    def log(self, now: int, step: Step) -> list[Case]:
        """What was decided, one entry a step."""
        allocator, running = self.allocator, self.scheduler.running
        log = []
        for left in range(step.num_ticks - 1, -1, -1):
            computed = {state: self.computed(state) - left * (state not in step.scheduled) for state in running}
            blocks = {state: allocator.blocks_for(tokens) for state, tokens in computed.items()}
            back = sum(allocator.blocks_for(self.computed(state)) - blocks[state] for state in running) if left else 0
            prefilling = step.scheduled
            on_clock = [[state.request.id, 1] for state in running if self.is_on_clock(state)]
            at = now + step.num_ticks - 1 - left
            entry = {
                "step": at,
                "aborted": aborted_at(self.states, at),
                "sched": on_clock + [[state.request.id, tokens] for state, tokens in prefilling.items()],
                "new": [[state.request.id, hit.num_tokens] for state, hit in step.admitted],
                "resumed": [[state.request.id, hit.num_tokens] for state, hit in step.resumed],
                "preempted": [state.request.id for state in step.preempted],
                "running": [state.request.id for state in running],
                "free": allocator.num_free + back,
                "nblocks": list(blocks.values()),
                "waiting": [state.request.id for state in self.scheduler.waiting],
                "finished": [],
                "free_end": allocator.num_free + back,
            }
            if self.caching and not self.fast_forward:
                entry["keys"] = self.num_keys()
            log.append(entry)
        return log

    def computed(self, state: RequestState) -> int:
        if self.is_on_clock(state):
            return state.offset + self.allocator.ticks
        return state.num_computed_tokens

    def is_on_clock(self, state: RequestState) -> bool:
        decoding = state is not self.scheduler.partial and state not in self.scheduler._prefilled
        return decoding and state in self.scheduler.running

    def num_keys(self) -> int:
        for state in self.scheduler.running:
            if state.holder is not None and state.holder.offset is not None:
                self.allocator.catch_up(state.holder)
        return sum(chain.resident - chain.first for chain in self.allocator._tree)

    def on_outputs(self, now: int, sampled: Sampled) -> None:
        assert self.decided is not None
        began, step = self.decided
        window = self.steps[-step.num_ticks :]
        window[-1]["finished"] = [state.request.id for state in sampled.finished]
        window[-1]["free_end"] = self.allocator.num_free
        for entry in window[1:]:
            entry["waiting"] = window[0]["waiting"] + self.came_between(began, entry["step"])
            entry["aborted"] = aborted_at(self.states, entry["step"])

    def came_between(self, began: int, now: int) -> list[int]:
        """Requests that have come inside a window, less those that have left again."""
        return [
            state.request.id
            for state in self.states
            if began < state.request.arrival_ns <= now
            and state.outcome != "rejected"
            and (state.ended_ns is None or state.ended_ns > now)
        ]

    def repeat_idle_steps(self, until: int) -> None:
        """The recorded engine tries in vain in every step; the simulation sleeps until something changes."""
        while self.steps and not self.steps[-1]["sched"] and not self.steps[-1]["preempted"]:
            step = self.steps[-1]["step"] + 1
            if step >= until or not is_anyone_there(self.states, step):
                return
            self.steps.append({**self.steps[-1], "step": step, "aborted": []})


def replay_clocked(case: Case, *, fast_forward: bool, check: bool = True) -> Case:
    """The log of a case, or of a long run its totals and digests, in the words of the case."""
    run = ClockedReplay(case, fast_forward=fast_forward, check=check)
    try:
        log = run.run()
    except RunsOn:
        return {"steps": run.steps, "runs_on": True}
    if "steps" in case:
        return log | {"stalled": run.simulation.stalled is not None}
    steps = [step for step in log["steps"] if step["sched"] or step["preempted"]]
    digest, digests = hashlib.sha256(), []
    for count, step in enumerate(steps, 1):
        line = [step[name] for name in ("step", "sched", "new", "resumed", "preempted", "finished", "free_end")]
        digest.update((json.dumps(line, separators=(",", ":")) + "\n").encode())
        if count % DIGEST_EVERY == 0 or count == len(steps):
            digests.append([count, digest.hexdigest()])
    totals = {
        "steps": len(steps),
        "scheduled_tokens": sum(tokens for step in steps for _id, tokens in step["sched"]),
        "preemptions": sum(len(step["preempted"]) for step in steps),
        "hit_tokens_new": sum(tokens for step in steps for _id, tokens in step["new"]),
        "hit_tokens_resumed": sum(tokens for step in steps for _id, tokens in step["resumed"]),
        "least_free_blocks": min(step["free"] for step in steps),
    }
    return {"totals": totals, "digests": digests}
