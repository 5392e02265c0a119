"""How many sequences a request has, and what they cost a step.

As in vLLM V0, a request is a group of sequences that are admitted, preempted and ended together: each takes a seat of
max_num_seqs, and each decodes a token of max_num_batched_tokens in a step. The prompt is computed once for all of them.
What they have generated is computed for each of them anew after a preemption (V0 could not, and swapped such groups).
"""

from collections.abc import Callable

from attrs import frozen

from kvsim.workload.request import Request


@frozen
class Sequences:
    """`num_seqs` a request, all as long as it says. `choose_beams` is told when all of them have sampled a token."""

    num_seqs: int = 1
    choose_beams: Callable[[Request], None] | None = None

    def num_tokens(self, request: Request, start: int, stop: int) -> int:
        """Tokens to be computed to take every sequence from `start` to `stop` tokens.

        0        start        prompt           stop
        |--------|------------|----------------|
                   once         for each
        """
        if self.num_seqs == 1:
            return stop - start
        in_prompt = max(0, min(stop, request.prompt_tokens) - start)
        return in_prompt + (stop - start - in_prompt) * self.num_seqs

    def affordable(self, request: Request, start: int, wanted: int, budget: int) -> int:
        """How many tokens every sequence may come further, at most `wanted`, with so many to be computed."""
        if self.num_seqs == 1:
            return min(wanted, budget)
        in_prompt = min(budget, max(0, request.prompt_tokens - start))
        return min(wanted, in_prompt + (budget - in_prompt) // self.num_seqs)

    def context_tokens(self, request: Request, num_tokens: int) -> int:
        """Tokens that a step reads which takes a request to `num_tokens`: of one prompt, or of all sequences."""
        return num_tokens if num_tokens <= request.prompt_tokens else num_tokens * self.num_seqs


ONE_SEQUENCE = Sequences()
