"""The simpy processes: requests arrive, the engine steps, some give up waiting.

What happens first at equal times: time-outs, then arrivals, then the end of a step: its outputs, the requests
whose clients have hung up, what arrives because those have ended, the decision of the next step. So a request that
arrives exactly at a step boundary is seen by the step that begins there, and one that has waited exactly its time-out
is gone.

Steps that can only decode are taken as one *window*, which ends before anything else can happen. What may happen
inside it changes nothing that memory or the running requests see: requests that queue up behind others.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from heapq import heappop, heappush
from typing import Any, Literal

import simpy
from simpy.events import EventPriority

from kvsim.engine.alarm import Alarm
from kvsim.engine.config import EngineConfig
from kvsim.engine.latency import transfer_ns
from kvsim.engine.recorder import Recorder
from kvsim.engine.scheduler import StepScheduler
from kvsim.engine.state import RejectReason, RequestState
from kvsim.engine.step import Sampled, Step
from kvsim.engine.timeline import ROWS_AT_ONCE, Decoding
from kvsim.memory.allocator import Shortfall
from kvsim.memory.block_map import BlockMap
from kvsim.workload.request import Request

_ARRIVAL_PRIORITY = EventPriority(1)
_STEP_PRIORITY = EventPriority(2)
"""After every other event of its time: simpy's own are 0 (urgent) and 1 (normal)."""

_MOMENT_PRIORITY = EventPriority(3)

_FUTILE_CYCLES = 2
"""How often in a row, with no token sampled in between, a request alone in the engine may outgrow the pool and
preempt itself: it would do so for ever (rule 15, gate off)."""

_NEVER = 2**63

Process = Generator[simpy.Event, Any, None]

FollowUps = Callable[[int, Request, bool], Iterable[Request]]
"""Asked when a request ends, in whatever way, with the time and whether it got its whole output: the requests that
come because of it, now or later."""


class Simulation:
    """One run over requests that come in order of arrival, and those that `follow_ups` makes when one of them ends.

    `fast_forward` takes windows of decode steps at once, else step follows step. `check` recounts all invariants
    after every step. `on_step` sees every step as it is decided and `on_outputs` what its end brought, with the
    time. `on_moment` is shown memory at each of the `moments`, times in ascending order, up to the end. So many rows as
    `rows_at_once` are enough to be taken out of the recorder. After `run`, `stalled` says which request blocks the
    engine for ever and why, or is None.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: StepScheduler,
        requests: Iterable[Request],
        *,
        follow_ups: FollowUps | None = None,
        fast_forward: bool = True,
        on_step: Callable[[int, Step], None] | None = None,
        on_outputs: Callable[[int, Sampled], None] | None = None,
        moments: Iterable[int] = (),
        on_moment: Callable[[BlockMap], None] | None = None,
        rows_at_once: int = ROWS_AT_ONCE,
        check: bool = False,
        futile_cycles: int = _FUTILE_CYCLES,
    ) -> None:
        assert config.max_model_len is not None, "the caller has put in the model's own"
        self.config = config
        self.max_model_len = config.max_model_len
        self.memory = scheduler.memory
        self.scheduler = scheduler
        self.recorder = Recorder(rows_at_once)
        self.stalled: str | None = None
        self._env = simpy.Environment()
        self._requests = requests
        self._follow_ups = follow_ups
        self._fast_forward = fast_forward
        self._welcome_tokens = 0
        """No request of so few tokens in all is ever rejected."""
        self._num_arrived = 0
        self._arriving_now = False
        self._on_step = on_step
        self._on_outputs = on_outputs
        self._on_full: Callable[[int], None] | None = None
        self._check = check
        self._futile_cycles = futile_cycles
        self._until_ns = _NEVER
        self._next_arrival_ns = _NEVER
        self._later_arrivals_ns: list[int] = []
        self._alarm = Alarm(self._env, self._engine)
        self._under_way: Step | None = None
        self._is_idle = False
        self._futile = 0
        self._deadlines: deque[RequestState] = deque()
        self._first_deadline: simpy.Event | None = None
        self._aborts_ns: list[int] = []
        self._aborted: list[RequestState] = []
        self._window: tuple[int, Decoding] | None = None
        self._moments = iter(moments)
        self._on_moment = on_moment
        self._moment_alarm = Alarm(self._env, self._at_moment)
        self._next_moment_ns = _NEVER

    @property
    def now(self) -> int:
        """Nanoseconds since the start."""
        return int(self._env.now)

    def run(self, until_ns: int | None = None, on_full: Callable[[int], None] | None = None) -> Recorder:
        """To the end, or a time; `on_full` is told when rows up to a time should be taken out of the recorder."""
        env = self._env
        self._on_full = on_full
        if until_ns is not None:
            self._until_ns = until_ns
        self._observe()
        env.process(self._arrivals())
        self._alarm.set(0, _STEP_PRIORITY)
        if self._on_moment is not None:
            self._await_moment()
        if self.config.timeout is not None:
            env.process(self._timeouts(self.config.timeout))
        env.run(until=until_ns)
        self.scheduler.settle()
        if self.scheduler.waiting and until_ns is None:
            self.stalled = self._why_stalled()
        self.recorder.stopped(self.recorder.timeline.end_ns if until_ns is None else self.now)
        return self.recorder

    # arrivals

    def _arrivals(self) -> Process:
        env = self._env
        for request in self._requests:
            delay = request.arrival_ns - env.now
            assert delay >= 0, "requests come in order of arrival"
            if delay:
                self._next_arrival_ns = request.arrival_ns
                yield env.timeout(delay)
            self._arrive(request)
        self._next_arrival_ns = _NEVER

    def _follow(self, state: RequestState) -> None:
        """Let come what comes because a request has ended."""
        if self._follow_ups is None:
            return
        now = self.now
        for request in self._follow_ups(now, state.request, state.outcome == "finished"):
            assert request.arrival_ns >= now, "what follows an end does not come before it"
            self._arriving_now |= request.arrival_ns == now
            heappush(self._later_arrivals_ns, request.arrival_ns)
            Alarm(self._env, self._at_arrival(request)).set(request.arrival_ns - now, _ARRIVAL_PRIORITY)

    def _at_arrival(self, request: Request) -> Callable[[simpy.Event], None]:
        def arrive(_event: simpy.Event) -> None:
            heappop(self._later_arrivals_ns)
            self._arrive(request)

        return arrive

    def _arrive(self, request: Request) -> None:
        now = int(self._env.now)
        state = RequestState(request, self._num_arrived, self.max_model_len)
        self._num_arrived += 1
        if self.config.timeout is not None:
            self._expire(self.config.timeout)
        self.recorder.arrived(now, state)
        if request.prompt_tokens + request.output_tokens > self._welcome_tokens:
            reason = self._why_rejected(request)
            if reason is not None:
                self.recorder.rejected(now, state, reason)
                self._follow(state)
                return
        self.scheduler.submit(state)
        if self.config.timeout is not None:
            self._deadlines.append(state)
            if self._first_deadline is not None:
                self._first_deadline.succeed()
                self._first_deadline = None
        if request.abort_ns is not None:
            self._env.process(self._abort_later(state, max(now, request.abort_ns)))
        if self._is_idle:
            self._wake_engine()

    def _why_rejected(self, request: Request) -> RejectReason | None:
        config = self.config
        if request.prompt_tokens >= self.max_model_len:
            return "prompt_too_long"
        longest = request.prompt_tokens + request.output_tokens
        if config.reject_unservable and not self.memory.fits_empty_pool(
            request.prompt_tokens, min(longest, self.max_model_len) - 1
        ):
            return "never_fits"
        if config.max_waiting is not None:
            return "queue_full" if len(self.scheduler.waiting) >= config.max_waiting else None
        if longest < self.max_model_len and self.memory.fits_all_up_to(longest):
            self._welcome_tokens = longest
        return None

    # the engine

    def _engine(self, _alarm: simpy.Event) -> None:
        """A step has ended, or there is something to do again: decide the next step and wait for its end."""
        scheduler, recorder = self.scheduler, self.recorder
        now = int(self._env.now)
        if self._under_way is not None:
            self._complete(now, self._under_way)
            self._under_way = None
        if self._aborted:
            self._drop_aborted()
        if self._arriving_now:
            # Once more, after the arrivals of this instant.
            self._arriving_now = False
            self._alarm.set(0, _STEP_PRIORITY)
            return
        if not scheduler.running and not scheduler.waiting:
            self._observe()
            self._sleep()
            return
        if self._on_full is not None and recorder.is_full:
            self._on_full(now)
        step = scheduler.window()
        if step is not None:
            duration_ns = self._decode(now, step)
        else:
            step, duration_ns = self._step(now)
        if self._check:
            scheduler.check()
        if self._on_step is not None:
            self._on_step(now, step)
        if step.preempted and not scheduler.running:
            self._futile += 1
        if step.is_empty or self._futile >= self._futile_cycles:
            self._sleep()
            return
        self._under_way = step
        self._alarm.set(duration_ns, _STEP_PRIORITY)

    def _complete(self, now: int, step: Step) -> None:
        sampled = self.scheduler.complete(step)
        if sampled.num_tokens:
            self._futile = 0
        if sampled.finished or sampled.first_tokens:
            self.recorder.step_ended(now, sampled)
            if self._follow_ups is not None:
                for state in sampled.finished:
                    self._follow(state)
        if self._check:
            self.scheduler.check()
        if self._on_outputs is not None:
            self._on_outputs(now, sampled)

    def _sleep(self) -> None:
        """Until an arrival or a departure wakes the engine."""
        self._is_idle = True
        self._futile = 0

    def _wake_engine(self) -> None:
        if self._is_idle:
            self._is_idle = False
            self._alarm.set(0, _STEP_PRIORITY)

    def _step(self, now: int) -> tuple[Step, int]:
        """Decide the next step; how long it takes."""
        step = self.scheduler.schedule()
        self._window = None
        self.recorder.step_began(now, step)
        self._observe(step.refusal_shortfall)
        duration_ns = self.config.latency.step_ns(step.prefill_tokens, step.decode_seqs, step.context_tokens)
        if step.swapped_bytes:
            duration_ns += transfer_ns(step.swapped_bytes, self.config.swap_bandwidth)
        return step, duration_ns

    def _decode(self, now: int, window: Step) -> int:
        """Take as many of the window's steps as time has room for; how long they take."""
        latency, memory = self.config.latency, self.memory
        num_seqs = window.decode_seqs
        tick_ns = latency.step_ns(0, num_seqs, window.context_tokens)
        longer_ns = latency.per_context_token * num_seqs
        window.num_ticks = min(window.num_ticks, ROWS_AT_ONCE if self._fast_forward else 1)
        if window.num_ticks > 1:
            until_ns = self._next_event_ns(window.ends_at_arrival)
            if until_ns != _NEVER:
                window.num_ticks = ticks_until(until_ns - now, tick_ns, longer_ns, window.num_ticks)
        before = memory.occupancy()
        blocks_taken = self.scheduler.decode(window)
        decoding = Decoding(
            window.num_ticks, tick_ns, longer_ns, num_seqs * memory.token_bytes, blocks_taken, memory.padding_bytes
        )
        self._window = now, decoding
        self.recorder.step_began(now, window)
        self.recorder.observe(now, before, num_seqs, decoding)
        return decoding.begins_ns(window.num_ticks)

    def _next_event_ns(self, ends_at_arrival: bool) -> int:
        """When something may happen that a window must not pass over."""
        arrival_ns = self._next_arrival_ns
        if self._later_arrivals_ns and self._later_arrivals_ns[0] < arrival_ns:
            arrival_ns = self._later_arrivals_ns[0]
        event_ns = min(self._until_ns, self._next_moment_ns)
        if ends_at_arrival and arrival_ns < event_ns:
            event_ns = arrival_ns
        if self.config.timeout is not None:
            # Whoever comes within the window waits as long from then on.
            first = self._deadlines[0].request.arrival_ns if self._deadlines else _NEVER
            event_ns = min(event_ns, min(first, arrival_ns) + self.config.timeout)
        if self._aborts_ns:
            event_ns = min(event_ns, self._aborts_ns[0])
        return event_ns

    # looking on

    def block_map(self) -> BlockMap:
        """Who holds which block now."""
        return self.scheduler.block_map(self.now)

    def _await_moment(self) -> None:
        """The next one comes after all else that happens at its time; no window goes beyond the step it falls into."""
        self._next_moment_ns = next(self._moments, _NEVER)
        if self._next_moment_ns != _NEVER:
            assert self._next_moment_ns >= self.now, "moments come in order"
            self._moment_alarm.set(self._next_moment_ns - self.now, _MOMENT_PRIORITY)

    def _at_moment(self, _alarm: simpy.Event) -> None:
        assert self._on_moment is not None, "somebody asked for it"
        is_over = self._env.peek() == simpy.core.Infinity
        if not is_over or self.now <= self.recorder.timeline.end_ns:
            self._on_moment(self.block_map())
        if not is_over:
            self._await_moment()

    # departures before the end

    def _timeouts(self, timeout_ns: int) -> Process:
        """Deadlines fall due in order of arrival, so one process minds the first of them."""
        env = self._env
        while True:
            self._expire(timeout_ns)
            if self._deadlines:
                yield env.timeout(self._deadlines[0].request.arrival_ns + timeout_ns - env.now)
            else:
                self._first_deadline = env.event()
                yield self._first_deadline

    def _expire(self, timeout_ns: int) -> None:
        """Take out those that have waited long enough for their first admission."""
        deadlines = self._deadlines
        while deadlines:
            state = deadlines[0]
            waiting = state.ended_ns is None and not state.was_admitted
            if waiting and state.request.arrival_ns + timeout_ns > self.now:
                return
            deadlines.popleft()
            if waiting:
                self._leave(state, "timed_out")

    def _abort_later(self, state: RequestState, abort_ns: int) -> Process:
        """A client hangs up; the engine takes its request out between two steps."""
        heappush(self._aborts_ns, abort_ns)
        yield self._env.timeout(abort_ns - self.now)
        heappop(self._aborts_ns)
        step_ends_ns = self._step_ends_ns()
        if step_ends_ns is not None:
            # Inside a window, which knew nothing of this request: it came later, and waits.
            Alarm(self._env, lambda _alarm: self._drop(state)).set(step_ends_ns - self.now, _STEP_PRIORITY)
        elif state.ended_ns is None:
            self._aborted.append(state)
            self._wake_engine()

    def _step_ends_ns(self) -> int | None:
        """When the step of now ends, if that is inside a window."""
        if self._window is None:
            return None
        began_ns, decoding = self._window
        since_ns = self.now - began_ns
        tick = ticks_until(since_ns, decoding.tick_ns, decoding.longer_ns, decoding.num_ticks)
        ends_ns = decoding.begins_ns(tick)
        return began_ns + ends_ns if since_ns <= ends_ns < decoding.begins_ns(decoding.num_ticks) else None

    def _drop_aborted(self) -> None:
        for state in self._aborted:
            self._drop(state)
        self._aborted.clear()

    def _drop(self, state: RequestState) -> None:
        if state.ended_ns is None:
            self._leave(state, "aborted")

    def _leave(self, state: RequestState, outcome: Literal["timed_out", "aborted"]) -> None:
        was_running = self.scheduler.abort(state)
        self.recorder.left(self.now, state, outcome, was_running=was_running)
        self._wake_engine()
        self._follow(state)

    def _observe(self, refusal: Shortfall | None = None) -> None:
        """The levels from now on; `refusal` says what cannot serve the head of the queue until the next decision."""
        occupancy = self.memory.occupancy()
        if refusal is not None and refusal.external_bytes:
            occupancy = occupancy._replace(external_bytes=refusal.external_bytes)
        self.recorder.observe(self.now, occupancy, len(self.scheduler.running))

    def _why_stalled(self) -> str:
        state = self.scheduler.waiting.head()
        request = state.request
        occupancy = self.memory.occupancy()
        usable = occupancy.allocated_blocks + occupancy.cached_blocks + occupancy.blank_blocks
        config = self.config
        why = f"its {state.num_tokens:,} known tokens do not fit in {usable:,} usable blocks"
        shortfall = self.recorder.last_shortfall
        if shortfall is not None and shortfall.external_bytes:
            why = f"no extent of the {usable:,} usable blocks can hold the {shortfall.need:,} that it asks for"
        if not config.enable_chunked_prefill and state.num_tokens > config.max_num_batched_tokens:
            why = (
                f"its {state.num_tokens:,} known tokens exceed max_num_batched_tokens = "
                f"{config.max_num_batched_tokens:,} and chunked prefill is off"
            )
        return (
            f"request {request.id} ({request.prompt_tokens:,} prompt and {request.output_tokens:,} output tokens) "
            f"blocks the queue for ever: {why}; {len(self.scheduler.waiting):,} requests were left waiting"
        )


def ticks_until(delay_ns: int, tick_ns: int, longer_ns: int, most: int) -> int:
    """How many steps, at least 1 and at most `most`, until one ends at `delay_ns` or later.

    The first lasts `tick_ns`, each further one `longer_ns` more.
    """
    low, high = 1, most
    if longer_ns == 0:
        low = high = max(1, min(most, -(-delay_ns // tick_ns)))
    while low < high:
        middle = (low + high) // 2
        if middle * tick_ns + longer_ns * (middle * (middle - 1) // 2) < delay_ns:
            low = middle + 1
        else:
            high = middle
    return low
