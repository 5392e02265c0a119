"""The simpy processes: requests arrive, the engine steps, some give up waiting.

What happens first at equal times: time-outs, then arrivals, then the end of a step: its outputs, the requests
whose clients have hung up, what arrives because those have ended, the decision of the next step. So a request that
arrives exactly at a step boundary is seen by the step that begins there, and one that has waited exactly its time-out
is gone.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

import simpy
from simpy.events import EventPriority

from kvsim.engine.config import EngineConfig
from kvsim.engine.recorder import Outcome, Recorder, RejectReason
from kvsim.engine.scheduler import Sampled, Scheduler, Step, check_invariants
from kvsim.engine.state import RequestState
from kvsim.memory.allocator import Allocator
from kvsim.workload.request import Request

_STEP_PRIORITY = EventPriority(2)
"""After every other event of its time: simpy's own are 0 (urgent) and 1 (normal)."""

_FUTILE_CYCLES = 2
"""How often in a row, with no token sampled in between, a request alone in the engine may outgrow the pool and
preempt itself: it would do so for ever (rule 15, gate off)."""

Process = Generator[simpy.Event, Any, None]

FollowUps = Callable[[int, Request, bool], Iterable[Request]]
"""Asked when a request ends, in whatever way, with the time and whether it got its whole output: the requests that
come because of it, now or later."""


class EngineEvent(simpy.Event):
    """What the engine waits for: it fires after all other events of its instant."""

    def fire(self, delay_ns: int = 0) -> None:
        self._ok = True
        self._value = None
        self.env.schedule(self, priority=_STEP_PRIORITY, delay=delay_ns)


class Simulation:
    """One run over requests that come in order of arrival, and those that `follow_ups` makes when one of them ends.

    `check` recounts all invariants after every step. `on_step` sees every step as it is decided and `on_outputs` what
    its end brought, with the time. After `run`, `stalled` says which request blocks the engine for ever and why, or is
    None.
    """

    def __init__(
        self,
        config: EngineConfig,
        allocator: Allocator,
        requests: Iterable[Request],
        *,
        follow_ups: FollowUps | None = None,
        watermark_blocks: int = 0,
        on_step: Callable[[int, Step], None] | None = None,
        on_outputs: Callable[[int, Sampled], None] | None = None,
        check: bool = False,
        futile_cycles: int = _FUTILE_CYCLES,
    ) -> None:
        assert config.max_model_len is not None, "the caller has put in the model's own"
        self.config = config
        self.max_model_len = config.max_model_len
        self.allocator = allocator
        self.scheduler = Scheduler(config, allocator, watermark_blocks)
        self.recorder = Recorder()
        self.stalled: str | None = None
        self._env = simpy.Environment()
        self._requests = requests
        self._follow_ups = follow_ups
        self._num_arrived = 0
        self._arriving_now = False
        self._on_step = on_step
        self._on_outputs = on_outputs
        self._check = check
        self._futile_cycles = futile_cycles
        self._idle: EngineEvent | None = None
        self._deadlines: deque[RequestState] = deque()
        self._first_deadline: simpy.Event | None = None
        self._aborted: list[RequestState] = []
        self._present: dict[int, RequestState] = {}

    @property
    def now(self) -> int:
        """Nanoseconds since the start."""
        return int(self._env.now)

    def run(self, until_ns: int | None = None) -> Recorder:
        env = self._env
        self._observe()
        env.process(self._arrivals())
        env.process(self._engine())
        if self.config.timeout is not None:
            env.process(self._timeouts(self.config.timeout))
        env.run(until=until_ns)
        if self.scheduler.has_requests and until_ns is None:
            self.stalled = self._why_stalled()
        end = self.recorder.times[-1] if until_ns is None else self.now
        for state in self._present.values():
            self.recorder.gone(end, state, "unfinished")
        return self.recorder

    # arrivals

    def _arrivals(self) -> Process:
        env = self._env
        for request in self._requests:
            assert request.arrival_ns >= env.now, "requests come in order of arrival"
            if request.arrival_ns > env.now:
                yield env.timeout(request.arrival_ns - env.now)
            self._arrive(request)

    def _follow(self, ended: Request, outcome: Outcome) -> None:
        """Let come what comes because a request has ended."""
        if self._follow_ups is None:
            return
        for request in self._follow_ups(self.now, ended, outcome == "finished"):
            assert request.arrival_ns >= self.now, "what follows an end does not come before it"
            self._arriving_now |= request.arrival_ns == self.now
            self._env.process(self._arrive_later(request))

    def _arrive_later(self, request: Request) -> Process:
        if request.arrival_ns > self._env.now:
            yield self._env.timeout(request.arrival_ns - self._env.now)
        self._arrive(request)

    def _arrive(self, request: Request) -> None:
        now = self.now
        order = self._num_arrived
        self._num_arrived += 1
        if self.config.timeout is not None:
            self._expire(self.config.timeout)
        self.recorder.arrived(request)
        reason = self._why_rejected(request)
        if reason is not None:
            self.recorder.rejected(now, request, reason)
            self._follow(request, "rejected")
        else:
            state = RequestState(request, order, self.max_model_len)
            self._present[request.id] = state
            self.scheduler.submit(state)
            if self.config.timeout is not None:
                self._deadlines.append(state)
                if self._first_deadline is not None:
                    self._first_deadline.succeed()
                    self._first_deadline = None
            if request.abort_ns is not None:
                self._env.process(self._abort_later(state, request.abort_ns))
            self._wake_engine()
        self._observe()

    def _why_rejected(self, request: Request) -> RejectReason | None:
        config = self.config
        if request.prompt_tokens >= self.max_model_len:
            return "prompt_too_long"
        if config.reject_unservable:
            longest = min(request.prompt_tokens + request.output_tokens, self.max_model_len)
            if not self.allocator.fits_empty_pool(request.prompt_tokens, longest - 1):
                return "never_fits"
        if config.max_waiting is not None and len(self.scheduler.waiting) >= config.max_waiting:
            return "queue_full"
        return None

    # the engine

    def _engine(self) -> Process:
        scheduler, recorder, latency = self.scheduler, self.recorder, self.config.latency
        futile = 0
        first = EngineEvent(self._env)
        first.fire()
        yield first
        while True:
            self._drop_aborted()
            if self._arriving_now:
                yield self._after_arrivals()
                continue
            if not scheduler.has_requests:
                yield self._sleep()
                futile = 0
                continue
            step = scheduler.schedule()
            now = self.now
            recorder.step_began(now, step)
            self._observe()
            if self._check:
                check_invariants(scheduler)
            if self._on_step is not None:
                self._on_step(now, step)
            if step.preempted and not scheduler.running:
                futile += 1
            if step.is_empty or futile >= self._futile_cycles:
                yield self._sleep()
                futile = 0
                continue
            end = EngineEvent(self._env)
            end.fire(latency.step_ns(step.prefill_tokens, step.decode_seqs, step.context_tokens))
            yield end
            sampled = scheduler.complete(step)
            if sampled.num_tokens:
                futile = 0
            if sampled.finished or sampled.first_tokens:
                recorder.step_ended(self.now, sampled)
                for state in sampled.finished:
                    self._finish(state)
                self._observe()
            if self._check:
                check_invariants(scheduler)
            if self._on_outputs is not None:
                self._on_outputs(self.now, sampled)

    def _finish(self, state: RequestState) -> None:
        request = state.request
        del self._present[request.id]
        self._follow(request, self.recorder.records[request.id].outcome)

    def _after_arrivals(self) -> EngineEvent:
        """An event after the arrivals of this instant."""
        self._arriving_now = False
        event = EngineEvent(self._env)
        event.fire()
        return event

    def _sleep(self) -> EngineEvent:
        """An event that an arrival or a departure fires."""
        self._idle = EngineEvent(self._env)
        return self._idle

    def _wake_engine(self) -> None:
        if self._idle is not None:
            self._idle.fire()
            self._idle = None

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
            waiting = state.request.id in self._present and not state.was_admitted
            if waiting and state.request.arrival_ns + timeout_ns > self.now:
                return
            deadlines.popleft()
            if waiting:
                self._leave(state, "timed_out")

    def _abort_later(self, state: RequestState, abort_ns: int) -> Process:
        yield self._env.timeout(max(0, abort_ns - self.now))
        if state.request.id in self._present:
            self._aborted.append(state)
            self._wake_engine()

    def _drop_aborted(self) -> None:
        """The engine takes requests out between two steps."""
        for state in self._aborted:
            if state.request.id in self._present:
                self._leave(state, "aborted")
        self._aborted.clear()

    def _leave(self, state: RequestState, outcome: Outcome) -> None:
        self.scheduler.abort(state)
        del self._present[state.request.id]
        self.recorder.gone(self.now, state, outcome)
        self._observe()
        self._wake_engine()
        self._follow(state.request, outcome)

    def _observe(self) -> None:
        scheduler = self.scheduler
        self.recorder.observe(self.now, self.allocator.occupancy(), len(scheduler.running), len(scheduler.waiting))

    def _why_stalled(self) -> str:
        state = self.scheduler.waiting.head()
        request = state.request
        occupancy = self.allocator.occupancy()
        usable = occupancy.allocated_blocks + occupancy.cached_blocks + occupancy.blank_blocks
        config = self.config
        why = f"its {state.num_tokens:,} known tokens do not fit in {usable:,} usable blocks"
        if not config.enable_chunked_prefill and state.num_tokens > config.max_num_batched_tokens:
            why = (
                f"its {state.num_tokens:,} known tokens exceed max_num_batched_tokens = "
                f"{config.max_num_batched_tokens:,} and chunked prefill is off"
            )
        return (
            f"request {request.id} ({request.prompt_tokens:,} prompt and {request.output_tokens:,} output tokens) "
            f"blocks the queue for ever: {why}; {len(self.scheduler.waiting):,} requests were left waiting"
        )
