"""kvsim: how much KV-cache memory a model and its traffic need, and how much of it is waste.

from kvsim import load_scenario, simulate

results = simulate(load_scenario("scenarios/quick_start.toml"))
results.summary, results.timeline, results.requests
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.engine.results import Results as Results
    from kvsim.errors import KvsimError as KvsimError
    from kvsim.study.run import simulate as simulate
    from kvsim.study.scenario import Scenario as Scenario
    from kvsim.study.scenario import load_scenario as load_scenario
    from kvsim.study.sweep import sweep as sweep
    from kvsim.study.sweep_result import Sweep as Sweep

__version__ = "0.1.0"

_FACE = {
    "KvsimError": "kvsim.errors",
    "Results": "kvsim.engine.results",
    "Scenario": "kvsim.study.scenario",
    "Sweep": "kvsim.study.sweep_result",
    "load_scenario": "kvsim.study.scenario",
    "simulate": "kvsim.study.run",
    "sweep": "kvsim.study.sweep",
}
"""Where each public name lives; loaded when first asked for, so that the command line starts at once."""

__all__ = ["KvsimError", "Results", "Scenario", "Sweep", "__version__", "load_scenario", "simulate", "sweep"]


def __getattr__(name: str) -> Any:
    if name not in _FACE:
        raise AttributeError(f"module 'kvsim' has no attribute {name!r}")
    return getattr(import_module(_FACE[name]), name)
