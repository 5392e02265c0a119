"""What a run leaves: the tables, the figures made from them, and what was put in."""

from functools import cached_property
from typing import Any

import polars as pl
from attrs import asdict, field, frozen

from kvsim.engine.metrics import METRICS, Number, metrics_of
from kvsim.engine.tables import MemoryShape, Tables, whole
from kvsim.engine.totals import Totals

CLAIM = (
    "A sizing model of KV-cache memory, not an out-of-memory predictor and not a throughput benchmark; step "
    "times are a stated model."
)
"""What no output may leave out."""


@frozen(eq=False, kw_only=True)
class Results:
    """The outcome of one run. `description` is all that was put in, ready for JSON; `stalled` says which request
    blocked the engine for ever, if one did.

    `timeline`, `requests` and `pressure` read a whole table from where `tables` keeps it.
    """

    description: dict[str, Any]
    totals: Totals
    tables: Tables
    notes: tuple[str, ...] = field(default=())
    stalled: str | None = field(default=None)

    @property
    def shape(self) -> MemoryShape:
        return self.totals.shape

    @property
    def worst_case_bytes(self) -> int:
        return self.totals.worst_case_bytes

    @cached_property
    def timeline(self) -> pl.DataFrame:
        return whole(self.tables, "timeline")

    @cached_property
    def requests(self) -> pl.DataFrame:
        return whole(self.tables, "requests")

    @cached_property
    def pressure(self) -> pl.DataFrame:
        return whole(self.tables, "pressure")

    @cached_property
    def metrics(self) -> dict[str, Number]:
        """All figures of METRICS by name, and of SAMPLE_METRICS where requests have several outputs."""
        return metrics_of(self.totals)

    @property
    def summary(self) -> dict[str, Any]:
        """Everything but the tables, ready for JSON."""
        return {
            **self.description,
            "metrics": self.metrics,
            **({} if self.totals.unshared is None else {"unshared": asdict(self.totals.unshared)}),
            "independent_of_step_times": [metric.name for metric in METRICS if not metric.depends_on_step_times],
            "notes": list(self.notes),
            "stalled": self.stalled,
            "claim": CLAIM,
        }
