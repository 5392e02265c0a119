"""kvsim waste: what it prints and refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.test_cli import kvsim, refused

NAMES = ("paged:16", "max:2048", "pow2:2048", "oracle")
TEXT = "in,out\n3,9\n100,28\n2000,5\n500,3\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "plain.csv"
    path.write_text(TEXT)
    return path


COLUMNS = ("--columns", "prompt=in,output=out")


def figures(*arguments: str | Path) -> Any:
    done = kvsim("waste", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_the_json_of_a_public_trace(shared: Path) -> None:
    path = shared / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
    bounds = ("--min-prompt", "4", "--max-prompt", "1024", "--min-output", "4", "--max-total", "2048")
    found = figures(path, "--allocators", ",".join(NAMES), *bounds)
    assert (found["kept"], found["live_token_steps"]) == (9_832, 1_143_606_666)
    shares = ("live_share", "reserved_share", "unused_share", "tail_share")
    printed = [(row["allocator"], *(f"{row[share]:.6f}" for share in shares)) for row in found["rows"]]
    assert printed == [
        ("paged:16", "0.989941", "0.000000", "0.000000", "0.010059"),
        ("max:2048", "0.360174", "0.062624", "0.577203", "0.000000"),
        ("pow2:2048", "0.774016", "0.134579", "0.091405", "0.000000"),
        ("oracle", "0.851882", "0.148118", "0.000000", "0.000000"),
    ]
    assert found["rows"][0]["allocated_token_steps"] == 1_155_226_912
    assert figures(path) == found | {"rows": [row | {"allocator": name} for row, name in zip(found["rows"], ("paged:16", "max", "pow2", "oracle"), strict=True)]}, "as by default"  # fmt: skip


def test_the_json_of_a_small_trace(trace: Path) -> None:
    live = sum(100 + step for step in range(1, 29))
    assert figures(trace, *COLUMNS, "--allocators", "max:200") == {
        "format": "columns",
        "rows_read": 4,
        "kept": 1,
        "left_out": {"min_prompt": 1, "max_prompt": 1, "min_output": 1, "max_total": 0},
        "bounds": {"min_prompt": 4, "max_prompt": 1024, "min_output": 4, "max_total": 2048},
        "first_turns": False,
        "live_token_steps": live,
        "rows": [
            {
                "allocator": "max:200",
                "allocated_token_steps": 28 * 200,
                "live_share": live / (28 * 200),
                "reserved_share": (28 * 128 - live) / (28 * 200),
                "unused_share": 28 * 72 / (28 * 200),
                "tail_share": 0.0,
                "live_token_steps": live,
                "reserved_token_steps": 28 * 128 - live,
                "unused_token_steps": 28 * 72,
                "tail_token_steps": 0,
            }
        ],
    }


def test_it_prints_a_page_and_draws_a_picture(trace: Path, tmp_path: Path) -> None:
    plot = tmp_path / "deep" / "waste.png"
    done = kvsim("waste", trace, *COLUMNS, "--plot", plot)
    assert (done.returncode, done.stderr) == (0, "")
    assert "plain.csv: 1 of 4 requests" in done.stdout
    assert "Left out: 1 with fewer than 4 prompt tokens, 1 with more than 1,024 prompt tokens, 1 with fewer than 4 output" in done.stdout  # fmt: skip
    assert "the same memory holds" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_bad_rows_may_be_passed_over(trace: Path) -> None:
    trace.write_text(TEXT + "many,9\n")
    assert refused("waste", trace, *COLUMNS).startswith(f"{trace}:6: in must be a whole number from 0 to 1,000,000,000")
    done = kvsim("waste", trace, *COLUMNS, "--on-bad-row", "skip", "--json")
    assert done.stderr == f"passed over 1 bad rows of {trace}\n"
    assert json.loads(done.stdout)["rows_read"] == 4


def test_only_so_many_rows_may_be_read(trace: Path) -> None:
    assert figures(trace, *COLUMNS, "--limit", "2")["rows_read"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--allocators", "buddy"), "an allocator must be one of paged:B, max[:LEN], pow2[:LEN], oracle, predicted:ERROR, got 'buddy'"),
        (("--allocators", "max,paged:8,paged:8"), "allocators must differ, got paged:8 twice"),
        (("--allocators", "paged:0"), "the block size B of paged:B must be a whole number of tokens from 1 to 1,000,000,000, got '0'"),
        (("--allocators", "max:127"), "max:127 holds requests of at most 127 tokens, got one of 128; --max-total 127 leaves longer ones out"),
        (("--max-total", "127"), "PATH: none of its 4 requests is kept: 1 with fewer than 4 prompt tokens, 1 with more than 1,024 prompt tokens, 1 with fewer than 4 output tokens, 1 with more than 127 tokens in all"),
        (("--min-prompt", "0"), "--min-prompt must be between 1 and 1,000,000,000, got 0"),
        (("--min-prompt", "30", "--max-prompt", "20"), "--max-prompt must be >= --min-prompt = 30, got 20"),
        (("--max-total", "7"), "--max-total must be >= --min-prompt + --min-output = 8, got 7"),
        (("--first-turns",), "PATH: has no sessions: the format columns does not say which turn is the first"),
        (("--plot", "waste.gif"), "waste.gif: must end in .png, .svg or .pdf"),
        (("--limit", "0"), "--limit must be between 1 and 1,000,000,000,000, got 0"),
        (("--on-bad-row", "mend"), "--on-bad-row must be error or skip, got 'mend'"),
    ],
)  # fmt: skip
def test_what_cannot_be_counted_is_refused(trace: Path, arguments: tuple[str, ...], message: str) -> None:
    assert refused("waste", trace, *COLUMNS, *arguments) == message.replace("PATH", str(trace))
    assert [path.name for path in trace.parent.iterdir()] == ["plain.csv"]


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests")])  # fmt: skip
def test_a_trace_without_requests_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    assert refused("waste", path) == f"{path}: {message}"


def test_waste_has_help() -> None:
    done = kvsim("waste", "--help")
    assert done.returncode == 0
    assert "Usage: kvsim waste" in done.stdout
    for form in ("paged:B", "max:LEN", "pow2:LEN", "oracle", "predicted:ERROR"):
        assert form in done.stdout
