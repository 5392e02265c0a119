"""A run beside what a server measured, as a person reads it on a console, and as JSON."""

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.engine.results import CLAIM
from kvsim.study.measured import COUNTERS, LEVELS, CounterError, Figure
from kvsim.study.measured_compare import MeasuredComparison
from kvsim.study.measured_sizes import CONDITIONS, SizeRow
from kvsim.study.scenario import named_overrides
from kvsim.units import format_bytes

_NAMES = {
    "kv_usage": "KV cache used",
    "running": "running requests",
    "waiting": "waiting requests",
    "recent_hit_share": "recent prefix hits",
    "finished": "finished requests",
    "prompt_tokens": "prompt tokens",
    "generation_tokens": "generated tokens",
    "queried_tokens": "tokens looked up",
    "hit_tokens": "tokens hit",
}

MEANING = (
    "Errors are run - server. A scrape holds until the next, and means are weighted by that time on both sides; the "
    "run's value is that of its last row at or before the scrape. KV cache used: blocks that requests hold of those "
    "usable, without blocks kept for hits alone, as vLLM counts. vLLM reports what is left when a step has ended, a "
    "row what the next step holds: the two are a step apart."
)


def measured_page(comparison: MeasuredComparison) -> RenderableType:
    """Levels, counters, sizes, what the comparison rests on, and below what a reader should know."""
    headings = [Text(str(comparison.results.description["question"]), style="bold")]
    if overrides := named_overrides(comparison.results.description["overrides"]):
        headings.append(Text(overrides))
    parts: list[RenderableType] = [*headings, Text(_when(comparison))]
    parts += [Padding(table, (1, 0, 0, 0)) for table in _tables(comparison)]
    missing = comparison.conditions.missing
    remarks = [Text(f"Warning: {warning}", style="bold yellow") for warning in comparison.conditions.warnings]
    if missing:
        remarks.append(
            Text(f"Not known, and needed to repeat it: {', '.join(missing)} (--fact NAME=VALUE).", style="yellow")
        )
    remarks += [Text(f"Note: {note}", style="yellow") for note in comparison.notes]
    remarks += [Text(MEANING, style="dim"), Text(CLAIM, style="dim italic")]
    return Group(*parts, Text(""), *remarks)


def _when(comparison: MeasuredComparison) -> str:
    files = ", ".join(f"{file['name']} ({file['kind']})" for file in comparison.measured.files)
    alignment = comparison.alignment
    if alignment is None:
        return f"Against {files}."
    return (
        f"Against {files}: {alignment.num_moments:,} moments from {_seconds(alignment.start_ns)} to "
        f"{_seconds(alignment.end_ns)} of the run. Clocks: {alignment.how}."
    )


def _tables(comparison: MeasuredComparison) -> list[Table]:
    tables = []
    if comparison.levels:
        tables.append(_level_table(comparison))
    if comparison.counters or comparison.hit_share is not None:
        tables.append(_counter_table(comparison))
    if comparison.conditions.sizes:
        tables.append(_size_table(comparison.conditions.sizes))
    if comparison.conditions.known:
        tables.append(_known_table(comparison))
    return tables


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for at, column in enumerate(columns):
        table.add_column(column, justify="right" if at else "left", no_wrap=True, vertical="bottom")
    return table


def _level_table(comparison: MeasuredComparison) -> Table:
    table = _table("over time", "server", "run", "error", "mean abs.\nerror", "largest\nerror", "at")
    for figure in LEVELS:
        if figure.name in comparison.levels:
            error = comparison.levels[figure.name]
            value, signed = (_percent, _points) if figure.unit == "share" else (_count, _more_or_less)
            table.add_row(
                _name(figure),
                value(error.measured_mean),
                value(error.simulated_mean),
                signed(error.mean_error),
                signed(error.mean_absolute_error).removeprefix("+"),
                signed(error.largest_error),
                _seconds(error.largest_ns) if error.largest_error else "-",
            )
            most = error.simulated_peak - error.measured_peak
            table.add_row("  the most", value(error.measured_peak), value(error.simulated_peak), signed(most))
    return table


def _percent(share: float) -> str:
    return f"{share:.2%}"


def _points(share: float) -> str:
    """Points of per cent."""
    return f"{100 * share:+.2f} pt" if share else "0 pt"


def _count(value: float) -> str:
    return f"{value:,.2f}"


def _more_or_less(value: float) -> str:
    return f"{value:+,.2f}" if value else "0"


def _counter_table(comparison: MeasuredComparison) -> Table:
    table = _table("counted", "server", "run", "error", "server\nin all", "run\nin all", "error\nin all")
    for figure in COUNTERS:
        if figure.name in comparison.counters:
            table.add_row(_name(figure), *_counter_cells(comparison.counters[figure.name]))
    hits = comparison.hit_share
    if hits is not None:
        table.add_row(
            "prefix hits",
            *_share_cells(hits.measured, hits.simulated),
            *_share_cells(hits.measured_in_all, hits.simulated_in_all),
        )
    return table


def _counter_cells(error: CounterError) -> list[str]:
    def count(value: float | None, sign: str = "") -> str:
        return "-" if value is None else f"{value:{sign if value else ''},.0f}"

    return [
        count(error.measured),
        count(error.simulated),
        count(error.difference, "+"),
        count(error.measured_in_all),
        count(error.simulated_in_all),
        count(error.difference_in_all, "+"),
    ]


def _share_cells(measured: float | None, simulated: float | None) -> list[str]:
    cells = ["-" if share is None else _percent(share) for share in (measured, simulated)]
    return [*cells, "-" if measured is None or simulated is None else _points(simulated - measured)]


def _size_table(rows: tuple[SizeRow, ...]) -> Table:
    table = _table("sizes", "server", "run", "error", "")
    for row in rows:
        verdict = {True: "agrees", False: "differs", None: ""}[row.agrees]
        if row.agrees and row.difference:
            verdict = "agrees as printed"
        unit = f" ({row.unit})" if row.unit else ""
        table.add_row(
            f"{row.name.replace('_', ' ')}{unit}",
            *(_size(row, value) for value in (row.measured, row.simulated, row.difference)),
            Text(verdict, style="bold yellow" if row.agrees is False else ""),
        )
    return table


def _size(row: SizeRow, value: int | float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if row.unit == "bytes":
        return format_bytes(value) if abs(value) >= 2**20 else f"{value:,.0f} B"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _known_table(comparison: MeasuredComparison) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("the server", "", "said by"):
        table.add_column(column, overflow="fold")
    for name, fact in comparison.conditions.known.items():
        value = f"{fact.value:,}" if isinstance(fact.value, int) else str(fact.value)
        table.add_row(CONDITIONS[name], value, fact.source)
    return table


def _name(figure: Figure) -> str:
    return _NAMES.get(figure.name, figure.name)


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:,.2f} s"


def measured_json(comparison: MeasuredComparison) -> dict[str, Any]:
    """All of it; times in ns of the run, shares from 0 to 1, every error run - server."""
    alignment, facts = comparison.alignment, comparison.conditions
    return {
        "question": comparison.results.description["question"],
        "overrides": comparison.results.description["overrides"],
        "seed": comparison.results.description["seed"],
        "versions": comparison.results.description["versions"],
        "files": [dict(file) for file in comparison.measured.files],
        "alignment": None
        if alignment is None
        else {
            "how": alignment.how,
            "shift_ns": alignment.shift_ns,
            "doubt_ns": alignment.doubt_ns,
            "start_ns": alignment.start_ns,
            "end_ns": alignment.end_ns,
            "moments": alignment.num_moments,
            "moments_before": alignment.num_before,
            "moments_after": alignment.num_after,
            "run_not_covered_ns": alignment.run_not_covered_ns,
        },
        "levels": {
            figure.name: {"unit": figure.unit, "meaning": figure.meaning, **comparison.levels[figure.name]._asdict()}
            for figure in LEVELS
            if figure.name in comparison.levels
        },
        "counters": {
            figure.name: {
                "unit": figure.unit,
                "meaning": figure.meaning,
                **error._asdict(),
                "difference": error.difference,
                "difference_in_all": error.difference_in_all,
            }
            for figure in COUNTERS
            if (error := comparison.counters.get(figure.name)) is not None
        },
        "hit_share": _hit_share_json(comparison),
        "sizes": {row.name: {**row._asdict(), "difference": row.difference} for row in facts.sizes},
        "known": {name: fact._asdict() for name, fact in facts.known.items()},
        "missing": list(facts.missing),
        "warnings": list(facts.warnings),
        "notes": list(comparison.notes),
        "meaning": MEANING,
        "claim": CLAIM,
    }


def _hit_share_json(comparison: MeasuredComparison) -> dict[str, float | None] | None:
    hits = comparison.hit_share
    if hits is None:
        return None
    return {
        "measured": hits.measured,
        "simulated": hits.simulated,
        "measured_in_all": hits.measured_in_all,
        "simulated_in_all": hits.simulated_in_all,
    }
