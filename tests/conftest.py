import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No deadline: a slow machine is not a defect. `default` is what everybody runs and repeats itself exactly;
# `nightly` looks further and elsewhere each time.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=200, stateful_step_count=25)
settings.register_profile(
    "nightly", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("default")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with public traces and model configs, which are too large to live in this repository."""
    folder = Path(os.environ.get("KVSIM_SHARED", Path(__file__).parents[2] / "shared"))
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there; KVSIM_SHARED names the folder with the public traces")
    return folder
