"""Every recorded decision of the real engine, field by field."""

from pathlib import Path

import pytest

from tests.check_decisions import case_files, check_case, check_case_in_chains
from tests.replay import read_case
from tests.replay_clocked import is_in_scope

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm_scheduler"
FILES = case_files(GOLDEN)


def test_all_cases_are_there() -> None:
    assert len(FILES) == 65 + 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_decisions_are_those_of_the_real_engine(path: Path) -> None:
    case = read_case(path)
    assert check_case(case, check="steps" in case) is None


IN_SCOPE = [path for path in FILES if is_in_scope(read_case(path))]


def test_chains_have_most_cases_in_their_scope() -> None:
    assert len(IN_SCOPE) == 46


@pytest.mark.parametrize("fast_forward", [True, False], ids=["windows", "steps"])
@pytest.mark.parametrize("path", IN_SCOPE, ids=lambda path: path.name.partition(".")[0])
def test_chains_decide_the_same_in_everything_but_block_ids(path: Path, fast_forward: bool) -> None:
    case = read_case(path)
    assert check_case_in_chains(case, fast_forward=fast_forward, check="steps" in case) is None
