"""A behaviour: the eight loads that `against_vllm.py` gives to the real engine too."""

import gc

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from loads import LOADS, simulate_load, work_of


@pytest.mark.benchmark(group="a behaviour: 2,000 requests at once")
@pytest.mark.parametrize("name", LOADS)
def test_load(name: str, benchmark: BenchmarkFixture) -> None:
    load = LOADS[name]
    lengths = load.lengths
    gc.collect()
    results = benchmark.pedantic(simulate_load, args=(load, lengths), rounds=10, warmup_rounds=1)
    assert work_of(results) == load.work
    assert results.totals.sums["output_tokens"] == sum(output_tokens for _prompt_tokens, output_tokens in lengths)
