"""Requests for tests: small, and alike only where they are meant to be."""

from kvsim.workload.request import Request, Span, merged


def make_request(
    id: int = 0,
    own: int = 0,
    *,
    shared: int = 0,
    output: int = 10,
    arrival: int = 0,
    priority: int = 0,
    abort: int | None = None,
) -> Request:
    """A prompt of `shared` tokens that all requests have in common and `own` tokens that nobody else has."""
    prompt = merged([Span("sys", 0, shared), Span(f"user:{id}", 0, own)])
    return Request(id, arrival, prompt, (Span(f"out:{id}", 0, output),), priority, abort)
