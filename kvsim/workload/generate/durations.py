"""How long somebody thinks, or a tool runs: one frozen class a distribution, and a line in DURATIONS. Nanoseconds,
of which `mean_ns` is the mean."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import field, frozen

from kvsim.rules import NANOSECONDS, Consistent, between, more_than_zero, out_of_order
from kvsim.units import exact_duration

_LONGEST = 10**18
_duration = between(1, _LONGEST)


@frozen
class FixedTime:
    """Always the same."""

    value: int = field(validator=_duration, metadata=NANOSECONDS)

    @property
    def mean_ns(self) -> float:
        return self.value

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.full(count, self.value, dtype=np.int64)


@frozen
class UniformTime(Consistent):
    """Any time from `min` to `max`."""

    min: int = field(validator=_duration, metadata=NANOSECONDS)
    max: int = field(validator=_duration, metadata=NANOSECONDS)

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        return out_of_order(values, "min", "max", exact_duration)

    @property
    def mean_ns(self) -> float:
        return (self.min + self.max) / 2

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.integers(self.min, self.max, size=count, endpoint=True)


@frozen
class ExponentialTime:
    """Memoryless, with a `mean`."""

    mean: int = field(validator=_duration, metadata=NANOSECONDS)

    @property
    def mean_ns(self) -> float:
        return self.mean

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return _whole(rng.exponential(self.mean, size=count))


@frozen
class LognormalTime:
    """Log-normal with its median `p50` and the `sigma` of the logarithm."""

    p50: int = field(validator=_duration, metadata=NANOSECONDS)
    sigma: float = field(validator=more_than_zero(10))

    @property
    def mean_ns(self) -> float:
        return self.p50 * math.exp(self.sigma**2 / 2)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return _whole(rng.lognormal(math.log(self.p50), self.sigma, size=count))


def _whole(values: np.ndarray) -> np.ndarray:
    """Whole nanoseconds, at least one; what 64 bits cannot hold is cut."""
    return np.asarray(np.clip(np.rint(values), 1, _LONGEST), dtype=np.int64)


Duration = FixedTime | UniformTime | ExponentialTime | LognormalTime
DURATIONS: dict[str, type[Duration]] = {
    "fixed": FixedTime,
    "uniform": UniformTime,
    "exponential": ExponentialTime,
    "lognormal": LognormalTime,
}
