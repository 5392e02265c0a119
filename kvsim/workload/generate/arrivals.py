"""When requests arrive: one frozen class a process, and a line in ARRIVALS."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from kvsim.rules import between, more_than_zero
from kvsim.workload.generate.closed import Closed
from kvsim.workload.generate.generated import Generated
from kvsim.workload.generate.piecewise import OnOff, Windows
from kvsim.workload.generate.streams import drawn, random_stream
from kvsim.workload.generate.weibull import LEAST_SHAPE, MOST_SHAPE, weibull_shape

_rate = more_than_zero(1_000_000)


@frozen(kw_only=True)
class Renewal(Generated):
    """Arrivals whose gaps know nothing of each other."""

    def sample_gaps(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Seconds between arrivals."""
        raise NotImplementedError("every one draws its own gaps")

    def arrival_times(self, seed: int) -> Iterator[int]:
        arrival_ns = 0
        for gap in drawn(self.sample_gaps, random_stream(seed, "arrivals")):
            arrival_ns += round(gap * 1e9)
            yield arrival_ns


@frozen(kw_only=True)
class Poisson(Renewal):
    """Arrivals at `rate` requests per second that know nothing of each other."""

    rate: float = field(validator=_rate)

    def sample_gaps(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.exponential(1 / self.rate, size=count)


@frozen(kw_only=True)
class Gamma(Renewal):
    """Arrivals at `rate` per second whose gaps have the coefficient of variation `cv`; more than 1 is bursty."""

    rate: float = field(validator=_rate)
    cv: float = field(validator=between(0.001, 100))

    def sample_gaps(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.gamma(self.cv**-2, self.cv**2 / self.rate, size=count)


@frozen(kw_only=True)
class Weibull(Renewal):
    """Arrivals at `rate` per second whose gaps have the coefficient of variation `cv`, or the `shape` itself."""

    rate: float = field(validator=_rate)
    cv: float | None = field(default=None, validator=validators.optional(between(0.02, 100)))
    shape: float | None = field(default=None, validator=validators.optional(between(LEAST_SHAPE, MOST_SHAPE)))

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        sentences = Generated.contradictions(values)
        if (values["cv"] is None) == (values["shape"] is None):
            sentences.append("one of cv and shape must be given, and not both")
        return sentences

    def sample_gaps(self, rng: np.random.Generator, count: int) -> np.ndarray:
        shape = weibull_shape(self.cv) if self.cv is not None else self.shape
        assert shape is not None, "the table is consistent"
        return rng.weibull(shape, size=count) / (self.rate * math.gamma(1 + 1 / shape))


@frozen(kw_only=True)
class Constant(Renewal):
    """One arrival every 1 / `rate` seconds."""

    rate: float = field(validator=_rate)

    def sample_gaps(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.full(count, 1 / self.rate)


Arrivals = Poisson | Gamma | Weibull | Constant | OnOff | Windows | Closed
ARRIVALS: dict[str, type[Arrivals]] = {
    "poisson": Poisson,
    "gamma": Gamma,
    "weibull": Weibull,
    "constant": Constant,
    "onoff": OnOff,
    "windows": Windows,
    "closed": Closed,
}
