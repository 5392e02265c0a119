"""A sweep on a console and as JSON."""

import json

from rich.console import Console

from kvsim.study.sweep_result import Sweep
from kvsim.study.sweep_table import sweep_json, sweep_page
from tests.study.sweeps import make_sweep


def printed(sweep: Sweep, width: int = 120) -> list[str]:
    console = Console(width=width, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(sweep_page(sweep))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_row_a_combination_with_mean_and_spread() -> None:
    runs = [
        {"slack_share": 0.01, "refused": 1, "waited_mean_ns": 2_000_000},
        {"slack_share": 0.03, "refused": 4, "waited_mean_ns": 2_000_000},
        {"slack_share": 0.5, "refused": 0},
        {"slack_share": 0.5, "refused": 0},
    ]
    lines = printed(make_sweep({"memory.block_size": [16, 128]}, *runs, seeds=2))
    assert lines[0] == "Which?"
    assert lines[1] == "over memory.block_size, 2 seeds"
    assert [" ".join(line.split()) for line in lines[3:9]] == [
        "pool mean",
        "block_size slack hits used refused wait",
        "16 2.00% 0.00% 0.00% 2.5 2 ms",
        "±1.41% ±0.00% ±0.00% ±2.1 ±0 ns",
        "128 50.00% 0.00% 0.00% 0 0 ns",
        "±0.00% ±0.00% ±0.00% ±0 ±0 ns",
    ]
    assert "Mean ± standard deviation over 2 seeds." in lines
    assert "0 in all runs: rejected, timed out, preemptions." in lines


def test_one_seed_has_no_spread_and_failed_runs_are_told() -> None:
    lines = printed(make_sweep({"a.b": ["x", "y"]}, {"slack_share": 0.01}, {}))
    assert lines[5].split() == ["x", "1.00%", "0.00%", "0.00%", "0", "ns"]
    assert lines[6].split() == ["y", "failed"]
    assert not any("standard deviation" in line for line in lines)


def test_keys_that_end_alike_are_written_out() -> None:
    lines = printed(make_sweep({"workload.prompt.min": [1], "workload.output.min": [2000]}, {"steps": 1}))
    assert lines[4].split()[:2] == ["workload.prompt.min", "workload.output.min"]
    assert lines[5].split()[:2] == ["1", "2,000"]


def test_all_columns_with_spreads_fit_80_characters() -> None:
    troubled = {"rejected": 24, "timed_out": 7, "refused": 52, "preemptions": 24, "waited_mean_ns": 457_600_000}
    shares = {"slack_share": 0.2547, "hit_share": 0.2547, "pool_used_mean": 0.7453}
    vary = {"memory.block_size": [16, 128], "workload.rate": [2]}
    sweep = make_sweep(vary, *([troubled | shares] * 4), seeds=2, overrides=("memory.watermark=0.1",))
    lines = printed(sweep, width=80)
    assert lines[1:3] == ["with memory.watermark = 0.1", "over memory.block_size, workload.rate, 2 seeds"]
    assert lines[6].split() == ["16", "2", *["25.47%"] * 2, "74.53%", "24", "7", "52", "24", "457.6", "ms"]


def test_what_is_best_and_what_to_know_is_said() -> None:
    runs = [{"refused": 1}, {"refused": 0}]
    lines = printed(make_sweep({"a.b": [1, 2]}, *runs, notes=tuple(f"note {n}" for n in range(12))), width=300)
    assert any(line.startswith("Best a.b is 2, with the fewest requests lost") for line in lines)
    notes = [line for line in lines if line.startswith("Note: ")]
    assert notes == [*(f"Note: note {n}" for n in range(10)), "Note: and 2 notes more."]
    assert "not an out-of-memory predictor and not a throughput benchmark" in lines[-1]


def test_json_has_all_runs_and_what_follows_from_them() -> None:
    sweep = make_sweep({"a.b": [1, 2]}, {"refused": 1}, {"refused": 3}, {"refused": 0}, {}, seeds=2)
    written = json.loads(json.dumps(sweep_json(sweep), allow_nan=False))
    assert set(written) == {"question", "overrides", "vary", "seeds", "runs", "combinations", "best", "notes", "claim"}
    assert (written["vary"], written["seeds"]) == ({"a.b": [1, 2]}, 2)
    assert [(run["a.b"], run["seed"], run["outcome"], run["refused"]) for run in written["runs"]] == [
        (1, 1, "finished", 1),
        (1, 2, "finished", 3),
        (2, 1, "finished", 0),
        (2, 2, "failed", None),
    ]
    assert [combination["mean"]["refused"] for combination in written["combinations"]] == [2.0, 0.0]
    assert [combination["spread"]["refused"] for combination in written["combinations"]] == [2**0.5, None]
    assert [one["parameters"] for one in written["best"]] == [{"a.b": 2}]
