import json
import os
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from attrs import evolve

from kvsim.study.block_maps import MOST_MAPS
from kvsim.study.files import summary_json
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario, parse_scenario
from kvsim.view.live_run import MOST_ROWS_TOLD, Ended, LiveRun, Refused, Seen, _choice
from tests.study.makers import TINY, TINY_TRACE, write_scenario

LONG = TINY.replace("num_requests = 40", "num_requests = 1_000_000")


def waited_for(run: LiveRun, seconds: float = 20) -> Seen:
    """What is seen of it first."""
    until = time.monotonic() + seconds
    while not isinstance(run.latest, Seen):
        assert time.monotonic() < until, "nothing was told"
        time.sleep(0.02)
    return run.latest


def test_a_run_ends_with_the_results_that_simulate_gives(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path), ["workload.num_requests=8000"])
    run = LiveRun(scenario)
    run.wait()
    ended = run.latest
    assert run.state == "ended"
    assert isinstance(ended, Ended)
    expected = simulate(scenario)
    assert json.loads(summary_json(ended.results)) == json.loads(summary_json(expected))
    assert ended.results.timeline.equals(expected.timeline)
    assert ended.results.pressure.equals(expected.pressure)
    assert 8 < len(ended.maps) < MOST_MAPS
    assert [blocks.time_ns for blocks in ended.maps] == sorted({blocks.time_ns for blocks in ended.maps})
    run.close()


def test_rows_that_are_told_are_a_choice_with_the_extremes_and_all_steps() -> None:
    results = simulate(parse_scenario(TINY, ["workload.num_requests=40_000", "workload.rate=400"]))
    timeline, pressure = results.timeline, results.pressure
    told = _choice("timeline", timeline)
    assert MOST_ROWS_TOLD / 4 < told.height <= MOST_ROWS_TOLD < timeline.height
    assert told["allocated_bytes"].max() == timeline["allocated_bytes"].max()
    assert told.join(timeline, on=timeline.columns, how="semi").height == told.height
    some = _choice("pressure", pressure)
    assert some.height <= MOST_ROWS_TOLD + 2 < pressure.height
    assert some["time_ns"].is_sorted()
    by_kind = [
        rows.group_by("event", "cause").agg(pl.col("steps").sum()).sort("event", "cause") for rows in (some, pressure)
    ]
    assert by_kind[0].equals(by_kind[1])


def test_a_long_run_is_seen_as_it_goes_on_and_ends_at_once() -> None:
    run = LiveRun(parse_scenario(LONG))
    seen = waited_for(run)
    assert seen.num_requests == 1_000_000
    assert 0 < seen.timeline.height <= MOST_ROWS_TOLD
    assert seen.timeline["time_ns"].is_sorted()
    assert seen.timeline["time_ns"][-1] <= seen.time_ns == seen.blocks.time_ns
    folder = Path(run._folder.name)
    assert folder.is_dir()
    began = time.monotonic()
    run.stop()
    run.close()
    assert time.monotonic() - began < 2
    assert run.state == "stopped"
    assert isinstance(run.latest, Seen)
    assert not run._process.is_alive()
    assert not folder.exists()


def test_an_error_that_nobody_foresaw_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise RuntimeError("no such file")

    monkeypatch.setattr("kvsim.view.live_run.read_results", fail)
    scenario = parse_scenario(TINY)
    broken = evolve(scenario, engine=None)  # type: ignore[arg-type]  # as no loader makes it
    for each, name in ((scenario, "RuntimeError"), (broken, "AttributeError")):
        run = LiveRun(each)
        run.wait()
        assert run.state == "refused"
        assert isinstance(run.latest, Refused)
        assert run.latest.problems[0].startswith(f"an error of kvsim itself, {name}: ")
        run.close()


def test_a_run_that_grows_too_long_is_refused() -> None:
    run = LiveRun(parse_scenario(LONG), most_rows=5000)
    run.wait()
    assert run.latest == Refused(
        ("the run has more than 5,000 instants, as many as a page can show: make it shorter, or use kvsim run",)
    )
    run.close()


def test_a_run_that_takes_too_long_is_refused() -> None:
    run = LiveRun(parse_scenario(LONG), most_seconds=0.5)
    run.wait()
    assert run.latest == Refused(("a run in the app may take 0.5 s: make it shorter, or use kvsim run",))
    assert not run._process.is_alive()
    run.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            TINY.replace("max_model_len = 128", ""),
            "engine.max_model_len is missing, and the model does not say its longest length",
        ),
        (TINY_TRACE, "trace.csv: cannot be read: No such file or directory"),
    ],
)
def test_what_a_run_refuses_is_told(text: str, problem: str) -> None:
    run = LiveRun(parse_scenario(text))
    run.wait()
    assert (run.state, run.latest) == ("refused", Refused((problem,)))
    run.close()


def test_a_process_that_dies_is_told() -> None:
    run = LiveRun(parse_scenario(LONG))
    run._process.kill()
    run.wait()
    assert run.latest == Refused(("the process of the run died, as happens when memory runs out",))
    run.close()


WAITS = TINY_TRACE.replace("trace.csv", "pipe.csv")
"""For a pipe that nobody writes to."""


def test_a_run_that_waits_for_ever_is_ended_with_its_page(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    run = LiveRun(parse_scenario(WAITS, base=tmp_path))
    run.close()
    assert not run._process.is_alive()


def test_a_run_that_waits_for_ever_ends_with_a_server_that_was_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    program = f"""
import time
from pathlib import Path
from kvsim.study.scenario import parse_scenario
from kvsim.view.live_run import LiveRun
if __name__ == "__main__":
    run = LiveRun(parse_scenario({WAITS!r}, base=Path({str(tmp_path)!r})))
    print(run._process.pid, run._folder.name, flush=True)
    time.sleep(100)
"""
    path = tmp_path / "server.py"
    path.write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    server = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    pid, folder = server.stdout.readline().split()
    time.sleep(2)  # until it waits for the pipe
    deadline = time.monotonic() + 30
    server.kill()
    server.communicate()
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(folder).exists()
    states = ""
    while time.monotonic() < deadline:
        states = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout.strip()
        if not states or states.startswith("Z"):  # ended, though nobody may have asked for its exit code
            break
        time.sleep(0.1)
    assert not states or states.startswith("Z")


def test_a_name_that_no_file_can_have_is_refused_and_no_defect(tmp_path: Path) -> None:
    run = LiveRun(parse_scenario(TINY_TRACE.replace("trace.csv", "x" * 300), base=tmp_path))
    run.wait()
    assert isinstance(run.latest, Refused)
    assert "File name too long" in run.latest.problems[0]
    run.close()
