"""When requests arrive: one frozen class a process, and a line in ARRIVALS."""

import numpy as np
from attrs import field, frozen

from kvsim.rules import between, more_than_zero
from kvsim.workload.generate.generated import Generated

_rate = more_than_zero(1_000_000)


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
