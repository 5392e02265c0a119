"""sweep: a scenario and what varies in, one table out, whoever ran it and however often it was stopped."""

import random
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import kvsim
from kvsim.errors import KvsimError, OutputError, ScenarioError, TraceError
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.study.sweep import sweep
from kvsim.study.sweep_record import FIGURES
from tests.study.makers import TINY, TINY_TRACE, write_scenario
from tests.study.sweeps import NEVER_ENDS
from tests.test_cli import command, environment

VARY = {"memory.block_size": [2, 4], "workload.rate": "50:100:50"}


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_table_has_a_row_a_run_in_the_order_of_the_parameters(tmp_path: Path) -> None:
    table = sweep(write_scenario(tmp_path), VARY, seeds=2, jobs=1).table
    assert table.columns == ["memory.block_size", "workload.rate", "seed", "outcome", "error", *FIGURES]
    rows = table.select("memory.block_size", "workload.rate", "seed").rows()
    assert rows == [(size, rate, seed) for size in (2, 4) for rate in (50, 100) for seed in (3, 4)]
    assert set(table["outcome"]) == {"finished"}


def test_a_row_has_the_figures_of_its_run(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    last = sweep(path, VARY, overrides=["memory.num_blocks=20"], seeds=2, jobs=1).table.row(-1, named=True)
    alone = simulate(load_scenario(path, ("memory.num_blocks=20", "workload.rate=100", "seed=4"))).metrics
    assert {name: last[name] for name in alone} == alone


def test_columns_of_parameters_have_their_types(tmp_path: Path) -> None:
    vary = {
        "memory.block_size": [2, 4],
        "workload.rate": [50, 99.5],
        "memory.prefix_sharing": [True, False],
        "memory.prefix_cache_retention": ["all"],
        "workload.prompt": [{"kind": "fixed", "value": 3}],
        "engine.max_waiting": [3],
    }
    table = sweep(write_scenario(tmp_path), vary, jobs=1).table
    types = [pl.Int64, pl.Float64, pl.Boolean, pl.String, pl.String, pl.Int64]
    assert table.dtypes[: len(types)] == types
    assert table["workload.prompt"][0] == '{ kind = "fixed", value = 3 }'


def test_the_result_is_the_same_whoever_runs_it(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    for jobs in (1, 2, 3):
        sweep(path, VARY, seeds=3, jobs=jobs, out=tmp_path / f"by{jobs}")
    for name in ("sweep.parquet", "sweep.png", "sweep.json"):
        first, *others = [(tmp_path / f"by{jobs}" / name).read_bytes() for jobs in (1, 2, 3)]
        assert others == [first, first], name
    assert files(tmp_path / "by1") == [
        "runs", *(f"runs/{number:05}.json" for number in range(12)), "sweep.json", "sweep.parquet", "sweep.png",
    ]  # fmt: skip


def test_a_folder_is_not_needed(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    before = files(tmp_path)
    kept = sweep(path, VARY, jobs=2).table
    assert files(tmp_path) == before
    assert sweep(path, VARY, jobs=1, out=tmp_path / "out").table.equals(kept)
    assert pl.read_parquet(tmp_path / "out" / "sweep.parquet").equals(kept)


def test_what_was_kept_is_not_run_again(tmp_path: Path) -> None:
    path, out = write_scenario(tmp_path), tmp_path / "out"
    first = sweep(path, VARY, jobs=1, out=out)
    written = (out / "sweep.parquet").read_bytes()
    (out / "runs" / "00001.json").write_text("half a reco")
    (out / "runs" / "00002.json").unlink()
    (out / "sweep.parquet").unlink()
    told: list[tuple[int, int]] = []
    again = sweep(path, VARY, jobs=1, out=out, on_progress=lambda done, total: told.append((done, total)))
    assert told == [(2, 4), (3, 4), (4, 4)]
    assert (first.num_kept, again.num_kept) == (0, 2)
    assert (out / "sweep.parquet").read_bytes() == written


def test_another_sweep_does_not_go_on_in_the_folder_unless_it_starts_over(tmp_path: Path) -> None:
    path, out = write_scenario(tmp_path), tmp_path / "out"
    sweep(path, VARY, jobs=1, out=out)
    before = files(out)
    with pytest.raises(OutputError, match=r"holds another sweep \(seeds was 1 and is 2\); --fresh starts over"):
        sweep(path, VARY, jobs=1, seeds=2, out=out)
    path.write_text(TINY + "# a word\n")
    with pytest.raises(OutputError, match=r"the text of the scenario is another"):
        sweep(path, VARY, jobs=1, out=out)
    assert files(out) == before
    fresh = sweep(path, {"memory.block_size": [8]}, jobs=1, out=out, fresh=True)
    assert (fresh.num_kept, fresh.table.height) == (0, 1)
    assert files(out) == ["runs", "runs/00000.json", "sweep.json", "sweep.parquet", "sweep.png"]


def test_a_run_that_fails_is_a_row_that_says_why_and_is_tried_again(tmp_path: Path) -> None:
    path, out = write_scenario(tmp_path), tmp_path / "out"
    failed = sweep(path, [NEVER_ENDS], jobs=2, seeds=2, out=out)
    assert failed.table["outcome"].to_list() == ["finished", "finished", "failed", "failed"]
    assert failed.table["slack_share"].null_count() == 2
    sentence = "simulated times and bytes must fit in 64 bits: raise the rate, or lower speed-up, latency or sizes"
    assert failed.failures == [f"engine.latency.base = 100000 h, seed = {seed}: {path}: {sentence}" for seed in (3, 4)]
    assert failed.combinations[1].mean("slack_share") is None
    assert pl.read_parquet(out / "sweep.parquet").equals(failed.table)
    assert sweep(path, [NEVER_ENDS], jobs=1, seeds=2, out=out).num_kept == 2


def test_a_stalled_run_has_its_figures(tmp_path: Path) -> None:
    stalled = sweep(
        write_scenario(tmp_path), {"memory.num_blocks": [6, 33]}, overrides=["engine.reject_unservable=false"], jobs=1
    )
    assert stalled.table["outcome"].to_list() == ["stalled", "finished"]
    assert stalled.table["error"][0].startswith("request ")
    assert stalled.table["unfinished"][0]
    assert stalled.failures == []


def test_combinations_have_mean_and_spread_over_their_seeds(tmp_path: Path) -> None:
    swept = sweep(write_scenario(tmp_path), VARY, seeds=3, jobs=1)
    second = swept.combinations[1]
    assert second.parameters == {"memory.block_size": 2, "workload.rate": 100}
    assert second.rows["seed"].to_list() == [3, 4, 5]
    shares = second.rows["slack_share"].to_list()
    mean = sum(shares) / 3
    assert second.mean("slack_share") == pytest.approx(mean)
    assert second.spread("slack_share") == pytest.approx((sum((share - mean) ** 2 for share in shares) / 2) ** 0.5)
    assert sweep(write_scenario(tmp_path), VARY, jobs=1).combinations[0].spread("slack_share") is None


def test_seeds_alone_are_one_combination(tmp_path: Path) -> None:
    swept = sweep(write_scenario(tmp_path), seeds=3, jobs=1, out=tmp_path / "out")
    assert [combination.parameters for combination in swept.combinations] == [{}]
    assert swept.table["seed"].to_list() == [3, 4, 5]


def test_a_trace_is_replayed_as_by_a_single_run(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    swept = sweep(path, {"memory.block_size": [4, 8], "workload.speedup": [1, 3.5], "workload.limit": [2, 3]}, jobs=2)
    for size, speedup, limit in ((4, 1, 3), (8, 3.5, 2)):
        chosen = (f"memory.block_size={size}", f"workload.speedup={speedup}", f"workload.limit={limit}")
        row = swept.table.filter(
            (pl.col("memory.block_size") == size)
            & (pl.col("workload.speedup") == speedup)
            & (pl.col("workload.limit") == limit)
        ).row(0, named=True)
        alone = simulate(load_scenario(path, chosen)).metrics
        assert {name: row[name] for name in alone} == alone
    assert swept.notes == tuple(f"{note} (all runs)" for note in simulate(load_scenario(path)).notes)


def test_a_bad_trace_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    with (tmp_path / "trace.csv").open("a") as trace:
        trace.write("\r\nnever,1,1\r\n")
    with pytest.raises(TraceError, match=r"trace\.csv:5: TIMESTAMP must look like"):
        sweep(path, {"memory.block_size": [4, 8]}, jobs=2, out=tmp_path / "out" / "deep")
    assert not (tmp_path / "out").exists()


def test_problems_leave_nothing_behind(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    before = files(tmp_path)
    with pytest.raises(ScenarioError, match="2 problems"):
        sweep(path, {"memory.block_size": [0, 4], "workload.rate": [0, 1]}, out=tmp_path / "out")
    for options, message in (
        ({"jobs": 0}, "jobs must be >= 1, got 0"),
        ({"jobs": 2, "dask": "tcp://127.0.0.1:1"}, "jobs and dask contradict each other"),
        ({"dask": "nobody"}, "Dask"),
    ):
        with pytest.raises(KvsimError, match=message):
            sweep(path, VARY, out=tmp_path / "out", **options)  # type: ignore[arg-type]  # of several types
    assert files(tmp_path) == before


def test_a_script_without_a_main_guard_may_sweep(tmp_path: Path) -> None:
    write_scenario(tmp_path)
    (tmp_path / "script.py").write_text(
        "from kvsim import sweep\n"
        "swept = sweep('scenario.toml', {'memory.block_size': [2, 4]}, jobs=2)\n"
        "print(swept.table['block_size_tokens'].to_list())\n"
    )
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[2, 4]\n", "")


def test_the_public_sweep_is_this_one() -> None:
    assert kvsim.sweep is sweep


def test_a_sweep_killed_at_any_moment_goes_on_to_the_same_table(tmp_path: Path) -> None:
    """Ten times, some milliseconds after it began or after it has kept some more runs; then to the end."""
    path, out = write_scenario(tmp_path, TINY_TRACE), tmp_path / "out"
    rows = "".join(f"2023-11-16 18:00:{second:02}.{part},{second + 1},9\n" for second in range(60) for part in range(5))
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    vary = "memory.block_size=1:60:1"
    moments = random.Random(5)
    for _ in range(10):
        kept, staging = runs_in(out), set(out.glob(".kvsim-*"))
        enough = kept + moments.choice((0, 1, 2, 3, 5))
        sweeping = command("sweep", path, "--vary", vary, "--jobs", moments.choice("12"), "--out", out)
        process = subprocess.Popen(sweeping, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while runs_in(out) < enough or not set(out.glob(".kvsim-*")) - staging:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.wait()
    kept = runs_in(out)
    assert 10 < kept < 60
    resumed = sweep(path, [vary], jobs=2, out=out)
    assert resumed.num_kept == kept
    sweep(path, [vary], jobs=1, out=tmp_path / "undisturbed")
    assert files(out) == files(tmp_path / "undisturbed")
    for name in files(out):
        if name != "runs":
            assert (out / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes(), name


def runs_in(folder: Path) -> int:
    return len(list((folder / "runs").glob("*.json")))
