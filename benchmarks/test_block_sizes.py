"""What block size does to slack, hits, refusals and the time of a run, over four shapes of traffic.

`--block-size-table FILE` keeps the table (CSV or Markdown, `-` prints it): a row a shape and block size.
"""

from functools import partial
from typing import Any

import polars as pl
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kvsim import Results, Scenario, simulate
from kvsim.engine.config import EngineConfig
from kvsim.study.scenario import MemoryTable, ModelTable
from kvsim.workload.generate.arrivals import Gamma, Poisson
from kvsim.workload.generate.content import SharedPrefixes
from kvsim.workload.generate.lengths import Lognormal, Uniform
from measure import cpu_seconds

BLOCK_SIZES = [2**power for power in range(13)]
LONGEST = BLOCK_SIZES[-1]

NUM_REQUESTS = 1_000
CHAT = Lognormal(mean=1_150, p50=1_020, max=8_192)

SHAPES: dict[str, tuple[int, Gamma | Poisson]] = {
    "chat": (
        2**20,
        Gamma(rate=8, cv=2, num_requests=NUM_REQUESTS, prompt=CHAT, output=Uniform(16, 400)),
    ),
    "long prompts": (
        2**20,
        Poisson(rate=0.5, num_requests=NUM_REQUESTS, prompt=Uniform(4_000, 30_000), output=Uniform(50, 500)),
    ),
    "shared prefix": (
        2**20,
        Poisson(
            rate=8,
            num_requests=NUM_REQUESTS,
            prompt=Uniform(50, 500),
            output=Uniform(16, 400),
            prefixes=SharedPrefixes(count=8, tokens=3_000, popularity=1.1),
        ),
    ),
    "pressure": (
        2**16,
        Gamma(rate=12, cv=3, num_requests=NUM_REQUESTS, prompt=CHAT, output=Uniform(200, 1_200)),
    ),
}
"""Tokens of the pool, and who comes. All but the last find room for everybody at every block size."""

FIGURES = (
    "finished",
    "rejected",
    "refused",
    "refusals",
    "preemptions",
    "hit_tokens",
    "slack_share",
    "pool_used_peak",
    "steps",
)


def scenario_of(shape: str, block_size: int) -> Scenario:
    pool_tokens, workload = SHAPES[shape]
    return Scenario(
        question="What does block size do?",
        seed=1,
        model=ModelTable(config="llama-3.1-8b"),
        # The same usable bytes, beside the engine's null block.
        memory=MemoryTable(num_blocks=pool_tokens // block_size + 1, block_size=block_size),
        workload=workload,
        engine=EngineConfig(max_model_len=32_768),
    )


def check_accounting(results: Results) -> None:
    """Every byte of the pool is somewhere, once, at every instant; in the end nobody holds any."""
    columns = pl.col
    closes = results.timeline.select(
        pool=(columns("allocated_bytes") + columns("cached_bytes") + columns("blank_bytes") == columns("pool_bytes")),
        slack=(columns("live_bytes") + columns("slack_bytes") == columns("allocated_bytes")),
        sharing=(columns("live_bytes") + columns("shared_saving_bytes") == columns("logical_bytes")),
        positive=pl.min_horizontal(pl.exclude("time_ns")) >= 0,
    )
    assert closes.select(pl.all().all()).row(0) == (True,) * closes.width
    assert results.timeline["allocated_bytes"][-1] == results.timeline["live_bytes"][-1] == 0
    assert results.metrics["finished"] == NUM_REQUESTS - int(results.metrics["rejected"] or 0)


def sweep(shape: str) -> pl.DataFrame:
    """A row a block size, smallest first."""
    rows: list[dict[str, Any]] = []
    for block_size in BLOCK_SIZES:
        scenario = scenario_of(shape, block_size)
        seconds, results = cpu_seconds(partial(simulate, scenario))
        check_accounting(results)
        figures = {name: results.metrics[name] for name in FIGURES}
        rows.append({"shape": shape, "block_size": block_size, **figures, "cpu_seconds": seconds})
    return pl.DataFrame(rows)


def grows(values: pl.Series) -> bool:
    return bool((values.diff().drop_nulls() > 0).all())


def check_chat(rows: pl.DataFrame) -> None:
    """Where there is room, block size changes how much is wasted and nothing else."""
    assert grows(rows["slack_share"])
    assert rows["steps"].n_unique() == 1
    assert rows["refusals"].sum() == rows["preemptions"].sum() == rows["rejected"].sum() == 0


def check_shared_prefix(rows: pl.DataFrame) -> None:
    """All but the first of each prefix find its whole blocks; slack no longer grows when nothing is shared any more."""
    prefixes = SHAPES["shared prefix"][1].prefixes
    assert prefixes is not None
    expected = [(NUM_REQUESTS - prefixes.count) * (prefixes.tokens // size * size) for size in BLOCK_SIZES]
    assert rows["hit_tokens"].to_list() == expected
    assert (rows["hit_tokens"].diff().drop_nulls() <= 0).all(), "a doubled block size finds no more"
    assert grows(rows["slack_share"][:-1])


def check_pressure(rows: pl.DataFrame) -> None:
    """Larger blocks keep the head of the queue out in more steps. Preemptions may become fewer by it."""
    assert grows(rows["slack_share"])
    assert grows(rows["refusals"])
    assert rows["refused"].min() > 0  # type: ignore[operator]  # an integer column
    assert rows["rejected"].sum() == 0


CHECKS = {
    "chat": check_chat,
    "long prompts": check_chat,
    "shared prefix": check_shared_prefix,
    "pressure": check_pressure,
}


@pytest.mark.benchmark(group=f"a behaviour: block sizes 1 to {LONGEST:,}, {NUM_REQUESTS:,} requests at each")
@pytest.mark.parametrize("shape", SHAPES)
def test_block_sizes(shape: str, benchmark: BenchmarkFixture, block_size_table: list[pl.DataFrame]) -> None:
    rows = benchmark.pedantic(sweep, args=(shape,), rounds=1, warmup_rounds=1)
    assert rows.height == len(BLOCK_SIZES)
    CHECKS[shape](rows)
    block_size_table.append(rows)
