"""What one step decides, and what its end brings."""

from typing import Literal

from kvsim.engine.state import RequestState
from kvsim.memory.allocator import Hit, Shortfall

HeldBack = Literal["preemption", "max_num_seqs", "token_budget"]
"""This step preempted somebody (rule 9), all seats are taken, or the tokens of the step are used up."""


class Step:
    """What was decided for one step, or for a window of them. `scheduled` is in the order of scheduling (rules 6
    and 9).
    """

    def __init__(
        self,
        *,
        scheduled: dict[RequestState, int] | None = None,
        admitted: list[tuple[RequestState, Hit]] | None = None,
        resumed: list[tuple[RequestState, Hit]] | None = None,
        preempted: list[RequestState] | None = None,
        preemption_shortfalls: list[Shortfall] | None = None,
        refused: RequestState | None = None,
        refusal_shortfall: Shortfall | None = None,
        held_back: HeldBack | None = None,
        prefill_tokens: int = 0,
        decode_seqs: int = 0,
        num_ticks: int = 1,
    ) -> None:
        self.scheduled = {} if scheduled is None else scheduled
        self.admitted = [] if admitted is None else admitted
        self.resumed = [] if resumed is None else resumed
        self.preempted = [] if preempted is None else preempted
        self.preemption_shortfalls = [] if preemption_shortfalls is None else preemption_shortfalls
        """Beside `preempted`: what the request that asked was short of."""
        self.refused = refused
        self.refusal_shortfall = refusal_shortfall
        self.held_back: HeldBack | None = held_back
        """Why the head of the queue was not even tried, where one waited."""
        self.prefill_tokens = prefill_tokens
        self.decode_seqs = decode_seqs
        self.context_tokens = 0
        self.swapped_bytes = 0
        """Moved to the host or from it; a step does one or the other, as one that preempts admits nobody (rule 9)."""
        self.num_ticks = num_ticks
        """Of a window: how many such steps follow each other, each over one more token of every sequence."""
        self.ends_at_arrival = False
        """A window in which nobody waits ends when somebody comes; behind others they only queue up."""

    @property
    def is_empty(self) -> bool:
        """Nothing was scheduled and nothing changed: trying again without a change decides the same."""
        return not (self.decode_seqs or self.prefill_tokens or self.preempted)


class Sampled:
    """What the end of a step brought: tokens in all, requests with their first one, and those that finished."""

    def __init__(
        self,
        num_tokens: int = 0,
        first_tokens: list[RequestState] | None = None,
        finished: list[RequestState] | None = None,
    ) -> None:
        self.num_tokens = num_tokens
        self.first_tokens = [] if first_tokens is None else first_tokens
        self.finished = [] if finished is None else finished
