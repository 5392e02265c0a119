"""Several outputs from one prompt: how many a scenario asks for, and an engine that takes each for a request."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attrs import define, field, frozen, validators

from kvsim.rules import Consistent, between
from kvsim.workload.request import Request, Span

_several = validators.optional(between(1, 1000))


@frozen(kw_only=True)
class SeveralOutputs(Consistent):
    """Every request has so many `samples`, or a beam search of `beam_width`; all its outputs are equally long.

    `beam_concentration` is the chance that a beam of the next step picks its parent among all beams, 1 if left out; the
    others go on from their own.
    """

    samples: int | None = field(default=None, validator=_several)
    beam_width: int | None = field(default=None, validator=_several)
    beam_concentration: float | None = field(default=None, validator=validators.optional(between(0, 1)))

    @property
    def num_outputs(self) -> int | None:
        """Outputs of each request; None where the scenario does not speak of them, so that there is one."""
        return self.samples if self.beam_width is None else self.beam_width


def outputs_contradict(values: Mapping[str, Any]) -> list[str]:
    sentences = []
    if values["samples"] is not None and values["beam_width"] is not None:
        sentences.append(
            "samples and beam_width contradict each other: give one or the other (--set workload.samples= removes one)"
        )
    if values["beam_concentration"] is not None and values["beam_width"] is None:
        sentences.append("beam_concentration needs beam_width")
    return sentences


def sample_requests(request: Request, num_samples: int) -> Iterator[Request]:
    """Each sample as a request of its own, as vLLM's V1 engine has it: the same prompt at the same time.

    Outputs differ; the first keeps the name that later prompts know it by.
    """
    for sample in range(num_samples):
        output = request.output
        if sample:
            output = (Span(f"out:{request.id}#{sample}", 0, request.output_tokens),)
        yield request.but(id=request.id * num_samples + sample, output=output)


@define
class _Pending:
    request: Request
    num_left: int
    complete: bool = True


FollowUps = Callable[[int, Request, bool], Iterable[Request]]


class SampleTraffic:
    """Requests in the place of which each of their samples comes as one.

    What follows the end of a request follows the end of the last of its samples, and has samples itself.
    """

    def __init__(self, requests: Iterable[Request], follow_ups: FollowUps, num_samples: int) -> None:
        self._requests = requests
        self._follow_ups = follow_ups
        self._num_samples = num_samples
        self._pending: dict[int, _Pending] = {}

    def __iter__(self) -> Iterator[Request]:
        for request in self._requests:
            yield from self._samples(request)

    def follow_ups(self, now_ns: int, ended: Request, complete: bool) -> list[Request]:
        request_id = ended.id // self._num_samples
        pending = self._pending[request_id]
        pending.num_left -= 1
        pending.complete &= complete
        if pending.num_left:
            return []
        del self._pending[request_id]
        following = self._follow_ups(now_ns, pending.request, pending.complete)
        return [sample for request in following for sample in self._samples(request)]

    def _samples(self, request: Request) -> Iterator[Request]:
        self._pending[request.id] = _Pending(request, self._num_samples)
        return sample_requests(request, self._num_samples)
