"""When requests arrive: one frozen class a process, and a line in ARRIVALS."""

from collections.abc import Iterator, Mapping
from itertools import islice, repeat
from typing import Any

import numpy as np
from attrs import field, frozen, validators

from kvsim.rules import NANOSECONDS, Consistent, at_least, between, more_than_zero
from kvsim.workload.generate.lengths import Length
from kvsim.workload.generate.prefixes import SharedPrefixes
from kvsim.workload.generate.streams import drawn, random_stream
from kvsim.workload.request import Request, Span, make_request, merged

_rate = more_than_zero(1_000_000)


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
        def values(distribution: Length | SharedPrefixes | None, purpose: str) -> Iterator[int]:
            return repeat(0) if distribution is None else drawn(distribution.sample, random_stream(seed, purpose))

        purposes = zip(
            self._arrival_times(random_stream(seed, "arrivals")),
            values(self.prompt, "prompts"),
            values(self.output, "outputs"),
            values(self.prefixes, "prefixes"),
            values(self.priority, "priorities"),
            strict=True,
        )
        for request_id, (arrival_ns, prompt, output, prefix, priority) in enumerate(purposes):
            spans = [Span(f"user:{request_id}", 0, prompt)]
            if self.prefixes is not None:
                spans.insert(0, Span(f"sys:{prefix}", 0, self.prefixes.tokens))
            yield make_request(request_id, arrival_ns, merged(spans), output, priority)

    def _arrival_times(self, rng: np.random.Generator) -> Iterator[int]:
        arrival_ns = 0
        for gap in drawn(self.sample_gaps, rng):
            arrival_ns += round(gap * 1e9)
            yield arrival_ns


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
