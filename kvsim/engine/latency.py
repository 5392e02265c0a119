"""How long a step takes: a stated model, affine in the work of the step, in integer nanoseconds."""

from attrs import field, frozen

from kvsim.rules import NANOSECONDS, at_least

_not_negative = at_least(0)


def transfer_ns(num_bytes: int, bytes_per_second: int) -> int:
    """How long bytes take between host and device, rounded once, to the nearest nanosecond."""
    return (num_bytes * 10**9 + bytes_per_second // 2) // bytes_per_second


@frozen
class LatencyModel:
    """Nanoseconds of one engine step.

        base + per_prefill_token x prefill tokens + per_decode_seq x decoding sequences
             + per_context_token x tokens whose KV the step reads

    A request that is given exactly the one token it lacks is a decoding sequence; all other scheduled tokens
    are prefill tokens. Context tokens are the computed tokens of all scheduled requests, those of this step
    included.

    The defaults are an 8B-class model in bf16 on one H100 SXM (3.35 TB/s, 989 TFLOP/s), an assumption and not
    a measurement: base 8 ms = 16 GB of weights read once (4.8 ms) and about 3 ms around the kernels; 40 us a
    prefill token = 2 x 8e9 FLOP at 40 % of the peak; 40 ns a context token = 131,072 bytes of KV read once;
    2 us a decoding sequence for sampling and bookkeeping.
    """

    base: int = field(default=8_000_000, validator=at_least(1), metadata=NANOSECONDS)
    per_prefill_token: int = field(default=40_000, validator=_not_negative, metadata=NANOSECONDS)
    per_decode_seq: int = field(default=2_000, validator=_not_negative, metadata=NANOSECONDS)
    per_context_token: int = field(default=40, validator=_not_negative, metadata=NANOSECONDS)

    def step_ns(self, prefill_tokens: int, decode_seqs: int, context_tokens: int) -> int:
        """Duration of one step; takes arrays of integers as well."""
        return (
            self.base
            + self.per_prefill_token * prefill_tokens
            + self.per_decode_seq * decode_seqs
            + self.per_context_token * context_tokens
        )
