"""Imports point one way.

errors, units, rules, invariants <- model, workload <- memory <- engine <- study <- view <- console, cli_options <-
cli_app, cli_compare, cli_diff, cli_measured, cli_report, cli_sweep, cli_trace, cli_waste <- cli
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import kvsim

PACKAGE = Path(kvsim.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

FOUNDATION = {"errors", "units", "rules", "invariants"}
COMMANDS = ("cli_app", "cli_compare", "cli_diff", "cli_report", "cli_sweep", "cli_trace", "cli_waste")
MAY_IMPORT = {
    **dict.fromkeys(FOUNDATION, FOUNDATION),
    # What a token costs and who asks for it do not know each other.
    "model": {"model"} | FOUNDATION,
    "workload": {"workload"} | FOUNDATION,
    "memory": {"memory", "model", "workload"} | FOUNDATION,
    "engine": {"engine", "memory", "model", "workload"} | FOUNDATION,
    "study": {"study", "engine", "memory", "model", "workload"} | FOUNDATION,
    # What is looked at in a browser.
    "view": {"view", "study", "engine", "memory", "model", "workload"} | FOUNDATION,
    "console": FOUNDATION,
    "cli_options": {"study", "workload"} | FOUNDATION,
    **dict.fromkeys(
        COMMANDS, {"cli_options", "console", "view", "study", "engine", "memory", "model", "workload"} | FOUNDATION
    ),
    "cli": {
        *COMMANDS,
        *("console", "study", "engine", "memory", "model", "workload"),
        *FOUNDATION,
    },
}


class Import(NamedTuple):
    """`name` is what is imported, whole: "kvsim.memory.pool.BlockPool"; `when` is how it comes to that."""

    name: str
    when: str  # "on import", "on call" or "for types"

    @property
    def layer(self) -> str:
        """The part of kvsim that it belongs to; "" for the package's own face."""
        parts = self.name.split(".")
        return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ""


def imports(tree: ast.AST, when: str = "on import") -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        inside = when
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (Import(f"{node.module}.{alias.name}", when) for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside = "on call"
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            inside = "for types"
        yield from imports(node, inside)


def of(path: Path) -> list[Import]:
    return list(imports(ast.parse(path.read_text(encoding="utf-8"))))


def place(path: Path) -> str:
    """Where a module stands: "engine/simulation.py"."""
    return path.relative_to(PACKAGE).as_posix()


def layer(path: Path) -> str:
    return place(path).partition("/")[0].removesuffix(".py")


def test_every_module_stands_in_a_known_place() -> None:
    assert {layer(path) for path in MODULES} == {"__init__", *MAY_IMPORT}


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_imports_point_one_way(path: Path) -> None:
    if layer(path) == "__init__":
        return  # the face shows what lies below
    inside = [found for found in of(path) if found.name.partition(".")[0] == "kvsim"]
    wrong = [found for found in inside if found.layer not in MAY_IMPORT[layer(path)]]
    # The version is the one thing that stands at the top.
    assert [found.name for found in wrong if found.name != "kvsim.__version__"] == []


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_only_the_simulation_and_its_alarm_know_simpy(path: Path) -> None:
    knows = any(found.name.partition(".")[0] == "simpy" for found in of(path))
    assert knows == (place(path) in ("engine/alarm.py", "engine/simulation.py"))


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_only_what_is_looked_at_in_a_browser_knows_bokeh(path: Path) -> None:
    knows = any(found.name.partition(".")[0] in ("bokeh", "jinja2", "tornado") for found in of(path))
    assert not knows or layer(path) == "view"


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_matplotlib_is_imported_when_something_is_drawn(path: Path) -> None:
    drawing = [found for found in of(path) if found.name.partition(".")[0] == "matplotlib"]
    assert "on import" not in {found.when for found in drawing}


# The clocked scheduler and chains of blocks are two halves of one idea: neither asks the other block by block.
KNOWS_CHAINS = {
    "engine/clocked.py": ("kvsim.memory.chains.ChainAllocator", "kvsim.memory.chain.Holder"),
    "engine/state.py": ("kvsim.memory.chain.Holder",),
}


@pytest.mark.parametrize("path", [path for path in MODULES if layer(path) == "engine"], ids=place)
def test_the_engine_knows_memory_only_as_an_allocator(path: Path) -> None:
    memory = [found.name for found in of(path) if found.layer == "memory"]
    knows = ("kvsim.memory.allocator.", "kvsim.memory.block_map.BlockMap", *KNOWS_CHAINS.get(place(path), ()))
    assert [name for name in memory if not name.startswith(knows)] == []


def test_importing_everything_draws_nothing() -> None:
    """In a fresh process, since this one may have drawn already."""
    names = [place(path).removesuffix(".py").replace("/", ".").removesuffix(".__init__") for path in MODULES]
    program = "".join(f"import kvsim.{name}\n" for name in names if name != "__init__")
    program += "import sys\nprint([name for name in sys.modules if name.startswith('matplotlib')])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    assert done.stdout == "[]\n"


def test_imports_are_told_apart_by_when_they_happen() -> None:
    source = """
import simpy
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from matplotlib.axes import Axes
def draw():
    from kvsim.memory.pool import BlockPool
class Plot:
    import matplotlib
"""
    assert list(imports(ast.parse(source)))[:1] == [Import("simpy", "on import")]
    assert [(found.name, found.when, found.layer) for found in list(imports(ast.parse(source)))[2:]] == [
        ("matplotlib.axes.Axes", "for types", ""),
        ("kvsim.memory.pool.BlockPool", "on call", "memory"),
        ("matplotlib", "on import", ""),
    ]
