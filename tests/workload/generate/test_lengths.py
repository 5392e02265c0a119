import math

import numpy as np
import pytest
from attrs import evolve

from kvsim.rules import Contradiction
from kvsim.workload.generate import LENGTHS, Empirical, Fixed, GammaLength, Length, Lognormal, Uniform, Zipf
from tests.workload.generate.makers import check_moments, check_shares, draw

EXAMPLES: dict[str, Length] = {
    "fixed": Fixed(3),
    "uniform": Uniform(2, 9),
    "lognormal": Lognormal(mean=30, p50=20, max=100),
    "gamma": GammaLength(mean=30, cv=0.5, max=100),
    "zipf": Zipf(exponent=1.2, min=3, max=50),
    "empirical": Empirical(values=(4, 7, 90), weights=(1.0, 0.5, 2.0)),
}


@pytest.mark.parametrize("kind", LENGTHS)
def test_every_length_keeps_the_contract(kind: str) -> None:
    length = EXAMPLES[kind]
    assert LENGTHS[kind] is type(length)
    values = draw(length, 5000)
    assert values.dtype == np.int64
    assert values.min() >= 1
    assert values.max() <= length.most  # type: ignore[operator]  # no file here
    assert np.array_equal(values, draw(length, 5000))


def test_uniform_moments() -> None:
    check_moments(draw(Uniform(16, 400)), 208, math.sqrt((385**2 - 1) / 12))


def test_lognormal_moments() -> None:
    sigma = 0.8
    deviation = 1000 * math.sqrt(math.exp(sigma**2) - 1)
    check_moments(draw(Lognormal(mean=1000, sigma=sigma)), 1000, deviation)


@pytest.mark.parametrize("cv", [0.2, 1.0, 1.5])
def test_gamma_moments(cv: float) -> None:
    # Rounding adds a variance of 1/12; the excess kurtosis of a gamma distribution is 6 cv^2.
    deviation = math.sqrt((2000 * cv) ** 2 + 1 / 12)
    check_moments(draw(GammaLength(mean=2000, cv=cv)), 2000, deviation, (3 + 6 * cv**2) * deviation**4)


def test_gamma_lengths_are_clipped_to_their_bounds() -> None:
    bounds = GammaLength(mean=100, cv=1.0, min=50, max=120)
    assert np.array_equal(draw(bounds), np.clip(draw(evolve(bounds, min=1, max=10**9)), 50, 120))


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.5])
def test_zipf_lengths_have_their_shares(exponent: float) -> None:
    weights = np.arange(3, 11, dtype=float) ** -exponent
    counts = np.bincount(draw(Zipf(exponent=exponent, min=3, max=10)), minlength=11)
    assert counts[:3].sum() == 0
    check_shares(counts[3:], weights / weights.sum())


def test_empirical_lengths_have_their_weights() -> None:
    counts = np.bincount(draw(Empirical(values=(5, 2, 9), weights=(1, 2, 5))), minlength=10)
    check_shares(counts[[5, 2, 9]], np.array([1, 2, 5]) / 8)
    assert counts.sum() == counts[[5, 2, 9]].sum()
    counts = np.bincount(draw(Empirical(values=(5, 2, 5))), minlength=6)
    check_shares(counts[[5, 2]], np.array([2, 1]) / 3)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: GammaLength(mean=10, cv=1.0, min=5, max=4), "max must be >= min = 5, got 4"),
        (lambda: Zipf(exponent=1.0, min=5, max=4), "max must be >= min = 5, got 4"),
        (lambda: Zipf(exponent=1.0, max=10**7), "max must be less than min + 1,000,000, got 1 and 10,000,000"),
        (lambda: Empirical(), "one of values and path must be given, and not both"),
        (lambda: Empirical(values=(1,), path="x"), "one of values and path must be given, and not both"),
        (lambda: Empirical(values=()), "values must not be empty"),
        (lambda: Empirical(values=(1, 2), weights=(1.0,)), "weights must have one for each of the 2 values, got 1"),
        (lambda: Empirical(path="x", weights=(1.0,)), "weights goes with values, which is not given"),
        (lambda: Empirical(values=(1,), column="x"), "column goes with path, which is not given"),
        (lambda: Empirical(path="x", window=3), "window goes with column, which is not given"),
    ],
)
def test_contradictions_are_told(make: object, rule: str) -> None:
    with pytest.raises(Contradiction) as caught:
        make()  # type: ignore[operator]
    assert caught.value.sentences == [rule]


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: GammaLength(mean=0, cv=1.0), "mean must be between 1 and"),
        (lambda: GammaLength(mean=5, cv=0.0), "cv must be between 0.001 and 100"),
        (lambda: Zipf(exponent=-1.0, max=5), "exponent must be between 0 and 10"),
        (lambda: Zipf(exponent=1.0, min=0, max=5), "min must be between 1 and"),
        (lambda: Empirical(values=(5, 0)), r"values\[1\] must be between 1 and"),
        (lambda: Empirical(values=(5, 1), weights=(1.0, 0.0)), r"weights\[1\] must be > 0"),
        (lambda: Empirical(path=" "), "path must not be empty"),
    ],
)
def test_values_out_of_bounds_are_refused(make: object, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        make()  # type: ignore[operator]
