import gzip
import math
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import TraceError
from kvsim.rules import Contradiction
from kvsim.workload.generate import Constant, Fixed, Gamma, Generated, OnOff, Poisson, Weibull, Window, Windows
from kvsim.workload.generate.weibull import weibull_cv, weibull_shape
from tests.workload.generate.makers import NUM, SECOND, check_moments

ONE: dict[str, Any] = {"prompt": Fixed(1), "output": Fixed(1)}


def make_onoff(**changes: Any) -> OnOff:
    values: dict[str, Any] = {"rate": 50.0, "on": 2 * SECOND, "off": 3 * SECOND, "num_requests": NUM}
    return OnOff(**{**ONE, **values, **changes})


def make_windows(*windows: Window, **changes: Any) -> Windows:
    return Windows(**{**ONE, "windows": windows, **changes})


def gaps_s(workload: Generated) -> np.ndarray:
    times = [0, *islice(workload.arrival_times(1), NUM)]
    return np.diff(times) / SECOND


def times_s(workload: Generated) -> np.ndarray:
    return np.array([request.arrival_ns for request in workload.requests(1)]) / SECOND


def test_poisson_rate_and_cv() -> None:
    check_moments(gaps_s(Poisson(rate=4.0, num_requests=1, **ONE)), 0.25, 0.25, 9 * 0.25**4)


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gamma_rate_and_cv(cv: float) -> None:
    deviation = cv * 0.25
    gaps = gaps_s(Gamma(rate=4.0, cv=cv, num_requests=1, **ONE))
    check_moments(gaps, 0.25, deviation, (3 + 6 * cv**2) * deviation**4)


def weibull_fourth(shape: float, mean: float) -> float:
    """The fourth central moment of a Weibull distribution."""
    one, two, three, four = (math.gamma(1 + n / shape) for n in (1, 2, 3, 4))
    return (four - 4 * three * one + 6 * two * one**2 - 3 * one**4) * (mean / one) ** 4


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0])
def test_weibull_rate_and_cv(cv: float) -> None:
    gaps = gaps_s(Weibull(rate=4.0, cv=cv, num_requests=1, **ONE))
    check_moments(gaps, 0.25, cv * 0.25, weibull_fourth(weibull_shape(cv), 0.25))


def test_a_weibull_shape_is_what_it_says() -> None:
    # Shape 2 is a Rayleigh distribution, shape 1 an exponential one.
    assert weibull_cv(1.0) == pytest.approx(1.0, rel=1e-14)
    assert weibull_shape(math.sqrt(4 / math.pi - 1)) == pytest.approx(2.0, rel=1e-12)
    by_cv, by_shape = (Weibull(rate=4.0, num_requests=9, **ONE, **how) for how in ({"cv": 1.0}, {"shape": 1.0}))
    assert np.allclose(gaps_s(by_cv), gaps_s(by_shape), rtol=1e-9, atol=1e-8)
    assert weibull_shape(100) > 0.1
    assert weibull_shape(0.02) < 100


def test_constant_gaps_have_no_spread() -> None:
    assert set(gaps_s(Constant(rate=4.0, num_requests=1, **ONE)).tolist()) == {0.25}


# bursts


def test_bursts_have_their_rate_and_silence_between() -> None:
    times = times_s(make_onoff())
    in_cycle = times % 5
    assert in_cycle.max() <= 2
    cycles = int(times[-1] // 5)
    counts = np.bincount((times // 5).astype(int))[:cycles]
    # 50 x 2 in each, and as a Poisson count it has that as its variance.
    check_moments(counts, 100, 10, 3 * 10**4 + 100)
    # Within a burst they fall anywhere.
    check_moments(in_cycle[: counts.sum()], 1, math.sqrt(4 / 12), 2**4 / 80)


def test_an_off_rate_is_kept() -> None:
    times = times_s(make_onoff(off_rate=5.0))
    full = times[times < times[-1] // 5 * 5]
    in_burst = full % 5 <= 2
    # Of 115 in a cycle 15 come outside the burst.
    assert abs(in_burst.mean() - 100 / 115) < 3 * math.sqrt(100 * 15 / 115**2 / len(full))


def test_exponential_periods_have_their_mean_rate() -> None:
    times = times_s(make_onoff(periods="exponential", on=SECOND // 10, off=3 * SECOND // 10, rate=40.0))
    # An interrupted Poisson process is a renewal process: with on and off ending at rates 10 and 10/3, gaps have the
    # mean 1/10 and the squared coefficient of variation 1 + 2 x 40 x 10 / (10 + 10/3)^2.
    squared = 1 + 2 * 40 * 10 / (10 + 10 / 3) ** 2
    check_moments(np.diff(times), 0.1, 0.1 * math.sqrt(squared))


def test_other_periods_leave_the_draws_of_the_gaps() -> None:
    """The first burst is the same as far as it goes."""
    fixed, exponential = (times_s(make_onoff(periods=periods)) for periods in ("fixed", "exponential"))
    first = min(next(i for i, t in enumerate(times) if t - times[i - 1] > 1 and i) for times in (fixed, exponential))
    assert first > 10
    assert np.array_equal(fixed[:first], exponential[:first])


# windows


@pytest.mark.parametrize(("cv", "distribution"), [(0.5, "gamma"), (2.0, "gamma"), (1.5, "weibull")])
def test_one_long_window_is_that_process(cv: float, distribution: str) -> None:
    window = Window(duration=10**6 * SECOND, rate=4.0, cv=cv, distribution=distribution)  # type: ignore[arg-type]
    fourth = (3 + 6 * cv**2) if distribution == "gamma" else weibull_fourth(weibull_shape(cv), 1.0) / cv**4
    check_moments(gaps_s(make_windows(window)), 0.25, cv * 0.25, fourth * (cv * 0.25) ** 4)


def test_every_window_has_its_rate() -> None:
    rates = (4.0, 0.0, 9.0, 1.0)
    seconds = (9000, 1000, 6000, 7000)
    windows = [Window(duration=s * SECOND, rate=rate) for s, rate in zip(seconds, rates, strict=True)]
    times = times_s(make_windows(*windows))
    counts = np.histogram(times, np.cumsum([0, *seconds]))[0]
    for count, rate, length in zip(counts, rates, seconds, strict=True):
        assert abs(count - rate * length) <= 3 * math.sqrt(rate * length)
    assert times[-1] <= sum(seconds)


def test_a_gap_that_outlasts_its_window_goes_on_at_the_rate_of_the_next() -> None:
    """At cv 0.02 gaps are all but constant: half of one in the first window, then at twice the rate."""
    slow, quick = (Window(duration=d * SECOND, rate=rate, cv=0.02) for d, rate in ((5, 0.1), (100, 0.2)))
    times = times_s(make_windows(slow, quick))
    assert abs(times[0] - 7.5) < 0.5
    assert abs(times[1] - 12.5) < 1


def test_windows_end_or_are_repeated() -> None:
    window = Window(duration=SECOND, rate=100.0)
    pause = Window(duration=SECOND, rate=0.0)
    assert times_s(make_windows(window, pause)).max() <= 1
    times = times_s(make_windows(window, pause, repeat=True, num_requests=2000))
    assert len(times) == 2000
    assert (times % 2).max() <= 1


SERVEGEN = "100,0,0,,0,0\n700,2,1.5,Gamma,1,1\n1300,3,0.5,Weibull,1,1\n"


def test_windows_of_a_file(tmp_path: Any) -> None:
    (tmp_path / "windows.csv").write_text(SERVEGEN)
    workload = Windows(path="windows.csv", **ONE)
    assert workload.loaded(tmp_path).windows == (
        Window(duration=600 * SECOND, rate=0),
        Window(duration=600 * SECOND, rate=2, cv=1.5),
        Window(duration=600 * SECOND, rate=3, cv=0.5, distribution="weibull"),
    )
    times = [request.arrival_ns for request in workload.requests(1, tmp_path)]
    assert 600 * SECOND < times[0] < times[-1] < 1800 * SECOND


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("0,1,1,Gamma\n", "must have at least two windows, got 1"),
        ("0,1,1,Gamma\n0,1,1,Gamma\n", "1: must start before the row below"),
        ("0,1,1,Gamma\n9,x,1,Gamma\n", "2: rate must be a number >= 0, got '9,x,1,Gamma'"),
        ("0,1,1,Gamma\n9,-1,1,Gamma\n", "2: rate must be a number >= 0, got '9,-1,1,Gamma'"),
        ("0,1,1,Gamma\n9,1\n", "2: distribution must be Gamma or Weibull, got ''"),
        ("0,1,1,Gamma\n9,1,1,Pareto\n", "2: distribution must be Gamma or Weibull, got 'pareto'"),
        ("0,1,1,Gamma\n9,1,0,Gamma\n", "2: cv must be between 0.02 and 100, got 0.0"),
        ("start,rate\n0,1\n", "1: start must be a number >= 0, got 'start,rate'"),
        ("0,0,0,\n9,0,0,\n", "has no window with a rate > 0"),
    ],
)
def test_damaged_window_files_are_refused(tmp_path: Any, content: str, rule: str) -> None:

    (tmp_path / "windows.csv").write_text(content)
    with pytest.raises(TraceError) as caught:
        Windows(path="windows.csv", **ONE).loaded(tmp_path)
    separator = ":" if rule[0].isdigit() else ": "
    assert str(caught.value) == f"{tmp_path / 'windows.csv'}{separator}{rule}"


def test_public_windows_have_their_number_of_requests(shared: Any) -> None:
    workload = Windows(path="traces/servegen/reason_deepseek-r1_chunk-66-trace.csv.gz", **ONE)
    windows = workload.loaded(shared).windows
    assert windows is not None
    assert len(windows) == 144
    expected = sum(window.rate * window.duration / SECOND for window in windows)
    deviation = math.sqrt(sum(window.rate * window.duration / SECOND * window.cv**2 for window in windows))
    assert abs(len(list(workload.requests(1, shared))) - expected) < 3 * deviation


@pytest.mark.parametrize(
    ("make", "rules"),
    [
        (lambda: Weibull(rate=1.0, num_requests=1, **ONE), ["one of cv and shape must be given, and not both"]),
        (lambda: make_onoff(num_requests=None), ["num_requests or duration must be given"]),
        (lambda: make_windows(), ["windows must have one with a rate > 0"]),
        (
            lambda: make_windows(path="x"),
            ["one of windows and path must be given, and not both", "windows must have one with a rate > 0"],
        ),
        (
            lambda: make_windows(Window(duration=SECOND, rate=1), repeat=True),
            ["num_requests or duration must be given"],
        ),
        (
            lambda: make_onoff(on=1, off=3600 * SECOND),
            ["on and off must bring at least 0.001 requests a round on average, got 5e-08"],
        ),
        (
            lambda: make_windows(Window(duration=1, rate=0.001), repeat=True, num_requests=5),
            ["windows that are repeated must bring at least 0.001 requests a round on average, got 1e-12"],
        ),
    ],
)
def test_contradictions_are_told(make: Any, rules: list[str]) -> None:
    with pytest.raises(Contradiction) as caught:
        make()
    assert caught.value.sentences == rules


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Weibull(rate=1.0, cv=0.0, num_requests=1, **ONE), "cv must be between 0.02 and 100"),
        (lambda: Weibull(rate=1.0, shape=0.0, num_requests=1, **ONE), "shape must be between 0.1 and 100"),
        (lambda: make_onoff(on=0), "on must be >= 1"),
        (lambda: make_onoff(off_rate=-1.0), "off_rate must be between 0 and"),
        (lambda: Window(duration=0, rate=1.0), "duration must be >= 1"),
        (lambda: Window(duration=1, rate=1.0, cv=0.0), "cv must be between 0.02 and 100"),
    ],
)
def test_values_out_of_bounds_are_refused(make: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        make()


def test_windows_of_a_file_that_bring_nothing_cannot_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("0,0.00001,1,Gamma\n1,0.00001,1,Gamma\n")
    rare = Windows(**ONE, path="w.csv", repeat=True, num_requests=5)
    with pytest.raises(TraceError, match=r"w\.csv: windows that are repeated must bring at least 0\.001 requests"):
        rare.loaded(tmp_path)


def test_windows_of_a_damaged_gzip_file_are_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"0,1,1,Gamma\n1,1,1,Gamma\n" * 50))
    packed[12] ^= 0xFF
    packed[14] ^= 0xFF
    (tmp_path / "w.csv.gz").write_bytes(packed)
    with pytest.raises(TraceError, match=r"w\.csv\.gz: cannot be read: Error -3 while decompressing"):
        Windows(**ONE, path="w.csv.gz").loaded(tmp_path)
