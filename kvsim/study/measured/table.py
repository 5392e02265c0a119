"""A run beside what a server measured, as a person reads it on a console, and as JSON."""

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.engine.results import CLAIM
from kvsim.study.measured.answer import (
    MOST_CLOSELY,
    MOST_ROUGHLY,
    NAMES_SHOWN,
    answer,
    count,
    of_figure,
    percent,
    points,
    seconds,
)
from kvsim.study.measured.clocks import Alignment
from kvsim.study.measured.compare import MeasuredComparison
from kvsim.study.measured.load import comparable, in_order
from kvsim.study.measured.series import COUNTERS, LEVELS, Figure
from kvsim.study.measured.sizes import CONDITIONS, SizeRow
from kvsim.study.scenario import named_overrides
from kvsim.units import format_bytes

MEANING = (
    f"Closely: KV cache used differs by at most {100 * MOST_CLOSELY:.0f} points on average; roughly: by at most "
    f"{100 * MOST_ROUGHLY:.0f}. Errors are run - server. A scrape holds until the next, and means are weighted by that "
    "time on both sides; the run's value, its peak too, is that at the scrapes. KV cache used: blocks that requests "
    "hold of those usable, without blocks kept for hits alone, as vLLM counts. vLLM reports what is left when a "
    "step has ended, a row what the next step holds: the two are a step apart."
)


def measured_page(comparison: MeasuredComparison) -> RenderableType:
    """Levels, counters, sizes, what the comparison rests on, and below what a reader should know."""
    headings = [Text(str(comparison.results.description["question"]), style="bold")]
    if overrides := named_overrides(comparison.results.description["overrides"]):
        headings.append(Text(overrides))
    parts: list[RenderableType] = [*headings, Text(" ".join(answer(comparison)), style="bold")]
    parts += [Text(f"Warning: {warning}", style="bold yellow") for warning in comparison.warnings]
    parts.append(Text(_when(comparison)))
    parts += [Padding(table, (1, 0, 0, 0)) for table in _tables(comparison)]
    missing = comparison.conditions.missing
    remarks = []
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
        f"Against {files}: {alignment.num_moments:,} moments from {seconds(alignment.start_ns)} to "
        f"{seconds(alignment.end_ns)} of the run. Clocks: {_clocks(alignment)}."
    )


def _clocks(alignment: Alignment) -> str:
    fit = alignment.fit
    if fit is None:
        return alignment.how
    open_ns = f"{seconds(fit.earliest_ns)} to {seconds(fit.latest_ns)}"
    left_open = "that the scrapes leave open" if fit.bounded else "looked at, as no scrape bounds it"
    text = f"the first scrape lies {seconds(fit.offset_ns)} into the run, of {open_ns} {left_open} where "
    text += f"{NAMES_SHOWN[fit.figure]} differ{'s' if fit.figure == 'kv_usage' else ''} least"
    if fit.matters:
        ends = [of_figure(fit.figure, error) for error in (fit.earliest_error, fit.latest_error)]
        text += f"; at the ends of that by {ends[0]} and {ends[1]}, not {of_figure(fit.figure, fit.error)}"
    return text


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
    table = _table("over time", "server", "run", "mean\nerror", "mean abs.\nerror", "largest\nerror", "at")
    for figure in LEVELS:
        if figure.name in comparison.levels:
            error = comparison.levels[figure.name]
            value, signed = (percent, points) if figure.unit == "share" else (count, _more_or_less)
            table.add_row(
                _name(figure),
                value(error.measured_mean),
                value(error.simulated_mean),
                signed(error.mean_error),
                signed(error.mean_absolute_error).removeprefix("+"),
                signed(error.largest_error),
                seconds(error.largest_ns) if error.largest_error else "-",
            )
            most = error.simulated_peak - error.measured_peak
            table.add_row("  the most seen", value(error.measured_peak), value(error.simulated_peak), signed(most))
    return table


def _more_or_less(value: float) -> str:
    return f"{value:+,.2f}" if value else "0"


def _counter_table(comparison: MeasuredComparison) -> Table:
    """What is comparable alone; the JSON has both spans of time."""
    counted = comparison.counted
    table = _table("counted in all" if counted == "in_all" else "counted in common", "server", "run", "error", "")
    for name in in_order(comparison.counters):
        measured, simulated = comparable(comparison.counters[name], counted)
        if measured is None or simulated is None:
            table.add_row(NAMES_SHOWN.get(name, name), "-", "-", "-")
            continue
        error = simulated - measured
        part = f"{error / measured:+.1%}" if error and measured else ""
        table.add_row(
            NAMES_SHOWN.get(name, name),
            f"{measured:,.0f}",
            f"{simulated:,.0f}",
            f"{error:+,.0f}" if error else "0",
            part,
        )
    hits = comparison.hit_share
    if hits is not None:
        in_all = counted == "in_all"
        shares = (hits.measured_in_all, hits.simulated_in_all) if in_all else (hits.measured, hits.simulated)
        table.add_row("prefix hits", *_share_cells(*shares))
    return table


def _share_cells(measured: float | None, simulated: float | None) -> list[str]:
    cells = ["-" if share is None else percent(share) for share in (measured, simulated)]
    return [*cells, "-" if measured is None or simulated is None else points(simulated - measured)]


def _size_table(rows: tuple[SizeRow, ...]) -> Table:
    table = _table("sizes", "server", "run", "error", "")
    for row in rows:
        if row.name == "model":
            continue  # as long as it likes; a warning says if it differs
        verdict = {True: "agrees", False: "differs", None: ""}[row.agrees]
        if row.agrees and row.difference:
            verdict = "agrees as printed"
        unit = f" ({row.unit})" if row.unit else ""
        table.add_row(
            f"{row.name.replace('_', ' ')}{unit}",
            _size(row, row.measured),
            _size(row, row.simulated),
            f"{'+' if row.difference and row.difference > 0 else ''}{_size(row, row.difference)}",
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
    return NAMES_SHOWN.get(figure.name, figure.name)


def measured_json(comparison: MeasuredComparison) -> dict[str, Any]:
    """All of it; times in ns of the run, shares from 0 to 1, every error run - server."""
    alignment, facts = comparison.alignment, comparison.conditions
    return {
        "question": comparison.results.description["question"],
        "overrides": comparison.results.description["overrides"],
        "seed": comparison.results.description["seed"],
        "versions": comparison.results.description["versions"],
        "answer": list(answer(comparison)),
        "counted": comparison.counted,
        "files": [dict(file) for file in comparison.measured.files],
        "alignment": None
        if alignment is None
        else {
            "how": alignment.how,
            "shift_ns": alignment.shift_ns,
            "doubt_ns": alignment.doubt_ns,
            "fit": None if alignment.fit is None else alignment.fit._asdict(),
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
        "warnings": list(comparison.warnings),
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
