"""Fitted workloads: what is put in comes out again, and what is off is said."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import field, frozen

from kvsim.errors import TraceError
from kvsim.study.scenario import load_scenario
from kvsim.study.trace_convert import write_mooncake
from kvsim.study.trace_file import TraceFile
from kvsim.study.trace_fit import Fit, fit
from kvsim.units import exact_duration, parse_duration_ns
from kvsim.workload.generate import (
    Arrivals,
    Constant,
    ExponentialTime,
    Fixed,
    Gamma,
    Lognormal,
    OnOff,
    Poisson,
    Sessions,
    SharedPrefixes,
    Templates,
    Uniform,
    Window,
    Windows,
)
from kvsim.workload.request import Span
from kvsim.workload.traces import Row


@frozen
class Made(TraceFile):
    """A trace made by a generator."""

    workload: Arrivals = field(kw_only=True)

    def rows(self) -> Iterator[Row]:
        for request in self.workload.requests(seed=11):
            yield Row(request.arrival_ns, request.prompt_tokens, request.output_tokens, request.prompt)


def fitted(workload: Arrivals) -> Fit:
    return fit(Made(Path("made"), "mooncake", workload=workload))


def scenario_with(folder: Path, found: Fit) -> Path:
    path = folder / "scenario.toml"
    path.write_text(
        'question = "Does it fit?"\n[model]\nconfig = "llama-3.1-8b"\n[memory]\nbudget = "1 GiB"\n'
        + found.to_toml("made")
    )
    return path


def test_what_was_generated_is_found_again() -> None:
    found = fitted(
        Gamma(
            rate=5.0,
            cv=3.0,
            num_requests=10_000,
            prompt=Lognormal(mean=900, p50=600),
            output=Uniform(20, 300),
            prefixes=SharedPrefixes(count=20, tokens=500, popularity=1.1),
        )
    )
    workload = found.workload
    assert isinstance(workload, Gamma)
    assert workload.rate == pytest.approx(5, rel=0.08)
    assert workload.cv == pytest.approx(3, rel=0.05)
    assert workload.output == Uniform(20, 300)
    assert workload.prefixes is not None
    assert (workload.prefixes.count, workload.prefixes.tokens) == (20, 500)
    assert workload.prefixes.popularity == pytest.approx(1.1, abs=0.03)
    off = {one.name: one.off for one in found.likeness if "in bins of" not in one.name}
    assert off.pop("dispersion (IoD)") == pytest.approx(0, abs=0.15)
    assert off.pop("prompt tokens, p99") == pytest.approx(0, abs=0.1)
    assert {name: round(value, 1) for name, value in off.items() if value is not None and abs(value) > 0.06} == {}


@pytest.mark.parametrize("kind", [Poisson, Constant])
def test_the_kind_of_arrivals_follows_the_gaps(kind: type[Poisson] | type[Constant]) -> None:
    found = fitted(kind(rate=4.0, num_requests=10_000, prompt=Fixed(30), output=Fixed(7)))
    assert type(found.workload) is kind
    assert found.workload.prompt == Fixed(30)
    assert found.workload.prefixes is None
    assert found.notes == ("Hardly anything is shared in the trace, so nothing is shared.",)


def test_the_table_is_a_scenario_s_workload(tmp_path: Path) -> None:
    found = fitted(
        Gamma(
            rate=5.0,
            cv=2.0,
            num_requests=500,
            prompt=Uniform(8, 90),
            output=Fixed(9),
            prefixes=SharedPrefixes(count=3, tokens=64),
        )
    )
    text = found.to_toml('a "quoted" name')
    assert load_scenario(scenario_with(tmp_path, found)).workload == found.workload
    assert tomllib.loads(text)["workload"] == found.table()
    assert text.startswith('# Fitted to "a \\"quoted\\" name"; trace, generated, off:\n#   requests per second: ')
    json.dumps(found.to_json(), allow_nan=False)


def test_sessions_are_found_again() -> None:
    made = Poisson(
        rate=0.5,
        duration=2_000 * 10**9,
        prompt=Uniform(50, 250),
        output=Uniform(20, 300),
        templates=Templates(count=1_000_000, tokens=Uniform(1_000, 3_000)),
        sessions=Sessions(turns=Uniform(1, 5), think=ExponentialTime(20 * 10**9), think_from="arrival"),
    )
    found = fitted(made)
    assert found.workload.sessions is not None
    assert isinstance(found.workload.sessions.think, ExponentialTime)
    assert found.workload.sessions.think.mean == pytest.approx(20e9, rel=0.03)
    assert found.workload.duration == pytest.approx(2_000e9, rel=0.01)
    off = {one.name: one.off for one in found.likeness}
    assert off["share of prompt tokens shared at block size 16"] == pytest.approx(0, abs=0.03)
    assert off["requests per second"] == pytest.approx(0, abs=0.05)
    assert off["prompt tokens, mean"] == pytest.approx(0, abs=0.05)


def test_bursts_are_found_again(tmp_path: Path) -> None:
    made = OnOff(rate=20.0, on=2 * 10**9, off=18 * 10**9, num_requests=6_000, prompt=Fixed(30), output=Fixed(7))
    found = fitted(made)
    assert isinstance(found.workload, OnOff)
    assert found.workload.periods == "fixed"
    assert found.workload.on + found.workload.off == pytest.approx(20e9, rel=0.1)
    off = {one.name: one.off for one in found.likeness}
    assert off["dispersion (IoD)"] == pytest.approx(0, abs=0.1)
    assert load_scenario(scenario_with(tmp_path, found)).workload == found.workload


def test_a_rate_that_changes_is_found_again_window_by_window(tmp_path: Path) -> None:
    rates = (1.0, 4.0, 9.0, 2.0)
    windows = tuple(Window(duration=300 * 10**9, rate=rate) for rate in rates)
    found = fitted(Windows(windows=windows, prompt=Fixed(30), output=Fixed(7)))
    assert isinstance(found.workload, Windows)
    assert found.workload.windows is not None
    assert len(found.workload.windows) == 12
    assert found.workload.windows[7].rate == pytest.approx(9, rel=0.15)
    text = found.to_toml("made")
    assert text.count('    { duration = "') == 12
    assert load_scenario(scenario_with(tmp_path, found)).workload == found.workload


@pytest.mark.parametrize(
    ("path", "name", "trace", "generated"),
    [
        ("azure2023/AzureLLMInferenceTrace_code.csv", "dispersion (IoD)", 13.2, 12.3),
        ("agentic/agent_magagent_blk16.jsonl.gz", "share of prompt tokens shared at block size 16", 0.843, 0.834),
        ("mooncake/mooncake_trace_1000.jsonl", "share of prompt tokens shared at block size 16", 0.391, 0.372),
    ],
)
def test_what_is_bursty_or_shared_in_public_traces_is_so_in_what_is_generated(
    shared: Path, path: str, name: str, trace: float, generated: float
) -> None:
    (one,) = (one for one in fit(TraceFile.of(shared / "traces" / path)).likeness if one.name == name)
    assert f"{one.trace:.3g}" == f"{trace}"
    assert f"{one.generated:.3g}" == f"{generated}"


def test_a_public_trace_is_fitted_in_mean_and_burstiness(shared: Path) -> None:
    found = fit(TraceFile.of(shared / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv"))
    off = {one.name: one.off for one in found.likeness}
    assert found.notes == ("The trace does not say what prompts share, so nothing is shared.",)
    for name in ("requests per second", "CV of gaps", "prompt tokens, mean"):
        assert off[name] == pytest.approx(0, abs=0.05)


def test_a_trace_whose_requests_come_all_at_once_has_no_rate(tmp_path: Path) -> None:
    write_mooncake(iter([Row(0, 5, 5), Row(0, 6, 5)]), tmp_path / "trace.jsonl", 512)
    with pytest.raises(TraceError, match="has 2 requests that come all at once, so no rate follows"):
        fit(TraceFile.of(tmp_path / "trace.jsonl"))


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (1, "1 ns"),
        (1_500, "1500 ns"),
        (2_000, "2 us"),
        (7_000_000, "7 ms"),
        (90 * 10**9, "90 s"),
        (7_200 * 10**9, "2 h"),
    ],
)
def test_times_are_written_so_that_they_are_read_back(nanoseconds: int, text: str) -> None:
    assert exact_duration(nanoseconds) == text
    assert parse_duration_ns(text) == nanoseconds


@pytest.mark.parametrize("times", [(0, 1_000), (0, 1), (0, 0, 999_999_999_999), (0, 0, 5, 5)])
def test_a_few_requests_are_enough(tmp_path: Path, times: tuple[int, ...]) -> None:
    rows = [Row(time * 10**6, 600 * (n + 1), 5, (Span("a", 0, 600 * (n + 1)),)) for n, time in enumerate(times)]
    write_mooncake(iter(rows), tmp_path / "trace.jsonl", 512)
    found = fit(TraceFile.of(tmp_path / "trace.jsonl"))
    assert {one.name for one in found.likeness} >= {"requests per second", "prompt tokens, mean"}
    assert load_scenario(scenario_with(tmp_path, found)).workload == found.workload


def test_times_beyond_64_bits_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text('{"timestamp": 2e11, "input_length": 5, "output_length": 5}\n')
    with pytest.raises(TraceError, match=r"t: its times must be below 2\^63 ns, 292 years: is their unit another\?"):
        fit(TraceFile.of(tmp_path / "t", "guidellm"))
