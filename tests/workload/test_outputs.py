import re

import pytest

from kvsim.rules import Contradiction
from kvsim.workload.generate import Fixed, Poisson
from kvsim.workload.outputs import SampleTraffic, sample_requests
from kvsim.workload.request import Request, Span
from kvsim.workload.traces import Trace
from tests.makers import make_request


def test_each_sample_is_a_request_of_the_same_prompt_and_time_with_an_output_of_its_own() -> None:
    request = make_request(5, own=7, output=3, arrival=11, priority=2, abort=99)
    samples = list(sample_requests(request, 3))
    assert [sample.id for sample in samples] == [15, 16, 17]
    assert {(s.arrival_ns, s.prompt, s.priority, s.abort_ns) for s in samples} == {(11, request.prompt, 2, 99)}
    assert [sample.output for sample in samples] == [
        (Span("out:5", 0, 3),),
        (Span("out:5#1", 0, 3),),
        (Span("out:5#2", 0, 3),),
    ]


def test_what_follows_a_request_follows_the_last_of_its_samples() -> None:
    asked: list[tuple[int, int, bool]] = []

    def follow_ups(now: int, ended: Request, complete: bool) -> list[Request]:
        asked.append((now, ended.id, complete))
        return [make_request(2, own=1, arrival=now)] if ended.id == 0 else []

    traffic = SampleTraffic([make_request(id, own=1) for id in (0, 1)], follow_ups, 2)
    first, second, third, fourth = traffic
    assert [request.id for request in (first, second, third, fourth)] == [0, 1, 2, 3]
    assert traffic.follow_ups(5, second, True) == []
    assert traffic.follow_ups(6, third, False) == []
    assert asked == []
    following = traffic.follow_ups(7, first, True)
    assert [(request.id, request.arrival_ns) for request in following] == [(4, 7), (5, 7)]
    assert traffic.follow_ups(8, fourth, True) == []
    assert asked == [(7, 0, True), (8, 1, False)]
    assert traffic.follow_ups(9, following[0], True) == traffic.follow_ups(9, following[1], True) == []


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"samples": 2, "beam_width": 2},
            "samples and beam_width contradict each other: give one or the other (--set workload.samples= removes one)",
        ),
        ({"samples": 2, "beam_concentration": 0.5}, "beam_concentration needs beam_width"),
    ],
)
def test_samples_and_beams_contradict_each_other(keys: dict[str, float], sentence: str) -> None:
    with pytest.raises(Contradiction, match=re.escape(sentence)):
        Trace(path="t", **keys)  # type: ignore[arg-type]
    with pytest.raises(Contradiction, match=re.escape(sentence)):
        Poisson(rate=1.0, num_requests=1, prompt=Fixed(1), output=Fixed(1), **keys)  # type: ignore[arg-type]


def test_outputs_are_those_asked_for() -> None:
    assert Trace(path="t").num_outputs is None
    assert Trace(path="t", samples=3).num_outputs == Trace(path="t", beam_width=3).num_outputs == 3
