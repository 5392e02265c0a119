"""Lengths in tokens: one frozen class a distribution, and a line in LENGTHS."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from kvsim.rules import MAX_TOKENS, Consistent, more_than_zero, out_of_order, token_count


@frozen
class Fixed:
    """Always the same number."""

    value: int = field(validator=token_count)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.full(count, self.value, dtype=np.int64)


@frozen
class Uniform(Consistent):
    """Every whole number from `min` to `max`, both included, equally often."""

    min: int = field(validator=token_count)
    max: int = field(validator=token_count)

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        return out_of_order(values, "min", "max")

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.integers(self.min, self.max, size=count, endpoint=True)


@frozen
class Lognormal(Consistent):
    """Log-normal with two of `mean`, `p50` (the median) and `sigma` (of the logarithm) given.

    Rounded to whole tokens, then clipped to `min ... max`, which moves the mean where the bounds bite.
    """

    mean: float | None = field(default=None, validator=validators.optional(token_count))
    p50: float | None = field(default=None, validator=validators.optional(token_count))
    sigma: float | None = field(default=None, validator=validators.optional(more_than_zero(10)))
    min: int = field(default=1, validator=token_count)
    max: int = field(default=MAX_TOKENS, validator=token_count)

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        sentences = out_of_order(values, "min", "max")
        if [values[name] for name in ("mean", "p50", "sigma")].count(None) != 1:
            sentences.append("two of mean, p50 and sigma must be given, and not the third")
        elif values["sigma"] is None:
            sentences += out_of_order(values, "p50", "mean")
        return sentences

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        if self.sigma is None:
            assert self.mean is not None, "two of three are given"
            assert self.p50 is not None, "two of three are given"
            mu, sigma = math.log(self.p50), math.sqrt(2 * math.log(self.mean / self.p50))
        elif self.p50 is not None:
            mu, sigma = math.log(self.p50), self.sigma
        else:
            assert self.mean is not None, "two of three are given"
            mu, sigma = math.log(self.mean) - self.sigma**2 / 2, self.sigma
        values = np.rint(rng.lognormal(mu, sigma, size=count))
        return np.clip(values, self.min, self.max).astype(np.int64)


Length = Fixed | Uniform | Lognormal
LENGTHS: dict[str, type[Length]] = {"fixed": Fixed, "uniform": Uniform, "lognormal": Lognormal}
