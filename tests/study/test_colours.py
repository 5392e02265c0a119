"""Colours of requests are told apart by everybody, from each other and from what else stands beside them."""

import itertools

import numpy as np
import numpy.typing as npt

from kvsim.study.colours import COLOURS, OWNERS

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SEEN = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
CLEAR = 18
"""Distance in CIE Lab of colours that differ at a glance; about 2 can be told side by side."""


def lab(colour: str, seen: str) -> npt.NDArray[np.float64]:
    values = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(np.array(SEEN[seen]) @ linear, 0, 1) / np.array([0.9505, 1, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one: str, other: str) -> float:
    """To who sees the least of it."""
    return min(float(np.linalg.norm(lab(one, seen) - lab(other, seen))) for seen in SEEN)


def test_distances_are_as_known() -> None:
    assert round(distance("#000000", "#ffffff")) == 100
    assert (
        distance("#ff0000", "#008000") < 40 < np.linalg.norm(lab("#ff0000", "all cones") - lab("#008000", "all cones"))
    )


def test_requests_are_told_apart() -> None:
    for one, other in itertools.combinations(OWNERS, 2):
        assert distance(one, other) >= CLEAR, (one, other)


def test_requests_are_told_from_slack_and_from_what_is_free() -> None:
    dark_page = "#14171c"
    others = [COLOURS[name] for name in ("slack", "reserved", "unused", "cached", "blank", "shared")]
    for owner, other in itertools.product(OWNERS, [*others, dark_page]):
        assert distance(owner, other) >= CLEAR, (owner, other)
