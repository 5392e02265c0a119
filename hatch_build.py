"""Compile what decides and records to C while a wheel is built, if that is asked for.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip install .

It needs a C compiler and a minute, and makes long runs about twice as fast. The modules stay as they are, and what is
compiled goes into the wheel alone: nothing is left beside the sources, where it would stand before them.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = (
    "engine/clock",
    "engine/clocked",
    "engine/recorder",
    "engine/simulation",
    "engine/state",
    "engine/step",
    "engine/timeline",
    "memory/allocator",
    "memory/chain",
    "memory/chains",
    "memory/contested",
    "memory/prefix",
    "memory/recount",
    "workload/request",
)
"""Of kvsim: the way of a request through the fast form. The form that it is judged by is left as it is."""


class CompileHook(BuildHookInterface[Any]):
    """Adds extension modules to a wheel; editable installs stay as they are written."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        self._folder = tempfile.mkdtemp()
        folder = Path(self._folder)
        shutil.copytree(Path(self.root, "kvsim"), folder / "kvsim")
        self.app.display_info("compiling with mypyc")
        modules = [f"kvsim/{module}.py" for module in MODULES]
        options = ("--ignore-missing-imports", "--follow-imports=silent")
        # What it prints is for those who work on it; that it failed, and why, is for all.
        done = subprocess.run(
            [sys.executable, "-m", "mypyc", *options, *modules], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            self._remove()
            raise RuntimeError(f"mypyc could not compile kvsim (is there a C compiler?):\n{done.stdout}{done.stderr}")
        compiled = [path for suffix in ("*.so", "*.pyd") for path in folder.rglob(suffix) if "build" not in path.parts]
        build_data["force_include"] |= {str(path): str(path.relative_to(folder)) for path in compiled}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder)
