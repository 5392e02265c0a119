"""A request and the content it carries, as spans of named sources."""

from collections.abc import Iterable
from typing import NamedTuple

Source = int | str
"""Name of a run of tokens: a trace's block id, "sys:3", "user:17", "out:17"."""


class Span(NamedTuple):
    """Tokens `start ... start + length` of one source; equal (source, position) means equal token."""

    source: Source
    start: int
    length: int


Content = tuple[Span, ...]


def merged(spans: Iterable[Span]) -> Content:
    """The same tokens in as few spans as possible: neighbours that continue each other become one."""
    out: list[Span] = []
    for span in spans:
        if span.length == 0:
            continue
        if out:
            last = out[-1]
            if last.source == span.source and last.start + last.length == span.start:
                out[-1] = Span(last.source, last.start, last.length + span.length)
                continue
        out.append(span)
    return tuple(out)


def num_tokens(content: Content) -> int:
    return content[0].length if len(content) == 1 else sum([span.length for span in content])


class Request:
    """What one user asks for. Nothing here changes while it runs.

    `output_tokens` is what it generates if nothing cuts it short; `output` names those tokens, so that a
    later prompt may contain them. At `abort_ns` its client hangs up.
    """

    def __init__(
        self,
        id: int,
        arrival_ns: int,
        prompt: Content,
        output: Content,
        priority: int = 0,
        abort_ns: int | None = None,
    ) -> None:
        self.id = id
        self.arrival_ns = arrival_ns
        self.prompt = prompt
        self.output = output
        self.priority = priority
        self.abort_ns = abort_ns
        self.prompt_tokens = prompt[0][2] if len(prompt) == 1 else num_tokens(prompt)
        self.output_tokens = output[0][2] if len(output) == 1 else num_tokens(output)
        assert self.prompt_tokens >= 1, "a request has at least one prompt token"
        assert self.output_tokens >= 1, "a request generates at least one token"

    def values(self) -> tuple[int, int, Content, Content, int, int | None]:
        """What makes an equal request."""
        return self.id, self.arrival_ns, self.prompt, self.output, self.priority, self.abort_ns

    def __eq__(self, other: object) -> bool:
        return self.values() == other.values() if isinstance(other, Request) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.values())

    def __repr__(self) -> str:
        return f"Request{self.values()}"

    def but(self, *, id: int | None = None, arrival_ns: int | None = None, output: Content | None = None) -> "Request":
        """The same request with another id, at another time or with another output."""
        return Request(
            self.id if id is None else id,
            self.arrival_ns if arrival_ns is None else arrival_ns,
            self.prompt,
            self.output if output is None else output,
            self.priority,
            self.abort_ns,
        )


def make_request(id: int, arrival_ns: int, prompt: Content, output_tokens: int, priority: int = 0) -> Request:
    """A request whose output is a source of its own, `out:<id>`."""
    return Request(id, arrival_ns, prompt, (Span(f"out:{id}", 0, output_tokens),), priority)
