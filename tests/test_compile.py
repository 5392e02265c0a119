"""What `hatch_build.py` compiles is there; that it decides the same is tried by .ci/run, which compiles it."""

import ast
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


def classes(source: str) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


COMPILED = {
    found.name for module in MODULES for found in classes((ROOT / "kvsim" / f"{module}.py").read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("path", sorted((ROOT / "kvsim").rglob("*.py")), ids=lambda path: path.name)
def test_nobody_inherits_from_what_is_compiled(path: Path) -> None:
    if str(path.relative_to(ROOT / "kvsim").with_suffix("")) in MODULES:
        return
    source = path.read_text(encoding="utf-8")
    # Protocols say what to have, and are no bases of what has it.
    assert not [
        found.name
        for found in classes(source)
        if COMPILED & {base.id for base in found.bases if isinstance(base, ast.Name)}
    ]
