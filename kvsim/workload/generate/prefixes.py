"""System prompts that many requests begin with."""

import numpy as np
from attrs import field, frozen

from kvsim.rules import between, token_count
from kvsim.workload.generate.choice import choose, zipf_weights


@frozen
class SharedPrefixes:
    """System prompts: `count` different ones of `tokens` tokens, put before the drawn prompt.

    The k-th most popular is chosen with a probability proportional to k ** -popularity (Zipf); 0 makes them
    equally popular.
    """

    count: int = field(validator=between(1, 1_000_000))
    tokens: int = field(validator=token_count)
    popularity: float = field(default=0.0, validator=between(0, 10))

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Indices of the chosen prompts, 0 the most popular."""
        return choose(np.cumsum(zipf_weights(self.count, self.popularity)), rng, count)
