"""What an engine is told at its start, named as vLLM names it."""

from typing import Literal

from attrs import field, frozen, validators

from kvsim.engine.latency import LatencyModel
from kvsim.engine.rules import ENGINE_RULES
from kvsim.rules import NANOSECONDS, at_least, one_of, token_count

_at_least_one = at_least(1)
_optional_at_least_one = validators.optional(_at_least_one)


@frozen
class EngineConfig:
    """Limits of one engine. Times are nanoseconds, lengths tokens.

    `rules` names the engine and version whose rules hold. `max_model_len` bounds prompt plus output; None is what
    the model's own config says. `max_waiting` bounds the queue: a request that finds it full is rejected. `timeout`
    is how long a request waits for its first admission at most. `reject_unservable` turns requests away that the
    pool could never hold; the real engine lets them block the queue (rule 15). `fast_forward` takes decode steps that
    are alike at once; with false step follows step, to the same end.
    """

    rules: str = field(default="vllm-0.32", validator=one_of(ENGINE_RULES))
    max_model_len: int | None = field(default=None, validator=validators.optional(token_count))
    max_num_seqs: int = field(default=256, validator=_at_least_one)
    max_num_active_seqs: int | None = field(default=None, validator=_optional_at_least_one)
    max_num_batched_tokens: int = field(default=8192, validator=_at_least_one)
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = field(default=0, validator=at_least(0))
    scheduler_reserve_full_isl: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    reject_unservable: bool = True
    max_waiting: int | None = field(default=None, validator=_optional_at_least_one)
    timeout: int | None = field(default=None, validator=_optional_at_least_one, metadata=NANOSECONDS)
    latency: LatencyModel = field(factory=LatencyModel)
    fast_forward: bool = True
