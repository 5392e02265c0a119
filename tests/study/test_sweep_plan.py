"""What a sweep will run: in which order, and refused as a whole before anything runs."""

import os
from pathlib import Path

import pytest

from kvsim.errors import ScenarioError
from kvsim.study.sweep_plan import plan_sweep
from tests.study.makers import TINY, TINY_TRACE, write_scenario
from tests.study.sweeps import make_plan

STUDY = '\n[study]\nvary = { memory.block_size = [2, 4], workload.rate = "50:100:50" }\nseeds = 2\n'


def problems(path: Path, *vary: str, seeds: int | None = None, overrides: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        make_plan(path, *vary, seeds=seeds, overrides=overrides)
    return caught.value.problems


def test_the_last_key_varies_fastest_and_seeds_are_together(tmp_path: Path) -> None:
    planned = make_plan(write_scenario(tmp_path), "memory.block_size=2,4", "workload.rate=50,100", seeds=2)
    assert [run.name for run in planned.runs] == [
        f"memory.block_size = {size}, workload.rate = {rate}, seed = {seed}"
        for size in (2, 4)
        for rate in (50, 100)
        for seed in (3, 4)
    ]
    assert [run.index for run in planned.runs] == list(range(8))
    last = planned.runs[-1].scenario
    assert (last.memory.block_size, last.workload.rate, last.seed) == (4, 100.0, 4)


def test_what_is_not_asked_for_is_what_the_scenario_says(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY + STUDY)
    assert [run.name for run in plan_sweep(path, None, (), None).runs] == [
        run.name for run in make_plan(path, "memory.block_size=2,4", "workload.rate=50,100", seeds=2).runs
    ]
    assert [run.name for run in make_plan(path, "memory.block_size=8", seeds=1).runs] == [
        "memory.block_size = 8, seed = 3"
    ]


def test_seeds_alone_are_a_sweep(tmp_path: Path) -> None:
    planned = plan_sweep(write_scenario(tmp_path), None, ["seed=8"], 3)
    assert [run.name for run in planned.runs] == ["seed = 8", "seed = 9", "seed = 10"]


def test_a_key_that_is_missing_from_the_file_can_be_varied(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY.replace("num_blocks = 33\n", ""))
    assert len(make_plan(path, "memory.num_blocks=20,33").runs) == 2


def test_problems_of_all_combinations_are_told_at_once(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    assert problems(path, "memory.block_size=0,4", "workload.rate=0,1,2", overrides=("engine.max_num_seqs=0",)) == [
        "memory.block_size must be between 1 and 1,000,000,000, got 0 (in 3 of 6 combinations; the first is "
        "memory.block_size = 0, workload.rate = 0)",
        "workload.rate must be > 0 and at most 1,000,000, got 0.0 (in 2 of 6 combinations; the first is "
        "memory.block_size = 0, workload.rate = 0)",
        "engine.max_num_seqs must be >= 1, got 0",
    ]


def test_what_does_not_go_together_is_found_before_anything_runs(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY.replace("num_blocks = 33", 'budget = "1 KiB"'))
    assert problems(path, "memory.block_size=4,64") == [
        "memory.budget must hold at least two blocks of 2 KiB, as the engine keeps one, got 1 KiB "
        "(with memory.block_size = 64)"
    ]


def test_problems_beyond_twenty_are_counted(tmp_path: Path) -> None:
    found = problems(write_scenario(tmp_path), "memory.num_blocks=-30:1:1")
    assert len(found) == 21
    assert found[-1] == "and 12 problems more"


@pytest.mark.parametrize(
    ("vary", "seeds", "overrides", "message"),
    [
        ([], None, (), "nothing varies: give --vary KEY=VALUES, or [study] vary in the scenario"),
        (["memory.block_size"], None, (), "must be key=values such as memory.block_size=1,2,4"),
        (["memory.block_sise=1,2"], None, (), "memory.block_sise: unknown key (did you mean block_size?)"),
        (["memory.block_size.x=1"], None, (), "block_size is not a table, got 'memory.block_size.x=1'"),
        (["seed=1,2"], None, (), "seed is varied by a number of seeds: use --seeds, or [study] seeds"),
        (["memory.block_size=1"], 0, (), "must be between 1 and 10,000, got 0"),
        (["memory.block_size=1:1000:1"], 1000, (), "a sweep must have at most 100,000 runs, got 1,000,000"),
        (["memory.block_size=1"], 2, ("seed=9223372036854775807",), "seed must leave room for 2 seeds"),
        (["memory.block_size=1,2"], 1, ("memory.block_size=3",), "memory.block_size is varied and set as well"),
        (["workload.prompt={kind='fixed',value=3}"], 1, ("workload.prompt.min=3",), "workload.prompt is varied and"),
        (["workload.prompt={kind='empirical',path='none.json'}"], 1, (), "none.json: is not a file"),
    ],
)
def test_what_is_no_sweep_is_refused(
    tmp_path: Path, vary: list[str], seeds: int | None, overrides: tuple[str, ...], message: str
) -> None:
    assert message in problems(write_scenario(tmp_path), *vary, seeds=seeds, overrides=overrides)[0]


def test_seeds_of_a_replay_are_refused(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    assert problems(path, "memory.block_size=4,8", seeds=2) == [
        "seeds must be 1, got 2: a seed changes nothing in the replay of a trace"
    ]
    assert len(make_plan(path, "memory.block_size=4,8").runs) == 2


def test_a_trace_must_be_a_file_in_a_known_format(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    os.mkfifo(tmp_path / "pipe")
    assert problems(path, "workload.path=pipe,trace.csv") == [
        "workload.path must be a regular file, got pipe (with workload.path = pipe)"
    ]
    unknown = problems(path, "workload.path=scenario.toml", overrides=("workload.format=",))
    assert "scenario.toml: its format is not recognised" in unknown[0]


def test_a_scenario_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert problems(tmp_path / "pipe", "memory.block_size=1") == [
        "must be a regular file, as it is read for every combination"
    ]


def test_a_sweep_is_told_by_all_that_it_depends_on(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    first = make_plan(path, "memory.block_size=4,8").identity
    assert make_plan(path, "memory.block_size=4,8").identity == first
    assert set(first) == {"kvsim", "scenario", "overrides", "vary", "seeds", "files"}
    assert first["files"]["trace.csv"]["bytes"] == (tmp_path / "trace.csv").stat().st_size

    def differs() -> list[str]:
        now = make_plan(path, "memory.block_size=4,8").identity
        return [name for name in first if first[name] != now[name]]

    (tmp_path / "trace.csv").write_bytes((tmp_path / "trace.csv").read_bytes().replace(b",12,", b",13,"))
    assert differs() == ["files"]
    path.write_text(TINY_TRACE + "# a word")
    assert differs() == ["scenario", "files"]


def test_a_value_beyond_64_bits_is_refused(tmp_path: Path) -> None:
    assert problems(write_scenario(tmp_path), "engine.max_waiting=1,99999999999999999999999") == [
        "engine.max_waiting must fit in 64 bits, got 99999999999999999999999"
    ]
