"""Small workloads, and moments compared within three standard errors; seeds are fixed, so a test that passes once
passes always."""

import math
from typing import Any

import numpy as np

from kvsim.workload.generate import Length, Poisson, Uniform, random_stream

NUM = 100_000
SECOND = 10**9


def make_workload(**changes: Any) -> Poisson:
    values: dict[str, Any] = {
        "rate": 4.0,
        "num_requests": 200,
        "prompt": Uniform(1, 2000),
        "output": Uniform(1, 400),
    }
    return Poisson(**{**values, **changes})


def draw(length: Length, count: int = NUM) -> np.ndarray:
    return length.sample(random_stream(1, "lengths"), count)


def check_moments(values: np.ndarray, mean: float, deviation: float, fourth: float | None = None) -> None:
    """Mean and variance; `fourth` is the fourth central moment, the sample's own if it is not known."""
    assert abs(values.mean() - mean) < 3 * deviation / math.sqrt(len(values))
    squares = (values - mean) ** 2
    spread = math.sqrt((fourth or (squares**2).mean()) - deviation**4)
    assert abs(squares.mean() - deviation**2) < 3 * spread / math.sqrt(len(values))


def check_shares(counts: np.ndarray, shares: np.ndarray) -> None:
    total = counts.sum()
    assert np.all(np.abs(counts - total * shares) <= 3 * np.sqrt(total * shares * (1 - shares)))


def ranks(values: np.ndarray) -> np.ndarray:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable")
