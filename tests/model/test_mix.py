from fractions import Fraction

import pytest

from kvsim.errors import ModelError
from kvsim.model.mix import mix_of_lengths, mix_of_mean, mix_of_percentiles, read_mix


def test_given_lengths_are_counted():
    mix = mix_of_lengths([30, 10, 30, 20])
    assert mix.counts == ((10, 1), (20, 1), (30, 2))
    assert mix.mean(lambda num_tokens: num_tokens) == 22.5
    assert mix.origin == "4 given lengths"


def test_mean_alone_is_an_assumption():
    assert mix_of_mean(500).counts == ((500, 1),)
    assert mix_of_mean(500).origin.endswith("(assumed)")


def test_percentiles_are_taken_at_the_upper_end_of_their_step():
    mix = mix_of_percentiles({90: 2000, 50: 300, 99: 8000})
    assert mix.counts == ((300, 50), (2000, 40), (8000, 10))
    assert mix.origin == "the upper end of each step of p50 300, p90 2,000, p99 8,000 (assumed)"


def test_mix_is_read_as_users_write_it():
    assert read_mix() is None
    assert read_mix(500) == mix_of_mean(500)
    assert read_mix(percentiles="50=300,99=8000") == mix_of_percentiles({50: 300, 99: 8000})


@pytest.mark.parametrize(
    "refused",
    [
        lambda: mix_of_lengths([]),
        lambda: mix_of_lengths([5, 0]),
        lambda: mix_of_mean(-1),
        lambda: mix_of_percentiles({}),
        lambda: mix_of_percentiles({0: 10}),
        lambda: mix_of_percentiles({101: 10}),
        lambda: mix_of_percentiles({50: 10, 90: 9}),
        lambda: mix_of_percentiles({50: 0}),
        lambda: read_mix(5, "50=5"),
        lambda: read_mix(percentiles="50"),
        lambda: read_mix(percentiles="50=x"),
        lambda: read_mix(percentiles=""),
    ],
)
def test_nonsense_is_refused(refused):
    with pytest.raises(ModelError):
        refused()


def test_lengths_beyond_the_limit_are_cut_and_that_is_said():
    mix = mix_of_lengths([100, 900, 5000, 9000]).cut_at(4096)
    assert mix.mean(lambda num_tokens: num_tokens) == Fraction(100 + 900 + 4096 + 4096, 4)
    assert mix.origin == "4 given lengths, 50.0% of them cut at 4,096 tokens"
    assert mix_of_lengths([100]).cut_at(4096) == mix_of_lengths([100])
