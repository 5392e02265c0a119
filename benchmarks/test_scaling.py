"""How time and memory grow: not with the batch, in proportion to the run, and little for one capacity more."""

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kvsim import Scenario, simulate
from kvsim.engine.config import EngineConfig
from kvsim.engine.tables import NoTables
from kvsim.study.scenario import MemoryTable, ModelTable
from kvsim.workload.generate.closed import Closed
from kvsim.workload.generate.lengths import Fixed, Uniform
from measure import in_turn, kvsim_command, run_kvsim

Note = Callable[[str], None]

NUM_REQUESTS = 16_384
STEPS = {32: 263_378, 256: 267_940, 2_048: 306_001}
"""Of a full batch, by the seats."""

SESSIONS = """
question = "How long does a long run of sessions take?"
seed = 1

[model]
config = "llama-3.1-8b"

[memory]
budget = "24 GiB"

[workload]
kind = "poisson"
rate = 1.0
num_requests = {num_requests}
prompt = {{ kind = "lognormal", mean = 200, p50 = 100, min = 1, max = 2048 }}
output = {{ kind = "uniform", min = 16, max = 400 }}
sessions = {{ turns = {{ kind = "uniform", min = 1, max = 10 }}, think = {{ kind = "exponential", mean = "20 s" }} }}

[engine]
max_model_len = 32768

[study]
write = ["summary", "timeline", "requests", "pressure"]
"""

SESSION_HIT_TOKENS = {10_000: 9_189_008, 100_000: 95_541_952, 1_000_000: 960_669_376}
"""What later turns find of earlier ones, by the length of the run."""

CAPACITIES = (100, 1_000, 5_000, 10_000, 50_000, "inf")
HIT_BLOCKS = [11_645, 12_831, 31_840, 60_921, 102_290, 105_710]


def full_batch(seats: int) -> Scenario:
    """All seats taken throughout, and outputs so much longer that as many requests end in a step."""
    return Scenario(
        question="What does a larger batch cost?",
        model=ModelTable(config="llama-3.1-8b"),
        memory=MemoryTable(num_blocks=2**23),
        workload=Closed(
            clients=seats, num_requests=NUM_REQUESTS, prompt=Fixed(64), output=Uniform(min=1, max=32 * seats)
        ),
        engine=EngineConfig(max_model_len=2**17, max_num_seqs=seats),
    )


def test_a_larger_batch_costs_no_time(note: Note) -> None:
    def run(seats: int) -> None:
        metrics = simulate(full_batch(seats), tables=NoTables()).metrics
        assert (metrics["finished"], metrics["running_peak"], metrics["steps"]) == (NUM_REQUESTS, seats, STEPS[seats])

    seconds = in_turn({f"{seats:,} seats": partial(run, seats) for seats in STEPS})
    # An admission and an end of each request.
    events = 2 * NUM_REQUESTS
    shown = (f"{name} {best / events * 1e6:.1f} us" for name, best in seconds.items())
    note("an admission or an end in a full batch: " + ", ".join(shown))
    assert max(seconds.values()) <= 1.5 * min(seconds.values())


def check_growth(folder: Path, shorter: int, longer: int, note: Note) -> None:
    """As whole processes whose tables are streamed to files."""
    seconds = {}
    for num_requests in (shorter, longer):
        path = folder / f"{num_requests}.toml"
        path.write_text(SESSIONS.format(num_requests=num_requests), encoding="utf-8")
        out = folder / "out"
        ran = run_kvsim("run", path, "--out", out)
        seconds[num_requests] = ran.cpu_seconds
        note(f"{num_requests:,} requests of sessions: {ran.cpu_seconds:.1f} s of CPU, {ran.peak_mib:,.0f} MiB at most")
        metrics = json.loads((out / "summary.json").read_text(encoding="utf-8"))["metrics"]
        assert metrics["finished"] == metrics["requests"] == num_requests
        assert metrics["hit_tokens"] == SESSION_HIT_TOKENS[num_requests]
        assert ran.peak_mib <= 1_024
    assert seconds[longer] / seconds[shorter] <= 1.25 * longer / shorter


def test_time_is_linear_in_the_length_of_a_run(tmp_path: Path, note: Note) -> None:
    check_growth(tmp_path, 10_000, 100_000, note)


@pytest.mark.slow
def test_time_is_linear_up_to_a_million_requests(tmp_path: Path, note: Note) -> None:
    check_growth(tmp_path, 100_000, 1_000_000, note)


def hits_of(trace: Path, *options: object) -> list[int]:
    """Hit blocks of each capacity, by a whole process."""
    capacities = [part for capacity in CAPACITIES for part in ("--capacity", capacity)]
    ran = run_kvsim("hits", trace, "--block-size", 512, *capacities, *options, "--json")
    return [result["hit_blocks"] for result in json.loads(ran.stdout)["results"]]


@pytest.mark.benchmark(group="a whole run: kvsim hits, six capacities in one pass")
@pytest.mark.parametrize("options", [(), ("--no-optimum",)], ids=["with-optimum", "without"])
def test_hits(options: tuple[str, ...], mooncake_conversation: Path, benchmark: BenchmarkFixture) -> None:
    hit_blocks = benchmark.pedantic(hits_of, args=(mooncake_conversation, *options), rounds=3)
    assert hit_blocks == HIT_BLOCKS


@pytest.mark.benchmark(group="a call: from the start of the process to its end")
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (("--help",), "How much KV-cache memory your model and traffic need"),
        (("size", "qwen2.5-32b", "--budget", "30 GiB", "--max-model-len", "8192"), "262,144"),
    ],
    ids=["help", "size"],
)
def test_start(arguments: tuple[str, ...], answer: str, benchmark: BenchmarkFixture) -> None:
    def start() -> str:
        return subprocess.run(kvsim_command(*arguments), capture_output=True, text=True, check=True).stdout

    assert answer in benchmark.pedantic(start, rounds=5, warmup_rounds=1)
