"""How far a request has got, and what has happened to it on the way."""

from typing import Literal

from kvsim.memory.chain import Holder
from kvsim.workload.request import Request

Outcome = Literal["finished", "cut", "rejected", "timed_out", "aborted", "unfinished"]
"""How a request ended, exactly one each. `cut`: it ended at max_model_len before its output was complete."""

RejectReason = Literal["prompt_too_long", "never_fits", "queue_full"]


class RequestState:
    """A request that has arrived, its progress in tokens (rule 1), and its row of the requests table.

    `num_tokens` are known (the prompt and what was generated), `num_computed_tokens` of them have their KV in
    blocks, and it ends when `stop_tokens` are known. `high_water_tokens` is how many had been computed when
    it was last preempted: computing those again is recomputation. Times are nanoseconds, None where it never came
    to that.

    What happens to few requests stands on the class until it happens.
    """

    num_computed_tokens = 0
    offset = 0
    """On the decode clock: what is computed is this many tokens more than there were ticks."""
    holder: Holder | None = None
    """What it holds of the chains of blocks; those looked up stay known until it ends."""
    high_water_tokens = 0
    num_preemptions = 0
    num_recomputed_tokens = 0
    swapped_tokens = 0
    """Of those computed so many are on the host, while it waits to be swapped in."""
    num_swaps = 0
    num_swap_fallbacks = 0
    """Preemptions that recomputed, as the host was full."""
    swapped_out_bytes = 0
    swapped_in_bytes = 0
    swap_dropped_bytes = 0
    """Were on the host and not needed again: the prefix cache still had them, or the request was aborted."""
    was_admitted = False
    admitted_ns: int | None = None
    first_token_ns: int | None = None
    ended_ns: int | None = None
    hit_tokens = 0
    resumed_hit_tokens = 0
    refusals = 0
    refusal_causes: dict[str, int] | None = None
    blocked_ns = 0
    outcome: Outcome = "unfinished"
    reason: RejectReason | None = None

    def __init__(self, request: Request, order: int, max_model_len: int) -> None:
        self.request = request
        self.order = order
        self.num_tokens = request.prompt_tokens
        longest = request.prompt_tokens + request.output_tokens
        self.stop_tokens = longest if longest < max_model_len else max_model_len

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.request.prompt_tokens

    @property
    def refusal_cause(self) -> str | None:
        """What refused it most often, and of equals the first."""
        causes = self.refusal_causes
        return None if causes is None else max(causes, key=causes.__getitem__)

    def row(self) -> tuple[int | str | None, ...]:
        """Of the requests table, in the order of its columns."""
        request = self.request
        return (
            request.id,
            request.arrival_ns,
            request.priority,
            request.prompt_tokens,
            request.output_tokens,
            self.num_output_tokens,
            self.outcome,
            self.reason,
            self.admitted_ns,
            self.first_token_ns,
            self.ended_ns,
            self.hit_tokens,
            self.resumed_hit_tokens,
            self.refusals,
            self.refusal_cause,
            self.blocked_ns,
            self.num_preemptions,
            self.num_recomputed_tokens,
        )

    def swap_row(self) -> tuple[int, ...]:
        """Of the requests table, the columns about swaps."""
        return (
            self.num_swaps,
            self.num_swap_fallbacks,
            self.swapped_out_bytes,
            self.swapped_in_bytes,
            self.swap_dropped_bytes,
        )
