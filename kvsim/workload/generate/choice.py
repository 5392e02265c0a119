"""Choosing among weighted things."""

import numpy as np


def zipf_weights(count: int, exponent: float) -> np.ndarray:
    """Weights k ** -exponent (float64) of k = 1 ... count; 0 makes them equal."""
    return np.asarray(np.arange(1, count + 1, dtype=np.float64) ** -exponent)


def cumulated_weights(weights: tuple[float, ...] | None, count: int) -> np.ndarray:
    """Sums (float64) of the weights up to each, of `count` equal ones if there are none."""
    return np.asarray(np.cumsum(np.ones(count) if weights is None else weights, dtype=np.float64))


def choose(cumulated: np.ndarray, rng: np.random.Generator, count: int) -> np.ndarray:
    """`count` indices (int64) of things whose weights add up to `cumulated`, each draw on its own."""
    drawn = rng.random(count) * cumulated[-1]
    return np.asarray(np.minimum(np.searchsorted(cumulated, drawn, side="right"), len(cumulated) - 1))
