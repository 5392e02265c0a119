"""What requests held at their end: as a request alone in the engine had it in its last step."""

from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsim.engine.results import Results
from kvsim.study.per_request import Spread, held_at_end, prefix_hits, spread
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import TINY, write_scenario

GEMMA = TINY.replace("num_layers = 2\nnum_kv_heads = 1\nhead_dim = 4", 'config = "gemma-3-27b"').replace(
    "num_blocks = 33", "num_blocks = 5000"
)
"""Six groups, of which five have a window of 1,024 tokens, and padding in some blocks."""


def alone(folder: Path, prompt: int, output: int, *overrides: str, text: str = TINY) -> Results:
    one = f"workload={{kind='constant',rate=1,num_requests=1,prompt={{kind='fixed',value={prompt}}},output={{kind='fixed',value={output}}}"
    samples = [override for override in overrides if override.startswith(("samples", "beam_width"))]
    workload = ",".join([one, *samples]) + "}"
    rest = [override for override in overrides if override not in samples]
    return simulate(load_scenario(write_scenario(folder, text), (workload, *rest)))


def last_step(results: Results) -> tuple[int, int]:
    """Allocated blocks and slack bytes in the last step of the last request."""
    row = results.timeline.filter(pl.col("running") > 0).tail(1).row(0, named=True)
    return row["allocated_bytes"] // results.shape.block_bytes, row["slack_bytes"]


def at_end(results: Results) -> tuple[int, int]:
    ended = held_at_end(results)
    assert (ended.num_not_known, ended.why_not_known) == (0, "")
    ((_id, blocks, slack),) = ended.requests.iter_rows()
    return blocks, slack


MEMORIES = {
    "paged": (),
    "judge": ("memory.block_ids=true",),
    "max": ("memory.allocator='max'",),
    "pow2": ("memory.allocator='pow2'",),
    "oracle": ("memory.allocator='oracle'",),
    "predicted": ("memory.allocator='predicted'", "memory.prediction_error=0.5"),
    "samples in the prefix cache": ("samples=1",),
    "samples": ("samples=3", "memory.sample_sharing='copy_on_write'"),
    "samples apart": ("samples=3", "memory.sample_sharing='none'"),
}


@pytest.mark.parametrize("memory", MEMORIES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=st.integers(1, 20), output=st.integers(1, 16), seed=st.integers(0, 5))
def test_a_request_alone_holds_at_its_end_what_its_last_step_had(
    tmp_path: Path, memory: str, prompt: int, output: int, seed: int
) -> None:
    results = alone(tmp_path, prompt, output, f"seed={seed}", *MEMORIES[memory])
    ended = held_at_end(results)
    if memory == "predicted" and ended.num_not_known:
        assert ended.requests["num_blocks"].to_list() == [None]
        assert last_step(results)[0] > prompt, "it has outgrown what was reserved"
        return
    assert at_end(results) == last_step(results)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prompt=st.integers(1, 1100) | st.sampled_from([1007, 1008, 1023, 1024, 1025]), output=st.integers(2, 40))
def test_windows_hold_fewer_blocks_and_smaller_groups_pad(tmp_path: Path, prompt: int, output: int) -> None:
    results = alone(tmp_path, prompt, output, "engine.max_model_len=4096", text=GEMMA)
    assert at_end(results) == last_step(results)


def test_what_a_window_had_passed_before_a_last_step_of_many_tokens_is_not_guessed(tmp_path: Path) -> None:
    results = alone(tmp_path, 1100, 1, "engine.max_model_len=4096", text=GEMMA)
    ended = held_at_end(results)
    assert ended.requests.rows() == [(0, None, None)]
    assert (ended.num_not_known, ended.why_not_known) == (
        1,
        "their last step computed more than one token, and where it began says what their windows had passed",
    )
    short = alone(tmp_path, 1024, 1, "engine.max_model_len=4096", text=GEMMA)
    assert at_end(short) == last_step(short)


def test_what_beams_share_is_not_guessed(tmp_path: Path) -> None:
    ended = held_at_end(alone(tmp_path, 5, 5, "beam_width=3", "memory.sample_sharing='copy_on_write'"))
    assert (ended.num_not_known, ended.why_not_known) == (1, "which blocks beams share is drawn while a run goes on")


def test_those_who_outgrew_a_reservation_are_counted(tmp_path: Path) -> None:
    overrides = ("memory.allocator='predicted'", "memory.prediction_error=0.5", "memory.num_blocks=133")
    ended = held_at_end(simulate(load_scenario(write_scenario(tmp_path), overrides)))
    assert 0 < ended.num_not_known < ended.requests.height == 40
    assert ended.requests["slack_bytes"].null_count() == ended.num_not_known
    assert ended.why_not_known == "they outgrew what was reserved for them, and moved to where there was room"


def test_only_requests_that_got_to_their_end_count(tmp_path: Path) -> None:
    results = simulate(load_scenario(write_scenario(tmp_path), ("engine.max_model_len=24",)))
    outcomes = dict(results.requests["outcome"].value_counts().iter_rows())
    assert {"finished", "cut", "rejected"} <= outcomes.keys()
    assert held_at_end(results).requests.height == outcomes["finished"] + outcomes["cut"]


def test_quantiles_of_a_spread() -> None:
    assert spread(pl.Series([None, *range(101)], dtype=pl.Int64)) == Spread(101, 50, 90, 99, 100)
    assert spread(pl.Series([7])) == Spread(1, 7, 7, 7, 7)
    assert spread(pl.Series([], dtype=pl.Int64)) is None


def test_the_waiting_times_of_a_summary_have_the_same_spread(tmp_path: Path) -> None:
    results = simulate(load_scenario(write_scenario(tmp_path)))
    waits = spread(results.totals.waits)
    assert waits is not None
    metrics = results.metrics
    assert (waits.median, waits.p99, waits.maximum) == tuple(
        metrics[f"waited_{name}_ns"] for name in ("p50", "p99", "max")
    )


def test_hits_and_misses_add_up_to_the_prompts_of_the_admitted(tmp_path: Path) -> None:
    prefixes = "workload.prefixes={count=1,tokens=12}"
    results = simulate(load_scenario(write_scenario(tmp_path), (prefixes, "memory.num_blocks=24")))
    hits = prefix_hits(results)
    assert hits.hit_tokens == results.metrics["hit_tokens"] > 0
    assert hits.hit_tokens / hits.prompt_tokens == results.metrics["hit_share"]
    assert hits.missed_tokens == hits.prompt_tokens - hits.hit_tokens
    assert (hits.resumed_hit_tokens, hits.recomputed_tokens) == (
        results.metrics["resumed_hit_tokens"],
        results.metrics["recomputed_tokens"],
    )
    assert hits.of_each.height == results.requests["admitted_ns"].count()
    assert hits.of_each["hit_tokens"].sum() == hits.hit_tokens
    assert hits.of_each["prompt_tokens"].sum() == hits.prompt_tokens
    assert 0 <= hits.of_each["share"].min() < hits.of_each["share"].max() < 1  # type: ignore[operator]
