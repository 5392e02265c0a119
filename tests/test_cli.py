"""The command line: what it prints, where, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.study.makers import TINY, TINY_TRACE, write_scenario

ROOT = Path(__file__).parents[1]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", "from kvsim.cli import main; main()", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def kvsim(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=environment())


def refused(*arguments: str | Path) -> str:
    """The one message of a command that kvsim refuses: exit code 2, no traceback, nothing on stdout."""
    done = kvsim(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr.removeprefix("error: ").removesuffix("\n")


def test_run_prints_a_table_and_writes_five_files(tmp_path: Path) -> None:
    done = kvsim("run", write_scenario(tmp_path), "--out", tmp_path / "out")
    assert done.returncode == 0
    assert done.stderr == f"wrote {tmp_path / 'out'}\n", "no progress bar where nobody watches"
    for line in (
        "queue",
        "held back",
        "bytes per token",
        "worst case",
        "utilization",
        "fragmentation",
        "refused",
        "preempted",
        "prefix hits",
    ):
        assert line in done.stdout
    assert "2 layers x 1 KV head x (4 K + 4 V) x 2 B = 32 B" in done.stdout
    assert "not an out-of-memory predictor and not a throughput benchmark" in done.stdout
    names = [
        "SHA256SUMS",
        "summary.json",
        "memory.png",
        *(f"{name}.parquet" for name in ("blocks", "pressure", "requests", "timeline")),
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} == set(names)


def test_what_was_set_anew_is_said_under_the_question(tmp_path: Path) -> None:
    changed = ("--set", "memory.block_size=8", "--set", "memory.block_size = 2", "--set", "engine.latency=")
    done = kvsim("run", write_scenario(tmp_path), *changed, "--out", tmp_path / "out")
    assert done.stdout.splitlines()[1].rstrip() == "with memory.block_size = 2, without engine.latency"
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert written["overrides"] == ["memory.block_size=8", "memory.block_size = 2", "engine.latency="]
    drawn = (tmp_path / "out" / "memory.png").read_bytes()
    assert kvsim("plot", tmp_path / "out").returncode == 0
    assert (tmp_path / "out" / "memory.png").read_bytes() == drawn


def test_run_without_out_writes_nothing(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert kvsim("run", path).returncode == 0
    assert sorted(tmp_path.iterdir()) == before


def test_json_is_alone_on_stdout_and_equals_the_file(tmp_path: Path) -> None:
    done = kvsim("run", write_scenario(tmp_path), "--json", "--out", tmp_path / "out")
    assert json.loads(done.stdout)["metrics"]["requests"] == 40
    assert done.stdout == (tmp_path / "out" / "summary.json").read_text()


def test_set_overrides_a_key(tmp_path: Path) -> None:
    done = kvsim("run", write_scenario(tmp_path), "--json", "--set", "memory.block_size=2", "--set", "seed=8")
    summary = json.loads(done.stdout)
    assert summary["scenario"]["memory"]["block_size"] == 2
    assert summary["seed"] == 8


def test_plot_draws_the_same_picture_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    kvsim("run", write_scenario(tmp_path), "--out", out)
    first = (out / "memory.png").read_bytes()
    (out / "memory.png").unlink()
    assert kvsim("plot", out).returncode == 0
    assert (out / "memory.png").read_bytes() == first
    assert kvsim("plot", out, "--out", tmp_path / "elsewhere.png").returncode == 0
    assert (tmp_path / "elsewhere.png").read_bytes() == first


def test_a_stalled_run_says_who_blocks_it(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    done = kvsim("run", path, "--set", "memory.num_blocks=6", "--set", "engine.reject_unservable=false")
    assert done.returncode == 0
    assert "Stopped: request" in done.stdout
    assert "unfinished" in done.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.68,1\n", "trace.csv:1: column GeneratedTokens is missing"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "trace.csv:2: TIMESTAMP must look like"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "trace.csv: has no requests"),
        ("", "trace.csv: has no requests"),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    (tmp_path / "trace.csv").write_text(content)
    assert message in refused("run", path, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bad_line_far_into_a_trace_leaves_no_file(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    with (tmp_path / "trace.csv").open("a") as trace:
        trace.write("\r\n2023-11-16 18:15:48.0,0,4\r\n")
    said = refused("run", path, "--out", tmp_path / "out" / "deep")
    assert said == f"{tmp_path}/trace.csv:5: ContextTokens must be a whole number from 1 to 1,000,000,000, got 0"
    assert not (tmp_path / "out").exists()


def test_a_cut_off_gzip_is_refused(tmp_path: Path) -> None:
    import gzip

    path = write_scenario(tmp_path, TINY_TRACE)
    whole = gzip.compress((tmp_path / "trace.csv").read_bytes())
    (tmp_path / "trace.csv").write_bytes(whole[:-12])
    assert "the gzip stream is cut off" in refused("run", path)


def test_what_is_no_scenario_is_refused(tmp_path: Path) -> None:
    assert refused("run", tmp_path / "none.toml") == f"{tmp_path}/none.toml: cannot be read: No such file or directory"
    assert refused("run", tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    path = write_scenario(tmp_path)
    assert "memory.block_size" in refused("run", path, "--set", "memory.block_size=0")
    assert "--set: must be key=value" in refused("run", path, "--set", "memory")


def test_an_output_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    assert refused("run", path, "--out", path / "below") == f"{path}/below: cannot be written to: Not a directory"
    assert refused("run", path, "--out", path) == f"{path}: cannot be written to: File exists"


def test_a_dollar_in_the_question_is_a_dollar(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    question = "question=Does $5,000 buy 50% more than $4,000? [bold]\u65e5"
    done = kvsim("run", path, "--set", question, "--out", tmp_path / "out")
    assert done.returncode == 0
    assert done.stderr == f"wrote {tmp_path / 'out'}\n"
    assert "with question" not in done.stdout
    assert "Does $5,000 buy 50% more than $4,000? [bold]" in done.stdout


def test_a_folder_is_of_one_run(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    kvsim("run", path, "--out", tmp_path / "out")
    done = kvsim("run", path, "--set", "study.write=['summary']", "--out", tmp_path / "out")
    assert done.returncode == 0
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"SHA256SUMS", "summary.json"}
    assert "timeline.parquet: cannot be read" in refused("plot", tmp_path / "out")


def test_a_trace_may_come_through_a_pipe(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    feeder = subprocess.Popen(f"cat '{tmp_path}/trace.csv' > '{pipe}'", shell=True)
    done = kvsim("run", path, "--json", "--set", "workload.path=pipe")
    feeder.wait()
    assert json.loads(done.stdout)["metrics"]["requests"] == 3


@pytest.mark.parametrize("arguments", [("/dev/zero",), ("scenario.toml", "--set", "workload.path=/dev/zero")])
def test_devices_are_no_files(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    assert "/dev/zero: is a device, not a file" in refused("run", path.parent / arguments[0], *arguments[1:])


def test_a_recount_of_everything_is_clean(tmp_path: Path) -> None:
    done = kvsim("run", write_scenario(tmp_path), "--check", "--json")
    assert done.returncode == 0
    assert done.stdout == kvsim("run", tmp_path / "scenario.toml", "--json").stdout


def test_sigterm_leaves_nothing_behind(tmp_path: Path) -> None:
    assert stopped_by(signal.SIGTERM, tmp_path) == 143


def test_ctrl_c_leaves_nothing_behind_and_exits_with_130(tmp_path: Path) -> None:
    assert stopped_by(signal.SIGINT, tmp_path) == 130


def stopped_by(signal_number: int, folder: Path) -> int:
    """Exit code of a long run that is stopped in its middle, which leaves neither files nor a traceback."""
    path = write_scenario(folder)
    endless = ("--set", "workload.num_requests=100000000", "--out", folder / "out")
    process = subprocess.Popen(command("run", path, *endless), env=environment(), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (folder / "out").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal_number)
    _, said = process.communicate(timeout=30)
    assert "Traceback" not in said
    assert not (folder / "out").exists()
    return process.returncode


def test_model_shows_layers_by_kind() -> None:
    done = kvsim("model", "gemma-3-27b", "--kv-dtype", "fp8")
    assert done.returncode == 0
    assert "sliding" in done.stdout
    assert "62 layers x 16 KV heads x (128 K + 128 V) x 1 B = 253,952 B" in done.stdout
    facts = json.loads(kvsim("model", "gemma-3-27b", "--json").stdout)
    assert facts["kv_bytes_per_token_bf16"] == 507_904
    assert [group["kind"] for group in facts["groups"]] == ["sliding", "full"]


def test_size_answers_by_both_accountings() -> None:
    done = kvsim("size", "qwen2.5-32b", "--budget", "30 GiB", "--max-model-len", "8192")
    assert done.returncode == 0
    assert "bytes per token = 64 layers x 8 KV heads x (128 K + 128 V) x 2 B = 262,144 B" in done.stdout
    answers = json.loads(kvsim("size", "qwen2.5-32b", "--budget", "30 GiB", "--max-model-len", "8192", "--json").stdout)
    assert (answers["ideal"]["whole_requests"], answers["engine"]["whole_requests"]) == (15, 14)
    keys = {
        "bytes_per_token", "bytes_per_block", "num_blocks", "capacity_tokens", "max_concurrency", "whole_requests",
        "longest_model_len", "raw_bytes", "allocated_bytes", "slack_bytes",
    }  # fmt: skip
    assert keys <= set(answers["ideal"])
    assert keys <= set(answers["engine"])


def test_size_takes_the_lengths_of_a_trace_as_its_mix(tmp_path: Path) -> None:
    write_scenario(tmp_path, TINY_TRACE)
    done = kvsim("size", "llama-3.1-8b", "--budget", "1 GiB", "--trace", tmp_path / "trace.csv", "--json")
    mix = json.loads(done.stdout)["engine"]["mix"]
    assert mix["mean_tokens"] == pytest.approx((16 + 39 + 8) / 3)
    assert "3 given lengths" in mix["origin"]


def test_size_draws_the_scaling_chart(tmp_path: Path) -> None:
    done = kvsim("size", "llama-3.1-8b", "--budget", "16 GiB", "--plot", tmp_path / "scaling.png")
    assert done.returncode == 0
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("model", "llama-3.1-8c"), "close names: llama-3.1-8b"),
        (("model", "llama-3.1-8b", "--kv-dtype", "fp6"), "kv_dtype must be one of"),
        (("model", "llama-3.1-8b", "--tensor-parallel", "3"), "tensor_parallel must divide"),
        (("size", "llama-3.1-8b"), "budget"),
        (("size", "llama-3.1-8b", "--budget", "much"), "must be a size"),
        (("size", "llama-3.1-8b", "--budget", "0 GiB"), "must be > 0"),
        (
            ("size", "llama-3.1-8b", "--budget", "1 GiB", "--sequences", "0"),
            "num_sequences must be between 1 and 1,000,000,000,000, got 0",
        ),
        (("size", "llama-3.1-8b", "--gpu", "h1000", "--parameters", "8B"), "gpu must be one of"),
        (("size", "llama-3.1-8b", "--budget", "1 GiB", "--engine", "tgi"), "engine must be one of"),
        (("size", "llama-3.1-8b", "--budget", "1 GiB", "--trace", "none.csv"), "none.csv: cannot be read"),
        (("size", "llama-3.1-8b", "--budget", "1 GiB", "--percentiles", "50"), "percentiles must be like"),
        (("size", "llama-3.1-8b", "--budget", "1 GiB", "--block-size", "9" * 400), "block_size must be between"),
        (("size", "llama-3.1-8b", "--gpu", "h100", "--parameters", "1e999999"), "parameters must be from 1M to 1000T"),
        (("size", "llama-3.1-8b", "--gpu", "h100", "--parameters", "8"), "parameters must be from 1M to 1000T"),
        (("size", "llama-3.1-8b", "--gpu", "nvidia h10", "--parameters", "8B"), "did you mean h100"),
        (("size", "llama-3.1-8b", "--budget", "1 GiB", "--plot", "x.txt"), "x.txt: must end in .png, .svg or .pdf"),
        (("size", "llama-3.1-8b", "--budget", "1 GiB", "--overhead", "1 GiB"), "leaves nothing for overhead to say"),
    ],
)
def test_static_questions_that_make_no_sense_are_refused(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(*arguments)


@pytest.mark.parametrize("arguments", [(), ("run",), ("plot",), ("model",), ("size",)])
def test_every_command_has_help(arguments: tuple[str, ...]) -> None:
    done = kvsim(*arguments, "--help")
    assert done.returncode == 0
    assert "Usage: kvsim" in done.stdout


def test_version_and_unknown_words() -> None:
    assert kvsim("--version").stdout.startswith("kvsim 0.")
    done = kvsim("simulate")
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_what_terminals_obey_is_shown_and_does_nothing(tmp_path: Path) -> None:
    escape = "\\u001b[31mred\\u001b]0;title\\u0007\\u009b2J"
    path = write_scenario(tmp_path, TINY.replace("Does a tiny pool do?", f"A {escape} question?"))
    done = kvsim("run", path)
    assert done.returncode == 0
    assert not {"\x1b", "\x07", "\x9b"} & set(done.stdout)
    assert "A \u241b[31mred\u241b]0;title" in done.stdout
    done = kvsim("run", tmp_path / "\x1b[2Jnone.toml")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "\u241b[2Jnone.toml" in done.stderr
