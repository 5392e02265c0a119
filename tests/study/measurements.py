"""Runs beside which something was measured: a tiny one sampled as if it were scraped, and what vLLM itself said."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from kvsim.engine.results import Results
from kvsim.engine.tables import TablesInMemory
from kvsim.study.measured.read import Fact, Measured
from kvsim.study.measured.run import simulated
from kvsim.study.measured.series import Course, Series, Simulated
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm_metrics"

TIGHT = """
question = "Does the run do what the server did?"
seed = 3

[model]
num_layers = 2
num_kv_heads = 2
head_dim = 16

[memory]
num_blocks = 33
block_size = 4

[workload]
kind = "poisson"
rate = 20.0
num_requests = 60
prompt = { kind = "uniform", min = 1, max = 40 }
output = { kind = "uniform", min = 1, max = 40 }
prefixes = { count = 2, tokens = 8 }

[engine]
max_num_seqs = 8
max_num_batched_tokens = 64
max_model_len = 128
latency = { base = "20 ms", per_prefill_token = "0 ns", per_decode_seq = "0 ns", per_context_token = "0 ns" }
"""

FIRST_ARRIVAL_NS = 142_000_000
"""Where the first request comes in load.jsonl; the run begins with it."""

SERIES = {
    "kv_usage": "vllm:kv_cache_usage_perc",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "preemptions": "vllm:num_preemptions_total",
    "finished": "vllm:request_success_total",
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generation_tokens": "vllm:generation_tokens_total",
    "queried_tokens": "vllm:prefix_cache_queries_total",
    "hit_tokens": "vllm:prefix_cache_hits_total",
}


@cache
def tight_run(text: str = TIGHT) -> Results:
    """A run that preempts, refuses and hits; simulated once."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scenario.toml")
        path.write_text(text, encoding="utf-8")
        return simulate(load_scenario(path), tables=TablesInMemory())


@cache
def like_vllm() -> Results:
    """A run of the load and the limits that tests/golden/vllm_metrics/make.py gave to vLLM."""
    return simulate(load_scenario(GOLDEN / "load.toml"), tables=TablesInMemory())


def scraped(run: Simulated, moments_ns: Sequence[int], began_ns: int = 0) -> dict[str, Series]:
    """What a server that did exactly this would have measured at these moments of the run, on its own clock."""
    times = np.array(moments_ns, dtype=np.int64)
    return {name: Series(times + began_ns, course.at(times)) for name, course in run.courses.items()}


def measured_of(series: Mapping[str, Series], facts: Mapping[str, Fact] | None = None) -> Measured:
    return Measured(series=series, facts=facts or {}, files=(), source="scrapes")


def course(*pairs: tuple[int, float]) -> Course:
    return Course(
        np.array([at for at, _ in pairs], dtype=np.int64), np.array([value for _, value in pairs], dtype=float)
    )


def series(*pairs: tuple[int, float]) -> Series:
    return Series.of([at for at, _ in pairs], [value for _, value in pairs])


def run_of(running: Course, **courses: Course) -> Simulated:
    return Simulated(
        courses={"running": running, **courses}, generating=course((0, 0)), duration_ns=int(running.times[-1])
    )


def tight_courses() -> Simulated:
    return simulated(tight_run())
