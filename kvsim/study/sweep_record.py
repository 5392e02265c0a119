"""What one run of a sweep came to: its outcome and its figures, without the tables over time."""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl
from attrs import evolve, field, frozen

from kvsim.engine.metrics import METRICS, SAMPLE_METRICS, Number
from kvsim.engine.results import Results
from kvsim.engine.tables import NoTables
from kvsim.errors import KvsimError
from kvsim.study.packed_trace import PackedTrace
from kvsim.study.run import simulate
from kvsim.study.scenario import Scenario
from kvsim.workload.traces import Trace

Outcome = Literal["finished", "stalled", "failed"]

Packed = Path | bytes | None
"""The file of a packed trace, or its content; None where there is none."""

_OF_THE_POOL = ("num_blocks", "usable_blocks", "block_size_tokens", "block_bytes", "bytes_per_token")
_UNITS = {metric.name: metric.unit for metric in (*METRICS, *SAMPLE_METRICS)}

FIGURES: tuple[str, ...] = (*_OF_THE_POOL, "max_model_len", *_UNITS)
"""The figures of a run: of its pool, its longest request, all of METRICS, and those of several outputs."""

_MOST_IN_64_BITS = 2**63


@frozen(kw_only=True)
class Record:
    """`error` says why a run stalled or failed; a failed one has no figures."""

    outcome: Outcome
    error: str | None = None
    figures: dict[str, Number] = field(factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def failed(cls, error: str) -> "Record":
        return cls(outcome="failed", error=error)

    def to_json(self) -> dict[str, Any]:
        return {"outcome": self.outcome, "error": self.error, "figures": self.figures, "notes": list(self.notes)}

    @classmethod
    def of_json(cls, written: Any) -> "Record":
        """Raises ValueError, KeyError or TypeError for what is no record."""
        record = cls(
            outcome=written["outcome"],
            error=written["error"],
            figures=written["figures"],
            notes=tuple(written["notes"]),
        )
        if record.outcome not in get_args(Outcome) or tuple(record.figures) != FIGURES:
            raise ValueError("not a record of a run")
        if not all(map(_is_number, record.figures.values())) or not all(isinstance(note, str) for note in record.notes):
            raise ValueError("not the figures or the notes of a run")
        if not isinstance(record.error, str | None):
            raise TypeError("error must be a text")
        return record


def _is_number(value: object) -> bool:
    """A finite one, or None for a figure that has nothing to divide by."""
    return value is None or (type(value) in (int, float) and abs(value) <= sys.float_info.max)  # type: ignore[arg-type]


def record_of(scenario: Scenario, packed: Packed = None) -> Record:
    """Run a scenario, whose trace may have been packed; whatever goes wrong is the record of a failed run."""
    return attempted(lambda: Record(**kept_of(simulate(replaying(scenario, packed), tables=NoTables()))))


def attempted(run: Callable[[], Record]) -> Record:
    """What a run gives, or the record of its failure."""
    try:
        return run()
    except KvsimError as error:
        return Record.failed(str(error))
    except Exception as error:
        return Record.failed(f"{type(error).__name__}: {error}")


def replaying(scenario: Scenario, packed: Packed) -> Scenario:
    """The same scenario, whose trace is read from where it has been packed."""
    if packed is None:
        return scenario
    assert isinstance(scenario.workload, Trace), "only traces are packed"
    return evolve(scenario, workload=PackedTrace.of(scenario.workload, packed))


def kept_of(results: Results) -> dict[str, Any]:
    """What a record keeps of a run, by name."""
    summary = results.summary
    stalled = summary["stalled"]
    return {
        "outcome": "finished" if stalled is None else "stalled",
        "error": stalled,
        "figures": {
            **dict.fromkeys(FIGURES),
            **{name: summary["pool"][name] for name in _OF_THE_POOL},
            "max_model_len": summary["geometry"]["max_model_len"],
            **summary["metrics"],
        },
        "notes": tuple(summary["notes"]),
    }


def figure_column(name: str, values: Iterable[Number]) -> pl.Series:
    """Shares and means are floats, counts whole numbers, also where no run has any."""
    values = list(values)
    broken = any(isinstance(value, float) or (value is not None and value >= _MOST_IN_64_BITS) for value in values)
    return pl.Series(name, values, dtype=pl.Float64 if broken or _UNITS.get(name) == "share" else pl.Int64)
