"""Sessions and agents, on small seeds and exactly."""

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from kvsim.rules import Contradiction
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.workload.generate import (
    Agents,
    Constant,
    Documents,
    Empirical,
    ExponentialTime,
    Fixed,
    FixedTime,
    Lognormal,
    Sessions,
    SharedPrefixes,
    Uniform,
)
from kvsim.workload.request import Request, Span, merged
from tests.study.makers import write_scenario
from tests.workload.generate.makers import SECOND, make_workload


def make_constant(**changes: Any) -> Constant:
    """Starts at 1 s, 2 s, 3 s ...; prompts of 10 and outputs of 4 tokens."""
    values: dict[str, Any] = {"rate": 1.0, "num_requests": 6, "prompt": Fixed(10), "output": Fixed(4)}
    return Constant(**{**values, **changes})


def ask(id: int) -> tuple[Span, ...]:
    return (Span(f"user:{id}", 0, 10),)


def both(id: int) -> tuple[Span, ...]:
    return (Span(f"user:{id}", 0, 10), Span(f"out:{id}", 0, 4))


def test_a_turn_follows_the_end_of_the_one_before() -> None:
    workload = make_constant(sessions=Sessions(turns=Fixed(3), think=FixedTime(SECOND)), prefixes=SharedPrefixes(1, 7))
    traffic = workload.traffic(1)
    first = next(iter(traffic))
    system = (Span("sys:0", 0, 7),)
    assert (first.id, first.arrival_ns, first.prompt) == (0, SECOND, (*system, *ask(0)))
    (second,) = traffic.follow_ups(20 * SECOND, first, True)
    assert (second.id, second.arrival_ns, second.prompt) == (1, 21 * SECOND, (*system, *both(0), *ask(1)))
    (third,) = traffic.follow_ups(30 * SECOND, second, True)
    assert (third.arrival_ns, third.prompt) == (31 * SECOND, (*system, *both(0), *both(1), *ask(2)))
    assert traffic.follow_ups(40 * SECOND, third, True) == []


def test_a_user_whose_turn_was_not_answered_in_full_gives_up() -> None:
    traffic = make_constant(sessions=Sessions(turns=Fixed(3))).traffic(1)
    first = next(iter(traffic))
    assert traffic.follow_ups(20 * SECOND, first, False) == []
    assert traffic.follow_ups(20 * SECOND, first, True) == []
    assert not traffic._below


def test_turns_from_arrival_to_arrival_need_no_end() -> None:
    sessions = Sessions(turns=Fixed(2), think=FixedTime(1_500_000_000), think_from="arrival")
    workload = make_constant(sessions=sessions)
    requests = list(workload.traffic(1))
    assert [r.arrival_ns / SECOND for r in requests] == [1, 2, 2.5, 3, 3.5, 4.5]
    assert requests[2].prompt == (*both(0), *ask(requests[2].id))
    assert requests == list(workload.requests(1))
    traffic = workload.traffic(1)
    assert traffic.follow_ups(9 * SECOND, next(iter(traffic)), True) == []


def test_open_turns_go_on_after_a_rejection(tmp_path: Path) -> None:
    """Every first turn is too long, and the second comes all the same."""
    sessions = "{turns={kind='fixed',value=2},think={kind='fixed',value='1 s'},think_from='arrival'}"
    path = write_scenario(tmp_path)
    override = "workload.prompt={kind='fixed',value=500}", f"workload.sessions={sessions}", "workload.num_requests=6"
    results = simulate(load_scenario(path, override))
    assert results.requests["prompt_tokens"].to_list().count(500) == 3
    assert results.metrics["rejected"] == 6


def test_number_and_duration_end_sessions_too() -> None:
    sessions = Sessions(turns=Fixed(3), think=FixedTime(SECOND))
    assert len(list(make_constant(sessions=sessions, num_requests=5).requests(1))) == 5
    by_time = list(make_constant(sessions=sessions, num_requests=None, duration=3 * SECOND).requests(1))
    assert [r.arrival_ns // SECOND for r in by_time] == [1, 2, 2, 3, 3, 3]


def structure(requests: list[Request]) -> dict[int, list[tuple[int, int]]]:
    """Own prompt and output tokens of the turns, by the session's first request."""
    sessions: dict[int, list[tuple[int, int]]] = {}
    for request in requests:
        own = request.prompt[-1]
        opener = int(str(request.prompt[0].source).removeprefix("user:"))
        sessions.setdefault(opener, []).append((own.length, request.output_tokens))
    return sessions


def test_what_a_session_asks_does_not_depend_on_the_engine() -> None:
    workload = make_workload(num_requests=300, sessions=Sessions(turns=Uniform(1, 5), think=ExponentialTime(SECOND)))

    def played(latency_ns: int) -> list[list[tuple[int, int]]]:
        """Each request lasts that long; returned in order of the sessions' beginning."""
        traffic = workload.traffic(1)
        requests: list[Request] = []
        starts = iter(traffic)
        pending = [next(starts)]
        while pending:
            pending.sort(key=lambda request: request.arrival_ns)
            request = pending.pop(0)
            requests.append(request)
            if request.prompt[0].source == request.prompt[-1].source:
                pending += [start] if (start := next(starts, None)) else []
            pending += traffic.follow_ups(request.arrival_ns + latency_ns, request, True)
        return list(structure(requests).values())

    slow, quick = played(100 * SECOND), played(1)
    assert slow != quick  # the number of requests cuts them elsewhere
    for turns, same in zip(slow, quick, strict=False):
        assert turns[: len(same)] == same[: len(turns)]


def test_sessions_have_their_number_of_turns_and_memory_ends_with_them() -> None:
    workload = make_workload(num_requests=None, duration=10**15, sessions=Sessions(turns=Empirical(values=(1, 4))))
    traffic = workload.traffic(1)
    lengths: dict[int, int] = {}
    for request, _ in zip(traffic.without_engine(), range(5000), strict=False):
        opener = int(str(request.prompt[0].source).removeprefix("user:"))
        lengths[opener] = lengths.get(opener, 0) + 1
        assert len(traffic._below) <= 3
    assert set(list(lengths.values())[:-1]) == {1, 4}


def test_documents_come_with_every_turn_and_prefixes_with_the_first() -> None:
    workload = make_constant(
        sessions=Sessions(turns=Fixed(2)),
        prefixes=SharedPrefixes(1, 7),
        documents=Documents(count=1, tokens=Fixed(9), per_request=Fixed(1)),
        num_requests=2,
    )
    _first, second = workload.requests(1)
    assert [str(span.source).split(":")[0] for span in second.prompt] == ["sys", "doc", "user", "out", "doc", "user"]


# agents


def test_every_answer_is_continued_by_several() -> None:
    workload = make_constant(agents=Agents(branches=Fixed(2), depth=2, think=FixedTime(5)), num_requests=7)
    traffic = workload.traffic(1)
    root = next(iter(traffic))
    left, right = traffic.follow_ups(2 * SECOND, root, True)
    assert (left.id, right.id) == (1, 2)
    assert left.arrival_ns == right.arrival_ns == 2 * SECOND + 5
    assert (left.prompt, right.prompt) == ((*both(0), *ask(1)), (*both(0), *ask(2)))
    leaves = traffic.follow_ups(3 * SECOND, right, True)
    assert [leaf.prompt for leaf in leaves] == [(*both(0), *both(2), *ask(id)) for id in (3, 4)]
    assert traffic.follow_ups(4 * SECOND, leaves[0], True) == []
    assert traffic.follow_ups(4 * SECOND, left, False) == []
    assert not traffic._below


def test_agents_make_whole_trees() -> None:
    requests = list(
        make_constant(agents=Agents(branches=Fixed(3), depth=2), num_requests=None, duration=2 * SECOND).requests(1)
    )
    by_depth = [sum(str(span.source).startswith("out") for span in request.prompt) for request in requests]
    assert {depth: by_depth.count(depth) for depth in range(3)} == {0: 2, 1: 6, 2: 18}


# all of them


GROUPS: list[dict[str, Any]] = [
    {"sessions": Sessions(turns=Uniform(1, 4), think=ExponentialTime(SECOND))},
    {"agents": Agents(branches=Uniform(1, 3), depth=2, think=ExponentialTime(SECOND))},
]


@pytest.mark.parametrize("group", GROUPS, ids=["sessions", "agents"])
def test_a_prompt_is_all_that_was_said_before(group: dict[str, Any]) -> None:
    workload = make_workload(num_requests=500, **group)
    said: dict[tuple[Span, ...], Request] = {}
    requests = list(workload.requests(1))
    assert requests == list(workload.requests(1)) != list(workload.requests(2))
    assert sorted(request.id for request in requests) == list(range(500))
    assert [r.arrival_ns for r in requests] == sorted(r.arrival_ns for r in requests)
    for request in requests:
        *before, own = request.prompt
        assert own.source == f"user:{request.id}"
        assert not before or tuple(before) in said
        said[merged(request.prompt + request.output)] = request


@pytest.mark.parametrize("group", GROUPS, ids=["sessions", "agents"])
def test_other_thinking_leaves_what_is_asked(group: dict[str, Any]) -> None:
    ((name, description),) = group.items()
    workload = make_workload(num_requests=10**6, **group, duration=20 * SECOND)
    slower = evolve(workload, **{name: evolve(description, think=None)})
    first, second = (structure(list(each.requests(1))) for each in (workload, slower))
    assert first[0][0] == second[0][0]
    starts = [[r.arrival_ns for r in each.requests(1) if len(r.prompt) == 1] for each in (workload, slower)]
    assert starts[0] == starts[1]


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (
            lambda: Sessions(turns=Lognormal(mean=5, p50=3)),
            "turns must be at most 10,000, got up to 1,000,000,000: set its max",
        ),
        (
            lambda: Agents(branches=Fixed(22), depth=3),
            "branches must be so few that depth = 3 makes at most 10,000 requests, got 22",
        ),
        (
            lambda: make_constant(sessions=Sessions(turns=Fixed(1)), agents=Agents(branches=Fixed(1))),
            "sessions and agents contradict each other: give one or the other",
        ),
    ],
)
def test_contradictions_are_told(make: Any, rule: str) -> None:
    with pytest.raises(Contradiction) as caught:
        make()
    assert caught.value.sentences == [rule]


def test_an_agent_has_some_depth() -> None:
    with pytest.raises(ValueError, match="depth must be between 1 and 100"):
        Agents(branches=Fixed(1), depth=0)
