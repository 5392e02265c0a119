"""What every generated workload has: lengths, content, and an end."""

from collections.abc import Iterator, Mapping
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import attrs
from attrs import evolve, field, frozen, validators

from kvsim.rules import NANOSECONDS, Consistent, at_least, between
from kvsim.workload.generate.lengths import Length
from kvsim.workload.generate.pairs import Pairs, correlated
from kvsim.workload.generate.prefixes import SharedPrefixes
from kvsim.workload.generate.streams import drawn, random_stream
from kvsim.workload.request import Request, Span, make_request, merged


@frozen(kw_only=True)
class Generated(Consistent):
    """Requests drawn from distributions: a number of them, or all that arrive within a duration (ns).

    Prompt and output are drawn each on its own, with a rank `correlation`, or together from `pairs`.
    """

    prompt: Length | None = None
    output: Length | None = None
    pairs: Pairs | None = None
    correlation: float | None = field(default=None, validator=validators.optional(between(-1, 1)))
    prefixes: SharedPrefixes | None = None
    priority: Length | None = None
    num_requests: int | None = field(default=None, validator=validators.optional(between(1, 10**12)))
    duration: int | None = field(default=None, validator=validators.optional(at_least(1)), metadata=NANOSECONDS)

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        return lengths_contradict(values) + no_end(values)

    def arrival_times(self, seed: int) -> Iterator[int]:
        """Times at which requests arrive by themselves (ns), in order, made as they are asked for."""
        raise NotImplementedError("every arrival process says when")

    def requests(self, seed: int, base: Path = Path()) -> Iterator[Request]:
        """The requests in order of arrival, made as they are asked for; paths start from `base`.

        Raises TraceError for a file that cannot be used.
        """
        requests = with_files(self, base)._endless(seed)
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
            self.arrival_times(seed),
            self._lengths(seed),
            values(self.prefixes, "prefixes"),
            values(self.priority, "priorities"),
            strict=False,
        )
        for request_id, (arrival_ns, (prompt, output), prefix, priority) in enumerate(purposes):
            spans = [Span(f"user:{request_id}", 0, prompt)]
            if self.prefixes is not None:
                spans.insert(0, Span(f"sys:{prefix}", 0, self.prefixes.tokens))
            yield make_request(request_id, arrival_ns, merged(spans), output, priority)

    def _lengths(self, seed: int) -> Iterator[tuple[int, int]]:
        """Prompt and output tokens of request after request."""
        if self.pairs is not None:
            return drawn(self.pairs.sample, random_stream(seed, "pairs"))
        assert self.prompt is not None, "the table is consistent"
        assert self.output is not None, "the table is consistent"
        if self.correlation is not None:
            return correlated(self.prompt, self.output, self.correlation, seed)
        return zip(
            drawn(self.prompt.sample, random_stream(seed, "prompts")),
            drawn(self.output.sample, random_stream(seed, "outputs")),
            strict=True,
        )


def no_end(values: Mapping[str, Any]) -> list[str]:
    if values["num_requests"] is None and values["duration"] is None:
        return ["num_requests or duration must be given"]
    return []


def lengths_contradict(values: Mapping[str, Any]) -> list[str]:
    given = [name for name in ("prompt", "output") if values[name] is not None]
    if values["pairs"] is None:
        missing = [name for name in ("prompt", "output") if name not in given]
        return [f"{name} is missing: prompt and output, or else pairs, must be given" for name in missing]
    if values["correlation"] is not None:
        given.append("correlation")
    if given:
        return [f"pairs and {', '.join(given)} contradict each other: give one or the other"]
    return []


@runtime_checkable
class InFile(Protocol):
    """A description part of which may be in a file."""

    def loaded(self, base: Path) -> Any: ...


def with_files(description: Any, base: Path) -> Any:
    """The same description with what its files hold in their place; raises TraceError."""
    if not attrs.has(type(description)):
        return description
    changed = {}
    for attribute in attrs.fields(type(description)):
        value = getattr(description, attribute.name)
        read = with_files(value, base)
        if read is not value:
            changed[attribute.name] = read
    read = evolve(description, **changed) if changed else description
    return read.loaded(base) if isinstance(read, InFile) else read
