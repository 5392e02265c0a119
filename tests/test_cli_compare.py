"""kvsim compare: what it prints, where, and how it ends."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.study.makers import TINY_TRACE, write_scenario
from tests.study.sweeps import NEVER_ENDS
from tests.study.test_sweep_workers import children_of
from tests.test_cli import command, environment, kvsim, refused

ALLOCATORS = ("--allocators", "paged:4,paged:8,max,pow2,oracle")


def test_it_prints_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    plot = tmp_path / "deep" / "compare.png"
    done = kvsim("compare", write_scenario(tmp_path), *ALLOCATORS, "--jobs", "1", "--plot", plot)
    assert done.returncode == 0
    assert done.stderr == f"wrote {plot}\n", "no bar where nobody watches"
    assert "On the same traffic and bytes, paged:4 holds " in done.stdout
    for name in ("paged:4", "paged:8", "max", "pow2", "oracle"):
        assert any(line.startswith(f"{name} ") for line in done.stdout.splitlines())
    assert "not an out-of-memory predictor and not a throughput benchmark" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_json_is_alone_on_stdout(tmp_path: Path) -> None:
    done = kvsim("compare", write_scenario(tmp_path), *ALLOCATORS, "--set", "seed=5", "--jobs", "2", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads(done.stdout)
    assert (written["seed"], written["overrides"]) == (5, ["seed=5"])
    assert [run["allocator"] for run in written["runs"]] == ["paged:4", "paged:8", "max", "pow2", "oracle"]
    assert len({json.dumps(run["digests"]) for run in written["runs"]}) == 1
    for run in written["runs"]:
        assert {"live", "tail", "reserved", "unused", "padding"} == set(run["share"])
        assert sum(run["share"].values()) == pytest.approx(1)
        assert run["finished"] == 40
        assert {"external_share", "batched_mean", "refused", "preempted", "waited_p95_ns", "hit_share"} <= set(run)


def test_any_key_may_vary_and_a_trace_be_replayed(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    vary = ("--vary", "memory.block_size=4,8", "--vary", "memory.prefix_sharing=true,false")
    runs = json.loads(kvsim("compare", path, *vary, "--jobs", "1", "--json").stdout)["runs"]
    assert [tuple(run["parameters"].values()) for run in runs] == [(4, True), (4, False), (8, True), (8, False)]
    assert [run["allocator"] for run in runs] == ["paged:4", "paged:4", "paged:8", "paged:8"]


def test_without_a_choice_what_reserves_is_compared_with_paging(tmp_path: Path) -> None:
    study = "\n[study]\nvary = { memory.block_size = [2, 4] }\n"
    path = write_scenario(tmp_path)
    path.write_text(path.read_text() + study)
    runs = json.loads(kvsim("compare", path, "--jobs", "1", "--json").stdout)["runs"]
    assert [run["allocator"] for run in runs] == ["paged:4", "max", "pow2", "oracle"]


def test_a_failed_run_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    path, plot = write_scenario(tmp_path), tmp_path / "compare.svg"
    done = kvsim("compare", path, "--vary", NEVER_ENDS, "--jobs", "1", "--plot", plot)
    assert done.returncode == 2
    assert "9 ms runs " in done.stdout
    assert "failed" in done.stdout
    assert plot.exists()
    assert done.stderr == (
        f"wrote {plot}\nerror: 1 of 2 runs failed\n  engine.latency.base = 100000 h: {path}: simulated times and bytes "
        "must fit in 64 bits: raise the rate, or lower speed-up, latency or sizes\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--allocators", "slab"), "an allocator must be one of paged:B, max[:LEN], pow2[:LEN], oracle, predicted:ERROR, got 'slab'"),
        (("--allocators", "paged:4,paged:4"), "allocators must differ, got paged:4 twice"),
        (("--allocators", ""), "an allocator must be one of paged:B, max[:LEN], pow2[:LEN], oracle, predicted:ERROR, got ''"),
        (("--allocators", "max:128"), "max:128 must be written max here"),
        (("--allocators", "paged:4", "--vary", "memory.block_size=2,4"), "--vary: memory.block_size is varied, and said by the allocator paged:4 as well"),
        (("--vary", "memory"), "--vary: must be key=values such as memory.block_size=1,2,4"),
        (("--vary", "memory.blocks=1,2"), "memory.blocks: unknown key (did you mean block_ids?)"),
        (("--set", "memory"), "--set: must be key=value"),
        (("--jobs", "0"), "jobs must be >= 1, got 0"),
        (("--plot", "compare.gif"), "compare.gif: must end in .png, .svg or .pdf"),
    ],
)  # fmt: skip
def test_what_is_no_comparison_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("compare", write_scenario(tmp_path), *arguments)


def test_compare_has_help() -> None:
    done = kvsim("compare", "--help")
    assert done.returncode == 0
    assert "Usage: kvsim compare" in done.stdout
    for form in ("paged:B", "max", "pow2", "oracle", "predicted:ERROR"):
        assert form in done.stdout


def test_ctrl_c_is_heard_while_all_processes_are_busy(tmp_path: Path) -> None:
    arguments = ("compare", write_scenario(tmp_path), *ALLOCATORS, "--set", "workload.num_requests=100000000")
    process = subprocess.Popen(
        command(*arguments, "--jobs", "2"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(children_of(process.pid, "loky")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(2)  # longer than it takes to begin a run
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == ""
    assert process.returncode == 130
