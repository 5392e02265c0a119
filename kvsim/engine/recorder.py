"""What happened, in columns while a run goes on."""

from array import array
from typing import Literal, get_args

from attrs import define, field

from kvsim.engine.scheduler import HeldBack, Sampled, Step
from kvsim.engine.state import RequestState
from kvsim.memory.allocator import Occupancy, Shortfall
from kvsim.workload.request import Request

Outcome = Literal["finished", "cut", "rejected", "timed_out", "aborted", "unfinished"]
"""How a request ended, exactly one each. `cut`: it ended at max_model_len before its output was complete."""

RejectReason = Literal["prompt_too_long", "never_fits", "queue_full"]

Event = Literal[
    "arrived", "admitted", "resumed", "preempted", "refused", "finished", "rejected", "timed_out", "aborted"
]
"""Things counted in each row of the timeline; `finished` includes the cut ones."""

EVENTS: tuple[str, ...] = get_args(Event)

LEVELS = (
    "allocated_blocks",
    "cached_blocks",
    "blank_blocks",
    "live_bytes",
    "padding_bytes",
    "logical_bytes",
    "window_saving_bytes",
    "running",
    "waiting",
)


@define
class Pressure:
    """A preemption, or a run of steps that refused one request for one cause; the figures are of its first step."""

    time_ns: int
    event: Literal["refused", "preempted"]
    request_id: int
    cause: str
    steps: int
    shortfall: Shortfall


@define
class RequestRecord:
    """One row of the requests table; times in nanoseconds, None where it never came to that."""

    request: Request
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    ended_ns: int | None = None
    generated_tokens: int = 0
    hit_tokens: int = 0
    resumed_hit_tokens: int = 0
    refusals: int = 0
    refusal_causes: dict[str, int] = field(factory=dict)
    blocked_ns: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    outcome: Outcome = "unfinished"
    reason: RejectReason | None = None


class Recorder:
    """One row of levels and event counts per instant at which anything changed, one record per request.

    A row holds from its time to that of the next one; changes at one instant share a row. A request is blocked from
    a step that refused it until the next decision, so at most one is blocked at a time.
    """

    def __init__(self) -> None:
        self.times = array("q")
        self.levels = {name: array("q") for name in LEVELS}
        self.events = {name: array("q") for name in EVENTS}
        self.records: dict[int, RequestRecord] = {}
        self.pressure: list[Pressure] = []
        self.held_back_steps = dict.fromkeys(get_args(HeldBack), 0)
        self.num_ended = 0
        self.num_steps = 0
        self._blocked: RequestRecord | None = None
        self._last_refusal: Pressure | None = None
        self._blocked_since_ns = 0
        self._pending = dict.fromkeys(EVENTS, 0)
        self._level_appends = [column.append for column in self.levels.values()]

    def arrived(self, request: Request) -> None:
        self.records[request.id] = RequestRecord(request)
        self._pending["arrived"] += 1

    def rejected(self, now: int, request: Request, reason: RejectReason) -> None:
        record = self.records[request.id]
        record.reason = reason
        self._end(record, now, "rejected")
        self._pending["rejected"] += 1

    def step_began(self, now: int, step: Step) -> None:
        """Admissions, preemptions and a refusal of a step that starts now."""
        self._unblock(now)
        self.num_steps += bool(step.scheduled)
        if step.held_back is not None:
            self.held_back_steps[step.held_back] += 1
        for state, shortfall in zip(step.preempted, step.preemption_shortfalls, strict=True):
            self.records[state.request.id].preemptions += 1
            self._pending["preempted"] += 1
            self.pressure.append(Pressure(now, "preempted", state.request.id, "blocks", 1, shortfall))
        if step.refused is None:
            self._last_refusal = None
        for state, hit in step.admitted:
            record = self.records[state.request.id]
            record.admitted_ns = now
            record.hit_tokens = hit.num_tokens
            self._pending["admitted"] += 1
        for state, hit in step.resumed:
            self.records[state.request.id].resumed_hit_tokens += hit.num_tokens
            self._pending["resumed"] += 1
        if step.refused is not None and step.refusal_shortfall is not None:
            self._refused(now, step.refused, step.refusal_shortfall)

    def _refused(self, now: int, state: RequestState, shortfall: Shortfall) -> None:
        record = self._blocked = self.records[state.request.id]
        self._blocked_since_ns = now
        self._pending["refused"] += 1
        record.refusals += 1
        cause = shortfall.least_change
        record.refusal_causes[cause] = record.refusal_causes.get(cause, 0) + 1
        last = self._last_refusal
        if last is not None and (last.request_id, last.cause) == (state.request.id, cause):
            last.steps += 1
        else:
            last = Pressure(now, "refused", state.request.id, cause, 1, shortfall)
            self._last_refusal = last
            self.pressure.append(last)

    def _unblock(self, now: int) -> None:
        if self._blocked is not None:
            self._blocked.blocked_ns += now - self._blocked_since_ns
            self._blocked = None

    def step_ended(self, now: int, sampled: Sampled) -> None:
        """First tokens and finishes at the end of a step."""
        for state in sampled.first_tokens:
            self.records[state.request.id].first_token_ns = now
        for state in sampled.finished:
            complete = state.num_output_tokens == state.request.output_tokens
            self.gone(now, state, "finished" if complete else "cut")

    def gone(self, now: int, state: RequestState, outcome: Outcome) -> None:
        """A submitted request has left the engine, or is still there at the end of the run."""
        record = self.records[state.request.id]
        record.generated_tokens = state.num_output_tokens
        record.recomputed_tokens = state.num_recomputed_tokens
        if record is self._blocked or outcome == "unfinished":
            self._unblock(now)
        if outcome == "unfinished":
            return
        self._end(record, now, outcome)
        self._pending["finished" if outcome == "cut" else outcome] += 1

    def _end(self, record: RequestRecord, now: int, outcome: Outcome) -> None:
        record.ended_ns = now
        record.outcome = outcome
        self.num_ended += 1

    def observe(self, now: int, occupancy: Occupancy, num_running: int, num_waiting: int) -> None:
        """Write down the levels that hold from now on, with the events since the last call."""
        if self.times and self.times[-1] == now:
            for column, value in zip(self.levels.values(), (*occupancy, num_running, num_waiting), strict=True):
                column[-1] = value
            for name, count in self._pending.items():
                self.events[name][-1] += count
        else:
            self.times.append(now)
            for append, value in zip(self._level_appends, (*occupancy, num_running, num_waiting), strict=True):
                append(value)
            for name, count in self._pending.items():
                self.events[name].append(count)
        self._pending = dict.fromkeys(EVENTS, 0)
