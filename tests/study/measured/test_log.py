"""Lines of vLLM's log, as its versions wrote them."""

import os
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from kvsim.errors import MeasuredError
from kvsim.study.measured.read import Measured, read_measured
from tests.study.measurements import GOLDEN

V1 = (
    "(APIServer pid=7) INFO 02-25 20:49:56 [loggers.py:127] Engine 000: Avg prompt throughput: 6735.6 tokens/s, Avg generation "
    "throughput: 75.0 tokens/s, Running: 4 reqs, Waiting: 3 reqs, GPU KV cache usage: 13.9%, Prefix cache hit rate: 54.2%"
)
V0 = (
    "INFO 11-16 10:37:50 metrics.py:449] Avg prompt throughput: 5941.0 tokens/s, Avg generation throughput: 16.5 tokens/s, "
    "Running: 3 reqs, Swapped: 0 reqs, Pending: 13 reqs, GPU KV cache usage: 1.5%, CPU KV cache usage: 0.0%."
)
START = """\
INFO 11-29 12:00:00 [scheduler.py:239] Chunked prefill is enabled with max_num_batched_tokens=8192.
(EngineCore_DP0 pid=9) INFO 11-29 12:00:01 [core.py:96] Initializing a V1 LLM engine (v0.15.1) with config: model='/opt/models/qwen', \
speculative_config=SpeculativeConfig(method='eagle', model='other'), tokenizer='/opt/models/qwen', revision=60d8d707, \
tokenizer_revision=None, dtype=torch.float16, max_seq_len=16384, tensor_parallel_size=2, pipeline_parallel_size=1, \
kv_cache_dtype=auto, seed=0, enable_prefix_caching=True, enable_chunked_prefill=True
INFO 11-29 12:00:30 [gpu_worker.py:298] Available KV cache memory: 30.1 GiB
INFO 11-29 12:00:31 [kv_cache_utils.py:1087] GPU KV cache size: 123,456 tokens
INFO 11-29 12:00:31 [kv_cache_utils.py:1091] Maximum concurrency for 8,192 tokens per request: 15.07x
"""


def read(folder: Path, text: str, **options: object) -> Measured:
    path = folder / "server.log"
    path.write_text(text)
    return read_measured([path], **options)  # type: ignore[arg-type]


def values(measured: Measured) -> dict[str, list[float]]:
    return {name: each.values.tolist() for name, each in measured.series.items()}


def test_periodic_lines_of_v1(tmp_path: Path) -> None:
    measured = read(tmp_path, V1)
    assert values(measured) == {"running": [4], "waiting": [3], "kv_usage": [0.139], "recent_hit_share": [0.542]}


def test_periodic_lines_of_v0_count_the_device_and_not_the_host(tmp_path: Path) -> None:
    measured = read(
        tmp_path, V0 + "\nINFO 11-16 10:37:50 metrics.py:465] Prefix cache hit rate: GPU: 94.87%, CPU: 0.00%\n"
    )
    assert values(measured) == {"running": [3], "waiting": [13], "kv_usage": [0.015]}
    assert "vLLM V0 counts swapped requests apart from those that wait; they are left out." in measured.notes


def test_preemptions_are_those_since_the_line_before(tmp_path: Path) -> None:
    lines = [V1.replace("20:49:56", f"20:49:{second}") for second in (10, 20, 30, 40)]
    lines[1] = lines[1].replace("Waiting: 3 reqs,", "Waiting: 3 reqs, Deferred: 1 reqs, Preemptions: 2,")
    lines[3] = lines[3].replace("Waiting: 3 reqs,", "Waiting: 3 reqs, Preemptions: 5,")
    assert values(read(tmp_path, "\n".join(lines)))["preemptions"] == [0, 2, 2, 7]


def test_a_log_without_preemptions_does_not_say_that_there_were_none(tmp_path: Path) -> None:
    measured = read(tmp_path, V1)
    assert "preemptions" not in measured.series
    assert (
        "The log names no preemptions, which does not say that there were none (vLLM 0.32 never does)."
        in measured.notes
    )


def test_other_devices_and_hit_rates_are_told_apart(tmp_path: Path) -> None:
    line = V1.replace("GPU KV", "NPU KV") + ", External prefix cache hit rate: 99.0%"
    assert values(read(tmp_path, line))["kv_usage"] == [0.139]
    assert values(read(tmp_path, line.replace("Prefix cache hit rate: 54.2%, ", "")))["running"] == [4]
    assert "recent_hit_share" not in values(read(tmp_path, line.replace("Prefix cache hit rate: 54.2%, ", "")))


@pytest.mark.parametrize(
    "prefix",
    [
        "INFO 02-25 20:49:56 [loggers.py:127] ",
        "\x1b[0;36m(EngineCore pid=3)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m02-25 20:49:56\x1b[0m \x1b[90m[loggers.py:127]\x1b[0m ",
        "Feb 25 20:49:56 host vllm[18]: (APIServer pid=1) INFO 02-25 20:49:56 [loggers.py:1] ",
        "2026-02-25 21:49:56.380 | (APIServer pid=1) INFO 02-25 20:49:56 [loggers.py:1] ",
        "INFO 2026-02-25 20:49:56 [loggers.py:1] ",
        "2026-02-25 20:49:56,000 INFO vllm.v1.metrics.loggers MainProcess 3 ",
    ],
)
def test_times_are_found_after_whatever_stands_before_them(tmp_path: Path, prefix: str) -> None:
    """Ten seconds lie between the lines in all of them."""
    line = prefix + V1.partition("] ")[2]
    later = line.replace("20:49:56", "20:50:06").replace("21:49:56", "21:50:06")
    times = read(tmp_path, f"{line}\n{later}\n").series["running"].times
    assert (times[1] - times[0], times[0] // 10**9 % 86_400) == (10 * 10**9, 20 * 3600 + 49 * 60 + 56)


def test_a_year_that_is_not_said_ends_all_the_same(tmp_path: Path) -> None:
    lines = [V1.replace("02-25 20:49:56", moment) for moment in ("12-31 23:59:55", "01-01 00:00:05")]
    times = read(tmp_path, "\n".join(lines)).series["running"].times
    assert times[1] - times[0] == 10 * 10**9


def test_lines_without_a_time_need_the_interval(tmp_path: Path) -> None:
    text = "\n".join([V1.partition("] ")[2]] * 2)
    with pytest.raises(MeasuredError, match="2 periodic lines do not say when they were made: give --scrape-interval"):
        read(tmp_path, text)
    times = read(tmp_path, text, scrape_interval_ns=10 * 10**9).series["running"].times
    assert times.tolist() == [0, 10 * 10**9]


def test_one_of_several_engines_is_chosen_by_its_number(tmp_path: Path) -> None:
    text = V1 + "\n" + V1.replace("Engine 000", "Engine 001").replace("Running: 4", "Running: 6")
    with pytest.raises(
        MeasuredError, match="the log has lines of engine 0 and 1: say which with --label engine=NUMBER"
    ):
        read(tmp_path, text)
    assert values(read(tmp_path, text, labels={"engine": "1"}))["running"] == [6]


def test_lines_of_all_engines_together_are_said_to_be(tmp_path: Path) -> None:
    measured = read(tmp_path, V1.replace("Engine 000", "2 Engines Aggregated"))
    assert (
        "2 Engines Aggregated: running and waiting are sums over them and KV usage a mean; kvsim simulates one."
        in measured.notes
    )


def test_what_is_printed_at_the_start_is_known_of_the_server(tmp_path: Path) -> None:
    measured = read(tmp_path, START)
    assert {name: fact.value for name, fact in measured.facts.items()} == {
        "max_num_batched_tokens": 8192,
        "engine_version": "0.15.1",
        "model": "/opt/models/qwen",
        "model_revision": "60d8d707",
        "model_dtype": "torch.float16",
        "max_model_len": 8192,
        "tensor_parallel": 2,
        "pipeline_parallel": 1,
        "cache_dtype": "auto",
        "prefix_caching": "True",
        "available_gib": "30.1",
        "kv_cache_tokens": 123_456,
        "max_concurrency": 15.07,
        "engine": "vLLM",
    }
    assert not measured.newer_sizes
    assert dict(measured.series) == {}
    assert measured.notes == ("The log says max_model_len 16384, 8192: the last counts.",)


def test_of_sizes_of_several_ranks_the_smallest_counts(tmp_path: Path) -> None:
    lines = [
        f"INFO 01-01 00:00:01 [x.py:1] GPU KV cache size: {tokens} tokens" for tokens in ("1,600", "1,584", "1,600")
    ]
    measured = read(tmp_path, "\n".join(lines))
    assert measured.facts["kv_cache_tokens"].value == 1_584
    assert measured.notes == ("The log says kv_cache_tokens 1600, 1584: the smallest counts.",)


def test_blocks_of_v0_and_options_that_were_given(tmp_path: Path) -> None:
    text = (
        "INFO 01-01 00:00:01 [executor_base.py:111] # cuda blocks: 7716, # CPU blocks: 2048\n"
        "INFO 01-01 00:00:00 [utils.py:1] non-default args: {'model': 'm', 'max_num_seqs': 64, 'block_size': 32}\n"
    )
    facts = read(tmp_path, text).facts
    assert {name: facts[name].value for name in ("num_blocks", "max_num_seqs", "block_size")} == {
        "num_blocks": 7716,
        "max_num_seqs": 64,
        "block_size": 32,
    }


def test_bytes_that_are_no_text_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"\xff\xfe prompt: \x80\n" + V1.encode())
    assert values(read_measured([path]))["running"] == [4]


def test_what_vllm_writes_is_read_whole() -> None:
    """Lines of vLLM 0.32's LoggingStatLogger, by its own formatter."""
    measured = read_measured([GOLDEN / "server.log"])
    assert measured.source == "log"
    assert {name: len(each.times) for name, each in measured.series.items()} == dict.fromkeys(
        ("running", "waiting", "kv_usage", "recent_hit_share"), 23
    )
    facts = {name: fact.value for name, fact in measured.facts.items()}
    assert facts == {
        "engine_version": "0.32.0",
        "model": "toy/llama",
        "model_dtype": "torch.bfloat16",
        "max_model_len": 512,
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "cache_dtype": "auto",
        "prefix_caching": "True",
        "kv_cache_tokens": 968,
        "max_concurrency": 1.89,
        "engine": "vLLM",
    }
    assert measured.newer_sizes


def test_a_long_word_is_read_in_no_time(tmp_path: Path) -> None:
    words = ("A" * 60_000, "1" * 60_000, "x KV cache usage" * 3_000)
    began = perf_counter()
    measured = read(tmp_path, "\n".join((V1, *words, "B" * 2_000_000)))
    assert perf_counter() - began < 5
    assert values(measured)["running"] == [4]
    assert "server.log: 1 lines of over 65,536 bytes were passed over." in measured.notes


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-29 12:00:31 GPU KV cache size: , tokens",
        f"INFO 11-29 12:00:31 GPU KV cache size: {'9' * 5_000} tokens",
        "INFO 11-29 12:00:31 Maximum concurrency for 8,192 tokens per request: 1.2.3x",
        "INFO 11-29 12:00:31 non-default args: {'gpu_memory_utilization': 0.9.1}",
        "INFO 11-29 12:00:31 Available KV cache memory: 1.2.3 GiB",
        "INFO 11-29 12:00:31 Available KV cache memory: . GiB",
        f"INFO 11-29 12:00:31 # GPU blocks: {'9' * 400}, # CPU blocks: 0",
        V1.replace("Running: 4", f"Running: {'9' * 400}"),
    ],
)
def test_lines_with_numbers_that_are_none_are_passed_over_and_counted(tmp_path: Path, line: str) -> None:
    measured = read(tmp_path, f"{line}\n{V1}\n")
    assert values(measured)["running"] == [4]
    assert "server.log: 1 lines have numbers that cannot be read; passed over." in measured.notes


@pytest.mark.parametrize(("year", "days"), [(2023, 1), (2024, 2)])
def test_the_year_that_no_line_says_is_that_of_the_file(tmp_path: Path, year: int, days: int) -> None:
    path = tmp_path / "server.log"
    path.write_text(V1.replace("02-25", "02-28") + "\n" + V1.replace("02-25", "03-01") + "\n")
    written = datetime(year, 3, 2, tzinfo=UTC).timestamp()
    os.utime(path, (written, written))
    assert np.diff(read_measured([path]).series["running"].times).tolist() == [days * 86_400 * 10**9]


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MeasuredError, match="none: cannot be read: No such file or directory"):
        read_measured([tmp_path / "none"], kind="log")


def test_preemptions_are_added_up_in_the_order_of_time(tmp_path: Path) -> None:
    lines = [
        V1.replace(":56", f":{second}").replace("Waiting:", f"Preemptions: {count}, Waiting:")
        for second, count in ((56, 1), (57, 2), (58, 4))
    ]
    expected = values(read(tmp_path, "\n".join(lines)))["preemptions"]
    assert expected == [1, 3, 7]
    assert values(read(tmp_path, "\n".join(lines[::-1])))["preemptions"] == expected
