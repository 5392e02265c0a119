"""The public face: what `from kvsim import ...` gives, and that the README tells the truth."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvsim

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_all_is_the_public_face() -> None:
    for name in kvsim.__all__:
        assert getattr(kvsim, name) is not None
    assert sorted(kvsim.__all__) == kvsim.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kvsim.nothing


def test_the_package_is_typed_and_carries_its_version() -> None:
    assert (ROOT / "kvsim" / "py.typed").exists()
    assert f'version = "{kvsim.__version__}"' in (ROOT / "pyproject.toml").read_text()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the README's commands can be typed: the scenarios, and a `kvsim` that is this one."""
    folder = tmp_path_factory.mktemp("clone")
    for part in ("scenarios", "tests/golden/vllm_metrics"):
        shutil.copytree(ROOT / part, folder / part)
    launcher = folder / "bin" / "kvsim"
    launcher.parent.mkdir()
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from kvsim.cli import main; main()" "$@"\n')
    launcher.chmod(0o755)
    return folder


def environment(clone: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{clone / 'bin'}:{os.environ['PATH']}"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_commands_of_the_readme_run(clone: Path) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines() if line]
    assert len(commands) >= 6
    for command in commands:
        # What sets up an environment is run as printed by .ci/run; here only what comes after it.
        typed = command.rpartition(" && ")[2].replace(".venv/bin/", "")
        if typed.startswith("python -m pytest"):
            continue
        done = subprocess.run(typed, shell=True, cwd=clone, env=environment(clone), capture_output=True, text=True)
        assert done.returncode == 0, f"{typed}\n{done.stderr}"
    assert (clone / "out" / "quick_start" / "memory.png").exists()


def test_the_python_of_the_readme_runs(clone: Path) -> None:
    (code,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=clone, env=environment(clone), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "of what was allocated was slack" in done.stdout


def test_the_scenario_of_the_readme_is_one(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    (tmp_path / "scenario.toml").write_text(text)
    scenario = kvsim.load_scenario(tmp_path / "scenario.toml")
    assert scenario.engine.max_waiting == 1000


def test_setup_commands_are_marked_for_ci() -> None:
    for name in ("run", "test", "compile"):
        assert len(re.findall(rf"<!-- command: {name} -->\n```sh\n", README)) == 1


def test_links_and_pictures_exist() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", README):
        assert (ROOT / target).exists(), target
