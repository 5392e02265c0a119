from pathlib import Path

import pytest

from kvsim.errors import KvsimError, ScenarioError
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.study.scenario_text import Place
from kvsim.view.draft import MOST_BYTES, READY_MADE, Draft, scenario_files
from tests.study.makers import TINY, TINY_TRACE, write_scenario


def drafted(folder: Path, text: str = TINY) -> Draft:
    write_scenario(folder, text)
    return Draft(folder, "scenario.toml")


def sentences(draft: Draft) -> list[str]:
    return [problem.sentence for problem in draft.problems()]


def test_files_are_the_scenarios_below_the_folder(tmp_path: Path) -> None:
    for name in ("b.toml", "deep/er/a.toml", ".hidden/c.toml", "__pycache__/d.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TINY)
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'")
    (tmp_path / "long.toml").write_text(TINY + "#" * MOST_BYTES)
    (tmp_path / "binary.toml").write_bytes(b"question = \xff")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "deep" / "outside.toml").symlink_to("/etc/hostname")
    assert scenario_files(tmp_path) == ["b.toml", "deep/er/a.toml"]


def test_the_ready_made_scenario_is_sound_and_runs(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
    assert draft.file == READY_MADE
    assert draft.problems() == []
    assert simulate(draft.scenario()).metrics["finished"] == 1000
    assert draft.command == "kvsim run scenario.toml"
    assert not draft.is_in_file


def test_what_is_typed_is_what_set_is_told(tmp_path: Path) -> None:
    draft = drafted(tmp_path)
    assert draft.type("memory.block_size", "8")
    assert draft.type("question", "What's <b>this</b>?")
    assert not draft.type("no.such", "8")
    assert draft.overrides == ("memory.block_size=8", "question=What's <b>this</b>?")
    assert draft.scenario() == load_scenario(tmp_path / "scenario.toml", draft.overrides)
    assert "block_size = 8" in draft.text
    assert draft.command == (
        "kvsim run scenario.toml --set memory.block_size=8 --set " + "'question=What'\"'\"'s <b>this</b>?'"
    )
    draft.type("memory.block_size", "4")
    draft.type("question", "Does a tiny pool do?")
    assert (draft.overrides, draft.text) == ((), TINY)


def test_a_text_that_set_can_say_is_edits_of_the_file(tmp_path: Path) -> None:
    draft = drafted(tmp_path)
    draft.write(TINY.replace("rate = 100.0", "rate = 50.0"))
    assert (draft.overrides, draft.is_in_file) == (("workload.rate=50.0",), True)
    draft.write(TINY + "timeout = '3 s'\n")
    assert (draft.overrides, draft.is_in_file) == ((), False)
    assert draft.command == "kvsim run scenario.toml"
    draft.write(TINY)
    assert draft.is_in_file


def test_a_field_in_a_list_of_tables_is_edited_in_the_text(tmp_path: Path) -> None:
    text = TINY.replace('kind = "poisson"\nrate = 100.0\nnum_requests = 40\n', 'kind = "windows"\n')
    text = text.replace("[engine]", "[[workload.windows]]\nrate = 1.0\nduration = '1 s'\n\n[engine]")
    draft = drafted(tmp_path, text)
    assert draft.problems() == []
    draft.type("memory.block_size", "8")
    assert draft.type("workload.windows[0].rate (1)", "2.5")
    assert draft.text == text.replace("rate = 1.0", "rate = 2.5").replace("block_size = 4", "block_size = 8")
    assert (draft.overrides, draft.is_in_file) == ((), False)


def test_problems_stand_beside_what_they_name(tmp_path: Path) -> None:
    draft = drafted(tmp_path)
    draft.type("memory.block_size", "four")
    draft.type("workload.kind", "")
    draft.type("question", "")
    problems = {problem.sentence: (problem.place, problem.line) for problem in draft.problems()}
    assert problems == {
        "question is missing": (Place("question", None), None),
        "memory.block_size must be a whole number, got 'four'": (Place("memory.block_size", None), 11),
        "workload needs a kind: one of poisson, gamma, weibull, constant, onoff, windows, closed, trace": (
            Place(None, "workload"),
            None,
        ),
    }


def test_what_is_no_toml_has_a_line(tmp_path: Path) -> None:
    draft = drafted(tmp_path)
    draft.write(TINY.replace("seed = 3", "seed ="))
    assert draft.fields is None
    (problem,) = draft.problems()
    assert (problem.sentence.partition(" (")[0], problem.line) == ("not TOML: Invalid value", 3)
    assert not draft.type("seed", "3")


@pytest.mark.parametrize(
    ("typed", "rule"),
    [
        ("../outside.csv", "'../outside.csv': must not have .. in it"),
        ("/etc/passwd", "'/etc/passwd': lies outside the folder that the app was started in"),
        ("link.csv", "'link.csv': lies outside the folder that the app was started in"),
    ],
)
def test_no_file_outside_the_folder_is_named(tmp_path: Path, typed: str, rule: str) -> None:
    draft = drafted(tmp_path, TINY_TRACE)
    (tmp_path / "link.csv").symlink_to("/etc/hostname")
    assert draft.problems() == []
    draft.type("workload.path", typed)
    (problem,) = draft.problems()
    assert (problem.sentence, problem.place) == (f"workload.path: {rule}", Place("workload.path", None))
    with pytest.raises(ScenarioError):
        draft.scenario()


def test_what_lies_beside_a_trace_is_not_read_from_outside(tmp_path: Path) -> None:
    """As some formats have it: such a file may be a link."""
    draft = drafted(tmp_path, TINY_TRACE)
    beside = tmp_path / "1_sys_prompt.jsonl"
    beside.write_text("")
    assert draft.problems() == []
    beside.unlink()
    beside.symlink_to("/etc/hostname")
    (problem,) = draft.problems()
    assert problem.sentence == (
        "workload.path: '1_sys_prompt.jsonl': lies outside the folder that the app was started in"
    )


def test_files_are_looked_for_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_scenario(tmp_path / "sub", TINY_TRACE)
    draft = Draft(tmp_path, "sub/scenario.toml")
    assert draft.problems() == []
    assert simulate(draft.scenario()).metrics["requests"] == 3


@pytest.mark.parametrize(
    ("key", "typed", "place"),
    [
        ("workload.prompt", "{ kind = 'empirical', path = '/etc/passwd' }", "workload.prompt"),
        ("model.num_layers", "2", None),
        ("workload.kind", "poisson", None),
    ],
)
def test_names_of_files_are_found_at_any_depth(tmp_path: Path, key: str, typed: str, place: str | None) -> None:
    draft = drafted(tmp_path)
    draft.type(key, typed)
    assert [problem.place.field for problem in draft.problems()] == ([] if place is None else [place])


def test_no_model_is_fetched_from_the_hub(tmp_path: Path) -> None:
    draft = drafted(tmp_path, TINY.replace("num_layers = 2\nnum_kv_heads = 1\nhead_dim = 4", 'config = "hf:org/model"'))
    assert sentences(draft) == [
        "model.config must not be a model on the hub, as the app fetches nothing, got 'hf:org/model'"
    ]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "config.json").symlink_to("/etc/hostname")
    draft.type("model.config", "folder")
    assert sentences(draft) == [
        "model.config: 'folder/config.json': lies outside the folder that the app was started in"
    ]


def test_a_message_that_begins_with_a_file_stands_beside_its_name(tmp_path: Path) -> None:
    draft = drafted(tmp_path, TINY_TRACE)
    (problem,) = draft.placed([f"{tmp_path / 'trace.csv'}:2: no time"])
    assert problem.place == Place("workload.path", None)


def test_a_text_that_is_too_long_is_refused(tmp_path: Path) -> None:
    draft = drafted(tmp_path)
    with pytest.raises(KvsimError, match="the text must be at most 65,536 bytes, got 65,936"):
        draft.write("#" * (MOST_BYTES + 400))
    with pytest.raises(KvsimError, match="the text must be at most 65,536 bytes"):
        draft.type("question", "é" * (MOST_BYTES // 2))
    assert draft.text == TINY


@pytest.mark.parametrize("name", ["../x.toml", "/etc/hostname", "no.toml", "sub"])
def test_only_a_file_of_the_folder_is_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "sub").mkdir()
    with pytest.raises(KvsimError):
        Draft(tmp_path, name)
