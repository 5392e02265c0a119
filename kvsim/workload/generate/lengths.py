"""Lengths in tokens: one frozen class a distribution, and a line in LENGTHS. `most` bounds what can be drawn."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from kvsim.rules import MAX_TOKENS, Consistent, between, more_than_zero, out_of_order, token_count
from kvsim.workload.generate.choice import choose
from kvsim.workload.generate.empirical import Empirical

MOST_VALUES = 1_000_000
"""As many lengths a Zipf distribution may choose from."""


@frozen
class Fixed:
    """Always the same number."""

    value: int = field(validator=token_count)

    @property
    def most(self) -> int:
        return self.value

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.full(count, self.value, dtype=np.int64)


class _Bounded(Consistent):
    """Lengths from a `min` to a `max`."""

    __slots__ = ()
    max: int

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        return out_of_order(values, "min", "max")

    @property
    def most(self) -> int:
        return self.max


@frozen
class Uniform(_Bounded):
    """Every whole number from `min` to `max`, both included, equally often."""

    min: int = field(validator=token_count)
    max: int = field(validator=token_count)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.integers(self.min, self.max, size=count, endpoint=True)


@frozen
class Lognormal(_Bounded):
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
        sentences = _Bounded.contradictions(values)
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


@frozen
class GammaLength(_Bounded):
    """Gamma-distributed with a `mean` and a coefficient of variation `cv`.

    Rounded to whole tokens, then clipped to `min ... max`, which moves the mean where the bounds bite.
    """

    mean: float = field(validator=token_count)
    cv: float = field(validator=between(0.001, 100))
    min: int = field(default=1, validator=token_count)
    max: int = field(default=MAX_TOKENS, validator=token_count)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        values = np.rint(rng.gamma(self.cv**-2, self.cv**2 * self.mean, size=count))
        return np.clip(values, self.min, self.max).astype(np.int64)


@frozen
class Zipf(_Bounded):
    """Whole numbers n from `min` to `max` with a probability proportional to n ** -exponent: many short, few long."""

    exponent: float = field(validator=between(0, 10))
    min: int = field(default=1, validator=token_count)
    max: int = field(validator=token_count, kw_only=True)

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        sentences = _Bounded.contradictions(values)
        low, high = values["min"], values["max"]
        if isinstance(low, int) and isinstance(high, int) and high - low >= MOST_VALUES:
            sentences.append(f"max must be less than min + {MOST_VALUES:,}, got {low:,} and {high:,}")
        return sentences

    @cached_property
    def _cumulated(self) -> np.ndarray:
        return np.cumsum(np.arange(self.min, self.max + 1, dtype=np.float64) ** -self.exponent)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return self.min + choose(self._cumulated, rng, count)


Length = Fixed | Uniform | Lognormal | GammaLength | Zipf | Empirical
LENGTHS: dict[str, type[Length]] = {
    "fixed": Fixed,
    "uniform": Uniform,
    "lognormal": Lognormal,
    "gamma": GammaLength,
    "zipf": Zipf,
    "empirical": Empirical,
}
