import math
from typing import Any

import numpy as np
import pytest

from kvsim.workload.generate import (
    DURATIONS,
    Duration,
    ExponentialTime,
    FixedTime,
    LognormalTime,
    UniformTime,
    random_stream,
)
from tests.workload.generate.makers import NUM, SECOND, check_moments

EXAMPLES: dict[str, Duration] = {
    "fixed": FixedTime(3 * SECOND),
    "uniform": UniformTime(SECOND, 5 * SECOND),
    "exponential": ExponentialTime(3 * SECOND),
    "lognormal": LognormalTime(3 * SECOND, 0.5),
}
MOMENTS = {
    "fixed": (3.0, 0.0),
    "uniform": (3.0, 4 / math.sqrt(12)),
    "exponential": (3.0, 3.0),
    "lognormal": (3 * math.exp(0.125), 3 * math.exp(0.125) * math.sqrt(math.expm1(0.25))),
}


@pytest.mark.parametrize("kind", DURATIONS)
def test_every_duration_has_its_moments_in_whole_nanoseconds(kind: str) -> None:
    assert DURATIONS[kind] is type(EXAMPLES[kind])
    values = EXAMPLES[kind].sample(random_stream(1, "thinks"), NUM)
    assert values.dtype == np.int64
    assert values.min() >= 1
    mean, deviation = MOMENTS[kind]
    if deviation:
        check_moments(values / SECOND, mean, deviation)
    else:
        assert set(values.tolist()) == {mean * SECOND}


def test_durations_stay_within_64_bits() -> None:
    assert LognormalTime(10**18, 10).sample(random_stream(1, "thinks"), 1000).max() == 10**18


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: FixedTime(0), "value must be between 1 ns and 1000000000 s, got 0 s"),
        (lambda: ExponentialTime(0), "mean must be between 1 ns and 1000000000 s, got 0 s"),
        (lambda: LognormalTime(1, 0), "sigma must be > 0"),
        (lambda: UniformTime(5, 4), "max must be >= min = 5 ns, got 4 ns"),
    ],
)
def test_values_out_of_bounds_are_refused(make: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        make()


@pytest.mark.parametrize(
    ("duration", "mean"),
    [
        (FixedTime(7), 7),
        (UniformTime(2, 6), 4),
        (ExponentialTime(9), 9),
        (LognormalTime(10, 2.0), 10 * math.e**2),
    ],
)
def test_the_mean_is_known(duration: Duration, mean: float) -> None:
    assert duration.mean_ns == pytest.approx(mean)
