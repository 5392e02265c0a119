"""What an engine is told at its start, named as vLLM names it."""

from typing import Literal

from attrs import field, frozen, validators

from kvsim.engine.latency import LatencyModel
from kvsim.engine.rules import ENGINE_RULES
from kvsim.rules import BYTES, BYTES_PER_SECOND, NANOSECONDS, at_least, between, one_of, token_count

_at_least_one = at_least(1)
_optional_at_least_one = validators.optional(_at_least_one)

_MAX_SWAP_SPACE = 2**50
"""One PiB: beyond it lies a slip of the pen."""


@frozen
class EngineConfig:
    """Limits of one engine. Times are nanoseconds, lengths tokens.

    `rules` names the engine and version whose rules hold. `max_model_len` bounds prompt plus output; None is what
    the model's own config says. `max_waiting` bounds the queue: a request that finds it full is rejected. `timeout`
    is how long a request waits for its first admission at most. `reject_unservable` turns requests away that the
    pool could never hold; the real engine lets them block the queue (rule 15). `fast_forward` takes decode steps that
    are alike at once; with false step follows step, to the same end.

    `admission` names a policy of `engine/admission.py`; None is what `scheduler_reserve_full_isl` says. Of its figures,
    `max_output_tokens` is the longest output that requests declare (None: up to max_model_len), and
    `admission_margin` is a share of `expected_output_tokens`. `preemption` by swap is vLLM V0's: blocks of a victim
    move to `swap_space` bytes of host memory for each device (4 GiB as there), at `swap_bandwidth` bytes per second,
    of which the default is an assumption: what PCIe 4.0 x16 gives of its nominal 32 GB/s.
    """

    rules: str = field(default="vllm-0.32", validator=one_of(ENGINE_RULES))
    max_model_len: int | None = field(default=None, validator=validators.optional(token_count))
    max_num_seqs: int = field(default=256, validator=_at_least_one)
    max_num_active_seqs: int | None = field(default=None, validator=_optional_at_least_one)
    max_num_batched_tokens: int = field(default=8192, validator=_at_least_one)
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = field(default=0, validator=at_least(0))
    scheduler_reserve_full_isl: bool = True
    admission: Literal["first_chunk", "known", "worst_case", "expected"] | None = None
    max_output_tokens: int | None = field(default=None, validator=validators.optional(token_count))
    expected_output_tokens: int | None = field(default=None, validator=validators.optional(token_count))
    admission_margin: float = field(default=0.0, validator=between(0, 100))
    preemption: Literal["recompute", "swap"] = "recompute"
    swap_space: int = field(default=4 * 2**30, validator=between(0, _MAX_SWAP_SPACE), metadata=BYTES)
    swap_bandwidth: int = field(default=25 * 10**9, validator=_at_least_one, metadata=BYTES_PER_SECOND)
    policy: Literal["fcfs", "priority"] = "fcfs"
    reject_unservable: bool = True
    max_waiting: int | None = field(default=None, validator=_optional_at_least_one)
    timeout: int | None = field(default=None, validator=_optional_at_least_one, metadata=NANOSECONDS)
    latency: LatencyModel = field(factory=LatencyModel)
    fast_forward: bool = True

    @property
    def admission_policy(self) -> str:
        """The policy by its name, whichever key says it."""
        if self.admission is not None:
            return self.admission
        return "known" if self.scheduler_reserve_full_isl else "first_chunk"
