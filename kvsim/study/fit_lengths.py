"""The distribution that lies closest to lengths that were counted, and how far apart two samples are."""

import numpy as np
import numpy.typing as npt

from kvsim.rules import MAX_TOKENS
from kvsim.study.reuse import Ints
from kvsim.workload.generate import Empirical, Fixed, Length, Lognormal, Uniform, random_stream

_DRAWS = 20_000
_CLOSE = 0.05
"""A distribution further off than this gives way to the lengths as they were counted."""

_MOST_COUNTED = 200


def fit_lengths(values: Ints, seed: int) -> Length:
    """The distribution that lies closest: by the share of values at most so long, and by the mean."""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return Fixed(low)
    bounds = {"min": low, "max": min(high, MAX_TOKENS)}
    mean, median = float(values.mean()), float(np.median(values))
    sigma = float(np.log(values).std())
    candidates: list[Length] = [Uniform(**bounds)]
    if mean > median:
        candidates.append(Lognormal(mean=rounded(mean), p50=rounded(median), **bounds))
    if 0 < sigma <= 10:
        candidates.append(Lognormal(p50=rounded(median), sigma=rounded(sigma), **bounds))
        candidates.append(Lognormal(mean=rounded(mean), sigma=rounded(sigma), **bounds))

    def distance(length: Length) -> float:
        drawn = length.sample(random_stream(seed, "fit"), _DRAWS)
        return widest_gap(values, drawn) + abs(float(drawn.mean()) / mean - 1)

    closest = min(candidates, key=distance)
    return closest if distance(closest) < _CLOSE else counted(values)


def counted(values: Ints) -> Length:
    """The lengths themselves with their counts, or where they are many so many quantiles of them."""
    lengths, counts = np.unique(values, return_counts=True)
    if len(lengths) > _MOST_COUNTED:
        middles = (np.arange(_MOST_COUNTED) + 0.5) / _MOST_COUNTED
        lengths, counts = np.unique(np.quantile(values, middles, method="nearest"), return_counts=True)
    if len(lengths) == 1:
        return Fixed(int(lengths[0]))
    return Empirical(values=tuple(lengths.tolist()), weights=tuple(map(float, counts.tolist())))


def widest_gap(values: npt.NDArray[np.generic], others: npt.NDArray[np.generic]) -> float:
    """The largest difference between the shares of two samples that are at most x, over all x (Kolmogorov's)."""
    first, second = np.sort(values), np.sort(others)
    at = np.concatenate((first, second))
    shares = [np.searchsorted(one, at, side="right") / len(one) for one in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def apart(one: float, other: float) -> float:
    """How far two figures lie apart: their difference over their mean, 0 to 2."""
    return 2 * abs(one - other) / (one + other) if one + other else 0.0


def rounded(value: float) -> float:
    """Five digits: what a fit is worth."""
    return float(f"{value:.5g}")
