"""How far a request has got."""

from kvsim.workload.request import Request


class RequestState:
    """A submitted request, its progress in tokens (rule 1), and what has happened to it on the way.

    `num_tokens` are known (the prompt and what was generated), `num_computed_tokens` of them have their KV in
    blocks, and it ends when `stop_tokens` are known. `high_water_tokens` is how many had been computed when
    it was last preempted: computing those again is recomputation.
    """

    __slots__ = (
        "high_water_tokens",
        "num_computed_tokens",
        "num_preemptions",
        "num_recomputed_tokens",
        "num_tokens",
        "order",
        "request",
        "stop_tokens",
        "was_admitted",
    )

    def __init__(self, request: Request, order: int, max_model_len: int) -> None:
        self.request = request
        self.order = order
        self.num_tokens = request.prompt_tokens
        self.num_computed_tokens = 0
        self.stop_tokens = min(request.prompt_tokens + request.output_tokens, max_model_len)
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0
        self.high_water_tokens = 0
        self.was_admitted = False

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.request.prompt_tokens
