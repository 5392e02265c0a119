"""Prompt and output lengths that are drawn together."""

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from kvsim.rules import Consistent, each, more_than_zero, token_count
from kvsim.workload.generate.choice import choose, cumulated_weights
from kvsim.workload.generate.empirical import weights_contradict
from kvsim.workload.generate.lengths import Length
from kvsim.workload.generate.streams import random_stream

_BLOCK = 1024
"""Draws that are put in order among themselves; unlike the size of a chunk it decides what is drawn."""


@frozen(kw_only=True)
class Pairs(Consistent):
    """Pairs [prompt tokens, output tokens] chosen by `weights`, equally often if left out."""

    values: tuple[tuple[int, ...], ...] = field(validator=each(each(token_count)))
    weights: tuple[float, ...] | None = field(default=None, validator=validators.optional(each(more_than_zero(10**9))))

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        sentences = weights_contradict(values)
        pairs = values["values"]
        if isinstance(pairs, tuple):
            odd = next((pair for pair in pairs if isinstance(pair, tuple) and len(pair) != 2), None)
            if odd is not None:
                sentences.append(f"values must be pairs [prompt, output], got {list(odd)}")
        return sentences

    @cached_property
    def _pairs(self) -> np.ndarray:
        return np.array(self.values, dtype=np.int64)

    @cached_property
    def _cumulated(self) -> np.ndarray:
        return cumulated_weights(self.weights, len(self.values))

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """int64, a row a request: prompt and output tokens."""
        return np.asarray(self._pairs[choose(self._cumulated, rng, count)])


def correlated(prompt: Length, output: Length, correlation: float, seed: int) -> Iterator[tuple[int, int]]:
    """Pairs for ever, with Spearman's rank `correlation` where neither length has ties.

    The drawn outputs are put in another order within each block, so both keep their distributions whatever these are:
    their ranks are those of two normal variables with the correlation that belongs to the wanted one.
    """
    pearson = 2 * math.sin(math.pi * correlation / 6)
    rest = math.sqrt(max(0.0, 1 - pearson**2))
    prompt_rng, output_rng = random_stream(seed, "prompts"), random_stream(seed, "outputs")
    order_rng = random_stream(seed, "correlation")
    while True:
        prompts = prompt.sample(prompt_rng, _BLOCK)
        outputs = np.sort(output.sample(output_rng, _BLOCK))
        normals = order_rng.standard_normal((2, _BLOCK))
        of_prompts = np.empty(_BLOCK)
        of_prompts[np.argsort(prompts, kind="stable")] = np.sort(normals[0])
        ordered = np.empty_like(outputs)
        ordered[np.argsort(pearson * of_prompts + rest * normals[1], kind="stable")] = outputs
        yield from zip(prompts.tolist(), ordered.tolist(), strict=True)
