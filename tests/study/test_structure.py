"""What tables say of themselves; how they are read is tested where scenarios are."""

from pathlib import Path

from kvsim.errors import ScenarioError
from kvsim.memory.eviction import EVICTION
from kvsim.study.scenario import WORKLOADS, load_scenario, scenario_dict, scenario_units, scenario_words
from kvsim.study.toml import parse_toml
from kvsim.workload.traces import READERS
from tests.study.makers import TINY, write_scenario


def test_keys_have_the_units_of_their_fields(tmp_path: Path) -> None:
    workload = (
        "workload={ kind = 'windows', windows = [{ duration = '1 s', rate = 5 }, { duration = '2 s', rate = 4 }], "
        "prompt = { kind = 'fixed', value = 9 }, output = { kind = 'fixed', value = 2 }, "
        "sessions = { turns = { kind = 'fixed', value = 2 }, think = { kind = 'uniform', min = '1 s', max = '2 s' } } }"
    )
    table = scenario_dict(load_scenario(write_scenario(tmp_path), (workload, "memory={ budget = '1 MiB' }")))
    latency = ("base", "per_prefill_token", "per_decode_seq", "per_context_token")
    assert scenario_units(table) == {
        "memory.budget": "bytes",
        "workload.windows[0].duration": "ns",
        "workload.windows[1].duration": "ns",
        "workload.sessions.think.min": "ns",
        "workload.sessions.think.max": "ns",
        "engine.swap_space": "bytes",
        "engine.swap_bandwidth": "bytes/s",
        **{f"engine.latency.{name}": "ns" for name in latency},
    }


def test_what_is_not_known_has_no_unit() -> None:
    assert scenario_units({"memory": {"budget": 3, "nothing": 4}, "more": 5, "engine": 7}) == {"memory.budget": "bytes"}


def test_words_of_a_key_are_those_that_the_loader_takes() -> None:
    table = {
        "memory": {"prefix_sharing": 3},
        "workload": {"kind": "trace", "prompt": {"kind": "no such"}, "path": 5},
        "engine": [{}],
    }
    words = scenario_words(table)
    assert words["memory.prefix_sharing"] == ("true", "false")
    assert words["memory.placement"] == ("buddy", "first_fit", "best_fit")  # may be left out
    assert words["memory.eviction"] == tuple(EVICTION)  # is text, with a rule
    assert words["workload.kind"] == tuple(WORKLOADS)
    assert words["workload.format"] == tuple(READERS)
    assert not {"workload.path", "study.write", "engine.policy"} & set(words)


def test_each_word_is_taken_and_no_other(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    for key, words in scenario_words(parse_toml(TINY)).items():
        for word in (*words, "no such word"):
            try:
                load_scenario(path, [f"{key}={word}"])
                sentences = []
            except ScenarioError as error:
                sentences = [problem for problem in error.problems if problem.startswith(f"{key} must be ")]
            assert bool(sentences) == (word == "no such word" and not key.endswith("kind")), (key, word, sentences)
