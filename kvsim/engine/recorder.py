"""What happened, in columns while a run goes on."""

from collections import deque
from typing import Literal, get_args

from attrs import define

from kvsim.engine.state import Outcome, RejectReason, RequestState
from kvsim.engine.step import HeldBack, Sampled, Step
from kvsim.engine.timeline import ROWS_AT_ONCE, Decoding, Rows, Timeline
from kvsim.memory.allocator import Occupancy, Shortfall


@define
class Pressure:
    """A preemption, or a run of steps that refused one request for one cause; the figures are of its first step."""

    time_ns: int
    event: Literal["refused", "preempted"]
    request_id: int
    cause: str
    steps: int
    shortfall: Shortfall


class Recorder:
    """Levels and event counts by instant, requests in order of arrival, and what memory said no to.

    What is complete can be taken out while the run goes on (`take_rows` and the other two), so that no more is held
    than what is under way. A request is blocked from a step that refused it until the next decision, so at most one
    is blocked at a time. `rows_at_once` is how many rows are enough to be taken out.
    """

    def __init__(self, rows_at_once: int = ROWS_AT_ONCE) -> None:
        self.rows_at_once = rows_at_once
        self.timeline = Timeline()
        self.states: deque[RequestState] = deque()
        self.pressure: list[Pressure] = []
        self.held_back_steps = dict.fromkeys(get_args(HeldBack), 0)
        self.num_ended = 0
        self.num_steps = 0
        self._blocked: RequestState | None = None
        self._last_refusal: Pressure | None = None
        self._blocked_since_ns = 0

    # what happens

    def arrived(self, now: int, state: RequestState) -> None:
        self.states.append(state)
        self.timeline.instants["arrived"].append(now)

    def rejected(self, now: int, state: RequestState, reason: RejectReason) -> None:
        state.reason = reason
        self._end(state, now, "rejected")
        self.timeline.instants["rejected"].append(now)

    def step_began(self, now: int, step: Step) -> None:
        """Admissions, preemptions and a refusal of a step (or a window of them, all alike) that starts now."""
        if self._blocked is not None:
            self._unblock(now)
        if step.decode_seqs or step.prefill_tokens:
            self.num_steps += step.num_ticks
        if step.held_back is not None:
            self.held_back_steps[step.held_back] += step.num_ticks
        pending = self.timeline.pending
        if step.preempted:
            pending.preempted += len(step.preempted)
            for state, shortfall in zip(step.preempted, step.preemption_shortfalls, strict=True):
                self.pressure.append(Pressure(now, "preempted", state.request.id, "blocks", 1, shortfall))
        if step.refused is None:
            self._last_refusal = None
        if step.admitted:
            pending.admitted += len(step.admitted)
            for state, hit in step.admitted:
                state.admitted_ns = now
                if hit.num_tokens:
                    state.hit_tokens = hit.num_tokens
        if step.resumed:
            pending.resumed += len(step.resumed)
            for state, hit in step.resumed:
                state.resumed_hit_tokens += hit.num_tokens
        if step.refused is not None and step.refusal_shortfall is not None:
            self._refused(now, step.refused, step.refusal_shortfall, step.num_ticks)

    def _refused(self, now: int, state: RequestState, shortfall: Shortfall, steps: int) -> None:
        self._blocked = state
        self._blocked_since_ns = now
        self.timeline.pending.refused += 1
        state.refusals += steps
        cause = shortfall.least_change
        if state.refusal_causes is None:
            state.refusal_causes = {}
        state.refusal_causes[cause] = state.refusal_causes.get(cause, 0) + steps
        last = self._last_refusal
        if last is not None and (last.request_id, last.cause) == (state.request.id, cause):
            last.steps += steps
        else:
            last = Pressure(now, "refused", state.request.id, cause, steps, shortfall)
            self._last_refusal = last
            self.pressure.append(last)

    def _unblock(self, now: int) -> None:
        assert self._blocked is not None, "somebody is blocked"
        self._blocked.blocked_ns += now - self._blocked_since_ns
        self._blocked = None

    def step_ended(self, now: int, sampled: Sampled) -> None:
        """First tokens and finishes at the end of a step."""
        for state in sampled.first_tokens:
            state.first_token_ns = now
        for state in sampled.finished:
            request = state.request
            complete = state.num_tokens - request.prompt_tokens == request.output_tokens
            state.ended_ns = now
            state.outcome = "finished" if complete else "cut"
        self.num_ended += len(sampled.finished)
        self.timeline.pending.finished += len(sampled.finished)

    def left(
        self, now: int, state: RequestState, outcome: Literal["timed_out", "aborted"], *, was_running: bool
    ) -> None:
        """A submitted request has left the engine, or its queue, before its end."""
        if state is self._blocked:
            self._unblock(now)
        self._end(state, now, outcome)
        instants = self.timeline.instants
        instants[outcome].append(now)
        if was_running:
            instants["left_running"].append(now)

    def stopped(self, now: int) -> None:
        """The run is over; who is still there stays unfinished."""
        if self._blocked is not None:
            self._unblock(now)

    def _end(self, state: RequestState, now: int, outcome: Outcome) -> None:
        state.ended_ns = now
        state.outcome = outcome
        self.num_ended += 1

    def observe(self, now: int, occupancy: Occupancy, running: int, decoding: Decoding | None = None) -> None:
        """Write down the levels that hold from now on, with the events since the last call.

        For a window of steps they are those before its first step, and `decoding` says what the steps do.
        """
        self.timeline.observe(now, occupancy, running, decoding)

    @property
    def last_shortfall(self) -> Shortfall | None:
        """What the head of the queue is short of, where the last decision refused it; of a run of them the first."""
        return None if self._last_refusal is None else self._last_refusal.shortfall

    # what is taken out

    @property
    def is_full(self) -> bool:
        """So much has come together that rows should be taken out."""
        return self.timeline.num_rows >= self.rows_at_once or len(self.pressure) >= self.rows_at_once

    def take_rows(self, before_ns: int | None = None) -> Rows:
        """Rows of the timeline before an instant, or all."""
        return self.timeline.take(before_ns)

    def take_states(self, *, all: bool = False) -> list[RequestState]:
        """The first requests in order of arrival, as far as they have ended, or all."""
        states = self.states
        taken = []
        while states and (all or states[0].ended_ns is not None):
            taken.append(states.popleft())
        return taken

    def take_pressure(self, *, all: bool = False) -> list[Pressure]:
        """The rows that no step can add to any more, or all."""
        last = self._last_refusal
        kept = [last] if last is not None and self.pressure and self.pressure[-1] is last and not all else []
        taken = self.pressure[: len(self.pressure) - len(kept)]
        self.pressure = kept
        return taken
