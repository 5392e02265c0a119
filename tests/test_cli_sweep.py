"""kvsim sweep: what it prints, where, and how it ends."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import polars as pl
import pytest

from tests.study.makers import TINY, TINY_TRACE, write_scenario
from tests.study.sweeps import NEVER_ENDS
from tests.study.test_sweep_workers import children_of
from tests.test_cli import command, environment, kvsim, refused

VARY = ("--vary", "memory.block_size=2,4", "--vary", "workload.rate=50:100:50")


def test_sweep_prints_a_table_and_writes_it_with_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = kvsim("sweep", write_scenario(tmp_path), *VARY, "--seeds", "2", "--jobs", "1", "--out", out)
    assert done.returncode == 0
    assert done.stderr == f"wrote {out}/sweep.parquet and {out}/sweep.png\n", "no bar where nobody watches"
    assert "workload.rate = 50: best memory.block_size is " in done.stdout
    assert "over 2 seeds" in done.stdout
    assert "not an out-of-memory predictor and not a throughput benchmark" in done.stdout
    assert pl.read_parquet(out / "sweep.parquet").height == 8
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    again = kvsim("sweep", write_scenario(tmp_path), *VARY, "--seeds", "2", "--jobs", "1", "--out", out)
    assert again.stdout == done.stdout
    assert again.stderr == f"8 of 8 runs were kept from before\n{done.stderr}"


def test_json_is_alone_on_stdout(tmp_path: Path) -> None:
    done = kvsim("sweep", write_scenario(tmp_path), *VARY, "--set", "memory.num_blocks=20", "--jobs", "1", "--json")
    assert done.stderr == ""
    assert [run["num_blocks"] for run in json.loads(done.stdout)["runs"]] == [20] * 4


def test_a_scenario_may_say_what_varies(tmp_path: Path) -> None:
    study = "\n[study]\nvary = { memory.block_size = [2, 4] }\nseeds = 2\n"
    path = write_scenario(tmp_path, TINY + study)
    runs = json.loads(kvsim("sweep", path, "--jobs", "1", "--json").stdout)["runs"]
    assert [(run["memory.block_size"], run["seed"]) for run in runs] == [(2, 3), (2, 4), (4, 3), (4, 4)]
    runs = json.loads(kvsim("sweep", path, "--json", "--vary", "memory.block_size=8", "--seeds", "1").stdout)["runs"]
    assert [(run["memory.block_size"], run["seed"]) for run in runs] == [(8, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "scenario.toml: nothing varies: give --vary KEY=VALUES, or [study] vary in the scenario"),
        (("--vary", "memory"), "--vary: must be key=values such as memory.block_size=1,2,4"),
        (("--vary", "memory.block_size=0,4"), "memory.block_size must be between 1 and 1,000,000,000, got 0 (with"),
        (("--vary", "memory.block_size=4", "--jobs", "0"), "jobs must be >= 1, got 0"),
        (("--vary", "memory.block_size=4", "--seeds", "0"), "--seeds: must be between 1 and 10,000, got 0"),
        (("--vary", "memory.block_size=4", "--set", "memory"), "--set: must be key=value"),
    ],
)
def test_what_is_no_sweep_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("sweep", write_scenario(tmp_path), *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_replay_has_no_seeds(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    said = refused("sweep", path, "--vary", "memory.block_size=4,8", "--seeds", "5")
    assert said == f"{path}: seeds must be 1, got 5: a seed changes nothing in the replay of a trace"


def test_another_sweep_in_the_folder_is_refused_and_can_be_begun_afresh(tmp_path: Path) -> None:
    path, out = write_scenario(tmp_path), tmp_path / "out"
    assert kvsim("sweep", path, "--vary", "memory.block_size=4", "--out", out).returncode == 0
    other = ("sweep", path, "--vary", "memory.block_size=8", "--out", out)
    assert refused(*other) == (
        f"{out}: holds another sweep (the values of memory.block_size changed); --fresh starts over"
    )
    assert kvsim(*other, "--fresh").returncode == 0
    assert pl.read_parquet(out / "sweep.parquet")["memory.block_size"].to_list() == [8]


def test_a_failed_run_is_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    path, out = write_scenario(tmp_path), tmp_path / "out"
    done = kvsim("sweep", path, "--vary", NEVER_ENDS, "--jobs", "1", "--out", out)
    assert done.returncode == 2
    assert "failed" in done.stdout
    assert done.stderr == (
        f"wrote {out}/sweep.parquet and {out}/sweep.png\n"
        f"error: 1 of 2 runs failed\n  engine.latency.base = 100000 h, seed = 3: {path}: simulated times and bytes must "
        "fit in 64 bits: raise the rate, or lower speed-up, latency or sizes\n"
    )
    assert pl.read_parquet(out / "sweep.parquet")["outcome"].to_list() == ["finished", "failed"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_sweep_that_is_stopped_keeps_what_has_ended_and_leaves_no_process(
    tmp_path: Path, number: int, code: int, jobs: str
) -> None:
    """The signal goes to all processes at once, as Ctrl-C on a console does."""
    path, out = write_scenario(tmp_path), tmp_path / "out"
    vary = ("--vary", "workload.num_requests=10,20,30,100000000,100000001")
    process = subprocess.Popen(
        command("sweep", path, *vary, "--jobs", jobs, "--out", out),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(list((out / "runs").glob("*.json"))) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = children_of(process.pid, "loky")
    assert len(workers) == (0 if jobs == "1" else 2)
    os.killpg(process.pid, number)
    said = process.communicate(timeout=30)
    assert said == ("", f"3 of 5 runs are kept in {out}; the same command goes on\n")
    assert process.returncode == code
    assert not [worker for worker in workers if lives(worker)]
    assert sorted(path.name for path in out.rglob("*")) == [
        "00000.json", "00001.json", "00002.json", "runs", "sweep.json",
    ]  # fmt: skip


def lives(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_workers_end_when_the_sweep_is_killed(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    vary = ("--vary", "workload.num_requests=10,100000000,100000001")
    process = subprocess.Popen(
        command("sweep", path, *vary, "--jobs", "2", "--out", tmp_path / "out"),
        env=environment(),
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "out" / "runs").glob("*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = children_of(process.pid, "loky")
    process.kill()
    process.wait()
    while any(lives(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_sweep_has_help() -> None:
    done = kvsim("sweep", "--help")
    assert done.returncode == 0
    assert "Usage: kvsim sweep" in done.stdout
