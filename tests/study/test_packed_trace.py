"""A packed trace replays as the file that it was made of."""

from pathlib import Path

import pytest
from attrs import evolve

from kvsim.errors import TraceError
from kvsim.study.packed_trace import PackedTrace, pack_trace, parsed_alike
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.workload.traces import SkippedRows, Trace
from tests.study.makers import AZURE_ROWS, TINY_TRACE, write_scenario


@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.parametrize("speedup", [1.0, 0.3, 7.0])
def test_requests_are_those_of_the_file(tmp_path: Path, speedup: float, limit: int | None) -> None:
    write_scenario(tmp_path)
    trace = Trace(path="trace.csv", speedup=speedup, limit=limit)
    pack_trace(trace, tmp_path, tmp_path / "packed")
    expected = list(trace.requests(tmp_path))
    for packed in (tmp_path / "packed", (tmp_path / "packed").read_bytes()):
        assert list(PackedTrace.of(trace, packed).requests(Path("elsewhere"))) == expected


def test_more_requests_than_are_packed_at_once(tmp_path: Path) -> None:
    rows = "".join(f"2023-11-16 18:15:{second // 100:02}.{second % 100:02},{second + 1},1\n" for second in range(1200))
    (tmp_path / "trace.csv").write_text(AZURE_ROWS.partition("\r")[0] + "\n" + rows)
    trace = Trace(path="trace.csv")
    pack_trace(trace, tmp_path, tmp_path / "packed")
    found = list(PackedTrace.of(trace, tmp_path / "packed").requests(tmp_path))
    assert [request.prompt_tokens for request in found] == list(range(1, 1201))


def test_bad_rows_are_counted(tmp_path: Path) -> None:
    write_scenario(tmp_path)
    with (tmp_path / "trace.csv").open("a") as file:
        file.write("\r\nnever,1,1\r\n")
    trace = Trace(path="trace.csv", on_bad_row="skip")
    pack_trace(trace, tmp_path, tmp_path / "packed")
    skipped = SkippedRows()
    assert len(list(PackedTrace.of(trace, tmp_path / "packed").requests(tmp_path, skipped))) == 3
    assert skipped.count == 1
    with pytest.raises(TraceError, match=r"trace\.csv:5"):
        pack_trace(evolve(trace, on_bad_row="error"), tmp_path, tmp_path / "packed")


def test_a_run_does_not_see_the_difference(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path, TINY_TRACE))
    assert isinstance(scenario.workload, Trace)
    pack_trace(scenario.workload, tmp_path, tmp_path / "packed")
    plain = simulate(scenario)
    packed = simulate(evolve(scenario, workload=PackedTrace.of(scenario.workload, tmp_path / "packed")))
    assert packed.requests.equals(plain.requests)
    assert packed.timeline.equals(plain.timeline)
    assert packed.metrics == plain.metrics
    assert packed.notes == plain.notes


def test_only_the_speed_may_differ() -> None:
    trace = Trace(path="a", speedup=2.0)
    assert parsed_alike(trace) == parsed_alike(evolve(trace, speedup=3.0))
    assert parsed_alike(trace) != parsed_alike(evolve(trace, limit=3))
