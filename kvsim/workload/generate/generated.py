"""What every generated workload has: lengths, content, and an end."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import attrs
from attrs import evolve, field, frozen, validators

from kvsim.rules import NANOSECONDS, at_least, between
from kvsim.workload.generate.content import Documents, SharedPrefixes, Templates
from kvsim.workload.generate.lengths import Length
from kvsim.workload.generate.pairs import Pairs, correlated
from kvsim.workload.generate.sessions import Agents, Sessions
from kvsim.workload.generate.streams import drawn, random_stream
from kvsim.workload.generate.traffic import Traffic
from kvsim.workload.outputs import SeveralOutputs, outputs_contradict
from kvsim.workload.request import Request


@frozen(kw_only=True)
class Generated(SeveralOutputs):
    """Requests drawn from distributions: a number of them, or all that arrive within a duration (ns).

    Prompt and output are drawn each on its own, with a rank `correlation`, or together from `pairs`.
    """

    prompt: Length | None = None
    output: Length | None = None
    pairs: Pairs | None = None
    correlation: float | None = field(default=None, validator=validators.optional(between(-1, 1)))
    prefixes: SharedPrefixes | None = None
    templates: Templates | None = None
    documents: Documents | None = None
    sessions: Sessions | None = None
    agents: Agents | None = None
    priority: Length | None = None
    num_requests: int | None = field(default=None, validator=validators.optional(between(1, 10**12)))
    duration: int | None = field(default=None, validator=validators.optional(at_least(1)), metadata=NANOSECONDS)

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        return content_contradicts(values) + no_end(values)

    def arrival_times(self, seed: int) -> Iterator[int]:
        """Times at which requests arrive by themselves (ns), in order, made as they are asked for."""
        raise NotImplementedError("every arrival process says when")

    def pauses(self, seed: int) -> Iterator[int] | None:
        """How long (ns) a client waits between an end and its next request; None where nobody waits for an end."""
        return None

    @property
    def group(self) -> Sessions | Agents | None:
        """How requests belong together."""
        return self.sessions if self.sessions is not None else self.agents

    def traffic(self, seed: int, base: Path = Path()) -> Traffic:
        """The requests of one run; paths start from `base`. Raises TraceError for a file that cannot be used."""
        return Traffic(with_files(self, base), seed)

    def requests(self, seed: int, base: Path = Path()) -> Iterator[Request]:
        """The requests in order of arrival as if every one ended at once, made as they are asked for."""
        return self.traffic(seed, base).without_engine()

    def lengths(self, seed: int) -> Iterator[tuple[int, int]]:
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


def content_contradicts(values: Mapping[str, Any]) -> list[str]:
    """Sentences on lengths, on outputs, and on requests that belong together."""
    sentences = _lengths_contradict(values) + outputs_contradict(values)
    if values["sessions"] is not None and values["agents"] is not None:
        sentences.append("sessions and agents contradict each other: give one or the other")
    return sentences


def _lengths_contradict(values: Mapping[str, Any]) -> list[str]:
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
