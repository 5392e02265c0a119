"""What a scenario says about its trace, and what the results say about it."""

from pathlib import Path

import pytest

from kvsim.errors import TraceError
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import TINY_TRACE, write_scenario

BAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,12,4\nnever,1,1\n2023-11-16 18:15:47,0,1\n"


def scenario_of(folder: Path, trace: str, *overrides: str) -> Path:
    path = write_scenario(folder, TINY_TRACE)
    (folder / "trace.csv").write_text(trace)
    return path


def test_bad_rows_that_were_passed_over_are_in_the_results(tmp_path: Path) -> None:
    path = scenario_of(tmp_path, BAD)
    with pytest.raises(TraceError, match=r"trace\.csv:3: TIMESTAMP must look like"):
        simulate(load_scenario(path))
    results = simulate(load_scenario(path, "workload.on_bad_row=skip"))
    assert results.requests.height == 1
    assert "2 bad rows of the trace were passed over, as workload.on_bad_row is skip." in results.notes


def test_a_format_that_is_left_out_is_recognised(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    named, found = simulate(load_scenario(path)), simulate(load_scenario(path, "workload.format="))
    assert found.requests.equals(named.requests)
    assert found.notes == named.notes


def test_columns_are_named_in_the_scenario(tmp_path: Path) -> None:
    path = scenario_of(tmp_path, "at,in,out\n0,12,4\n250,30,9\n")
    columns = ("workload.format=columns", 'workload.columns={prompt="in", output="out", time="at"}')
    results = simulate(load_scenario(path, (*columns, "workload.time_unit=ms")))
    assert results.requests["arrival_ns"].to_list() == [0, 250_000_000]


def test_a_trace_without_times_is_not_replayed(tmp_path: Path) -> None:
    path = scenario_of(tmp_path, "num_prefill_tokens,num_decode_tokens\n12,4\n")
    with pytest.raises(TraceError, match="has no times, which a replay needs"):
        simulate(load_scenario(path, "workload.format="))
