"""What a run leaves: the tables, the figures made from them, and what was put in."""

from functools import cached_property
from typing import Any

from attrs import field, frozen

from kvsim.engine.metrics import METRICS, Number
from kvsim.engine.tables import RunTables

CLAIM = (
    "A sizing model of KV-cache memory, not an out-of-memory predictor and not a throughput benchmark; step "
    "times are a stated model."
)
"""What no output may leave out."""


@frozen(eq=False, kw_only=True)
class Results(RunTables):
    """The outcome of one run. `description` is all that was put in, ready for JSON; `stalled` says which request
    blocked the engine for ever, if one did.
    """

    description: dict[str, Any]
    notes: tuple[str, ...] = field(default=())
    stalled: str | None = field(default=None)

    @cached_property
    def metrics(self) -> dict[str, Number]:
        """All figures of METRICS by name."""
        return {metric.name: metric.of(self) for metric in METRICS}

    @property
    def summary(self) -> dict[str, Any]:
        """Everything but the tables, ready for JSON."""
        return {
            **self.description,
            "metrics": self.metrics,
            "independent_of_step_times": [metric.name for metric in METRICS if not metric.depends_on_step_times],
            "notes": list(self.notes),
            "stalled": self.stalled,
            "claim": CLAIM,
        }
