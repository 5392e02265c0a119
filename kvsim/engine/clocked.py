"""The same decisions as `scheduler.py`, at a cost that does not grow with how many requests run.

Read `scheduler.py` first: it says what is decided, and is the judge of this. Three facts make it short (first come,
first served, no cap on long prefills):

- every running request is scheduled in every step, so all that decode advance together and live on the decode clock;
- at most one request is in the middle of its prompt, the last of the running ones, and nobody is admitted before it
  is through;
- so steps that neither admit, nor end anybody, nor run out of blocks are alike, and come as windows.

Rule numbers are those of tests/golden/vllm_scheduler/README.md.
"""

from kvsim.engine.clock import DecodeClock
from kvsim.engine.config import EngineConfig
from kvsim.engine.queue import FirstComeFirstServed
from kvsim.engine.scheduler import check_requests
from kvsim.engine.state import RequestState
from kvsim.engine.step import HeldBack, Sampled, Step
from kvsim.memory.allocator import Hit, LeastChange, Memory, Shortfall
from kvsim.memory.block_map import BlockMap
from kvsim.memory.chain import Holder
from kvsim.memory.chains import ChainAllocator

_NO_HIT = Hit(0, ())


MOST_BLOCK_TOKENS = 2**16
"""The clock counts requests by their place in a block; of larger blocks there are so few that no clock is needed."""


def can_be_clocked(config: EngineConfig, block_size: int) -> bool:
    """Whether the three facts hold, and admissions go by vLLM's own policies."""
    in_order = config.policy == "fcfs" and config.long_prefill_token_threshold == 0
    return in_order and block_size <= MOST_BLOCK_TOKENS


class ClockedScheduler:
    """`watermark_blocks` must be left over at an admission while anything runs (rule 13)."""

    def __init__(self, config: EngineConfig, allocator: ChainAllocator, watermark_blocks: int = 0) -> None:
        assert can_be_clocked(config, allocator.block_size), "what cannot be clocked is stepped"
        self.config = config
        self.allocator = allocator
        self.watermark_blocks = watermark_blocks
        self.running: dict[RequestState, None] = {}
        self.waiting = FirstComeFirstServed()
        self.clock = DecodeClock(allocator.block_size)
        self.partial: RequestState | None = None
        """In the middle of its prompt."""
        self._prefilled: list[RequestState] = []
        """Those whose last known token is computed in this step, but for those on the clock."""
        self._gates = config.admission_policy == "known"
        self._is_stepping = False
        """A step has been decided and not completed: the tokens of those on the clock are not sampled yet."""
        self._max_running = config.max_num_active_seqs or config.max_num_seqs

    @property
    def memory(self) -> Memory:
        return self.allocator

    def submit(self, state: RequestState) -> None:
        self.waiting.append(state)

    def abort(self, state: RequestState) -> bool:
        """Take a request out between two steps, wherever it is; tells whether it was running."""
        if state in self.running:
            del self.running[state]
            self._release(state)
            self._forget(state)
            return True
        self.waiting.remove(state)
        self._forget(state)
        return False

    def _release(self, state: RequestState) -> None:
        """Take back the blocks of one that was running, and say how far it has got."""
        if state is self.partial:
            self.partial = None
        else:
            self.clock.leave(state)
            self._read_clock(state)
        self.allocator.release(self._holder(state), state.num_computed_tokens)

    def _read_clock(self, state: RequestState) -> None:
        state.num_computed_tokens = state.offset + self.allocator.ticks
        state.num_tokens = state.num_computed_tokens + (not self._is_stepping)

    def settle(self) -> None:
        """Say of all that run how far they have got."""
        for state in self.running:
            if state is not self.partial and state not in self._prefilled:
                self._read_clock(state)

    def _holder(self, state: RequestState) -> Holder:
        holder = state.holder
        if holder is None:
            holder = state.holder = self.allocator.look_up(state.request, state.stop_tokens - 1)
        return holder

    def _forget(self, state: RequestState) -> None:
        if state.holder is not None:
            self.allocator.forget(state.holder)
            state.holder = None

    # windows

    def window(self) -> Step | None:
        clock, allocator = self.clock, self.allocator
        if self.partial is not None or not clock.num_seqs:
            return None
        tick = allocator.ticks
        max_ticks = clock.next_end() - tick
        most_blocks = allocator.num_blank + allocator.num_cached
        refused: RequestState | None = None
        shortfall: Shortfall | None = None
        held_back: HeldBack | None = None
        if not self.waiting:
            pass
        elif clock.num_seqs >= self._max_running:
            held_back = "max_num_seqs"
        elif clock.num_seqs >= self.config.max_num_batched_tokens:
            held_back = "token_budget"
        elif not self.config.enable_chunked_prefill:
            return None
        else:
            refusal = self._refusal(max_ticks, most_blocks)
            if refusal is None:
                return None
            max_ticks, most_blocks, shortfall = refusal
            refused = self.waiting[0]
        for holder in allocator.eager:
            max_ticks = min(max_ticks, self._ticks_to_publish(holder) - (refused is not None))
        if max_ticks > 0:
            max_ticks = clock.ticks_with(tick, most_blocks, max_ticks)
        if max_ticks <= 0:
            return None
        step = Step()
        step.decode_seqs = clock.num_seqs
        step.context_tokens = clock.sum_offsets + clock.num_seqs * (tick + 1)
        step.num_ticks = max_ticks
        if self.waiting:
            step.refused, step.refusal_shortfall, step.held_back = refused, shortfall, held_back
        else:
            step.ends_at_arrival = True
        return step

    def _refusal(self, max_ticks: int, most_blocks: int) -> tuple[int, int, Shortfall] | None:
        """If the head of the queue is refused now: for how many ticks and blocks it stays so, for the same cause.

        What it needs are all its blocks but those that others hold (rule 11). Free blocks only become fewer, and
        blocks in use are not evicted; so it stays refused until somebody publishes the next block of its content.
        """
        config, allocator, clock = self.config, self.allocator, self.clock
        state = self.waiting[0]
        budget = config.max_num_batched_tokens - clock.num_seqs
        num_found, num_in_use, missing = allocator.find(self._holder(state), state.num_tokens)
        size, known = allocator.block_size, state.num_tokens
        need = first_need = -(-min(known, num_found * size + budget) // size) - num_in_use
        if self._gates:
            need = -(-known // size) - num_in_use
        spare = self.watermark_blocks
        if need + spare <= most_blocks:
            return None
        if missing is not None and missing.writer is not None:
            max_ticks = min(max_ticks, self._ticks_to_publish(missing.writer) - 1)
        is_shortened = num_found > num_in_use and known - num_in_use * size > budget
        if is_shortened or any(chain.has_copies for chain, _end in self._holder(state).path):
            # Evictions would shorten the hit, and so the first chunk, or make a copy in use the one that is hit.
            most_blocks = min(most_blocks, allocator.num_blank)
        taken = clock.counts[allocator.ticks % size]
        free = allocator.num_free - taken
        change: LeastChange = "blocks"
        if need <= free:
            change = "watermark"
            most_blocks = min(most_blocks, allocator.num_free - need)
        elif first_need + spare <= free:
            change = "gate"
            most_blocks = min(most_blocks, allocator.num_free - first_need - spare)
        return max_ticks, most_blocks, allocator.shortfall(need + spare, change, taken, clock.num_seqs)

    def _ticks_to_publish(self, holder: Holder) -> int:
        """Until one that decodes has filled its next block."""
        assert holder.offset is not None, "it decodes"
        size = self.allocator.block_size
        return size - (holder.offset + self.allocator.ticks) % size

    def decode(self, window: Step) -> list[int]:
        clock, allocator = self.clock, self.allocator
        tick = allocator.ticks
        num_blocks = clock.num_blocks(tick, window.num_ticks)
        blocks_taken = clock.blocks_taken(tick, window.num_ticks) if num_blocks else []
        allocator.decode(window.num_ticks, clock.num_seqs, num_blocks)
        self._is_stepping = True
        return blocks_taken

    # steps

    def schedule(self) -> Step:
        """Decide one step by itself. Its `scheduled` leaves out those on the clock, each with one token."""
        step = Step()
        budget = self._schedule_running(step)
        self._is_stepping = True
        if step.preempted:
            step.held_back = "preemption"
        elif self.waiting:
            self._admit_waiting(step, budget)
        self._count_work(step)
        return step

    def _schedule_running(self, step: Step) -> int:
        """Rules 6 and 7: those on the clock, then the one in the middle of its prompt; the budget that is left."""
        clock, allocator = self.clock, self.allocator
        if clock.num_seqs:
            num_blocks = clock.counts[allocator.ticks % allocator.block_size]
            is_over = False
            if num_blocks > allocator.num_free:
                num_blocks, is_over = self._preempt_for(step, clock.in_need(allocator.ticks))
            allocator.decode(1, clock.num_seqs, num_blocks)
            if is_over:
                return 0
        budget = self.config.max_num_batched_tokens - clock.num_seqs
        state = self.partial
        if state is None or budget <= 0:
            return budget
        computed = state.num_computed_tokens
        num_new = min(state.num_tokens - computed, budget)
        need = allocator.blocks_for(computed + num_new) - allocator.blocks_for(computed)
        if need > allocator.num_free:
            self._preempt(state, step, allocator.shortfall(need, "blocks"))
            return budget
        self._compute(step, state, computed, num_new)
        return budget - num_new

    def _preempt_for(self, step: Step, in_need: list[RequestState]) -> tuple[int, bool]:
        """Go through those that need a block; the last to have come gives way until there is one (rule 7).

        How many of them are still to get theirs, and whether the last had to give way itself, which ends the step's
        running requests.
        """
        allocator = self.allocator
        served = 0
        for state in in_need:
            if state not in self.running:
                continue
            while served == allocator.num_free:
                allocator.take(served)
                served = 0
                shortfall = allocator.shortfall(1, "blocks", 0, self._num_before(state))
                victim = next(reversed(self.running))
                self._preempt(victim, step, shortfall)
                if victim is state:
                    return 0, True
            served += 1
        return served, False

    def _num_before(self, state: RequestState) -> int:
        """Requests that have written a token in this step before this one was tried."""
        return next(place for place, other in enumerate(self.running) if other is state)

    def _preempt(self, victim: RequestState, step: Step, shortfall: Shortfall) -> None:
        """Rule 8: everything is computed again later, less what the prefix cache still holds."""
        step.preemption_shortfalls.append(shortfall)
        del self.running[victim]
        self._release(victim)
        victim.high_water_tokens = max(victim.high_water_tokens, victim.num_computed_tokens)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        self.waiting.put_back(victim)
        step.preempted.append(victim)

    def _admit_waiting(self, step: Step, budget: int) -> None:
        """Rules 9 and 12: only the head of the queue is looked at, and it is never skipped."""
        allocator, waiting, running = self.allocator, self.waiting, self.running
        size = allocator.block_size
        while waiting:
            if len(running) >= self._max_running:
                step.held_back = "max_num_seqs"
                return
            if budget <= 0:
                step.held_back = "token_budget"
                return
            state = waiting[0]
            known = state.num_tokens
            holder = state.holder or self._holder(state)
            num_found, num_in_use, _missing = allocator.find(holder, known)
            hit_tokens = num_found * size
            num_new = known - hit_tokens
            if num_new > budget:
                if not self.config.enable_chunked_prefill:
                    step.held_back = "token_budget"
                    return
                num_new = budget
            # Rules 11 to 13: what the first chunk takes, and what the gate asks for.
            need = first_need = -(-(hit_tokens + num_new) // size) - num_in_use
            if self._gates:
                need = -(-known // size) - num_in_use
            spare = self.watermark_blocks if running else 0
            if need + spare > allocator.num_blank + allocator.num_cached:
                step.refused = state
                step.refusal_shortfall = self._shortfall(first_need, need, spare)
                return
            waiting.popleft()
            running[state] = None
            allocator.admit(holder, num_found)
            self._compute(step, state, hit_tokens, num_new)
            budget -= num_new
            hit = Hit(hit_tokens, ()) if hit_tokens else _NO_HIT
            (step.resumed if state.was_admitted else step.admitted).append((state, hit))
            state.was_admitted = True

    def _shortfall(self, first_need: int, need: int, spare: int) -> Shortfall:
        """Of an admission: what the first chunk takes, what all of it does, what must be left over."""
        change: LeastChange = "blocks"
        if need <= self.allocator.num_free:
            change = "watermark"
        elif first_need + spare <= self.allocator.num_free:
            change = "gate"
        return self.allocator.shortfall(need + spare, change)

    def _compute(self, step: Step, state: RequestState, computed: int, num_new: int) -> None:
        """Rule 2 for a request that is not on the clock."""
        step.scheduled[state] = num_new
        total = computed + num_new
        assert state.holder is not None, "it was looked up when it was admitted"
        self.allocator.extend(state.holder, computed, total)
        if computed < state.high_water_tokens:
            state.num_recomputed_tokens += min(state.high_water_tokens, total) - computed
        state.num_computed_tokens = total
        if total < state.num_tokens:
            self.partial = state
        else:
            if state is self.partial:
                self.partial = None
            self._prefilled.append(state)

    def _count_work(self, step: Step) -> None:
        clock = self.clock
        prefill, decode = 0, clock.num_seqs
        context = clock.sum_offsets + clock.num_seqs * self.allocator.ticks
        for state, num_new in step.scheduled.items():
            if num_new == 1 and state.num_computed_tokens == state.num_tokens:
                decode += 1
            else:
                prefill += num_new
            context += state.num_computed_tokens
        step.prefill_tokens, step.decode_seqs, step.context_tokens = prefill, decode, context

    def complete(self, step: Step) -> Sampled:
        """Rules 2 and 3: sample one token where all known ones are computed, end and free what is done."""
        clock, allocator, running = self.clock, self.allocator, self.running
        self._is_stepping = False
        prefilled = self._prefilled
        tick = allocator.ticks
        num_tokens = clock.num_seqs + len(prefilled)
        first_tokens = []
        finished = clock.take_ended(tick)
        for state in finished:
            state.num_tokens = state.stop_tokens
            state.num_computed_tokens = state.stop_tokens - 1
        if prefilled:
            self._prefilled = []
            for state in prefilled:
                state.num_tokens += 1
                if state.num_tokens == state.request.prompt_tokens + 1:
                    first_tokens.append(state)
                if state.num_tokens >= state.stop_tokens:
                    finished.append(state)
        for state in finished:
            del running[state]
            holder = state.holder
            assert holder is not None, "it was running"
            allocator.release(holder, state.num_computed_tokens)
            allocator.forget(holder)
            state.holder = None
        for state in prefilled:
            if state.holder is not None:
                clock.join(state, tick)
                if allocator.shares:
                    allocator.begin_decode(state.holder, state.num_computed_tokens)
        return Sampled(num_tokens, first_tokens, finished)

    def block_map(self, time_ns: int) -> BlockMap:
        self.settle()
        running = [(state.request.id, self._holder(state), state.num_computed_tokens) for state in self.running]
        return self.allocator.block_map(time_ns, running)

    def check(self) -> None:
        """Recount invariants between two decisions; raises InvariantError with the first that does not hold."""
        self.settle()
        self.allocator.check([(self._holder(state), state.num_computed_tokens) for state in self.running])
        if not self._is_stepping:
            check_requests(self.running, self.waiting)
