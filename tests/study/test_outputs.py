"""Several outputs from one prompt in scenarios, and beside the figures of the PagedAttention paper."""

from pathlib import Path

import pytest

from kvsim.engine.results import Results
from kvsim.engine.tables import NoTables
from kvsim.errors import OutputError, ScenarioError
from kvsim.study.files import TablesInFiles, read_results, write_results
from kvsim.study.results_table import results_table
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.checks import check_conservation
from tests.study.makers import TINY, TINY_TRACE, write_scenario

SCENARIO = Path(__file__).parents[2] / "scenarios" / "what_do_samples_share.toml"
BEAMS = ("workload.samples=", "workload.beam_width=3")
COPYING = "memory.sample_sharing=copy_on_write"


def run(folder: Path, *overrides: str, text: str = TINY) -> Results:
    return simulate(load_scenario(write_scenario(folder, text), overrides), check=True)


def problems(folder: Path, *overrides: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        simulate(load_scenario(write_scenario(folder), overrides))
    return list(caught.value.problems)


def shown(results: Results) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(results_table(results))
    return capture.get()


# what a run says


@pytest.mark.parametrize("text", [TINY, TINY_TRACE], ids=["generated", "trace"])
@pytest.mark.parametrize("outputs", ["workload.samples=3", "workload.beam_width=3"])
@pytest.mark.parametrize("sharing", ["copy_on_write", "none", "prefix_cache"])
def test_runs_conserve_and_say_what_is_shared(tmp_path: Path, text: str, outputs: str, sharing: str) -> None:
    if (outputs, sharing) == ("workload.beam_width=3", "prefix_cache"):
        return  # is refused
    results = run(tmp_path, outputs, f"memory.sample_sharing={sharing}", text=text)
    check_conservation(results)
    unshared, metrics = results.totals.unshared, results.metrics
    assert unshared is not None
    assert unshared.byte_ns >= results.totals.integrals["allocated_bytes"]
    assert unshared.peak_bytes >= results.totals.peaks["allocated_bytes"]
    assert (metrics["sample_saved_share"] == 0) == (sharing == "none")
    assert (metrics["sample_copies"] == 0) == (sharing == "prefix_cache")
    assert "saved by sharing" in shown(results)
    assert set(results.summary["unshared"]) == {"byte_ns", "peak_bytes", "num_copies"}


def test_where_nobody_speaks_of_several_outputs_nothing_is_said_of_them(tmp_path: Path) -> None:
    results = run(tmp_path)
    assert "unshared" not in results.summary
    assert not any(name.startswith("sample") for name in results.metrics)
    assert "sharing" not in shown(results).replace("shared saving", "")


def test_two_samples_by_hand(tmp_path: Path) -> None:
    """6 prompt and 4 output tokens in blocks of 4, steps of 1 ms: tokens 6, 7, 8 and 9 of each sample.

    Blocks 2, 3, 3 and 5 of 128 bytes are held, and 4, 4, 4 and 6 would be.
    """
    workload = (
        "workload={kind='constant',rate=1,num_requests=1,samples=2,prompt={kind='fixed',value=6},"
        "output={kind='fixed',value=4}}"
    )
    step = "engine.latency={base='1 ms',per_prefill_token='0 ns',per_decode_seq='0 ns',per_context_token='0 ns'}"
    results = run(tmp_path, workload, step, COPYING)
    held = results.timeline["allocated_bytes"].to_list()
    assert [level // 128 for level in held] == [0, 2, 3, 3, 5, 0]
    logical = results.timeline["logical_bytes"].to_list()
    assert [level // 32 for level in logical] == [0, 12, 14, 16, 18, 0]
    metrics = results.metrics
    assert metrics["sample_saved_share"] == 1 - 13 / 18
    assert (metrics["sample_copies"], metrics["sample_unshared_peak_bytes"]) == (1, 6 * 128)
    # As V1 has it the second sample finds one full block of the prompt and computes the rest of it anew.
    cached = run(tmp_path, workload, step)
    assert cached.metrics["hit_tokens"] == 4
    assert [level // 128 for level in cached.timeline["allocated_bytes"].to_list()] == [0, 3, 3, 3, 5, 0]
    assert cached.metrics["sample_saved_share"] == 1 - 14 / 18


def test_clients_and_sessions_wait_for_all_samples(tmp_path: Path) -> None:
    results = run(
        tmp_path,
        "workload={kind='closed',clients=2,num_requests=12,samples=3,prompt={kind='fixed',value=5},"
        "output={kind='uniform',min=1,max=9},sessions={turns={kind='fixed',value=2}}}",
    )
    check_conservation(results)
    assert results.metrics["finished"] == 36
    assert int(results.metrics["running_peak"] or 0) == 6
    grouped = run(
        tmp_path,
        "workload={kind='closed',clients=2,num_requests=12,samples=3,prompt={kind='fixed',value=5},"
        "output={kind='uniform',min=1,max=9},sessions={turns={kind='fixed',value=2}}}",
        COPYING,
    )
    assert (grouped.metrics["finished"], grouped.metrics["running_peak"]) == (12, 2)


def test_results_come_back_from_their_folder(tmp_path: Path) -> None:
    tables = TablesInFiles(tmp_path, ["timeline", "requests", "pressure"])
    scenario = load_scenario(write_scenario(tmp_path), ("workload.samples=2", COPYING))
    results = simulate(scenario, tables=tables)
    write_results(results, tmp_path, ("summary", "timeline", "requests", "pressure"))
    assert read_results(tmp_path).summary == results.summary
    summary = tmp_path / "summary.json"
    summary.write_text(summary.read_text().replace('"num_copies": ', '"num_copies": 1'))
    with pytest.raises(OutputError, match="its figures are not those of the tables beside it"):
        read_results(tmp_path)


# what does not go together


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ((COPYING,), "memory.sample_sharing needs workload.samples or workload.beam_width"),
        (
            ("workload.samples=2", "memory.prefix_sharing=false"),
            "memory.sample_sharing = prefix_cache needs memory.prefix_sharing = true",
        ),
        (
            ("workload.samples=9", COPYING),
            "engine.max_num_seqs must be >= workload.samples = 9, as each output takes a seat, got 8",
        ),
        (
            ("workload.beam_width=5", COPYING, "engine.max_num_active_seqs=4"),
            "engine.max_num_active_seqs must be >= workload.beam_width = 5, as each output takes a seat, got 4",
        ),
        (("workload.samples=0",), "workload.samples must be between 1 and 1,000, got 0"),
        (
            ("workload.samples=2", "memory.sample_sharing=paper"),
            "memory.sample_sharing must be one of prefix_cache, copy_on_write, none, got 'paper'",
        ),
    ],
)
def test_contradictions_are_said(tmp_path: Path, overrides: tuple[str, ...], problem: str) -> None:
    assert problems(tmp_path, *overrides) == [problem]


def test_beams_are_not_for_the_prefix_cache(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "workload.beam_width=2")
    assert problem.startswith(
        "memory.sample_sharing must be copy_on_write or none with workload.beam_width, got prefix"
    )
    (problem,) = problems(
        tmp_path, "workload.samples=2", COPYING, "engine.enable_chunked_prefill=false",
        "engine.max_num_batched_tokens=128",
    )  # fmt: skip
    assert problem.startswith("engine.enable_chunked_prefill must be true with memory.sample_sharing = copy_on_write")


def test_groups_do_not_reserve(tmp_path: Path) -> None:
    problem = "memory.allocator must be paged with sample_sharing = copy_on_write, got oracle"
    assert problems(tmp_path, "workload.samples=2", COPYING, "memory.allocator=oracle") == [problem]


def test_models_with_windows_are_refused(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    model = "model={config='gemma-3-1b'}"
    scenario = load_scenario(path, (model, "workload.samples=2", COPYING, "memory.num_blocks=100"))
    with pytest.raises(ScenarioError, match="needs a model whose layers all have full attention"):
        simulate(scenario)


# the paper's figure 15: Alpaca-like lengths on OPT-13B


def saved(*overrides: str) -> float:
    share = simulate(load_scenario(SCENARIO, overrides), tables=NoTables()).metrics["sample_saved_share"]
    assert share is not None
    return 100 * share


@pytest.mark.parametrize(("samples", "paper"), [(2, 6.09), (4, 8.53), (6, 9.79)])
def test_parallel_samples_save_what_the_paper_says_within_two_points(samples: int, paper: float) -> None:
    assert abs(saved(f"workload.samples={samples}") - paper) < 2


def test_the_prefix_cache_saves_less_than_copy_on_write() -> None:
    """The last block of a prompt is computed by every sample, even where it is full."""
    few = "workload.num_requests=300"
    assert 0.8 * saved(few) < saved(few, "memory.sample_sharing=prefix_cache") < saved(few)


def test_beams_save_more_the_more_they_concentrate() -> None:
    few = "workload.num_requests=300"
    beams = [
        saved(few, "workload.samples=", "workload.beam_width=4", f"workload.beam_concentration={chance}")
        for chance in (0.0, 0.05, 1.0)
    ]
    assert beams[0] == saved(few)
    assert beams == sorted(beams)
    assert beams[0] + 30 < beams[1] < beams[2] - 8
