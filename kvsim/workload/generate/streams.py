"""Random streams: every purpose draws from one of its own, named after it, so that changing one distribution leaves
what the others draw untouched."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_CHUNK = 1024
"""How many values are drawn at a time; the values do not depend on it."""

Sample = Callable[[np.random.Generator, int], np.ndarray]
"""So many values of a distribution."""


def random_stream(seed: int, purpose: str) -> np.random.Generator:
    """The stream of one purpose; equal seed and purpose give equal numbers."""
    return np.random.default_rng([seed, *purpose.encode()])


def drawn(sample: Sample, rng: np.random.Generator) -> Iterator[Any]:
    """Values of a distribution, one after the other for ever."""
    while True:
        yield from sample(rng, _CHUNK).tolist()
