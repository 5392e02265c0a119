"""Every value is in one bin, and bins have edges that can be read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.study.histogram import MOST_BINS, Histogram, Unit, histogram


def of(values: list[int], unit: Unit) -> Histogram:
    return histogram(np.array(values, dtype=np.int64), unit)


@given(st.lists(st.integers(0, 2**50) | st.integers(0, 100), min_size=1), st.sampled_from(["bytes", "blocks", "ns"]))
def test_every_value_is_in_one_bin(values: list[int], unit: Unit) -> None:
    drawn = of(values, unit)
    assert len(drawn.counts) == len(drawn.edges) - 1 <= MOST_BINS + 1
    assert sorted(set(drawn.edges)) == list(drawn.edges)
    for low, high, number in zip(drawn.edges, drawn.edges[1:], drawn.counts, strict=False):
        assert number == sum(low <= value < high for value in values)
    assert sum(drawn.counts) == len(values)
    places = [drawn.place(value) for value in sorted(values)]
    assert places == sorted(places)
    assert 0 <= places[0] <= places[-1] <= len(drawn.counts)


def test_slots_of_a_block_have_a_bin_each() -> None:
    drawn = of([slots * 24_576 for slots in (0, 1, 1, 15)], "bytes")
    assert drawn.edges == tuple(slots * 24_576 for slots in range(17))
    assert drawn.counts == (1, 2, *[0] * 13, 1)
    assert drawn.place(24_576) == 1


def test_blocks_that_lie_close_come_by_readable_numbers() -> None:
    assert of(list(range(3, 100)), "blocks").edges == tuple(range(0, 101, 5))


def test_times_that_lie_close_come_by_readable_steps() -> None:
    assert of([1_000_000, 9_000_001], "ns").edges == tuple(range(1_000_000, 9_500_001, 500_000))


def test_bins_grow_where_values_are_spread_and_zeros_stand_apart() -> None:
    values = [0, 0, *(2**power for power in range(4, 40))]
    drawn = of(values, "bytes")
    assert drawn.grows
    assert drawn.edges[:4] == (0, 16, 64, 256)
    assert drawn.counts[:3] == (2, 2, 2)
    assert drawn.place(32) == pytest.approx(1.5)


def test_waiting_from_nanoseconds_to_hours() -> None:
    drawn = of([0, *(3**power for power in range(30))], "ns")
    assert drawn.edges[0] == 0
    assert drawn.edges[1] == 1
    assert drawn.edges[-1] > 3**29


def test_equal_values_are_one_bin() -> None:
    assert of([5, 5], "blocks") == Histogram((5, 6), (2,), False)
