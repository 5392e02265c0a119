"""What `hatch_build.py` compiles is there; that it decides the same is tried by .ci/run, which compiles it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = re.findall(
    r'^    "((?:engine|memory|workload)/\w+)",$', (ROOT / "hatch_build.py").read_text(encoding="utf-8"), re.M
)


def test_modules_are_named() -> None:
    assert len(MODULES) > 10


@pytest.mark.parametrize("module", MODULES)
def test_what_is_compiled_is_there_and_makes_no_fields_by_attrs(module: str) -> None:
    source = (ROOT / "kvsim" / f"{module}.py").read_text(encoding="utf-8")
    # A class that attrs makes fields of keeps its markers when it is compiled.
    assert "field(" not in source
