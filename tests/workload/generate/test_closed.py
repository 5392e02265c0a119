"""Clients that wait for their answers, through the real simulation."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.results import Results
from kvsim.rules import Contradiction
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.workload.generate import Agents, Closed, ExponentialTime, Fixed, FixedTime, Sessions
from kvsim.workload.request import Request
from tests.study.checks import check_conservation
from tests.study.makers import write_scenario
from tests.workload.generate.makers import SECOND

FAST = "engine.latency={base='1 ms',per_prefill_token='0 ns',per_decode_seq='0 ns',per_context_token='0 ns'}"


def make_closed(**changes: Any) -> Closed:
    values: dict[str, Any] = {"clients": 3, "num_requests": 200, "prompt": Fixed(10), "output": Fixed(4)}
    return Closed(**{**values, **changes})


def run(folder: Path, workload: str, *overrides: str) -> Results:
    return simulate(load_scenario(write_scenario(folder), (f"workload={{{workload}}}", *overrides)), check=True)


def most_in_flight(results: Results) -> int:
    """From arrival to end; who arrives at the instant of an end comes after it."""
    ends = results.requests.select(time="ended_ns", change=-pl.lit(1))
    arrivals = results.requests.select(time="arrival_ns", change=pl.lit(1))
    # A request that is turned away arrives and ends at once.
    stays = results.requests["ended_ns"] > results.requests["arrival_ns"]
    events = pl.concat([ends.filter(stays), arrivals.filter(stays)]).sort("time", "change")
    return int(events["change"].cum_sum().max() or 0)  # type: ignore[arg-type]


LENGTHS = "prompt={kind='uniform',min=1,max=30},output={kind='uniform',min=1,max=20}"


@pytest.mark.parametrize(
    "think", ["", ",think={kind='exponential',mean='50 ms'}", ",think={kind='fixed',value='9 ms'}"]
)
@pytest.mark.parametrize("clients", [1, 3, 20])
def test_never_more_in_flight_than_clients(tmp_path: Path, clients: int, think: str) -> None:
    results = run(tmp_path, f"kind='closed',clients={clients},num_requests=300,{LENGTHS}{think}")
    check_conservation(results)
    assert results.metrics["finished"] == results.metrics["requests"] == 300
    assert most_in_flight(results) <= clients
    levels = results.timeline.select(pl.col("running") + pl.col("waiting")).to_series()
    assert levels.max() <= clients  # type: ignore[operator]
    if not think:
        # All are busy until requests run out.
        busy = results.timeline.filter(pl.col("arrived").cum_sum() < 300)
        assert (busy["running"] + busy["waiting"] == clients).all()


def test_one_client_by_hand(tmp_path: Path) -> None:
    """Two steps of 1 ms a request, and 3 ms of thought before each."""
    results = run(
        tmp_path,
        "kind='closed',clients=1,num_requests=3,prompt={kind='fixed',value=5},output={kind='fixed',value=2},"
        "think={kind='fixed',value='3 ms'}",
        FAST,
    )
    ms = 10**6
    assert results.requests.select("arrival_ns", "ended_ns").rows() == [
        (3 * ms, 5 * ms), (8 * ms, 10 * ms), (13 * ms, 15 * ms)
    ]  # fmt: skip


def test_whoever_does_not_think_asks_in_the_step_that_begins_there(tmp_path: Path) -> None:
    results = run(
        tmp_path,
        "kind='closed',clients=2,num_requests=6,prompt={kind='fixed',value=5},output={kind='fixed',value=2}",
        FAST,
    )
    assert results.requests["arrival_ns"].to_list() == [0, 0, 2 * 10**6, 2 * 10**6, 4 * 10**6, 4 * 10**6]
    assert results.metrics["steps"] == 6


@pytest.mark.parametrize(
    ("overrides", "outcome"),
    [
        (("engine.max_model_len=20",), "rejected"),
        (("engine.max_model_len=40",), "cut"),
        (("engine.timeout=1 ms", "engine.max_num_seqs=1"), "timed_out"),
        (("engine.max_waiting=1", "engine.max_num_seqs=1"), "rejected"),
        (("memory.num_blocks=9",), "rejected"),
    ],
)
def test_whatever_ends_a_request_frees_its_client(tmp_path: Path, overrides: tuple[str, ...], outcome: str) -> None:
    think = ",think={kind='uniform',min='1 ms',max='30 ms'}"
    results = run(tmp_path, f"kind='closed',clients=4,num_requests=200,{LENGTHS}{think}", *overrides)
    check_conservation(results)
    assert results.metrics["requests"] == 200
    assert results.metrics[outcome]
    assert most_in_flight(results) <= 4


def test_an_abort_frees_its_client() -> None:
    traffic = make_closed().traffic(1)
    first = next(iter(traffic))
    (again,) = traffic.follow_ups(7, Request(first.id, first.arrival_ns, first.prompt, first.output, abort_ns=5), False)
    assert (again.arrival_ns, again.prompt_tokens) == (7, 10)


def test_a_duration_ends_it(tmp_path: Path) -> None:
    results = run(tmp_path, f"kind='closed',clients=2,duration='2 s',{LENGTHS},think={{kind='fixed',value='1 ms'}}")
    assert results.requests["arrival_ns"].max() <= 2 * SECOND  # type: ignore[operator]
    assert results.metrics["requests"] > 20  # type: ignore[operator]


def test_clients_go_through_sessions_one_after_the_other() -> None:
    traffic = make_closed(
        clients=1, sessions=Sessions(turns=Fixed(2), think=FixedTime(5)), think=FixedTime(100)
    ).traffic(1)
    (first,) = traffic
    (second,) = traffic.follow_ups(1000, first, True)
    assert second.arrival_ns == 1005
    assert second.prompt_tokens == 10 + 4 + 10
    (third,) = traffic.follow_ups(2000, second, True)
    assert (third.arrival_ns, third.prompt_tokens) == (2100, 10)
    (fourth,) = traffic.follow_ups(3000, third, False)
    assert (fourth.arrival_ns, fourth.prompt_tokens) == (3100, 10)


def test_decode_blocks_of_earlier_turns_are_hit(tmp_path: Path) -> None:
    """12 prompt and 8 output tokens at block size 4: the next turn finds all full blocks of 19 computed tokens."""
    results = run(
        tmp_path,
        "kind='closed',clients=1,num_requests=2,prompt={kind='fixed',value=12},output={kind='fixed',value=8},"
        "sessions={turns={kind='fixed',value=2}}",
    )
    assert results.requests.select("prompt_tokens", "hit_tokens").rows() == [(12, 0), (32, 16)]


def test_branches_of_an_agent_hit_what_they_share(tmp_path: Path) -> None:
    results = run(
        tmp_path,
        "kind='constant',rate=1,duration='1900 ms',prompt={kind='fixed',value=12},output={kind='fixed',value=8},"
        "agents={branches={kind='fixed',value=3}}",
    )
    # The first to continue computes the last token of the answer, and with it a block that the others find.
    assert results.requests.select("prompt_tokens", "hit_tokens").rows() == [(12, 0), (32, 16), (32, 20), (32, 20)]


def test_changing_think_leaves_what_is_asked() -> None:
    lengths = [
        [(r.prompt_tokens, r.output_tokens) for r in make_closed(think=think).requests(1)]
        for think in (None, FixedTime(7), ExponentialTime(SECOND))
    ]
    assert lengths[0] == lengths[1] == lengths[2]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[str, ...]:
    kind = draw(
        st.sampled_from([
            "kind='closed',clients=5",
            "kind='closed',clients=2,think={kind='uniform',min='1 ms',max='90 ms'}",
            "kind='poisson',rate=50",
            "kind='weibull',rate=50,cv=2",
            "kind='onoff',rate=90,on='100 ms',off='1 s',periods='exponential'",
            "kind='windows',repeat=true,windows=[{duration='1 s',rate=30,cv=2},{duration='1 s',rate=5}]",
        ])
    )  # fmt: skip
    group = draw(
        st.sampled_from([
            "",
            ",sessions={turns={kind='uniform',min=1,max=4}}",
            ",sessions={turns={kind='uniform',min=1,max=4},think={kind='exponential',mean='1 s'}}",
            ",sessions={turns={kind='fixed',value=3},think={kind='exponential',mean='1 s'},think_from='arrival'}",
            ",agents={branches={kind='uniform',min=1,max=3},depth=2}",
        ]).filter(lambda group: not ("closed" in kind and ("agents" in group or "arrival" in group)))
    )  # fmt: skip
    content = draw(
        st.sampled_from([
            "",
            ",prefixes={count=2,tokens=9,popularity=1}",
            ",templates={count=3,tokens={kind='uniform',min=1,max=20}}",
            ",documents={count=6,tokens={kind='zipf',exponent=1,max=9},per_request={kind='uniform',min=1,max=3}}",
        ])
    )  # fmt: skip
    return (
        f"workload={{{kind},num_requests={draw(st.integers(1, 60))},{LENGTHS},correlation=0.5{group}{content}}}",
        f"seed={draw(st.integers(0, 100))}",
        f"memory.num_blocks={draw(st.integers(5, 60))}",
        f"engine.max_num_seqs={draw(st.integers(1, 8))}",
        *draw(st.sampled_from([(), ("engine.timeout=100 ms",), ("engine.timeout=1 s", "engine.max_waiting=3")])),
    )


@given(overrides=worlds())
def test_conservation_with_every_kind(tmp_path_factory: pytest.TempPathFactory, overrides: tuple[str, ...]) -> None:
    path = write_scenario(tmp_path_factory.mktemp("world"))
    scenario = load_scenario(path, overrides)
    results = simulate(scenario, check=True)
    check_conservation(results)
    assert results.metrics["requests"] <= scenario.workload.num_requests  # type: ignore[operator, union-attr]
    if isinstance(scenario.workload, Closed):
        assert most_in_flight(results) <= scenario.workload.clients
    again = simulate(scenario)
    assert again.requests.equals(results.requests)
    assert again.timeline.equals(results.timeline)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (
            {"num_requests": None, "duration": 1},
            "num_requests or think must be given: a client that is turned away asks again at once",
        ),
        ({"agents": Agents(branches=Fixed(1))}, "agents do not go with closed: each has several requests in flight"),
        (
            {"sessions": Sessions(turns=Fixed(1), think_from="arrival")},
            "sessions.think_from = arrival does not go with closed: clients wait for the end",
        ),
    ],
)
def test_contradictions_are_told(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(Contradiction) as caught:
        make_closed(**changes)
    assert caught.value.sentences == [rule]


def test_there_is_a_client() -> None:
    with pytest.raises(ValueError, match="clients must be between 1 and"):
        make_closed(clients=0)


def test_clients_that_would_ask_again_without_end_are_refused() -> None:
    hour = 3_600 * SECOND
    with pytest.raises(Contradiction) as caught:
        make_closed(num_requests=None, duration=hour, think=FixedTime(1))
    assert caught.value.sentences == [
        "think must be longer, or num_requests be given: clients that are turned away ask again after it, up to "
        "10,800,000,000,000 times in the duration, which must be at most 100,000,000"
    ]
    make_closed(num_requests=1_000, duration=hour, think=FixedTime(1))
    make_closed(num_requests=None, duration=hour, think=FixedTime(hour * 3 // 10**8))
    with pytest.raises(Contradiction):
        make_closed(num_requests=None, duration=hour, think=FixedTime(hour * 3 // 10**8 - 1))
