"""Formulas say what the sizes of a run are made of, and add up."""

from pathlib import Path

from kvsim.study.formulas import formulas
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import write_scenario

HYBRID = Path(__file__).parents[2] / "scenarios" / "what_windows_save_in_a_hybrid_model.toml"


def test_a_paged_pool(tmp_path: Path) -> None:
    assert formulas(simulate(load_scenario(write_scenario(tmp_path)))) == [
        ("a token", "2 layers x 1 KV head x (4 K + 4 V) x 2 B = 32 B"),
        ("a block", "4 tokens x 32 B = 128 B"),
        ("the pool", "(33 blocks - 1 null block) x 128 B = 4,096 B"),
        ("the worst case", "8 requests x 4,096 B, for 128 tokens each = 32,768 B"),
    ]


def test_extents_have_slots(tmp_path: Path) -> None:
    results = simulate(load_scenario(write_scenario(tmp_path), "memory.allocator=max"))
    assert [text for _of, text in formulas(results)][1] == "128 slots of a token x 32 B = 4,096 B"


def test_groups_that_are_alike_are_one_line_and_padding_is_said() -> None:
    lines = formulas(simulate(load_scenario(HYBRID, "workload.num_requests=3")))
    assert [of for of, _text in lines if of.startswith("a block")] == [
        "a block of 4 of 7 groups of layers (sliding window of 1,024 tokens)",
        "a block of 2 of 7 groups of layers (sliding window of 1,024 tokens)",
        "a block of 1 of 7 groups of layers (full)",
    ]
    assert "16 tokens x 65,536 B + 262,144 B of padding = 1,310,720 B" in dict(lines).values()
