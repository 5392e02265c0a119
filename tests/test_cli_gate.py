"""kvsim run --fail-if: how a pipeline is told that a limit broke."""

import json
from pathlib import Path

from kvsim.study.files import FILES
from kvsim.study.sums import SUMS
from tests.study.makers import write_scenario
from tests.test_cli import kvsim, refused


def test_a_broken_limit_is_said_after_all_else_and_exits_with_3(tmp_path: Path) -> None:
    out = tmp_path / "out"
    limits = ("--fail-if", "requests >= 40", "--fail-if", "finished < 40", "--fail-if", "pool_bytes > 4095 B")
    done = kvsim("run", write_scenario(tmp_path), "--out", out, *limits)
    assert done.returncode == 3
    assert done.stderr == (
        f"wrote {out}\n"
        "limit broken: requests >= 40: requests is 40 requests, the limit itself\n"
        "limit broken: pool_bytes > 4095 B: pool_bytes is 4,096 B (4 KiB), 1 B over the limit (0.024% of it)\n"
    )
    assert "fragmentation" in done.stdout, "the table as ever"
    assert {path.name for path in out.iterdir()} == {*FILES.values(), SUMS}


def test_stdout_is_the_summary_alone(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    done = kvsim("run", path, "--json", "--fail-if", "requests == 40")
    assert done.returncode == 3
    assert done.stdout == kvsim("run", path, "--json").stdout
    assert json.loads(done.stdout)["metrics"]["requests"] == 40


def test_limits_that_hold_say_nothing(tmp_path: Path) -> None:
    done = kvsim("run", write_scenario(tmp_path), "--fail-if", "requests != 40", "--fail-if", "duration_ns > 1 h")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_figure_without_a_value_fails(tmp_path: Path) -> None:
    short = ("--set", "engine.max_model_len=1", "--set", "memory.block_size=1")
    done = kvsim("run", write_scenario(tmp_path), *short, "--fail-if", "hit_share < 0")
    assert done.returncode == 3
    words = "hit_share has no value in this run, as there is nothing to divide by"
    assert done.stderr == f"limit broken: hit_share < 0: {words}\n"


def test_what_cannot_be_read_is_refused_before_the_run(tmp_path: Path) -> None:
    endless = ("--set", "workload.num_requests=100000000", "--out", tmp_path / "out")
    said = refused("run", write_scenario(tmp_path), *endless, "--fail-if", "slak_share > 0.04", "--fail-if", "refused")
    first, second, known = said.splitlines()
    assert first.startswith("--fail-if: no figure of a run is called 'slak_share' (did you mean slack_share,")
    assert second == "  must be FIGURE OPERATOR NUMBER, such as \"slack_share > 0.04\", got 'refused'"
    assert known.startswith("  known: slack_share, tail_share,")
    assert "sample_copies" not in known, "no request has several outputs"
    assert not (tmp_path / "out").exists()
