"""Moments are compared within four standard errors of the sample: seeds are fixed, so a test that passes once
passes always."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from kvsim.rules import Contradiction
from kvsim.workload.generate import (
    ARRIVALS,
    LENGTHS,
    Constant,
    Fixed,
    Gamma,
    Generated,
    Length,
    Lognormal,
    SharedPrefixes,
    Uniform,
    random_stream,
    streams,
)
from kvsim.workload.request import Request, Span
from tests.workload.generate.makers import make_workload

SECOND = 10**9
NUM = 20_000


def draw(length: Length, count: int = NUM) -> np.ndarray:
    return length.sample(random_stream(1, "lengths"), count)


def gaps_s(workload: Generated) -> np.ndarray:
    return workload.sample_gaps(random_stream(1, "arrivals"), NUM)


def check_mean(values: np.ndarray, mean: float, deviation: float) -> None:
    assert abs(values.mean() - mean) < 4 * deviation / math.sqrt(len(values))


# lengths


def test_a_fixed_length_is_always_the_same() -> None:
    assert draw(Fixed(17), 5).tolist() == [17] * 5


def test_uniform_lengths_have_their_moments_and_reach_both_ends() -> None:
    values = draw(Uniform(16, 400))
    assert (values.min(), values.max()) == (16, 400)
    check_mean(values, mean=208, deviation=math.sqrt((385**2 - 1) / 12))
    check_mean((values - 208) ** 2, mean=(385**2 - 1) / 12, deviation=385**2 / math.sqrt(180))


def test_uniform_lengths_come_equally_often() -> None:
    counts = np.bincount(draw(Uniform(1, 4)), minlength=5)[1:]
    assert np.all(np.abs(counts - NUM / 4) < 4 * math.sqrt(NUM * 0.25 * 0.75))


def test_a_uniform_length_of_one_value_is_fixed() -> None:
    assert draw(Uniform(7, 7), 5).tolist() == [7] * 5


LOGNORMAL_SIGMA = math.sqrt(2 * math.log(1150 / 1020))


@pytest.mark.parametrize(
    "length",
    [
        Lognormal(mean=1150, p50=1020),
        Lognormal(mean=1150, sigma=LOGNORMAL_SIGMA),
        Lognormal(p50=1020, sigma=LOGNORMAL_SIGMA),
    ],
    ids=["mean and p50", "mean and sigma", "p50 and sigma"],
)
def test_lognormal_lengths_have_their_mean_median_and_sigma(length: Lognormal) -> None:
    values = draw(length).astype(float)
    check_mean(values, mean=1150, deviation=1150 * math.sqrt(math.exp(LOGNORMAL_SIGMA**2) - 1))
    check_mean(np.log(values), mean=math.log(1020), deviation=LOGNORMAL_SIGMA)
    check_mean((np.log(values) - math.log(1020)) ** 2, LOGNORMAL_SIGMA**2, math.sqrt(2) * LOGNORMAL_SIGMA**2)
    # A share of one half lies below the median: its standard error is that of a coin.
    assert abs((values < 1020).mean() - 0.5) < 4 * 0.5 / math.sqrt(NUM)


def test_lognormal_lengths_are_clipped_to_their_bounds() -> None:
    bounds = Lognormal(mean=1150, p50=500, min=100, max=1200)
    free = evolve(bounds, min=1, max=10**9)
    assert np.array_equal(draw(bounds), np.clip(draw(free), 100, 1200))
    assert (draw(bounds).min(), draw(bounds).max()) == (100, 1200)


def test_a_lognormal_length_is_at_least_one_token() -> None:
    assert draw(Lognormal(p50=1, sigma=3)).min() == 1


def test_a_lognormal_length_whose_mean_is_its_median_is_fixed() -> None:
    assert draw(Lognormal(mean=20, p50=20), 5).tolist() == [20] * 5


@pytest.mark.parametrize("length", [Fixed(3), Uniform(2, 9), Lognormal(mean=30, p50=20)])
def test_lengths_are_whole_tokens(length: Length) -> None:
    assert draw(length).dtype == np.int64
    assert LENGTHS[type(length).__name__.lower()] is type(length)


def two_of_three() -> Lognormal:
    return Lognormal(mean=1150)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (two_of_three, "two of mean, p50 and sigma must be given"),
        (lambda: Lognormal(mean=1150, p50=1020, sigma=1), "and not the third"),
        (lambda: Lognormal(mean=1000, p50=1020), "mean must be >= p50 = 1,020, got 1,000"),
        (lambda: Lognormal(mean=10, p50=10, min=5, max=4), "max must be >= min = 5, got 4"),
        (lambda: Uniform(5, 4), "max must be >= min = 5, got 4"),
        (lambda: make_workload(num_requests=None), "num_requests or duration must be given"),
    ],
)
def test_values_that_do_not_go_together_are_refused(make: Callable[[], object], rule: str) -> None:
    with pytest.raises(Contradiction, match=rule):
        make()


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Fixed(0), "value must be between 1 and"),
        (lambda: Uniform(0, 4), "min must be between 1 and"),
        (lambda: Lognormal(mean=10, sigma=-1.0), "sigma must be > 0"),
        (lambda: make_workload(rate=0.0), "rate must be > 0"),
        (lambda: make_workload(rate=float("nan")), "rate must be > 0"),
        (lambda: make_workload(num_requests=0), "num_requests must be between 1 and"),
        (lambda: SharedPrefixes(count=0, tokens=5), "count must be between 1 and"),
        (lambda: SharedPrefixes(count=1, tokens=5, popularity=-0.1), "popularity must be between 0 and 10"),
        (lambda: Gamma(rate=1.0, cv=1e-200, num_requests=1, prompt=Fixed(1), output=Fixed(1)), "cv must be between"),
    ],
)
def test_values_out_of_bounds_are_refused(make: Callable[[], object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        make()


# arrivals


def test_poisson_gaps_have_the_moments_of_an_exponential() -> None:
    gaps = gaps_s(make_workload(rate=4.0))
    check_mean(gaps, mean=0.25, deviation=0.25)
    check_mean((gaps - 0.25) ** 2, mean=0.25**2, deviation=math.sqrt(8) * 0.25**2)
    # Memoryless: what has passed does not matter.
    assert abs((gaps > 0.5).mean() - math.exp(-2)) < 4 * math.sqrt(math.exp(-2) / NUM)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gamma_gaps_have_their_rate_and_coefficient_of_variation(cv: float) -> None:
    gaps = gaps_s(Gamma(rate=4.0, cv=cv, num_requests=1, prompt=Fixed(1), output=Fixed(1)))
    deviation = cv * 0.25
    check_mean(gaps, mean=0.25, deviation=deviation)
    # The excess kurtosis of a gamma distribution is 6 cv^2.
    check_mean((gaps - 0.25) ** 2, mean=deviation**2, deviation=deviation**2 * math.sqrt(2 + 6 * cv**2))


def test_constant_arrivals_keep_their_distance() -> None:
    workload = Constant(rate=4.0, num_requests=4, prompt=Fixed(1), output=Fixed(1))
    assert [r.arrival_ns for r in workload.requests(0)] == [SECOND // 4, SECOND // 2, 3 * SECOND // 4, SECOND]


def test_gaps_are_rounded_to_whole_nanoseconds() -> None:
    workload = Constant(rate=3.0, num_requests=3, prompt=Fixed(1), output=Fixed(1))
    assert [r.arrival_ns for r in workload.requests(0)] == [333_333_333, 666_666_666, 999_999_999]


def test_gaps_may_be_longer_than_64_bits_of_nanoseconds() -> None:
    workload = Constant(rate=1e-12, num_requests=2, prompt=Fixed(1), output=Fixed(1))
    assert [r.arrival_ns for r in workload.requests(0)] == [10**21, 2 * 10**21]


def test_arrivals_are_named_after_their_process() -> None:
    assert {name: cls.__name__.lower() for name, cls in ARRIVALS.items()} == {name: name for name in ARRIVALS}


def test_arrivals_do_not_go_back() -> None:
    times = [r.arrival_ns for r in make_workload(num_requests=3000).requests(1)]
    assert times == sorted(times)
    # The mean of all gaps is the last arrival over their number.
    assert abs(times[-1] / 3000 - SECOND / 4) < 4 * SECOND / 4 / math.sqrt(3000)


def test_a_number_of_requests_is_kept_exactly() -> None:
    requests = list(make_workload(num_requests=1500).requests(1))
    assert [r.id for r in requests] == list(range(1500))


def test_a_duration_takes_all_that_arrive_within_it() -> None:
    workload = Constant(rate=4.0, duration=SECOND, prompt=Fixed(1), output=Fixed(1))
    assert [r.arrival_ns for r in workload.requests(0)][-1] == SECOND
    assert len(list(workload.requests(0))) == 4
    assert len(list(evolve(workload, duration=SECOND - 1).requests(0))) == 3


def test_of_number_and_duration_the_first_to_be_reached_ends_it() -> None:
    workload = Constant(rate=4.0, duration=SECOND, num_requests=3, prompt=Fixed(1), output=Fixed(1))
    assert len(list(workload.requests(0))) == 3
    assert len(list(evolve(workload, num_requests=9).requests(0))) == 4


# shared prefixes


def test_without_prefixes_a_prompt_is_the_users_own() -> None:
    for request in make_workload(num_requests=5).requests(1):
        assert request.prompt == (Span(f"user:{request.id}", 0, request.prompt_tokens),)
        assert request.output == (Span(f"out:{request.id}", 0, request.output_tokens),)


def test_a_shared_prefix_stands_before_the_drawn_prompt() -> None:
    plain = make_workload(num_requests=50)
    shared = evolve(plain, prefixes=SharedPrefixes(count=3, tokens=512))
    seen = set()
    for request, without in zip(shared.requests(1), plain.requests(1), strict=True):
        system, user = request.prompt
        seen.add(system)
        assert user == without.prompt[0]
        assert request.prompt_tokens == 512 + without.prompt_tokens
    assert seen == {Span(f"sys:{k}", 0, 512) for k in range(3)}


@pytest.mark.parametrize("popularity", [0.0, 0.7, 1.1, 2.0])
def test_popularity_follows_zipf(popularity: float) -> None:
    chosen = SharedPrefixes(count=8, tokens=1, popularity=popularity).sample(random_stream(1, "prefixes"), NUM)
    weights = np.arange(1, 9) ** -popularity
    shares = weights / weights.sum()
    counts = np.bincount(chosen, minlength=8)
    assert len(counts) == 8
    assert np.all(np.abs(counts - NUM * shares) < 4 * np.sqrt(NUM * shares * (1 - shares)))


def test_a_single_prefix_is_always_chosen() -> None:
    chosen = SharedPrefixes(count=1, tokens=1, popularity=1.1).sample(random_stream(1, "prefixes"), 100)
    assert set(chosen.tolist()) == {0}


# randomness


def signature(request: Request) -> tuple[int, int, int, int]:
    return request.arrival_ns, request.prompt_tokens, request.output_tokens, request.priority


def test_equal_seeds_give_equal_requests_and_others_do_not() -> None:
    workload = make_workload(prefixes=SharedPrefixes(3, 10), priority=Uniform(1, 5))
    assert list(workload.requests(1)) == list(workload.requests(1))
    assert list(workload.requests(1)) != list(workload.requests(2))


def test_streams_of_different_purposes_differ() -> None:
    draws = {random_stream(seed, name).integers(2**63) for seed in (0, 1) for name in ("arrivals", "prompts", "")}
    assert len(draws) == 6


@pytest.mark.parametrize(
    ("change", "touches"),
    [
        ({"rate": 8.0}, {0}),
        ({"prompt": Lognormal(mean=1150, p50=1020)}, {1}),
        ({"output": Fixed(3)}, {2}),
        ({"priority": Uniform(1, 9)}, {3}),
    ],
)
def test_changing_one_distribution_leaves_what_the_others_draw(change: dict[str, Any], touches: set[int]) -> None:
    before, after = (
        list(zip(*map(signature, workload.requests(1)), strict=True))
        for workload in (make_workload(), make_workload(**change))
    )
    assert {i for i in range(4) if before[i] != after[i]} == touches


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    long, short = make_workload(num_requests=3000), make_workload(num_requests=20)
    assert list(long.requests(1))[:20] == list(short.requests(1))


@pytest.mark.parametrize("chunk", [1, 7, 5000])
def test_requests_do_not_depend_on_how_many_are_drawn_at_a_time(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = make_workload(prompt=Lognormal(mean=1150, p50=1020), prefixes=SharedPrefixes(3, 10, 1.1))
    gamma = Gamma(rate=4.0, cv=2.0, num_requests=200, prompt=Uniform(1, 9), output=Uniform(1, 10**9))
    before = list(workload.requests(1)), list(gamma.requests(1))
    monkeypatch.setattr(streams, "_CHUNK", chunk)
    assert (list(workload.requests(1)), list(gamma.requests(1))) == before


def test_requests_are_made_as_they_are_asked_for() -> None:
    endless = make_workload(num_requests=10**12).requests(1)
    assert next(endless).id == 0
