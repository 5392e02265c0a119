"""kvsim diff: what it prints and refuses."""

import json
from pathlib import Path

import pytest

from tests.study.makers import write_scenario
from tests.test_cli import kvsim, refused


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs, `one` and `other`."""
    folder = tmp_path_factory.mktemp("runs")
    path = write_scenario(folder)
    for name, block_size in (("one", "4"), ("other", "16")):
        few = ("--set", "memory.budget=4 KiB", "--set", "memory.num_blocks=", "--set", "study.write=SUMMARY")
        few = tuple(word.replace("SUMMARY", "['summary', 'timeline', 'requests', 'pressure']") for word in few)
        done = kvsim("run", path, *few, "--set", f"memory.block_size={block_size}", "--out", folder / name)
        assert done.returncode == 0, done.stderr
    return folder


def test_it_says_what_changed_and_why(runs: Path) -> None:
    done = kvsim("diff", runs / "one", runs / "other")
    assert (done.returncode, done.stderr) == (0, "")
    assert "What was put in differs: memory.block_size 4 -> 16." in done.stdout
    assert "slack on average rose by" in " ".join(done.stdout.split("What was put in  ")[0].split())
    for words in ("What changed, by cause", "allocated memory on average", "Other figures", "of allocated memory"):
        assert words in done.stdout
    assert "not an out-of-memory predictor and not a throughput benchmark" in done.stdout


def test_json_is_alone_on_stdout(runs: Path) -> None:
    done = kvsim("diff", runs / "one", runs / "other", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads(done.stdout)
    assert written["inputs"][0] == {
        "name": "memory.block_size",
        "unit": None,
        "before": 4,
        "after": 16,
        "follows": False,
    }
    one, other = (json.loads((runs / name / "summary.json").read_text())["metrics"] for name in ("one", "other"))
    figures = {figure["name"]: (figure["before"], figure["after"]) for figure in written["figures"]}
    assert figures == {name: (one[name], other[name]) for name in one if one[name] != other[name]}
    assert [changed["name"] for changed in written["inputs"] if not changed["follows"]] == ["memory.block_size"]
    assert written["effects"][-1]["name"] == "allocated_peak_bytes"


def test_a_run_is_equal_to_itself(runs: Path) -> None:
    done = kvsim("diff", runs / "one", runs / "one")
    assert "The two runs are equal" in done.stdout
    assert json.loads(kvsim("diff", runs / "one", runs / "one", "--json").stdout)["equal"] is True


def test_what_is_no_run_is_refused(runs: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    assert refused("diff", runs / "one", none) == f"{none}/summary.json: cannot be read: No such file or directory"
    (tmp_path / "summary.json").write_text("{}")
    said = refused("diff", tmp_path, runs / "one")
    assert said.startswith(f"{tmp_path}/summary.json: not a summary that kvsim run wrote")
    assert "Missing argument" in kvsim("diff", runs / "one").stderr


def test_diff_has_help() -> None:
    done = kvsim("diff", "--help")
    assert done.returncode == 0
    assert "Usage: kvsim diff" in done.stdout
