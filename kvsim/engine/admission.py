"""What must find room before a request is let in: four policies, told apart by how far they look ahead.

    0          first chunk      known now         expected            worst case
    |----------|----------------|-----------------|-------------------|
    first_chunk                 known             expected            worst_case

The first two are vLLM's and ask at the door only: what was let in grows into what is free, and somebody is preempted
where that is not enough (rules 12 to 15 of tests/golden/vllm_scheduler/README.md). The other two *promise*: blocks that
running requests have been promised and do not hold yet are not given to anybody else at the door. As the worst case
is never exceeded, nobody who was let in under it is preempted. A block that several requests hold counts once.

The last token of a request is never computed (rule 2), so a request of n tokens in all holds n - 1 of them at most.
"""

from collections.abc import Callable
from typing import NamedTuple

from kvsim.engine.config import EngineConfig
from kvsim.engine.state import RequestState


class Demand(NamedTuple):
    """Tokens that must find room at the door (None: the first chunk is enough), and those that are promised."""

    must_fit_tokens: int | None
    promised_tokens: int | None


AdmissionPolicy = Callable[[RequestState, EngineConfig], Demand]


def first_chunk(_state: RequestState, _config: EngineConfig) -> Demand:
    """vLLM with scheduler_reserve_full_isl = false."""
    return Demand(None, None)


def known(state: RequestState, _config: EngineConfig) -> Demand:
    """All tokens known so far, vLLM's gate (rule 12) and its default."""
    return Demand(state.num_tokens, None)


def worst_case(state: RequestState, config: EngineConfig) -> Demand:
    """Prompt and the longest output."""
    return Demand(state.num_tokens, _longest(state, config) - 1)


def expected(state: RequestState, config: EngineConfig) -> Demand:
    """Prompt and the expected output with its margin; of a request that has got further, what is known of it."""
    assert config.expected_output_tokens is not None, "the scenario has been checked"
    output_tokens = round(config.expected_output_tokens * (1 + config.admission_margin))
    longest = min(state.request.prompt_tokens + output_tokens, _longest(state, config))
    return Demand(state.num_tokens, max(state.num_tokens, longest - 1))


def _longest(state: RequestState, config: EngineConfig) -> int:
    """Tokens of a request at most: what it declares, and never more than max_model_len.

    A request declares `max_output_tokens`, or its own output where that is longer: its length is not cut.
    """
    assert config.max_model_len is not None, "the caller has put in the model's own"
    if config.max_output_tokens is None:
        return config.max_model_len
    request = state.request
    declared = max(config.max_output_tokens, request.output_tokens)
    return min(request.prompt_tokens + declared, config.max_model_len)


ADMISSION: dict[str, AdmissionPolicy] = {
    "first_chunk": first_chunk,
    "known": known,
    "worst_case": worst_case,
    "expected": expected,
}

GATES = ("first_chunk", "known")
"""Policies that promise nothing."""
