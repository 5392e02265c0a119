"""What changed between two runs, as it is printed."""

from io import StringIO

import pytest
from rich.console import Console

from kvsim.engine.results import CLAIM, Results
from kvsim.study.diff import differences
from kvsim.study.diff_effects import ORDER
from kvsim.study.diff_explained import EXPLAINED, Explained
from kvsim.study.diff_table import differences_page
from tests.study.outcomes import DESCRIPTION, TIMELINE, make_quiet_results, make_results, request

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
        "prompt tokens found cached",
        "waiting time of all requests",
        "steps holding back the queue",
    ]
    at = [next(i for i, line in enumerate(lines) if line.startswith(f"  {whole} ")) for whole in wholes]
    assert at == sorted(at), "what became of requests first"
    assert cells(lines, "requests refused by memory")[1:] == [
        "0", "1", "+1", "made to wait at least once; each request for what refused it most often",
    ]  # fmt: skip
    assert cells(lines, "of all requests")[1:] == ["0.00%", "50.00%", "+50.00 points"]
    assert cells(lines, "blocks") == ["blocks", "0", "1", "+1", "too few blocks free"]
    assert cells(lines, "prompt tokens found cached")[1:4] == ["0", "64", "+64"]
    assert cells(lines, "of prompt tokens")[1:4] == ["0.00%", "32.00%", "+32.00 points"]
    assert cells(lines, "not found") == ["not found", "-200", "-136", "+64", "less what the prefix cache did not have"]
    queued = cells(lines, "waiting time of all requests")
    assert queued[1:5] == ["20 ns", "50 ns", "+30 ns", "+150.0%"]
    assert cells(lines, "refusals")[-1] == "times: memory said no to the head of the queue", "what is counted"


def test_the_order_is_said_in_a_line() -> None:
    assert page(QUIET, make_results(), width=200).count(ORDER) == 1


def test_what_hardly_changed_and_peaks_stand_below() -> None:
    timeline = TIMELINE | {
        "live_bytes": [0, 300, 500, 0],
        "slack_bytes": [0, 100, 300, 0],
        "tail_bytes": [0, 30, 300, 0],
        "logical_bytes": [0, 300, 800, 0],
    }
    lines = page(make_results(), make_results(timeline=timeline))
    heads = ["What changed, by cause", "Hardly changed in all", "Peaks", "Other figures"]
    at = [next(i for i, line in enumerate(lines) if line.startswith(head)) for head in heads]
    assert at == sorted(at)
    titles = [line.split("  ")[1] for line in lines[at[0] : at[3]] if line.startswith("  ") and line[2] != " "]
    assert titles == [
        "slack on average",
        "live memory on average",
        "allocated memory on average",
        "what the pool consists of",
        "allocated memory at its peak",
    ]


def test_other_figures_that_hardly_changed_are_only_named() -> None:
    timeline = TIMELINE | {"cached_bytes": [0, 0, 400, 803], "blank_bytes": [4000, 3600, 2800, 3197]}
    lines = page(make_results(), make_results(timeline=timeline))
    assert "Other figures that changed by less than 1%: cached_peak_bytes." in lines
    assert not any(line.startswith("Other figures  ") for line in lines)


def test_figures_that_are_parts_are_not_said_again() -> None:
    lines = page(QUIET, make_results())
    others = lines[next(i for i, line in enumerate(lines) if line.startswith("Other figures")) + 1 :]
    names = [line.split()[0] for line in others[: others.index("")]]
    assert names == [
        "refusals",
        "waited_p99_ns",
        "waited_max_ns",
        "waited_p95_ns",
        "waited_mean_ns",
        "waited_p50_ns",
        "waiting_mean",
    ]


def test_on_a_narrow_console_meanings_stand_below_once_and_names_are_whole() -> None:
    lines = page(QUIET, make_results(), width=80)
    assert all(len(line) <= 80 for line in lines)
    assert cells(lines, "blocks") == ["blocks", "0", "1", "+1"]
    at = next(i for i, line in enumerate(lines) if line.startswith("    blocks  "))
    assert lines[at + 1] == "      too few blocks free"
    assert lines.count("      too few blocks free") == 1, "of three figures by the same causes"
    assert "    arrival to first admission" in lines
    for name in ("waited_mean_ns", "waiting time of all requests", "steps holding back the queue"):
        assert cells(lines, name)[0] == name


def test_a_name_without_room_has_a_line_of_its_own() -> None:
    lines = page(QUIET, make_results(), width=50)
    at = lines.index("  requests refused by memory")
    assert lines[at + 1].split() == ["0", "1", "+1"]


@pytest.mark.parametrize("one", EXPLAINED)
def test_titles_leave_room_for_figures_in_80_columns(one: Explained) -> None:
    assert len(one.title) <= 29


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
        "files": {"traces/a-trace-with-a-long-name.jsonl": {"bytes": 5, "sha256": "d4e5f6" * 10}},
        "pool": {"num_blocks": 12, "block_bytes": 400},
    }
    lines = page(QUIET, make_quiet_results(description=other))
    assert cells(lines, "question") == ["question", "Which?", "[red]Which?"]
    assert cells(lines, "pool.num_blocks") == ["pool.num_blocks", "11", "12"]
    narrow = page(QUIET, make_quiet_results(description=other), width=80)
    file = narrow[narrow.index("Files") + 1]
    assert file == "  file traces/a-trace-with-a-long-name.jsonl not used -> SHA-256 d4e5f6, 5 B"
    heads = [line.split("  ")[0] for line in lines if line.startswith("What ")]
    assert heads[1:] == ["What was put in", "What follows from it"]


def test_what_a_reader_should_know() -> None:
    arrived = make_results(requests=(request(),), pressure=(), notes=("mind this",), stalled="request 1 blocks")
    lines = page(QUIET, arrived)
    assert "Note (after): mind this" in lines
    assert "Stopped (after): request 1 blocks" in lines
    assert "* does not depend on step times; all else does." in lines
    assert cells(lines, "requests that arrived*")[1:5] == ["2", "1", "-1", "-50.0%"]
    assert "The arrivals and lengths of the requests differ" in " ".join(lines[:6]), "said with the answer"
    assert any(
        line.startswith("The same in both: requests lost, requests refused by memory, preemptions,") for line in lines
    )


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_any_width_does(width: int) -> None:
    assert all(len(line) <= width for line in page(QUIET, make_results(), width=width))
