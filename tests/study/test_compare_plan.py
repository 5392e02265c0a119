"""Which runs a comparison makes, and on how many bytes."""

from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import KvsimError, ScenarioError
from kvsim.study.allocators import parse_allocators
from kvsim.study.compare_plan import ComparisonPlan, plan_comparison, spec_of
from kvsim.study.plan import plan
from kvsim.study.scenario import load_scenario
from tests.study.makers import write_scenario

BUDGET = ("memory.num_blocks=", "memory.budget=1 MiB")


def planned(folder: Path, allocators: str | None = None, vary: Any = None, *overrides: str) -> ComparisonPlan:
    specs = None if allocators is None else parse_allocators(allocators)
    return plan_comparison(write_scenario(folder), specs, vary, overrides)


def problems(folder: Path, *arguments: Any) -> str:
    with pytest.raises(KvsimError) as caught:
        planned(folder, *arguments)
    return str(caught.value).removeprefix(f"{folder / 'scenario.toml'}: ")


def test_a_run_an_allocator_in_the_order_given(tmp_path: Path) -> None:
    runs = planned(tmp_path, "oracle,paged:8,predicted:0.25").runs
    assert [run.index for run in runs] == [0, 1, 2]
    assert [run.parameters for run in runs] == [
        {"allocator": "oracle"},
        {"allocator": "paged:8"},
        {"allocator": "predicted:0.25"},
    ]
    memory = [run.scenario.memory for run in runs]
    assert [each.allocator for each in memory] == ["oracle", "paged", "predicted"]
    assert [each.block_size for each in memory] == [4, 8, 4]
    assert [each.prediction_error for each in memory] == [None, None, 0.25]
    assert [spec_of(each).name for each in memory] == ["oracle", "paged:8", "predicted:0.25"]


def test_every_allocator_goes_with_every_value(tmp_path: Path) -> None:
    vary = ["memory.placement=buddy,best_fit", "workload.rate=50,100"]
    runs = planned(tmp_path, "max,oracle", vary).runs
    assert [tuple(run.parameters.values()) for run in runs] == [
        (allocator, placement, rate)
        for allocator in ("max", "oracle")
        for placement in ("buddy", "best_fit")
        for rate in (50, 100)
    ]
    assert [run.scenario.memory.placement for run in runs[:3]] == ["buddy", "buddy", "best_fit"]
    assert list(runs[0].parameters) == ["allocator", "memory.placement", "workload.rate"]


@pytest.mark.parametrize(
    "vary", ["memory.eviction=lru,fifo", ["memory.eviction=lru,fifo"], {"memory": {"eviction": ["lru", "fifo"]}}]
)
def test_keys_may_vary_alone(vary: Any, tmp_path: Path) -> None:
    runs = planned(tmp_path, None, vary).runs
    assert [run.parameters for run in runs] == [{"memory.eviction": "lru"}, {"memory.eviction": "fifo"}]
    assert [spec_of(run.scenario.memory).name for run in runs] == ["paged:4", "paged:4"]


def test_without_a_choice_paging_stands_beside_what_reserves(tmp_path: Path) -> None:
    runs = planned(tmp_path).runs
    assert [run.parameters["allocator"] for run in runs] == ["paged:4", "max", "pow2", "oracle"]
    assert planned(tmp_path, None, None, "memory.block_size=8").runs[0].parameters == {"allocator": "paged:8"}


# the same bytes


def pools(folder: Path, *arguments: Any) -> dict[str, tuple[int, int]]:
    """Blocks, the null block included, and usable bytes."""
    shapes = {run.parameters["allocator"]: plan(run.scenario).shape for run in planned(folder, *arguments).runs}
    return {str(name): (shape.num_blocks, shape.pool_bytes) for name, shape in shapes.items()}


ALL = "paged:4,paged:1,paged:3,paged:8,paged:66,max,oracle"


def test_a_number_of_blocks_is_turned_into_the_bytes_that_it_takes(tmp_path: Path) -> None:
    """33 blocks of 4 tokens of 32 bytes: 132 tokens, of which each holds one block back."""
    assert pools(tmp_path, ALL) == {
        "paged:4": (33, 128 * 32),
        "paged:1": (132, 131 * 32),
        "paged:3": (44, 129 * 32),
        "paged:8": (16, 120 * 32),
        "paged:66": (2, 66 * 32),
        "max": (128, 128 * 32),
        "oracle": (128, 128 * 32),
    }
    note = (
        "memory.num_blocks = 33 of 4 tokens are taken as the 4.12 KiB that they are: blocks of another size get as "
        "many as fit into these, the engine's null block included."
    )
    assert planned(tmp_path, ALL).notes == (note,)


def test_a_budget_stays_as_it_is(tmp_path: Path) -> None:
    tokens = 2**20 // 32
    found = pools(tmp_path, ALL, None, *BUDGET)
    for size in (4, 1, 3, 8, 66):
        assert found[f"paged:{size}"] == (tokens // size, (tokens // size - 1) * size * 32)
    assert found["max"] == found["oracle"] == (tokens - 4, (tokens - 4) * 32)
    assert planned(tmp_path, ALL, None, *BUDGET).notes == ()


def test_nothing_is_turned_where_no_block_is_of_another_size(tmp_path: Path) -> None:
    comparison = planned(tmp_path, "paged:4,max")
    assert comparison.notes == ()
    assert [run.scenario.memory.num_blocks for run in comparison.runs] == [33, 33]


def test_the_bytes_may_vary(tmp_path: Path) -> None:
    runs = planned(tmp_path, "paged:8,max", ["memory.num_blocks=33,65"]).runs
    sizes = {tuple(run.parameters.values()): plan(run.scenario).shape.pool_bytes // 32 for run in runs}
    assert sizes == {("paged:8", 33): 120, ("paged:8", 65): 248, ("max", 33): 128, ("max", 65): 256}


def test_the_allocator_of_the_scenario_does_not_matter(tmp_path: Path) -> None:
    own = ("memory.allocator=predicted", "memory.prediction_error=0.5")
    path = write_scenario(tmp_path)
    path.write_text(path.read_text().replace("block_size = 4", 'block_size = 4\nallocator = "max"'))
    found = plan_comparison(path, parse_allocators("paged:8,max"), None, ()).runs
    assert [plan(run.scenario).shape.pool_bytes // 32 for run in found] == [120, 128]
    memory = load_scenario(write_scenario(tmp_path), own).memory
    assert spec_of(memory).name == "predicted:0.5"


# what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("max:2048",), "max:2048 must be written max here: the longest request is engine.max_model_len, 128, for all allocators alike; --set engine.max_model_len=2048 changes it for all"),
        (("oracle,predicted:5",), "the ERROR of predicted:ERROR must be at most 1 in a run, where it goes both ways, got predicted:5"),
        (("paged:4,pow2:64",), "pow2:64 must be written pow2 here: the longest request is engine.max_model_len, 128, for all allocators alike; --set engine.max_model_len=64 changes it for all"),
        (("paged:4,max", ["memory.block_size=2,4"]), "--vary: memory.block_size is varied, and said by the allocator paged:4 as well"),
        (("paged:4,max", ["memory.allocator=max,oracle"]), "--vary: memory.allocator is varied, and said by the allocator paged:4 as well"),
        (("predicted:0.5", ["memory.prediction_error=0.1"]), "--vary: memory.prediction_error is varied, and said by the allocator predicted:0.5 as well"),
        (("max", None, "memory.allocator=paged"), "--set: memory.allocator is max for the allocator max, and set as well, got memory.allocator=paged"),
        (("max,paged:8", None, "memory.block_size = 2"), "--set: memory.block_size is 8 for the allocator paged:8, and set as well, got memory.block_size = 2"),
        ((None, None, "memory.allocator=max"), "--set: memory.allocator is paged for the allocator paged:4, and set as well, got memory.allocator=max"),
        (("paged:8", None, "memory.block_size="), "--set: memory.block_size is 8 for the allocator paged:8, and set as well, got memory.block_size="),
        ((None, ["memory.block_size=2,4"], "memory.block_size=8"), "--vary: memory.block_size is varied and set as well, got --set memory.block_size=8"),
        ((None, ["memory.block_size=1:101:1"]), "a comparison must have at most 100 runs, got 101; kvsim sweep has more"),
        (("max,oracle", ["memory.watermark=0:0.5:0.01"]), "a comparison must have at most 100 runs, got 102; kvsim sweep has more"),
        ((None, ["seed=1,2"]), "a comparison has one seed: --set seed=2 gives another, kvsim sweep averages over several"),
        ((None, {"seed": [1]}), "a comparison has one seed: --set seed=2 gives another, kvsim sweep averages over several"),
        ((None, ["memory.block_size=2,2"]), "--vary: memory.block_size has the value 2 twice"),
        (("paged:4,paged:200",), "memory.num_blocks must hold at least two blocks of 6.25 KiB, as the engine keeps one, got 4.12 KiB (with allocator = paged:200)"),
        (("paged:8", None, "memory.num_blocks=1"), "memory.num_blocks must be between 2 and 16,777,216, got 1"),
        ((None, None, "memory.block_size=0"), "memory.block_size must be between 1 and 1,000,000,000, got 0"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(arguments: tuple[Any, ...], message: str, tmp_path: Path) -> None:
    assert problems(tmp_path, *arguments) == message


def test_a_block_size_may_be_set_where_no_allocator_says_another(tmp_path: Path) -> None:
    assert planned(tmp_path, "paged:8,max", None, "memory.block_size = 8").notes == ()
    runs = planned(tmp_path, "max,oracle", None, "memory.block_size=8").runs
    assert [run.scenario.memory.block_size for run in runs] == [8, 8]


HYBRID = ("model={config='gemma-3-1b'}", "memory={budget='32 MiB'}")


def test_layers_that_drop_tokens_cannot_be_reserved_for(tmp_path: Path) -> None:
    refused = "memory.allocator must be paged for gemma-3-1b, as not all of its layers keep all tokens, got"
    assert problems(tmp_path, "paged:16,max", None, *HYBRID) == f"{refused} 'max' (with allocator = max)"
    with pytest.raises(ScenarioError) as caught:
        planned(tmp_path, None, None, *HYBRID)
    assert caught.value.problems == [
        *(f"{refused} {name!r} (with allocator = {name})" for name in ("max", "pow2", "oracle")),
        "without --allocators or --vary, paging is compared with max, pow2 and oracle",
    ]
    assert len(planned(tmp_path, "paged:16,paged:32", None, *HYBRID).runs) == 2


def test_a_scenario_is_read_more_than_once(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="must be a regular file"):
        plan_comparison(Path("/dev/null"), None, None, ())
