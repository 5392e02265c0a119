"""The folder of a sweep: whose it is, what it keeps, and what it takes for nothing."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import OutputError
from kvsim.study.sweep_folder import SweepFolder, opened
from kvsim.study.sweep_plan import Run, SweepPlan
from kvsim.study.sweep_record import Record, record_of
from tests.study.makers import write_scenario
from tests.study.sweeps import make_plan


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> SweepPlan:
    return make_plan(write_scenario(tmp_path_factory.mktemp("scenario")), "memory.block_size=2,4")


@pytest.fixture(scope="module")
def record(planned: SweepPlan) -> Record:
    return record_of(planned.runs[0].scenario)


@pytest.fixture
def folder(tmp_path: Path, planned: SweepPlan, record: Record) -> SweepFolder:
    """One that has kept the first of two runs."""
    with opened(tmp_path, planned.identity, fresh=False) as folder:
        folder.begin(tmp_path / "staging", fresh=False)
        folder.keep(planned.runs[0], record)
    return folder


def refusal(path: Path, identity: Mapping[str, Any]) -> str:
    with pytest.raises(OutputError) as caught, opened(path, identity, fresh=False):
        raise AssertionError("it is not opened")
    return str(caught.value)


def test_a_run_is_kept_as_it_was(folder: SweepFolder, planned: SweepPlan, record: Record) -> None:
    assert folder.kept(planned.runs[0]) == record
    assert folder.kept(planned.runs[1]) is None
    assert sorted(path.name for path in folder.path.rglob("*")) == ["00000.json", "runs", "sweep.json"]


def test_a_run_that_failed_is_not_kept(folder: SweepFolder, planned: SweepPlan) -> None:
    folder.keep(planned.runs[1], Record.failed("no"))
    assert folder.kept(planned.runs[1]) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"parameters": 1}', "[" * 100_000])
def test_a_damaged_record_is_none(folder: SweepFolder, planned: SweepPlan, content: str) -> None:
    (folder.path / "runs" / "00000.json").write_text(content)
    assert folder.kept(planned.runs[0]) is None


def test_a_kept_run_that_failed_is_not_believed(folder: SweepFolder, planned: SweepPlan) -> None:
    path = folder.path / "runs" / "00000.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "outcome": "failed"}))
    assert folder.kept(planned.runs[0]) is None


def test_what_is_no_regular_file_is_refused(folder: SweepFolder, planned: SweepPlan) -> None:
    for path in (folder.path / "runs" / "00000.json", folder.path / "sweep.json"):
        path.unlink()
        path.symlink_to("/dev/full")
    with pytest.raises(OutputError, match=r"runs/00000\.json: must be a regular file$"):
        folder.kept(planned.runs[0])
    assert refusal(folder.path, planned.identity) == f"{folder.path / 'sweep.json'}: must be a regular file"


def test_the_record_of_another_run_is_none(folder: SweepFolder, planned: SweepPlan) -> None:
    first, second = planned.runs
    assert folder.kept(Run(index=0, parameters=second.parameters, scenario=first.scenario)) is None


def test_the_same_sweep_may_come_again(folder: SweepFolder, planned: SweepPlan) -> None:
    with opened(folder.path, planned.identity, fresh=False) as again:
        assert again.kept(planned.runs[0]) is not None


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"kvsim": "9.0"}, "of kvsim 0.1.0, and this is 9.0"),
        ({"scenario": "00"}, "the text of the scenario is another"),
        ({"overrides": ["seed=4"]}, "--set was [] and is ['seed=4']"),
        ({"seeds": 5}, "seeds was 1 and is 5"),
        ({"vary": {"memory.block_size": ["2"]}}, "the values of memory.block_size changed"),
        (
            {"vary": {"workload.rate": ["2"]}},
            "the values of memory.block_size only there; the values of workload.rate only here",
        ),
        ({"files": {"trace.csv": {"bytes": 3, "sha256": "0"}}}, "the file trace.csv only here"),
    ],
)
def test_another_sweep_is_refused_by_what_differs(
    folder: SweepFolder, planned: SweepPlan, change: dict[str, Any], difference: str
) -> None:
    said = refusal(folder.path, {**planned.identity, **change})
    assert said == f"{folder.path}: holds another sweep ({difference}); --fresh starts over"


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_folder_is_refused(folder: SweepFolder, planned: SweepPlan, content: str) -> None:
    (folder.path / "sweep.json").write_text(content)
    assert "its sweep.json is damaged" in refusal(folder.path, planned.identity)
    (folder.path / "sweep.json").unlink()
    assert "it has runs, but no sweep.json" in refusal(folder.path, planned.identity)


def test_a_fresh_sweep_removes_what_sweeps_write_and_nothing_else(folder: SweepFolder, planned: SweepPlan) -> None:
    for name in ("sweep.parquet", "sweep.png", "mine.txt", "runs/mine.txt"):
        (folder.path / name).write_text("")
    with opened(folder.path, {**planned.identity, "seeds": 5}, fresh=True) as fresh:
        fresh.begin(folder.path / "staging", fresh=True)
    left = sorted(path.relative_to(folder.path).as_posix() for path in folder.path.rglob("*"))
    assert left == ["mine.txt", "runs", "runs/mine.txt", "sweep.json"]
    assert json.loads((folder.path / "sweep.json").read_text())["seeds"] == 5


def test_what_was_half_written_is_removed(folder: SweepFolder, planned: SweepPlan) -> None:
    staging = folder.path / ".kvsim-now"
    for left in (staging, folder.path / ".kvsim-before", folder.path / "runs" / ".kvsim-before"):
        left.mkdir()
        (left / "part").write_text("")
    with opened(folder.path, planned.identity, fresh=False) as again:
        again.begin(staging, fresh=False)
    assert list(folder.path.rglob("part")) == [staging / "part"]
    shutil.rmtree(staging)


def test_two_sweeps_do_not_share_a_folder(folder: SweepFolder, planned: SweepPlan) -> None:
    program = (
        "import sys; from pathlib import Path; from kvsim.study.sweep_folder import opened\n"
        f"with opened(Path({str(folder.path)!r}), {dict(planned.identity)!r}, fresh=False): pass"
    )
    with opened(folder.path, planned.identity, fresh=False):
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    assert f"{folder.path}: another sweep is at work in it" in done.stderr
