"""Every recorded decision of the real engine, field by field."""

from pathlib import Path

import pytest

from tests.check_decisions import case_files, check_case
from tests.replay import read_case

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm_scheduler"
FILES = case_files(GOLDEN)


def test_all_cases_are_there() -> None:
    assert len(FILES) == 65 + 3


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_decisions_are_those_of_the_real_engine(path: Path) -> None:
    case = read_case(path)
    assert check_case(case, check="steps" in case) is None
