"""The naive judge is judged by the recorded decisions, as the engine is."""

import ast
from pathlib import Path

import pytest

from tests import oracle
from tests.check_decisions import case_files, first_difference
from tests.replay import read_case

CASES = [
    case
    for case in map(read_case, case_files(Path(__file__).parent / "golden" / "vllm_scheduler"))
    if "steps" in case and case["config"]["groups"] == [{"type": "full"}]
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_rules_alone_give_the_recorded_decisions(case: dict) -> None:
    got = oracle.Oracle(case).run(max_steps=len(case["steps"]))
    assert first_difference(case, got) is None


def test_it_shares_no_code_with_the_engine() -> None:
    tree = ast.parse(Path(oracle.__file__).read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [ast.unparse(node) for node in imported] == ["from typing import Any"]
