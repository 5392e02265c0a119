import numpy as np
import pytest
from attrs import evolve

from kvsim.rules import Contradiction
from kvsim.workload.generate import GammaLength, Pairs, Zipf, random_stream
from tests.workload.generate.makers import NUM, check_shares, make_workload, ranks


def test_pairs_have_their_weights() -> None:
    pairs = Pairs(values=((10, 1), (20, 2), (10, 3)), weights=(1, 2, 5))
    drawn = pairs.sample(random_stream(1, "pairs"), NUM)
    assert {tuple(pair) for pair in drawn.tolist()} == set(pairs.values)
    check_shares(np.bincount(drawn[:, 1], minlength=4)[1:], np.array([1, 2, 5]) / 8)


def test_a_workload_draws_pairs() -> None:
    workload = make_workload(prompt=None, output=None, pairs=Pairs(values=((10, 1), (20, 2))))
    assert {(r.prompt_tokens, r.output_tokens) for r in workload.requests(1)} == {(10, 1), (20, 2)}


@pytest.mark.parametrize("correlation", [-1.0, -0.5, 0.0, 0.3, 0.9, 1.0])
def test_lengths_have_their_rank_correlation(correlation: float) -> None:
    workload = make_workload(
        prompt=GammaLength(mean=50_000, cv=1), output=GammaLength(mean=90_000, cv=0.5), num_requests=NUM
    )
    plain = list(workload.requests(1))
    paired = list(evolve(workload, correlation=correlation).requests(1))
    assert [r.prompt_tokens for r in paired] == [r.prompt_tokens for r in plain]
    assert [r.arrival_ns for r in paired] == [r.arrival_ns for r in plain]
    whole = NUM - NUM % 1024
    assert sorted(r.output_tokens for r in paired[:whole]) == sorted(r.output_tokens for r in plain[:whole])
    prompts, outputs = (np.array([getattr(r, name) for r in paired]) for name in ("prompt_tokens", "output_tokens"))
    # The standard error of a rank correlation is at most 1 / sqrt(n); ordering in blocks moves it by about 1 / 1024.
    assert abs(np.corrcoef(ranks(prompts), ranks(outputs))[0, 1] - correlation) < 3 / np.sqrt(NUM) + 0.002


def test_a_longer_correlated_run_begins_like_a_shorter_one() -> None:
    workload = make_workload(correlation=0.5, num_requests=3000, output=Zipf(exponent=1, max=50))
    assert list(evolve(workload, num_requests=20).requests(1)) == list(workload.requests(1))[:20]


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Pairs(values=()), "values must not be empty"),
        (lambda: Pairs(values=((1, 2), (3,))), "values must be pairs [prompt, output], got [3]"),
        (lambda: Pairs(values=((1, 2),), weights=(1, 2)), "weights must have one for each of the 1 values, got 2"),
        (
            lambda: make_workload(pairs=Pairs(values=((1, 2),)), correlation=0.5),
            "pairs and prompt, output, correlation contradict each other: give one or the other",
        ),
        (lambda: make_workload(output=None), "output is missing: prompt and output, or else pairs, must be given"),
    ],
)
def test_contradictions_are_told(make: object, rule: str) -> None:
    with pytest.raises(Contradiction) as caught:
        make()  # type: ignore[operator]
    assert caught.value.sentences == [rule]


def test_pairs_are_lengths() -> None:
    with pytest.raises(ValueError, match=r"values\[\d\]\[\d\] must be between 1 and"):
        Pairs(values=((1, 0),))
