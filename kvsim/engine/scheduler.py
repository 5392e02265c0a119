"""Who runs in the next step: running requests first, then the head of the queue, preemption by recompute or swap.

Rule numbers are those of tests/golden/vllm_scheduler/README.md. The scheduler decides and knows no time; it
asks memory only through the `Allocator` protocol.

Swap is not in those rules, as vLLM V1 has recompute only. It is vLLM V0's, in the place of rule 8: what a victim has
computed moves to the host. It waits where rule 8 puts it, at the very front of the queue (by priority: in its order),
and comes back before anybody behind it is admitted, under the gate and the watermark of any admission (rules 12, 13).
Then it takes the hits that the prefix cache still has, and the rest moves back instead of being computed. Where the
host has no room for all of a victim, that victim recomputes; V0 would have ended the engine.
"""

from collections.abc import Collection, Iterable
from typing import Protocol

from kvsim.engine.admission import ADMISSION, Demand
from kvsim.engine.config import EngineConfig
from kvsim.engine.queue import WAITING_QUEUES, WaitingQueue, urgency
from kvsim.engine.sequences import ONE_SEQUENCE, Sequences
from kvsim.engine.state import RequestState
from kvsim.engine.step import Sampled, Step
from kvsim.invariants import hold
from kvsim.memory.allocator import Allocator, Hit, LeastChange, Memory, Shortfall
from kvsim.memory.block_map import BlockMap
from kvsim.rules import MAX_TOKENS
from kvsim.workload.request import Request

_Asked = tuple[Request, Hit, int, int | None, int]
"""What an allocator is asked at an admission."""


class StepScheduler(Protocol):
    """What the simulation asks of a scheduler, which decides and knows no time."""

    @property
    def waiting(self) -> WaitingQueue: ...

    @property
    def memory(self) -> Memory: ...
    @property
    def running(self) -> Collection[RequestState]: ...
    def submit(self, state: RequestState) -> None: ...
    def abort(self, state: RequestState) -> bool:
        """Take a request out between two steps, wherever it is; tells whether it was running."""
        ...

    def window(self) -> Step | None:
        """Steps that only decode and may follow each other at once; None where the next must be decided by itself."""
        ...

    def decode(self, window: Step) -> list[int]:
        """Let these steps happen, as many as it says by now; the blocks that they take, one after the other.

        Of more steps than a block has slots, it is the first of them that are told, which then repeat.
        """
        ...

    def schedule(self) -> Step:
        """Decide one step, take its blocks and advance the scheduled requests (rules 2 and 5)."""
        ...

    def complete(self, step: Step) -> Sampled:
        """Rules 2 and 3: sample one token where all known ones are computed, end and free what is done."""
        ...

    def settle(self) -> None:
        """At the end: say of all that still run how far they have got."""
        ...

    def block_map(self, time_ns: int) -> BlockMap:
        """Who holds which block now."""
        ...

    def check(self) -> None:
        """Recount invariants between two decisions; raises InvariantError with the first that does not hold."""
        ...


class Scheduler:
    """One step after the other, request by request: the judge of every faster form.

    `watermark_blocks` must be left over at an admission while anything runs (rule 13). Progress of a request is that
    of each of its `sequences`."""

    def __init__(
        self,
        config: EngineConfig,
        allocator: Allocator,
        watermark_blocks: int = 0,
        sequences: Sequences = ONE_SEQUENCE,
    ) -> None:
        self.config = config
        self.allocator = allocator
        self.watermark_blocks = watermark_blocks
        self.sequences = sequences
        self.running: list[RequestState] = []
        self.waiting: WaitingQueue = WAITING_QUEUES[config.policy]()
        self._max_running = (config.max_num_active_seqs or config.max_num_seqs) // sequences.num_seqs
        self._demand = ADMISSION[config.admission_policy]

    @property
    def memory(self) -> Memory:
        return self.allocator

    def submit(self, state: RequestState) -> None:
        self.waiting.submit(state)

    def abort(self, state: RequestState) -> bool:
        """Take a request out between two steps, wherever it is; tells whether it was running."""
        if state in self.running:
            self.running.remove(state)
            self.allocator.free(state.request)
            return True
        self.waiting.remove(state)
        if state.swapped_tokens:
            state.swap_dropped_bytes += self.allocator.drop_swapped(state.request)
            state.swapped_tokens = 0
        return False

    def window(self) -> None:
        """Every step is decided by itself."""

    def decode(self, window: Step) -> list[int]:
        raise AssertionError("no windows were offered")

    def schedule(self) -> Step:
        """Decide one step, take its blocks and advance the scheduled requests (rules 2 and 5)."""
        step = Step()
        threshold = self.config.long_prefill_token_threshold
        budget = self.config.max_num_batched_tokens
        capped = threshold > 0 and len(self.running) + len(self.waiting) > 1
        cap = threshold if capped else MAX_TOKENS
        budget = self._schedule_running(step, budget, cap)
        if step.preempted:
            step.held_back = "preemption"
        else:
            self._admit_waiting(step, budget, cap)
        self._advance(step)
        return step

    def _schedule_running(self, step: Step, budget: int, cap: int) -> int:
        """Rules 6 and 7; returns the token budget that is left."""
        running, grow, sequences = self.running, self.allocator.grow, self.sequences
        index = 0
        while index < len(running) and budget > 0:
            state = running[index]
            computed = state.num_computed_tokens
            lacking = min(state.num_tokens - computed, cap)
            num_new = sequences.affordable(state.request, computed, lacking, budget)
            if not num_new:
                return 0  # sequences of a request go together, and nobody overtakes them
            while not grow(state.request, state.num_computed_tokens + num_new):
                step.preemption_shortfalls.append(
                    self.allocator.why_not_grown(state.request, state.num_computed_tokens + num_new)
                )
                victim = self._victim()
                taken_back = step.scheduled.pop(victim, 0)
                if taken_back:
                    stop = victim.num_computed_tokens + taken_back
                    budget += sequences.num_tokens(victim.request, victim.num_computed_tokens, stop)
                    index -= 1
                self._preempt(victim, step)
                if victim is state:
                    return budget
            step.scheduled[state] = num_new
            budget -= sequences.num_tokens(state.request, computed, computed + num_new)
            index += 1
        return budget

    def _victim(self) -> RequestState:
        """Rule 7: the last to have come, or the least urgent."""
        if self.config.policy == "priority":
            return max(self.running, key=urgency)
        return self.running[-1]

    def _preempt(self, victim: RequestState, step: Step) -> None:
        """Rule 8: everything is computed again later, less what the prefix cache still holds, unless it is swapped."""
        self.running.remove(victim)
        if self.config.preemption == "recompute" or not self._swap_out(victim, step):
            self.allocator.free(victim.request)
            victim.high_water_tokens = max(victim.high_water_tokens, victim.num_computed_tokens)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.waiting.put_back(victim)
        step.preempted.append(victim)

    def _swap_out(self, victim: RequestState, step: Step) -> bool:
        moved_bytes = self.allocator.swap_out(victim.request, victim.num_computed_tokens)
        if moved_bytes is None:
            victim.num_swap_fallbacks += 1
            return False
        victim.swapped_tokens = victim.num_computed_tokens
        victim.num_swaps += 1
        victim.swapped_out_bytes += moved_bytes
        step.swapped_bytes += moved_bytes
        return True

    def _admit_waiting(self, step: Step, budget: int, cap: int) -> None:
        """Rules 9 and 12: only the head of the queue is looked at, and it is never skipped."""
        config = self.config
        while len(self.waiting):
            if len(self.running) >= self._max_running:
                step.held_back = "max_num_seqs"
                return
            if budget <= 0:
                step.held_back = "token_budget"
                return
            state = self.waiting.head()
            hit = self.allocator.find_hit(state.request, state.num_tokens)
            computed = max(hit.num_tokens, state.swapped_tokens)
            num_new = min(state.num_tokens - computed, cap)
            if not config.enable_chunked_prefill and num_new > budget:
                step.held_back = "token_budget"
                return
            num_new = self.sequences.affordable(state.request, computed, num_new, budget)
            num_tokens = computed + num_new
            demand = self._demand(state, config)
            spare = self.watermark_blocks if self.running else 0
            asked = state.request, hit, num_tokens, demand.must_fit_tokens, spare
            shortfall = self._short_of_promises(asked, demand)
            if shortfall is None and not self._take_in(state, step, asked):
                shortfall = self.allocator.why_not_admitted(*asked)
            if shortfall is not None:
                step.refused, step.refusal_shortfall = state, shortfall
                return
            self.waiting.pop()
            self.running.append(state)
            state.num_computed_tokens = computed
            step.scheduled[state] = num_new
            budget -= self.sequences.num_tokens(state.request, computed, num_tokens)
            (step.resumed if state.was_admitted else step.admitted).append((state, hit))
            state.was_admitted = True

    def _short_of_promises(self, asked: _Asked, demand: Demand) -> Shortfall | None:
        """What keeping all promises is short of, if anything.

        A request alone in the engine is let in as vLLM does, as it is not asked for a watermark either: nobody can
        take from it what it has been promised, and a promise that exceeds the pool would block the queue for ever.
        """
        if demand.promised_tokens is None or not self.running:
            return None
        request, hit, num_tokens, _must_fit_tokens, spare = asked
        promised = {
            state.request.id: self._demand(state, self.config).promised_tokens or state.num_tokens
            for state in self.running
        }
        need = self.allocator.promised_blocks(promised, request, hit, demand.promised_tokens)
        without = self.allocator.why_not_admitted(*asked)
        free = without.blank + without.evictable
        if need + spare <= free:
            return None
        change: LeastChange = "blocks"
        if need <= free:
            change = "watermark"
        elif without.missing <= 0:
            change = "reservation"
        elif self.allocator.why_not_admitted(request, hit, num_tokens, None, spare).missing <= 0:
            change = "gate"
        return without._replace(need=need + spare, missing=need + spare - free, least_change=change)

    def _take_in(self, state: RequestState, step: Step, asked: _Asked) -> bool:
        """Admit a request, or swap it in."""
        if not state.swapped_tokens:
            return self.allocator.admit(*asked)
        came_back = self.allocator.swap_in(*asked)
        if came_back is None:
            return False
        state.swapped_tokens = 0
        state.swapped_in_bytes += came_back.moved_bytes
        state.swap_dropped_bytes += came_back.dropped_bytes
        step.swapped_bytes += came_back.moved_bytes
        return True

    def _advance(self, step: Step) -> None:
        """Rule 2, and the work of the step by kind."""
        context = prefill = decode = 0
        sequences = self.sequences
        for state, num_new in step.scheduled.items():
            request, computed = state.request, state.num_computed_tokens
            stop = computed + num_new
            work = sequences.num_tokens(request, computed, stop)
            if num_new == 1 and stop == state.num_tokens:
                decode += work
            else:
                prefill += work
            if computed < state.high_water_tokens:
                again = min(state.high_water_tokens, stop)
                state.num_recomputed_tokens += sequences.num_tokens(request, computed, again)
            state.num_computed_tokens = stop
            context += sequences.context_tokens(request, stop)
        step.prefill_tokens, step.decode_seqs, step.context_tokens = prefill, decode, context

    def complete(self, step: Step) -> Sampled:
        """Rules 2 and 3: sample one token where all known ones are computed, end and free what is done."""
        sampled = Sampled()
        choose_beams = self.sequences.choose_beams
        for state in step.scheduled:
            if state.num_computed_tokens != state.num_tokens:
                continue
            state.num_tokens += 1
            sampled.num_tokens += self.sequences.num_seqs
            if state.num_tokens == state.request.prompt_tokens + 1:
                sampled.first_tokens.append(state)
            if state.num_tokens >= state.stop_tokens:
                sampled.finished.append(state)
                self.allocator.free(state.request)
            elif choose_beams is not None:
                choose_beams(state.request)
        if sampled.finished:
            done = set(sampled.finished)
            self.running[:] = [state for state in self.running if state not in done]
        return sampled

    def settle(self) -> None:
        """Every request knows at any time."""

    def block_map(self, time_ns: int) -> BlockMap:
        return self.allocator.block_map(time_ns)

    def check(self) -> None:
        """Recount invariants 1 to 13, 22 and 23 between two decisions; raises InvariantError with the first that does
        not hold."""
        self.allocator.check()
        computed = {state.request.id: state.num_computed_tokens for state in self.running}
        held = self.allocator.held_tokens()
        hold(11, computed == held, f"requests have computed {computed} tokens and hold {held}")
        waiting = {state.request.id: state.swapped_tokens for state in self.waiting if state.swapped_tokens}
        on_host = self.allocator.swapped_tokens()
        hold(23, waiting == on_host, f"requests wait with {waiting} tokens swapped out, {on_host} are on the host")
        check_requests(self.running, self.waiting)


def check_requests(running: Iterable[RequestState], waiting: Iterable[RequestState]) -> None:
    """Recount invariants 12 and 13."""
    both = {state.request.id for state in running} & {state.request.id for state in waiting}
    hold(12, not both, f"requests {sorted(both)} run and wait")
    for state in running:
        known = state.num_computed_tokens <= state.num_tokens < state.stop_tokens
        hold(13, known, f"request {state.request.id}: {state.num_computed_tokens} computed, {state.num_tokens} known")
