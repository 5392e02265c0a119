"""Synthetic requests: arrival processes x lengths x shared prefixes.

Every purpose draws from a random stream of its own, named after it, so that changing one distribution leaves
what the others draw untouched.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from kvsim.rules import (
    MAX_TOKENS,
    NANOSECONDS,
    Consistent,
    at_least,
    between,
    more_than_zero,
    out_of_order,
    token_count,
)
from kvsim.workload.request import Request, Span, make_request, merged

_CHUNK = 1024
"""How many values are drawn at a time; the values do not depend on it."""

_rate = more_than_zero(1_000_000)


def random_stream(seed: int, purpose: str) -> np.random.Generator:
    """The stream of one purpose; equal seed and purpose give equal numbers."""
    return np.random.default_rng([seed, *purpose.encode()])


# lengths, in tokens


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
        weights = np.arange(1, self.count + 1, dtype=np.float64) ** -self.popularity
        cumulated = np.cumsum(weights)
        drawn = rng.random(count) * cumulated[-1]
        return np.asarray(np.searchsorted(cumulated, drawn, side="right"))


# arrivals


@frozen(kw_only=True)
class Generated(Consistent):
    """Requests drawn from distributions: a number of them, or all that arrive within a duration (ns)."""

    prompt: Length
    output: Length
    prefixes: SharedPrefixes | None = None
    priority: Length | None = None
    num_requests: int | None = field(default=None, validator=validators.optional(between(1, 10**12)))
    duration: int | None = field(default=None, validator=validators.optional(at_least(1)), metadata=NANOSECONDS)

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        if values["num_requests"] is None and values["duration"] is None:
            return ["num_requests or duration must be given"]
        return []

    def sample_gaps(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Seconds between arrivals."""
        raise NotImplementedError("every arrival process draws its own gaps")

    def requests(self, seed: int) -> Iterator[Request]:
        """The requests in order of arrival, made as they are asked for."""
        requests = self._endless(seed)
        if self.num_requests is not None:
            requests = islice(requests, self.num_requests)
        for request in requests:
            if self.duration is not None and request.arrival_ns > self.duration:
                return
            yield request

    def _endless(self, seed: int) -> Iterator[Request]:
        streams = {
            purpose: random_stream(seed, purpose)
            for purpose in ("arrivals", "prompts", "outputs", "prefixes", "priorities")
        }
        arrival_ns = 0
        request_id = 0
        while True:
            gaps = [round(gap * 1e9) for gap in self.sample_gaps(streams["arrivals"], _CHUNK).tolist()]
            prompts = self.prompt.sample(streams["prompts"], _CHUNK).tolist()
            outputs = self.output.sample(streams["outputs"], _CHUNK).tolist()
            prefixes = [0] * _CHUNK
            if self.prefixes is not None:
                prefixes = self.prefixes.sample(streams["prefixes"], _CHUNK).tolist()
            priorities = [0] * _CHUNK
            if self.priority is not None:
                priorities = self.priority.sample(streams["priorities"], _CHUNK).tolist()
            for gap, prompt, output, prefix, priority in zip(gaps, prompts, outputs, prefixes, priorities, strict=True):
                arrival_ns += gap
                spans = [Span(f"user:{request_id}", 0, prompt)]
                if self.prefixes is not None:
                    spans.insert(0, Span(f"sys:{prefix}", 0, self.prefixes.tokens))
                yield make_request(request_id, arrival_ns, merged(spans), output, priority)
                request_id += 1


@frozen(kw_only=True)
class Poisson(Generated):
    """Arrivals at `rate` requests per second that know nothing of each other."""

    rate: float = field(validator=_rate)

    def sample_gaps(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.exponential(1 / self.rate, size=count)


@frozen(kw_only=True)
class Gamma(Generated):
    """Arrivals at `rate` per second whose gaps have the coefficient of variation `cv`; more than 1 is bursty."""

    rate: float = field(validator=_rate)
    cv: float = field(validator=between(0.001, 100))

    def sample_gaps(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.gamma(self.cv**-2, self.cv**2 / self.rate, size=count)


@frozen(kw_only=True)
class Constant(Generated):
    """One arrival every 1 / `rate` seconds."""

    rate: float = field(validator=_rate)

    def sample_gaps(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.full(count, 1 / self.rate)


ARRIVALS: dict[str, type[Poisson | Gamma | Constant]] = {
    "poisson": Poisson,
    "gamma": Gamma,
    "constant": Constant,
}
