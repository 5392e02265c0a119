"""Figures as people read them."""

from fractions import Fraction

import pytest

from kvsim.engine.metrics import METRICS, SAMPLE_METRICS
from kvsim.study.written import (
    Exact,
    written,
    written_amount,
    written_change,
    written_distance,
    written_number,
    written_percent,
    written_share,
    written_time,
)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (None, "bytes", "-"),
        (None, "requests", "-"),
        (0, "bytes", "0 B"),
        (4 * 2**30, "bytes", "4 GiB"),
        (Fraction(4097, 2), "bytes", "2 KiB"),
        (Fraction(-4096, 1), "bytes", "-4 KiB"),
        (Fraction(1, 3), "bytes", "0.33 B"),
        (250_000_000, "ns", "250 ms"),
        (Fraction(5, 2), "ns", "2.5 ns"),
        (0.041, "share", "4.10%"),
        (Fraction(1, 25), "share", "4.00%"),
        (0.00001, "share", "0.001%"),
        (0, "share", "0.00%"),
        (17, "requests", "17 requests"),
        (1, "requests", "1 request"),
        (12_345, "tokens", "12,345 tokens"),
        (1, "times", "1 time"),
        (3.51234, "requests", "3.51 requests"),
        (2.0, "requests", "2 requests"),
    ],
)
def test_a_figure_has_its_unit(value: Exact | None, unit: str, words: str) -> None:
    assert written(value, unit) == words


def test_every_unit_of_a_figure_is_written() -> None:
    for unit in {metric.unit for metric in (*METRICS, *SAMPLE_METRICS)}:
        assert written(1234, unit) not in ("1,234", "1234")


def test_an_amount_leaves_out_what_is_counted() -> None:
    assert written_amount(1234, "requests") == "1,234"
    assert written_amount(1234, "ns") == "1.23 us"
    assert written_amount(None, "steps") == "-"


@pytest.mark.parametrize(
    ("change", "unit", "words", "distance"),
    [
        (0, "bytes", "0", "0 B"),
        (3 * 2**20, "bytes", "+3 MiB", "3 MiB"),
        (-3 * 2**20, "bytes", "-3 MiB", "3 MiB"),
        (Fraction(-1, 2), "bytes", "-0.50 B", "0.50 B"),
        (-0.0112, "share", "-1.12 points", "1.12 points"),
        (1e-7, "share", "+1e-05 points", "1e-05 points"),
        (-12, "requests", "-12", "12 requests"),
        (0.25, "requests", "+0.25", "0.25 requests"),
        (-1500, "ns", "-1.50 us", "1.50 us"),
    ],
)
def test_a_change_has_a_sign_and_shares_lie_points_apart(change: Exact, unit: str, words: str, distance: str) -> None:
    assert written_change(change, unit) == words
    assert written_distance(change, unit) == distance


def test_small_percents_are_not_nothing() -> None:
    changes = (Fraction(123, 1000), -1, 12, 0, 0.0000195)
    assert [written_percent(change) for change in changes] == ["+12.3%", "-100.0%", "+1,200.0%", "+0.0%", "+0.002%"]


def test_what_tables_of_one_run_write() -> None:
    assert (written_time(None), written_share(None), written_number(None)) == ("-", "-", "-")
    assert (written_time(1500.0), written_share(0.5), written_number(1234.56)) == ("1.50 us", "50.00%", "1,234.6")
