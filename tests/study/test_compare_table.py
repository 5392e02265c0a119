"""A comparison on a console and as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvsim.study.allocators import KINDS
from kvsim.study.compare import PERIOD, Comparison, compare
from kvsim.study.compare_table import ABOUT, comparison_json, comparison_page
from kvsim.study.sweep_record import FIGURES
from tests.study.comparisons import SAME, make_comparison
from tests.study.makers import write_scenario

PAGED = {"live": 90, "tail": 10, "blank": 100, "batched_mean": 4.5, "pool_used_mean": 0.5, "refused": 3}
MOST = {
    "live": 20,
    "reserved": 30,
    "unused": 50,
    "external": 60,
    "blank": 40,
    "batched_mean": 1.5,
    "external_share": 0.3,
    "pool_used_mean": 0.5,
    "refused": 1234,
    "waited_p50_ns": 2 * 10**9,
    "waited_mean_ns": 10**9,
}


def printed(comparison: Comparison, width: int = 120) -> list[str]:
    console = Console(width=width, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(comparison_page(comparison))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_a_row_a_run_of_what_differs_and_below_it_what_does_not(tmp_path: Path) -> None:
    comparison = make_comparison(tmp_path, "paged:4,max", PAGED, MOST, overrides=("engine.max_waiting=9",))
    lines = printed(comparison)
    assert lines[:2] == ["Which?", "with engine.max_waiting = 9"]
    assert lines[3].startswith(
        "On the same traffic and bytes, paged:4 holds 3.00 times as many requests at once as max"
    )
    rows = [line.split() for line in lines if line.startswith(("allocator", "paged:4 ", "max "))]
    assert rows == [
        ["allocator", "%", "%", "ved", "%", "%", "nal", "%", "batched", "refused", "wait"],
        ["paged:4", "90.00", "10.00", "0", "0", "0", "4.50", "3", "0"],
        ["max", "20.00", "0", "30.00", "50.00", "30.00", "1.50", "1,234", "2", "s"],
    ]
    assert "The same in all: pool 1 GiB, allocated 50.00 %." in lines
    assert (
        "0 in all: padding, cached, rejected, timed out, preempted, recomputed tokens, swapped out, "
        "saved by sharing outputs, prefix hits, 95 % wait, duration." in " ".join(lines)
    )
    assert "Arrivals, lengths and content of the requests were the same in all, by their digests." in lines
    assert "live, tail, reserved, unused: of what is allocated; external: of the pool." in lines
    assert f"paged:B: {ABOUT['paged']}; max: {ABOUT['max']}." in lines
    assert "not an out-of-memory predictor and not a throughput benchmark" in " ".join(lines[-2:])


def test_a_narrow_console_gets_memory_and_requests_apart(tmp_path: Path) -> None:
    times = ("waited_p50_ns", "waited_p95_ns", "duration_ns")
    shares = ("pool_used_mean", "external_share", "hit_share")
    everything = dict.fromkeys(FIGURES, 234_567) | dict.fromkeys(shares, 0.1234) | dict.fromkeys(times, 99 * 10**9)
    everything |= {"batched_mean": 123.4} | dict.fromkeys(
        ("recomputed_tokens", "swapped_out_bytes", "sample_saved_share"), 1
    )
    parts = dict.fromkeys(("live", "tail", "reserved", "unused", "padding", "external", "cached", "blank"), 7)
    runs = [everything | parts, dict.fromkeys(FIGURES, 1) | {"live": 1}]
    for keys, width in (("memory.placement=buddy", 106), ("memory.prefix_cache_retention=boundaries", 120)):
        comparison = make_comparison(tmp_path, "predicted:0.123456,max", *runs, vary=keys)
        lines = printed(comparison, width)
        assert max(map(len, lines)) <= width
        rows = [line for line in lines if line.startswith("predicted:0.123456 ")]
        assert len(rows) == 2
        assert not any("…" in line for line in lines)
        wide = [line for line in printed(comparison, 300) if line.startswith("predicted:0.123456 ")]
        assert len(wide) == 1, "all in one table"


def test_keys_that_vary_are_columns_without_their_table(tmp_path: Path) -> None:
    vary = ["memory.placement=buddy,best_fit", "workload.prompt.min=1", "workload.output.min=1"]
    comparison = make_comparison(tmp_path, "max", PAGED, MOST, vary=vary)
    heading = next(line for line in printed(comparison, 200) if line.startswith("allocator"))
    assert heading.split()[:4] == ["allocator", "placement", "workload.prompt.min", "workload.output.min"]


def test_a_failed_run_is_told_and_the_only_other_one_shown_whole(tmp_path: Path) -> None:
    lines = printed(make_comparison(tmp_path, "paged:4,max", {}, MOST))
    assert lines[2] == "max runs 1.50 requests at once; 0.00% of what is allocated is live."
    rows = [line.split() for line in lines[3:] if line.startswith(("paged:4 ", "max "))]
    assert rows[0] == ["paged:4", "failed"]
    assert rows[1][:5] == ["max", "1", "GiB", "50.00", "20.00"]
    assert not any("by their digests" in line for line in lines)


def test_all_runs_may_have_failed(tmp_path: Path) -> None:
    lines = printed(make_comparison(tmp_path, "paged:4,max", {}, {}))
    assert "No request ran in any run." in lines
    assert [line.split() for line in lines if line.startswith(("paged:4 ", "max "))] == [
        ["paged:4", "failed"],
        ["max", "failed"],
    ]
    comparison_json(make_comparison(tmp_path, "paged:4,max", {}, {}))


def test_traffic_that_differs_is_a_note_that_says_why(tmp_path: Path) -> None:
    other = MOST | {"digests": SAME | {"arrivals": "z"}}
    text = " ".join(printed(make_comparison(tmp_path, "paged:4,max", PAGED, other)))
    assert "Note: arrivals differ between rows: in this workload requests follow the end of others" in text
    vary = "workload.rate=50,100"
    text = " ".join(printed(make_comparison(tmp_path, "max", PAGED, other, vary=vary)))
    assert "Note: arrivals differ between rows, as workload.rate varies." in text


def test_stops_and_notes_are_said(tmp_path: Path) -> None:
    stalled = MOST | {"outcome": "stalled", "error": "request 7 can never run"}
    comparison = make_comparison(tmp_path, "paged:4,max", PAGED, stalled, notes=tuple(f"note {n}" for n in range(12)))
    lines = printed(comparison)
    assert "Stopped: max: request 7 can never run" in lines
    notes = [line for line in lines if line.startswith("Note: ")]
    assert notes == [*(f"Note: note {n}" for n in range(10)), "Note: and 2 notes more."]


def test_every_allocator_is_explained() -> None:
    assert set(ABOUT) == set(KINDS)


def test_json_has_all_runs_and_what_follows_from_them(tmp_path: Path) -> None:
    comparison = make_comparison(tmp_path, "paged:4,max,oracle", PAGED | {"requests": 6}, MOST, {})
    written = json.loads(json.dumps(comparison_json(comparison), allow_nan=False))
    assert list(written) == [
        "question", "overrides", "seed", "vary", "period", "same_traffic", "answer", "runs", "notes", "claim",
    ]  # fmt: skip
    assert (written["seed"], written["vary"], written["period"]) == (3, {}, PERIOD)
    assert written["same_traffic"] == {"arrivals": True, "lengths": True, "content": True}
    paged, most, failed = written["runs"]
    assert [run["allocator"] for run in written["runs"]] == ["paged:4", "max", "oracle"]
    assert paged["share"] == {"live": 0.9, "tail": 0.1, "reserved": 0, "unused": 0, "padding": 0}
    assert most["share"] == {"live": 0.2, "tail": 0, "reserved": 0.3, "unused": 0.5, "padding": 0}
    assert most["pool_share"] == {
        "live": 0.1, "tail": 0, "reserved": 0.15, "unused": 0.25, "padding": 0, "external": 0.3, "cached": 0,
        "blank": 0.2,
    }  # fmt: skip
    assert (most["batched_mean"], most["refused"], most["preempted"], most["external_share"]) == (1.5, 1234, 0, 0.3)
    assert (paged["refused_share"], paged["digests"]) == (0.5, SAME)
    assert (failed["outcome"], failed["error"], failed["share"]["live"], failed["refused"]) == (
        "failed", "it broke", None, None,
    )  # fmt: skip
    assert set(FIGURES) <= set(paged)


@pytest.mark.parametrize("vary", [None, "memory.placement=buddy,best_fit"])
def test_a_run_comparison_is_printed_and_written(vary: Any, tmp_path: Path) -> None:
    comparison = compare(write_scenario(tmp_path), "paged:4,max,oracle", vary, jobs=1)
    json.dumps(comparison_json(comparison), allow_nan=False)
    lines = printed(comparison, 80)
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("oracle ") for line in lines) >= 1


def test_what_is_swapped_and_computed_again_has_columns(tmp_path: Path) -> None:
    runs = [{"swapped_out_bytes": 2**30, "recomputed_tokens": 0}, {"swapped_out_bytes": 0, "recomputed_tokens": 1234}]
    lines = printed(make_comparison(tmp_path, "paged:4,max", *(PAGED | run for run in runs)), 200)
    rows = {line.split()[0]: line for line in lines if line.startswith(("paged:4 ", "max "))}
    assert "1 GiB" in rows["paged:4"]
    assert "1,234" in rows["max"]


def test_of_several_outputs_what_they_share_is_said(tmp_path: Path) -> None:
    runs = [PAGED | {"sample_saved_share": share} for share in (0.0968, 0.0)]
    text = " ".join(printed(make_comparison(tmp_path, "paged:4,paged:8", *runs), 200))
    assert (
        "paged:4 saves most of the blocks that outputs of one prompt would take without sharing, 9.68%, and paged:8 "
        "least, 0.00%." in text
    )
