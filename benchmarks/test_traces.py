"""A whole run: real traces replayed, in process and from the command line, and whether block size costs time.

The figures written down here were checked against the plain form that keeps every block (`memory.block_ids`), which
`--run-slow` does again.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kvsim import Results, load_scenario, simulate
from kvsim.study.files import read_results
from measure import in_turn, run_kvsim

SCENARIO = """
question = "What becomes of a public trace of conversations?"

[model]
config = "llama-3.1-8b"

[memory]
num_blocks = {num_blocks}
block_size = {block_size}
prefix_sharing = {prefix_sharing}

[workload]
kind = "trace"
path = "{path}"

[study]
write = ["summary", "timeline", "requests", "pressure"]
"""

FILES = ["pressure.parquet", "requests.parquet", "summary.json", "timeline.parquet"]


class Outcome(NamedTuple):
    finished: int
    rejected: int
    refused: int
    refusals: int
    preemptions: int
    hit_tokens: int


class Replay(NamedTuple):
    """`trace` is the fixture that finds it; `num_blocks` counts the null block."""

    trace: str
    num_blocks: int
    block_size: int
    outcome: Outcome


T1, T2 = "azure_conversation", "mooncake_conversation"

REPLAYS = {
    "T1-24000": Replay(T1, 24_000, 16, Outcome(19_366, 0, 0, 0, 0, 0)),
    "T1-2000": Replay(T1, 2_000, 16, Outcome(19_366, 0, 1_982, 27_147, 422, 0)),
    "T2-24000": Replay(T2, 24_000, 16, Outcome(12_031, 0, 4_281, 128_848, 263, 6_475_760)),
    "T2-2000": Replay(T2, 2_000, 16, Outcome(11_135, 896, 5_766, 1_351_788, 481, 5_700_608)),
}

SAME_BYTES = {
    "T2-block-1": Replay(T2, 384_000, 1, Outcome(12_031, 0, 4_280, 128_731, 278, 6_480_036)),
    "T2-block-16": REPLAYS["T2-24000"],
    "T2-block-512": Replay(T2, 750, 512, Outcome(12_031, 0, 4_513, 131_638, 322, 6_441_984)),
}
"""The same trace in a pool of as many bytes, in blocks of other sizes."""

Scenarios = Callable[[Replay], Path]


@pytest.fixture
def scenario_of(request: pytest.FixtureRequest, tmp_path: Path) -> Scenarios:
    """Writes the scenario file of a replay; skips where its trace is missing."""

    def write(replay: Replay) -> Path:
        trace = request.getfixturevalue(replay.trace)
        path = tmp_path / f"{replay.trace}_{replay.num_blocks}.toml"
        sharing = "true" if replay.trace == T2 else "false"
        text = SCENARIO.format(path=trace, prefix_sharing=sharing, **replay._asdict())
        path.write_text(text, encoding="utf-8")
        return path

    return write


def outcome_of(results: Results) -> Outcome:
    metrics = results.metrics
    return Outcome(*(int(metrics[name] or 0) for name in Outcome._fields))


@pytest.mark.benchmark(group="a whole run: a trace, in process")
@pytest.mark.parametrize("name", REPLAYS)
def test_replay(name: str, scenario_of: Scenarios, benchmark: BenchmarkFixture) -> None:
    scenario = load_scenario(scenario_of(REPLAYS[name]))
    results = benchmark.pedantic(simulate, args=(scenario,), rounds=3, warmup_rounds=1)
    assert outcome_of(results) == REPLAYS[name].outcome


@pytest.mark.benchmark(group="a whole run: a trace, kvsim run with all files but the picture")
@pytest.mark.parametrize("name", REPLAYS)
def test_replay_as_a_process(
    name: str, scenario_of: Scenarios, tmp_path: Path, benchmark: BenchmarkFixture, note: Callable[[str], None]
) -> None:
    out = tmp_path / "out"
    ran = benchmark.pedantic(run_kvsim, args=("run", scenario_of(REPLAYS[name]), "--out", out), rounds=3)
    benchmark.extra_info["peak_mib"] = ran.peak_mib
    note(f"kvsim run {name}: {ran.peak_mib:,.0f} MiB at most, {ran.cpu_seconds:.2f} s of CPU")
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert outcome_of(read_results(out)) == REPLAYS[name].outcome


def test_block_size_costs_no_time(scenario_of: Scenarios, note: Callable[[str], None]) -> None:
    scenarios = {name: load_scenario(scenario_of(replay)) for name, replay in SAME_BYTES.items()}
    outcomes: dict[str, Outcome] = {}

    def replay(name: str) -> None:
        outcomes[name] = outcome_of(simulate(scenarios[name]))

    seconds = in_turn({name: partial(replay, name) for name in scenarios})
    note("T2 in a pool of as many bytes: " + ", ".join(f"{name} {best:.2f} s of CPU" for name, best in seconds.items()))
    assert outcomes == {name: replay.outcome for name, replay in SAME_BYTES.items()}
    assert max(seconds.values()) <= 1.5 * min(seconds.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REPLAYS, *SAME_BYTES])
def test_block_by_block_it_is_the_same(name: str, scenario_of: Scenarios) -> None:
    replay = (REPLAYS | SAME_BYTES)[name]
    assert outcome_of(simulate(load_scenario(scenario_of(replay), "memory.block_ids=true"))) == replay.outcome
