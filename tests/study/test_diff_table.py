"""What changed between two runs, as it is printed."""

from io import StringIO

import pytest
from rich.console import Console

from kvsim.engine.results import CLAIM, Results
from kvsim.study.diff import differences
from kvsim.study.diff_table import differences_page
from tests.study.outcomes import DESCRIPTION, make_quiet_results, make_results, request

QUIET = make_quiet_results()


def page(before: Results, after: Results, width: int = 150) -> list[str]:
    console = Console(file=StringIO(), width=width, highlight=False, markup=False)
    console.print(differences_page(differences(before, after), "out/one", "out/[bold]two"))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def cells(lines: list[str], name: str) -> list[str]:
    """Of the first row with this name, what stands more than a space apart."""
    row = next(line for line in lines if line.strip().startswith(f"{name}  "))
    return [cell.strip() for cell in row.split("  ") if cell.strip()]


def test_causes_stand_under_what_they_explain_with_units_and_meaning() -> None:
    lines = page(QUIET, make_results(), width=200)
    assert lines[:2] == ["before: out/one", "after:  out/[bold]two"]
    wholes = [
        "requests refused by memory",
        "prompt tokens of admitted requests",
        "time in the queue of all requests together",
    ]
    at = [next(i for i, line in enumerate(lines) if line.startswith(f"  {whole} ")) for whole in wholes]
    assert at == sorted(at), "largest cause first"
    assert cells(lines, "requests refused by memory") == [
        "requests refused by memory", "0 requests", "1 request", "+1",
        "largest cause: 50.00% of the requests; each request for what refused it most often",
    ]  # fmt: skip
    assert cells(lines, "blocks") == ["blocks", "0", "1", "+1", "too few blocks free"]
    assert cells(lines, "prompt tokens of admitted requests")[1:4] == ["200 tokens", "200 tokens", "0"]
    assert cells(lines, "not hit") == ["not hit", "200", "136", "-64", "not found there"]
    queued = cells(lines, "time in the queue of all requests together")
    assert queued[1:5] == ["20 ns", "50 ns", "+30 ns", "+150.0%"]
    assert cells(lines, "hit_share")[1:4] == ["0.00%", "32.00%", "+32.00 points"]


def test_figures_that_are_parts_are_not_said_again() -> None:
    lines = page(QUIET, make_results())
    others = lines[next(i for i, line in enumerate(lines) if line.startswith("Other figures")) + 1 :]
    names = [line.split()[0] for line in others[: others.index("")]]
    assert names == [
        "refusals",
        "hit_share",
        "waited_p99_ns",
        "waited_max_ns",
        "waited_p95_ns",
        "waited_mean_ns",
        "waited_p50_ns",
        "waiting_mean",
    ]


def test_a_narrow_console_leaves_meanings_out() -> None:
    lines = page(QUIET, make_results(), width=80)
    assert all(len(line) <= 80 for line in lines)
    assert "too few blocks free" not in "\n".join(lines)
    assert cells(lines, "blocks") == ["blocks", "0", "1", "+1"]


def test_equal_runs_are_a_sentence() -> None:
    lines = page(QUIET, QUIET)
    assert [line for line in lines if line] == [
        "before: out/one",
        "after:  out/[bold]two",
        "The two runs are equal: the same was put in, and all figures and all rows are the same.",
        CLAIM,
    ]


def test_what_was_put_in_and_what_follows() -> None:
    other = DESCRIPTION | {
        "scenario": {**DESCRIPTION["scenario"], "question": "[red]Which?"},
        "pool": {"num_blocks": 12, "block_bytes": 400},
    }
    lines = page(QUIET, make_quiet_results(description=other))
    assert cells(lines, "question") == ["question", "Which?", "[red]Which?"]
    assert cells(lines, "pool.num_blocks") == ["pool.num_blocks", "11", "12"]
    heads = [line.split("  ")[0] for line in lines if line.startswith("What ")]
    assert heads[1:] == ["What was put in", "What follows from it"]


def test_what_a_reader_should_know() -> None:
    arrived = make_results(requests=(request(),), pressure=(), notes=("mind this",), stalled="request 1 blocks")
    lines = page(QUIET, arrived)
    assert "Note (after): mind this" in lines
    assert "Stopped (after): request 1 blocks" in lines
    assert "* does not depend on step times; all else does." in lines
    assert cells(lines, "requests that arrived*")[1:5] == ["2 requests", "1 request", "-1", "-50.0%"]
    assert any(line.startswith("The arrivals and lengths of the requests differ") for line in lines)
    assert any(line.startswith("The same in both: allocated memory on average,") for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_any_width_does(width: int) -> None:
    assert all(len(line) <= width for line in page(QUIET, make_results(), width=width))
