"""Fixtures that every test may ask for."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of known figures that lies beside the repository, or where KVSIM_SHARED says."""
    folder = Path(os.environ.get("KVSIM_SHARED", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"the folder of known figures is not there: {folder}")
    return folder
