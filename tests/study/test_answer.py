"""The answer of a run is made of its figures."""

from pathlib import Path

import pytest

from kvsim.engine.results import Results
from kvsim.study.answer import answer
from kvsim.study.assumptions import assumptions
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import TINY_TRACE, write_scenario


def run(folder: Path, *overrides: str, text: str | None = None) -> Results:
    path = write_scenario(folder) if text is None else write_scenario(folder, text)
    return simulate(load_scenario(path, overrides))


def labelled(results: Results) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {}
    for each in assumptions(results):
        said.setdefault(each.label, []).append(each.text)
    return said


def test_where_memory_was_enough(tmp_path: Path) -> None:
    said = answer(run(tmp_path, "memory.num_blocks=2001"))
    assert said.startswith("Memory refused nobody and preempted nobody: 40 of 40 requests finished. At most ")
    assert " of the 250 KiB pool (" in said


def test_where_it_was_not(tmp_path: Path) -> None:
    results = run(tmp_path, "memory.num_blocks=14")
    metrics = results.metrics
    assert metrics["refused"]
    assert metrics["preempted"]
    said = answer(results)
    assert f"refused {metrics['refused']} requests at the head of the queue" in said
    assert f"and preempted {metrics['preempted']} ({metrics['preemptions']} times); 40 of 40 requests finished." in said
    assert f"of which {metrics['slack_share']:.2%} was slack" in said


def test_what_was_lost_is_said_by_kind(tmp_path: Path) -> None:
    results = run(tmp_path, "engine.max_model_len=20")
    assert results.metrics["rejected"]
    assert f"({results.metrics['rejected']} rejected, {results.metrics['cut']} cut at max_model_len)" in answer(results)


def test_what_sharing_found_and_saved(tmp_path: Path) -> None:
    prefixes = run(tmp_path, "workload.prefixes={count=1,tokens=16}")
    assert f"Prefix sharing found {prefixes.metrics['hit_share']:.2%} of prompt tokens." in answer(prefixes)
    samples = run(tmp_path, "workload.samples=2", "memory.sample_sharing=copy_on_write")
    assert f"Outputs that share saved {samples.metrics['sample_saved_share']:.2%} of" in answer(samples)


def test_a_run_that_stopped_says_so_first(tmp_path: Path) -> None:
    results = run(tmp_path, "memory.num_blocks=4", "engine.reject_unservable=false")
    assert results.stalled
    assert answer(results).startswith("The engine stopped for ever")


def test_assumptions_have_labels(tmp_path: Path) -> None:
    said = labelled(run(tmp_path))
    assert list(said) == ["step times", "memory", "traffic", "engine"]
    assert said["step times"][0].startswith("A step takes base 9 ms, per prefill token ")
    assert said["memory"][0].startswith("33 blocks were given")
    assert said["traffic"] == [
        "Arrivals (poisson), lengths and content are drawn, from seed 3; they were not measured."
    ]


@pytest.mark.parametrize(
    ("override", "label", "text"),
    [
        ("memory={budget='3 KiB',block_size=4}", "memory", "3 KiB for KV on each device were given"),
        ("engine.preemption=swap", "swap", "Blocks move to and from the host at 25 GB/s."),
    ],
)
def test_assumptions_follow_what_was_chosen(tmp_path: Path, override: str, label: str, text: str) -> None:
    assert text in labelled(run(tmp_path, override))[label][0]


def test_predictions_are_assumptions(tmp_path: Path) -> None:
    said = labelled(run(tmp_path, "memory.allocator=predicted", "memory.prediction_error=0.25"))
    assert said["prediction"] == ["The output is misjudged by up to 25%, every share equally likely."]


def test_a_trace_is_named_and_its_notes_are_assumptions(tmp_path: Path) -> None:
    said = labelled(run(tmp_path, "workload.speedup=2", text=TINY_TRACE))
    assert said["traffic"] == ["Arrivals and lengths are those of trace.csv, at 2 times its speed."]
    assert any("does not say what prompts contain" in note for note in said["note"])
