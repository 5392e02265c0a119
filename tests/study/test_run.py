"""simulate: a scenario in, results out."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.clocked import ClockedScheduler
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.simulation import Simulation
from kvsim.engine.tables import NoTables, TablesInMemory
from kvsim.engine.timeline import ROWS_AT_ONCE
from kvsim.engine.totals import Totals
from kvsim.errors import ScenarioError, TraceError
from kvsim.memory.eviction import EVICTION
from kvsim.model.catalogue import catalogue
from kvsim.study.files import write_results
from kvsim.study.plan import plan
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.study.schedulers import scheduler_of
from kvsim.study.sweep import sweep
from tests.study.checks import check_conservation
from tests.study.makers import TINY, TINY_TRACE, write_scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHIPPED = sorted(path for path in SCENARIOS.glob("*.toml") if "trace" not in path.name)


def run(folder: Path, *overrides: str, text: str = TINY):
    return simulate(load_scenario(write_scenario(folder, text), overrides))


def refusal(folder: Path, *overrides: str, text: str = TINY) -> str:
    with pytest.raises(ScenarioError) as caught:
        run(folder, *overrides, text=text)
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_scenarios_run_and_conserve(path: Path) -> None:
    results = simulate(load_scenario(path))
    check_conservation(results)
    assert results.stalled is None


def test_the_pressure_scenario_shows_what_its_name_says() -> None:
    metrics = simulate(load_scenario(SCENARIOS / "what_breaks_under_memory_pressure.toml")).metrics
    for name in ("refused", "preempted", "rejected_prompt_too_long", "rejected_queue_full", "timed_out"):
        assert metrics[name], f"{name} happens"


def test_sharing_saves_what_the_sharing_scenario_shares() -> None:
    path = SCENARIOS / "what_does_a_shared_system_prompt_save.toml"
    shared = simulate(load_scenario(path)).metrics
    alone = simulate(load_scenario(path, ("memory.prefix_sharing=false",))).metrics
    assert alone["hit_tokens"] == alone["shared_saving_peak_bytes"] == 0
    # All but the first use of each of the three prompts finds all of its 2,048 tokens.
    assert shared["hit_tokens"] == (1500 - 3) * 2048
    assert shared["preempted"] == 0
    assert alone["preempted"]


def test_a_watermark_brings_preemptions_down_steeply() -> None:
    """A report on this shape has 1,065 / 400 / 187 / 168 preemptions at a watermark of 0 / 0.02 / 0.05 / 0.10."""
    swept = sweep(SCENARIOS / "how_much_does_a_watermark_help.toml", jobs=1)
    assert swept.table["memory.watermark"].to_list() == [0.0, 0.02, 0.05, 0.10]
    none, small, medium, large = swept.table["preemptions"]
    assert none > 2.5 * small > 2.5 * 1.5 * medium
    assert medium > large > 0


def test_the_eviction_order_matters_as_its_scenario_says() -> None:
    swept = sweep(SCENARIOS / "does_the_eviction_order_matter.toml", jobs=1)
    shares = zip(swept.table["memory.eviction"], swept.table["hit_share"], strict=True)
    expected = {"lru": "44.99%", "fifo": "40.83%", "lfu": "46.95%", "tail_last_lru": "44.31%"}
    assert {eviction: f"{share:.2%}" for eviction, share in shares} == expected


@pytest.mark.parametrize("eviction", EVICTION)
def test_every_order_of_eviction_runs_and_conserves(tmp_path: Path, eviction: str) -> None:
    """Blocks are evicted and found again, and what is asked does not move."""
    prefixes = "workload.prefixes={count=4,tokens=24}"
    scenario = load_scenario(write_scenario(tmp_path), (prefixes, f"memory.eviction={eviction}"))
    results = simulate(scenario, check=True)
    check_conservation(results)
    assert results.metrics["hit_tokens"] > 0
    assert results.timeline["blank_bytes"].min() == 0
    asked = ("request_id", "arrival_ns", "prompt_tokens")
    assert results.requests.select(asked).equals(run(tmp_path, prefixes).requests.select(asked))
    assert results.description["scenario"]["memory"]["eviction"] == eviction


def test_only_the_engines_own_order_of_eviction_goes_by_chains_of_blocks(tmp_path: Path) -> None:
    def form(*overrides: str) -> type[object]:
        scenario = load_scenario(write_scenario(tmp_path), overrides)
        return type(scheduler_of(scenario, plan(scenario)))

    assert form() is form("memory.eviction=lru") is ClockedScheduler
    assert {form(f"memory.eviction={name}") for name in EVICTION if name != "lru"} == {Scheduler}


def test_an_unknown_order_of_eviction_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    problem = "memory.eviction must be one of lru, fifo, lfu, tail_last_lru, got 'mru'"
    assert refusal(tmp_path, "memory.eviction=mru") == problem


def test_one_request_by_hand(tmp_path: Path) -> None:
    """10 prompt and 3 output tokens at block size 4, one step each: 10, 11, 12 slots in 3 blocks of 512 bytes."""
    results = run(
        tmp_path,
        "workload={kind='constant',rate=1,num_requests=1,prompt={kind='fixed',value=10},output={kind='fixed',value=3}}",
        "engine.latency={base='1 ms',per_prefill_token='0 ns',per_decode_seq='0 ns',per_context_token='0 ns'}",
    )
    token_bytes = 2 * 1 * (4 + 4) * 2
    assert results.shape.token_bytes == token_bytes == 32
    columns = ("time_ns", "allocated_bytes", "live_bytes", "cached_bytes", "running", "waiting", "finished")
    ms = 10**6
    assert results.timeline.select(columns).rows() == [
        (0, 0, 0, 0, 0, 0, 0),
        (1000 * ms, 3 * 128, 10 * 32, 0, 1, 0, 0),
        (1001 * ms, 3 * 128, 11 * 32, 0, 1, 0, 0),
        (1002 * ms, 3 * 128, 12 * 32, 0, 1, 0, 0),
        (1003 * ms, 0, 0, 3 * 128, 0, 0, 1),
    ]
    metrics = results.metrics
    assert metrics["steps"] == 3
    assert metrics["duration_ns"] == 1003 * ms
    assert metrics["slack_share"] == pytest.approx((2 + 1 + 0) / 36)
    assert metrics["allocated_mean_bytes"] == pytest.approx(3 * 128 * 3 / 1003)


def test_worked_by_hand_for_an_8b_model(tmp_path: Path) -> None:
    """131,072 bytes a token; one sequence of 8,192 tokens takes 1 GiB and eight at once take 8 GiB."""
    rows = [
        {"timestamp": 0, "input_length": 8191, "output_length": 2, "hash_ids": list(range(16 * i, 16 * i + 16))}
        for i in range(8)
    ]
    (tmp_path / "eight.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    for limit in (1, 8):
        results = run(
            tmp_path,
            "model={num_layers=32,num_kv_heads=8,head_dim=128}",
            "memory={budget='9 GiB',block_size=16}",
            f"workload={{kind='trace',path='eight.jsonl',format='mooncake',limit={limit}}}",
            "engine={max_model_len=8193,max_num_batched_tokens=65536}",
        )
        assert results.shape.token_bytes == 131_072
        assert results.metrics["live_peak_bytes"] == limit * 2**30
        assert results.metrics["allocated_peak_bytes"] == limit * 2**30


def test_a_hundred_tokens_at_block_16_hold_seven_blocks(tmp_path: Path) -> None:
    results = run(
        tmp_path,
        "memory.block_size=16",
        "workload={kind='constant',rate=1,num_requests=1,prompt={kind='fixed',value=100},output={kind='fixed',value=1}}",
        "engine.max_num_batched_tokens=128",
    )
    token = results.shape.token_bytes
    assert results.metrics["allocated_peak_bytes"] == 7 * 16 * token
    assert results.metrics["slack_peak_bytes"] == 12 * token


def test_two_requests_with_one_shared_prefix(tmp_path: Path) -> None:
    """64 shared tokens at block 16 are four blocks, held once; each adds a block of 10 own tokens."""
    results = run(
        tmp_path,
        "memory.block_size=16",
        "workload={kind='constant',rate=1000000,num_requests=2,prompt={kind='fixed',value=10},"
        "output={kind='fixed',value=2},prefixes={count=1,tokens=64}}",
        "engine.max_num_batched_tokens=256",
    )
    token = results.shape.token_bytes
    assert results.requests["hit_tokens"].to_list() == [0, 64]
    both_prefilled = results.timeline.filter(pl.col("running") == 2).row(0, named=True)
    assert both_prefilled["allocated_bytes"] == (4 + 1 + 1) * 16 * token
    assert both_prefilled["live_bytes"] == (64 + 10 + 11) * token
    assert both_prefilled["logical_bytes"] == (74 + 75) * token
    assert both_prefilled["shared_saving_bytes"] == 64 * token


def test_the_last_token_never_holds_kv(tmp_path: Path) -> None:
    """P + O - 1 slots: 13 + 4 - 1 = 16 tokens fit in the four usable blocks of 4; one more output does not."""
    fits = (
        "workload={kind='constant',rate=1,num_requests=1,prompt={kind='fixed',value=13},output={kind='fixed',value=%d}}"
    )
    results = run(tmp_path, "memory.num_blocks=5", fits % 4)
    assert results.metrics["finished"] == 1
    assert results.metrics["live_peak_bytes"] == 16 * results.shape.token_bytes
    assert run(tmp_path, "memory.num_blocks=5", fits % 5).metrics["rejected_never_fits"] == 1


def test_a_request_that_reaches_max_model_len_is_cut(tmp_path: Path) -> None:
    results = run(tmp_path, "engine.max_model_len=20", "workload.prompt={kind='fixed',value=15}")
    assert set(results.requests["outcome"]) == {"finished", "cut"}
    cut = results.requests.filter(pl.col("outcome") == "cut")
    assert set(cut["generated_tokens"]) == {5}


def test_prompts_of_max_model_len_are_rejected(tmp_path: Path) -> None:
    results = run(tmp_path, "engine.max_model_len=15")
    rejected = results.requests.filter(pl.col("outcome") == "rejected")
    assert rejected.height > 0
    assert set(rejected["reason"]) == {"prompt_too_long"}
    assert rejected["prompt_tokens"].min() == 15
    check_conservation(results)


def test_without_rejection_an_unservable_request_blocks_the_engine(tmp_path: Path) -> None:
    results = run(tmp_path, "memory.num_blocks=6", "engine.reject_unservable=false")
    check_conservation(results)
    assert results.stalled is not None
    assert "blocks the queue for ever: its " in results.stalled
    assert results.metrics["unfinished"]
    assert run(tmp_path, "memory.num_blocks=6").stalled is None


def test_trace_without_content_shares_nothing_and_says_so(tmp_path: Path) -> None:
    results = run(tmp_path, text=TINY_TRACE)
    check_conservation(results)
    assert results.requests["arrival_ns"].to_list() == [0, 319_410_000, 819_410_100]
    assert results.metrics["hit_tokens"] == 0
    assert any("does not say what prompts contain" in note for note in results.notes)
    assert run(tmp_path, "memory.prefix_sharing=false", text=TINY_TRACE).notes == ()


def test_an_engine_that_would_not_start_is_said_in_one_line(tmp_path: Path) -> None:
    assert run(tmp_path, "memory.num_blocks=33").notes == ()
    (note,) = run(tmp_path, "memory.num_blocks=32").notes
    assert note == (
        "The real engine would refuse to start: one request of max_model_len = 128 tokens needs 128 B more than there "
        "is beside the null block."
    )


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ("memory.num_blocks=", "memory.budget=200 B"),
            "memory.budget must hold at least two blocks of 128 B, as the engine keeps one, got 200 B",
        ),
        (
            ("memory.num_blocks=", "memory.budget=1 TiB"),
            "memory.budget must not hold more than 16,777,216 blocks, got 8,589,934,592: raise block_size",
        ),
        (("engine.max_model_len=",), "engine.max_model_len is missing, and the model does not say its longest length"),
        (("model={config='llama-3.1-8c'}",), None),
        (("model={config='none.json'}",), None),
        (
            ("model={config='jamba-v0.1'}",),
            "model: jamba-v0.1 has recurrent layers, which can be sized but not simulated so far",
        ),
        (("model={config='gemma-4-26b-a4b'}",), None),
        (
            ("model={config='llama-3.2-11b-vision'}",),
            "model: llama-3.2-11b-vision has cross layers, which can be sized but not simulated so far",
        ),
        (
            ("model={config='falcon-h1-0.5b'}",),
            "model: falcon-h1-0.5b has recurrent layers, which can be sized but not simulated so far",
        ),
        (("model={config='qwen2.5-7b',tensor_parallel=8}",), None),
        (
            ("workload.num_requests=", "workload.duration=1 ns"),
            "workload.duration must last until the first request arrives",
        ),
        (
            ("workload.num_requests=20000", "workload.rate=1e-7"),
            "simulated times and bytes must fit in 64 bits: raise the rate, or lower speed-up, latency or sizes",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, overrides: tuple[str, ...], problem: str | None) -> None:
    said = refusal(tmp_path, *overrides)
    assert said == problem if problem else said.startswith("model: ")


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with pytest.raises(TraceError, match="has no requests"):
        simulate(load_scenario(path))


def test_a_hybrid_model_runs_in_the_engine_s_groups(tmp_path: Path) -> None:
    """Gemma-3-1B: 4 full and 22 sliding layers of 1,024 bytes a token make groups of 4, two of them a layer short."""
    results = run(
        tmp_path,
        "model={config='gemma-3-1b'}",
        "memory={budget='32 MiB',block_size=16}",
        "workload={kind='constant',rate=1,num_requests=1,prompt={kind='fixed',value=700},output={kind='fixed',value=100}}",
        "engine={max_model_len=1024,max_num_batched_tokens=256}",
    )
    check_conservation(results)
    groups = results.description["geometry"]["groups"]
    assert [(group["kind"], group["window"], group["bytes_per_token"]) for group in groups] == [
        ("sliding_window", 512, 4096),
        ("sliding_window", 512, 4096),
        ("sliding_window", 512, 4096),
        ("sliding_window", 512, 4096),
        ("sliding_window", 512, 3072),
        ("sliding_window", 512, 3072),
        ("full", None, 4096),
    ]
    assert results.shape.block_bytes == 16 * 4096
    assert sum(group["padding_bytes_per_block"] for group in groups) == 2 * 16 * 1024
    peak = results.timeline.sort("logical_bytes").row(-1, named=True)
    # At 799 computed tokens each windowed group has dropped the 17 whole blocks below token 799 - 1 - 512 + 1.
    assert peak["logical_bytes"] == 799 * 26 * 1024
    assert peak["window_saving_bytes"] == 17 * 16 * 22 * 1024
    assert peak["allocated_bytes"] == (50 + 6 * (50 - 17)) * 16 * 4096
    assert peak["padding_bytes"] == 2 * (50 - 17) * 16 * 1024
    assert peak["tail_bytes"] == 26 * 1024


def test_most_models_of_the_catalogue_can_be_simulated(tmp_path: Path) -> None:
    """All but those with recurrent, cross-attention or compressed layers, or with blocks of several sizes."""
    path = write_scenario(tmp_path)
    refused = []
    for name in catalogue():
        overrides = (f"model={{config='{name}'}}", "memory.block_size=16", "engine.max_model_len=512")
        try:
            plan(load_scenario(path, overrides))
        except ScenarioError as error:
            refused.append(str(error))
    assert (len(refused), len(catalogue())) == (19, 110)
    assert all("can be sized but not simulated so far" in message for message in refused)


def test_default_step_times_are_said_to_be_those_of_another_model(tmp_path: Path) -> None:
    (note,) = run(tmp_path, "engine.latency=").notes
    assert note.startswith("Step times are the defaults, those of an 8B-class model")
    assert run(tmp_path).notes == ()


def test_priorities_that_do_nothing_are_said(tmp_path: Path) -> None:
    (note,) = run(tmp_path, "engine.policy=priority").notes
    assert "all requests are equally urgent" in note
    (note,) = run(tmp_path, "workload.priority={kind='uniform',min=1,max=2}").notes
    assert "priorities change nothing" in note


def test_max_model_len_comes_from_the_model(tmp_path: Path) -> None:
    results = run(tmp_path, "model={config='llama-3.1-8b'}", "engine={}")
    assert results.description["geometry"]["max_model_len"] == 131_072
    assert results.worst_case_bytes == 256 * 131_072 * 131_072


def digests(results: object, folder: Path) -> dict[str, str]:
    folder.mkdir()
    write_results(results, folder, ("summary", "timeline", "requests", "pressure", "plot"))  # type: ignore[arg-type]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_a_run_of_many_rows_leaves_them_in_parts_that_fit_together(tmp_path: Path) -> None:
    """140 requests of 1,000 steps each, one after the other."""
    results = run(
        tmp_path,
        "workload={kind='poisson',rate=0.00001,num_requests=140,prompt={kind='fixed',value=9},output={kind='fixed',value=1000}}",
        "memory.num_blocks=400",
        "engine.max_model_len=2000",
    )
    *full, _last = (part.height for part in results.tables.parts("timeline"))
    assert full
    assert all(height >= ROWS_AT_ONCE for height in full)
    assert results.requests["request_id"].to_list() == list(range(140))
    assert results.metrics["steps"] == 140_000
    check_conservation(results)
    tables = TablesInMemory()
    tables.add("timeline", results.timeline)
    tables.add("requests", results.requests)
    tables.add("pressure", results.pressure)
    whole = Totals(results.shape, results.worst_case_bytes, results.totals.num_steps, results.totals.held_back_steps)
    whole.add_all(tables)
    assert evolve(results, totals=whole).metrics == results.metrics


def test_a_run_whose_rows_are_not_kept_has_the_same_figures(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    assert simulate(scenario, tables=NoTables()).summary == simulate(scenario).summary


def test_equal_scenario_and_seed_give_equal_bytes(tmp_path: Path) -> None:
    first = digests(run(tmp_path), tmp_path / "first")
    again = digests(run(tmp_path), tmp_path / "again")
    other = digests(run(tmp_path, "seed=4"), tmp_path / "other")
    assert first == again
    assert all(first[name] != other[name] for name in first if name != "pressure.parquet")


def test_results_do_not_depend_on_hashing_or_threads(tmp_path: Path) -> None:
    """In fresh processes, as hash randomisation and thread pools are set at their start."""
    path = write_scenario(tmp_path)
    outcomes = []
    for hash_seed, threads in (("0", "1"), ("1", "2"), ("17", "8")):
        out = tmp_path / hash_seed
        subprocess.run(
            [sys.executable, "-c", "from kvsim.cli import main; main()", "run", str(path), "--out", str(out)],
            check=True,
            capture_output=True,
            env={"PYTHONHASHSEED": hash_seed, "POLARS_MAX_THREADS": threads, "PYTHONPATH": str(SCENARIOS.parent)},
        )
        outcomes.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert len(outcomes[0]) == 7
    assert outcomes[0] == outcomes[1] == outcomes[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("worlds")


@st.composite
def worlds(draw: st.DrawFn) -> tuple[str, ...]:
    lengths = st.integers(1, 40)
    low, high = sorted((draw(lengths), draw(lengths)))
    return (
        f"seed={draw(st.integers(0, 1000))}",
        f"memory.num_blocks={draw(st.integers(2, 60))}",
        f"memory.block_size={draw(st.sampled_from([1, 2, 3, 4, 7, 16]))}",
        f"memory.prefix_sharing={draw(st.sampled_from(['true', 'false']))}",
        f"memory.watermark={draw(st.sampled_from([0.0, 0.1, 0.5]))}",
        f"workload.rate={draw(st.sampled_from([1.0, 50.0, 1000.0]))}",
        f"workload.num_requests={draw(st.integers(1, 40))}",
        f"workload.prompt={{kind='uniform',min={low},max={high}}}",
        f"workload.output={{kind='uniform',min=1,max={draw(lengths)}}}",
        f"workload.prefixes={{count={draw(st.integers(1, 3))},tokens={draw(lengths)}}}",
        f"workload.priority={{kind='uniform',min=1,max={draw(st.integers(1, 3))}}}",
        f"engine.policy={draw(st.sampled_from(['fcfs', 'priority']))}",
        f"engine.max_num_seqs={draw(st.integers(1, 8))}",
        f"engine.max_num_batched_tokens={draw(st.integers(8, 64))}",
        f"engine.max_model_len={draw(st.integers(2, 80))}",
        f"engine.long_prefill_token_threshold={draw(st.sampled_from([0, 3, 16]))}",
        f"engine.scheduler_reserve_full_isl={draw(st.sampled_from(['true', 'false']))}",
        f"engine.reject_unservable={draw(st.sampled_from(['true', 'false']))}",
        *draw(
            st.sampled_from([(), ("engine.preemption=swap", "engine.swap_space=1 KiB"), ("engine.preemption=swap",)])
        ),
        *draw(st.sampled_from([(), ("engine.timeout=50 ms",), ("engine.timeout=1 s", "engine.max_waiting=3")])),
    )


@given(overrides=worlds())
def test_conservation_over_random_scenarios(
    tmp_path_factory: pytest.TempPathFactory, overrides: tuple[str, ...]
) -> None:
    results = run(tmp_path_factory.mktemp("world"), *overrides)
    check_conservation(results)


def test_files_of_a_workload_lie_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "lengths.json").write_text('{"7": 1, "9": 3}')
    results = run(tmp_path, "workload.prompt={kind='empirical',path='lengths.json'}")
    assert set(results.requests["prompt_tokens"]) == {7, 9}
    with pytest.raises(TraceError, match="is not a file"):
        run(tmp_path, "workload.prompt={kind='empirical',path='none.json'}")
    (tmp_path / "lengths.json").write_text('{"70000": 1}')
    turns = "workload.sessions={turns={kind='empirical',path='lengths.json'}}"
    assert refusal(tmp_path, turns) == "workload: turns must be at most 10,000, got up to 70,000: set its max"


def test_windows_without_a_request_are_refused(tmp_path: Path) -> None:
    lengths = "prompt={kind='fixed',value=1},output={kind='fixed',value=1}"
    windows = f"workload={{kind='windows',windows=[{{duration='1 ns',rate=1}}],{lengths}}}"
    assert refusal(tmp_path, windows) == "workload.windows must last until the first request arrives"


REPLAYS = {
    "azure_24000": ("azure2023/AzureLLMInferenceTrace_conv.csv", "azure", 16, 24_000, 19_366),
    "azure_2000": ("azure2023/AzureLLMInferenceTrace_conv.csv", "azure", 16, 2_000, 19_366),
    "mooncake_16": ("mooncake/conversation_trace.jsonl.gz", "mooncake", 16, 24_000, 12_031),
    "mooncake_512": ("mooncake/conversation_trace.jsonl.gz", "mooncake", 512, 750, 12_031),
}


@pytest.mark.parametrize("replay", REPLAYS)
def test_public_traces_replay_to_the_end(shared: Path, replay: str) -> None:
    path, form, block_size, num_blocks, num_requests = REPLAYS[replay]
    scenario = load_scenario(
        SCENARIOS / "replay_a_trace_of_your_own.toml",
        (
            f"workload.path={(shared / 'traces' / path).resolve()}",
            f"workload.format={form}",
            "memory.budget=",
            f"memory.num_blocks={num_blocks}",
            f"memory.block_size={block_size}",
            "engine.max_model_len=131072",
        ),
    )
    results = simulate(scenario)
    check_conservation(results)
    assert results.stalled is None
    assert results.metrics["requests"] == num_requests
    assert bool(results.metrics["hit_tokens"]) == (form == "mooncake")
    assert any("does not say what prompts contain" in note for note in results.notes) == (form == "azure")


# in chains of blocks, or block by block


@pytest.mark.parametrize(
    "overrides",
    [
        ("engine.policy=priority",),
        ("engine.long_prefill_token_threshold=8",),
        ("memory.block_ids=true",),
        ("model={config='gemma-3-1b'}",),
        ("engine.preemption=swap",),
        ("engine.admission=worst_case",),
        ("engine.admission=expected", "engine.expected_output_tokens=9"),
    ],
    ids=["priority", "capped_prefills", "block_ids", "several_groups", "swap", "worst_case", "expected"],
)
def test_what_chains_and_windows_do_not_know_goes_block_by_block(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    scenario = load_scenario(write_scenario(tmp_path), overrides)
    assert type(scheduler_of(scenario, plan(scenario))) is Scheduler


@pytest.mark.parametrize(
    "override",
    [
        "memory.prefix_sharing=false",
        "memory.watermark=0.1",
        "engine={max_model_len=64,enable_chunked_prefill=false}",
        "engine.scheduler_reserve_full_isl=false",
        "engine.admission=first_chunk",
        "engine.admission=known",
        "engine.fast_forward=false",
    ],
)
def test_all_else_goes_in_chains(tmp_path: Path, override: str) -> None:
    scenario = load_scenario(write_scenario(tmp_path), (override,))
    assert type(scheduler_of(scenario, plan(scenario))) is ClockedScheduler


@pytest.mark.parametrize("override", ["memory.block_ids=true", "engine.fast_forward=false"])
@pytest.mark.parametrize("watermark", ["0.0", "0.2"])
def test_another_form_leaves_the_same_rows(tmp_path: Path, override: str, watermark: str) -> None:
    """In a pool that is too small, with conversations, and clients that give up."""
    tight = (
        f"memory.watermark={watermark}",
        "workload.rate=10",
        "workload.num_requests=300",
        "workload.sessions={turns={kind='fixed',value=3},think={kind='exponential',mean='1 ms'}}",
        "engine.timeout=200 ms",
    )
    usual, other = run(tmp_path, *tight), run(tmp_path, *tight, override)
    assert usual.metrics["preempted"]
    assert usual.metrics["timed_out"]
    assert usual.metrics["hit_tokens"]
    assert other.metrics == usual.metrics
    for name in ("timeline", "requests", "pressure"):
        assert getattr(other, name).equals(getattr(usual, name))


# swap, and what is asked at the door


TIGHT = ("workload.rate=1000", "workload.num_requests=200", "memory.num_blocks=17")


@pytest.mark.parametrize("gate", ["true", "false"])
@pytest.mark.parametrize("form", ["memory.block_ids=true", "memory.block_ids=false"])
def test_the_two_policies_of_vllm_are_what_its_own_key_says(tmp_path: Path, gate: str, form: str) -> None:
    admission = {"true": "known", "false": "first_chunk"}[gate]
    small_chunks = ("engine.max_num_batched_tokens=8", *TIGHT, form)
    by_key = run(tmp_path, f"engine.scheduler_reserve_full_isl={gate}", *small_chunks)
    by_policy = run(tmp_path, f"engine.admission={admission}", *small_chunks)
    assert by_policy.metrics == by_key.metrics
    assert by_policy.metrics["preemptions"]
    assert bool(by_policy.metrics["refusals_for_gate"]) == (gate == "true")


def test_policies_of_admission_side_by_side(tmp_path: Path) -> None:
    """The further a policy looks ahead, the fewer run and are preempted, and the longer the others wait."""
    policies = ["first_chunk", "known", "expected", "worst_case"]
    path = write_scenario(tmp_path)
    overrides = (*TIGHT, "engine.expected_output_tokens=10", "engine.max_output_tokens=20")
    table = sweep(path, {"engine.admission": policies}, overrides=overrides, jobs=1).table
    assert table["engine.admission"].to_list() == policies
    assert table["outcome"].to_list() == ["finished"] * 4
    columns = {name: table[name].to_list() for name in ("preemptions", "running_mean", "waited_mean_ns", "refusals")}
    assert columns["preemptions"][1] > columns["preemptions"][2] > columns["preemptions"][3] == 0
    assert columns["running_mean"][1] > columns["running_mean"][2] > columns["running_mean"][3]
    assert columns["waited_mean_ns"][1] < columns["waited_mean_ns"][3]
    assert all(columns["refusals"])
    assert [bool(refusals) for refusals in table["refusals_for_reservation"]] == [False, False, True, True]
    assert {"utilization", "pool_used_mean", "waited_p99_ns", "blocked_ns"} <= set(table.columns)


@pytest.mark.parametrize("swap_space", ["1 MiB", "700", "0"])
def test_swap_conserves_bytes_to_the_end(tmp_path: Path, swap_space: str) -> None:
    results = run(tmp_path, *TIGHT, "engine.preemption=swap", f"engine.swap_space={swap_space}")
    check_conservation(results)
    metrics, timeline = results.metrics, results.timeline
    assert metrics["preemptions"] == metrics["swaps"] + metrics["swap_fallbacks"] > 0  # type: ignore[operator]
    assert metrics["swapped_out_bytes"] == metrics["swapped_in_bytes"] + metrics["swap_dropped_bytes"]  # type: ignore[operator]
    assert (metrics["swapped_out_bytes"] == 0) == (swap_space == "0")
    # 128 bytes a block: 700 bytes are room for five of them.
    assert metrics["host_peak_bytes"] <= {"1 MiB": 2**20, "700": 640, "0": 0}[swap_space]  # type: ignore[operator]
    assert timeline["host_bytes"].max() == metrics["host_peak_bytes"]
    assert (metrics["recomputed_tokens"] == 0) == (swap_space == "1 MiB")
    sums = results.requests.select("swapped_out_bytes", "swapped_in_bytes", "swap_dropped_bytes").sum().row(0)
    assert sums == tuple(metrics[f"swap{name}_bytes"] for name in ("ped_out", "ped_in", "_dropped"))
    fallbacks = [note for note in results.notes if note.startswith("The host pool of ")]
    assert bool(fallbacks) == (swap_space != "1 MiB")
    if fallbacks:
        assert f" had no room for {metrics['swap_fallbacks']:,} of {metrics['preemptions']:,} preempted" in fallbacks[0]


def test_no_room_on_the_host_is_recompute_in_every_row(tmp_path: Path) -> None:
    swapped = run(tmp_path, *TIGHT, "engine.preemption=swap", "engine.swap_space=0")
    recomputed = run(tmp_path, *TIGHT)
    assert swapped.metrics == {**recomputed.metrics, "swap_fallbacks": recomputed.metrics["preemptions"]}
    assert swapped.timeline.equals(recomputed.timeline)
    assert swapped.pressure.equals(recomputed.pressure)
    assert swapped.requests.drop("swap_fallbacks").equals(recomputed.requests.drop("swap_fallbacks"))


def test_the_swap_scenario_answers_its_question() -> None:
    """A token takes 5 us to move and 40 us to compute: what is swapped is through sooner, if the host has room."""
    swept = sweep(SCENARIOS / "swap_or_recompute.toml", jobs=1)
    rows = {(row["engine.preemption"], row["engine.swap_space"]): row for row in swept.table.to_dicts()}
    recompute, small, large = (rows[key] for key in (("recompute", "4 GiB"), ("swap", "256 MiB"), ("swap", "4 GiB")))
    assert recompute["recomputed_tokens"] > small["recomputed_tokens"] > large["recomputed_tokens"] == 0
    assert recompute["duration_ns"] > small["duration_ns"] > large["duration_ns"]
    assert small["swap_fallbacks"] > 0 == large["swap_fallbacks"]
    assert recompute["swapped_out_bytes"] == 0


def test_what_a_reader_should_know_of_swap_and_the_worst_case(tmp_path: Path) -> None:
    assert run(tmp_path, "engine.preemption=swap").notes[0] == (
        "engine.preemption is swap, as vLLM V0 did; vLLM V1 only recomputes. Blocks are taken to move at 25 GB/s, and a "
        "step waits for them."
    )
    assert run(tmp_path, "engine.preemption=swap", "engine.swap_space=100").notes[1] == (
        "engine.swap_space = 100 B has no room for a block of 128 B: every preemption recomputes."
    )
    assert run(tmp_path, "engine.admission=worst_case").notes == (
        "engine.admission is worst_case, and engine.max_output_tokens is not given: every request is taken to grow to "
        "max_model_len = 128 tokens.",
    )


CLOSED = (
    "workload={kind='closed',clients=6,num_requests=30,prompt={kind='fixed',value=9},output={kind='fixed',value=5}}"
)


@pytest.mark.parametrize("workload", [(), (CLOSED,)])
def test_every_request_is_shown_once_to_whoever_asks(workload: tuple[str, ...], tmp_path: Path) -> None:
    """Those that come by themselves and those that follow the end of another; the run does not change by it."""
    scenario = load_scenario(write_scenario(tmp_path), workload)
    seen: list[Any] = []
    results = simulate(scenario, on_request=seen.append)
    asked = [(request.id, request.arrival_ns, request.prompt_tokens) for request in seen]
    rows = results.requests.select("request_id", "arrival_ns", "prompt_tokens").rows()
    assert sorted(asked) == sorted(rows)
    assert len(asked) == (30 if workload else 40)
    assert simulate(scenario).timeline.equals(results.timeline)


def test_rows_are_told_of_while_a_run_goes_on_and_memory_can_be_looked_at(tmp_path: Path) -> None:
    scenario = load_scenario(write_scenario(tmp_path))
    alone = simulate(scenario)
    tables, seen, maps = TablesInMemory(), [], []

    def on_rows(simulation: Simulation) -> None:
        held = pl.concat(tables.parts("timeline"))
        assert held.height
        assert held["time_ns"][-1] < simulation.now
        assert simulation.block_map().time_ns == simulation.now
        seen.append(held.height)

    ends = alone.totals.duration_ns
    watched = simulate(
        scenario, tables=tables, rows_at_once=10, on_rows=on_rows, moments=[0, ends // 2, ends], on_moment=maps.append
    )
    assert len(seen) > 5
    assert seen == sorted(set(seen))
    assert [shown.time_ns for shown in maps] == [0, ends // 2, ends]
    assert watched.summary == alone.summary
    assert watched.timeline.equals(alone.timeline)
    assert watched.requests.equals(alone.requests)
    assert watched.pressure.equals(alone.pressure)
