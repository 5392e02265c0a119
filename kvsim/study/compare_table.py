"""A comparison as a person reads it on a console, and as JSON."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.engine.results import CLAIM
from kvsim.study.compare import PERIOD, Comparison, Row
from kvsim.study.compare_answer import answer
from kvsim.study.compare_record import ALLOCATED_PARTS, POOL_PARTS
from kvsim.study.scenario import named_overrides
from kvsim.study.sweep_record import FIGURES
from kvsim.units import format_bytes, format_duration

ABOUT = {
    "paged": "blocks of B tokens, taken as they are written",
    "max": "engine.max_model_len slots in a row, whatever the request",
    "pow2": "the prompt and the next power of two >= the output, at most max_model_len",
    "oracle": "the prompt and the output, exactly",
    "predicted": "the prompt and a guess of the output, at most ERROR of it too long or too short",
}
"""What an allocator gives a request at its admission, in a run and not in closed form."""

_NOTHING = ("0", "-")
_MOST_NOTES = 10
_WIDER_THAN_ANY = 100_000


class Column(NamedTuple):
    """What a row says, None where there is nothing to say, and how it is written. One that says the same of all rows
    stands below the table unless it is `kept`; of memory or else of requests.
    """

    name: str
    of: Callable[[Row], float | None]
    written: Callable[[float], str]
    heading: str
    is_memory: bool
    kept: bool = False


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _time(value: float) -> str:
    return format_duration(round(value))


def _figure(name: str) -> Callable[[Row], float | None]:
    return lambda row: row.figure(name)


def _share(part: str) -> Callable[[Row], float | None]:
    return lambda row: row.share(part)


_HEADINGS = {"reserved": "reser-\nved %", "padding": "pad-\nding %"}

COLUMNS = (
    Column("pool", _figure("pool_bytes"), format_bytes, "pool", True),
    Column("allocated", _figure("pool_used_mean"), _percent, "allo-\ncated %", True),
    *(
        Column(part, _share(part), _percent, _HEADINGS.get(part, f"{part}\n%"), True, kept=part == "live")
        for part in ALLOCATED_PARTS
    ),
    Column("external", _figure("external_share"), _percent, "exter-\nnal %", True),
    Column("cached", lambda row: row.pool_share("cached"), _percent, "cached\n%", True),
    Column("batched", _figure("batched_mean"), "{:,.2f}".format, "batched", False, kept=True),
    Column("rejected", _figure("rejected"), _count, "rejec-\nted", False),
    Column("timed out", _figure("timed_out"), _count, "timed\nout", False),
    Column("refused", _figure("refused"), _count, "refused", False),
    Column("preempted", _figure("preempted"), _count, "preemp-\nted", False),
    Column("recomputed tokens", _figure("recomputed_tokens"), _count, "tokens\nagain", False),
    Column("swapped out", _figure("swapped_out_bytes"), format_bytes, "swapped\nout", False),
    Column("saved by sharing outputs", _figure("sample_saved_share"), _percent, "saved\n%", False),
    Column("prefix hits", _figure("hit_share"), _percent, "prefix\nhits %", False),
    Column("median wait", _figure("waited_p50_ns"), _time, "median\nwait", False),
    Column("95 % wait", _figure("waited_p95_ns"), _time, "95 %\nwait", False),
    Column("duration", _figure("duration_ns"), _time, "duration", False),
)


def comparison_page(comparison: Comparison) -> RenderableType:
    """The answer, a row a run, and below what is the same in all, what words mean and what a reader should know."""
    shown = [column for column in COLUMNS if column.kept or _differs(comparison, column)]
    heading = [comparison.question, named_overrides(comparison.overrides)]
    return Group(
        *(Text(line, style="bold" if at == 0 else "") for at, line in enumerate(heading) if line),
        Padding(Text(answer(comparison), style="bold"), (1, 0, 0, 0)),
        Padding(_Fitting(comparison, shown), (1, 0)),
        *_remarks(comparison, shown),
    )


class _Fitting:
    """One table where the console is wide enough, else one of memory and one of requests."""

    def __init__(self, comparison: Comparison, columns: Sequence[Column]) -> None:
        self._comparison = comparison
        self._columns = columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = self._spaced(self._columns, console, options)
        if whole is not None:
            yield whole
            return
        for is_memory in (True, False):
            columns = [column for column in self._columns if column.is_memory == is_memory]
            yield self._spaced(columns, console, options) or _table(self._comparison, columns, 1)
            if is_memory:
                yield Text("")

    def _spaced(self, columns: Sequence[Column], console: Console, options: ConsoleOptions) -> Table | None:
        """With as much between columns as there is room for; None where there is none."""
        unbound = options.update(max_width=_WIDER_THAN_ANY)
        for space in (2, 1):
            table = _table(self._comparison, columns, space)
            if Measurement.get(console, unbound, table).maximum <= options.max_width:
                return table
        return None


def _table(comparison: Comparison, columns: Sequence[Column], space: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, space, 0, 0))
    keys = list(comparison.rows[0].run.parameters)
    for key in keys:
        table.add_column(_short(key, keys), overflow="fold", min_width=6, vertical="bottom")
    for column in columns:
        table.add_column(column.heading, justify="right", no_wrap=True, vertical="bottom")
    for row in comparison.rows:
        cells = [_cell(row, column) for column in columns]
        if row.has_failed:
            cells = ["failed", *("" for _ in columns[1:])]
        table.add_row(*map(str, row.run.parameters.values()), *cells)
    return table


def _short(key: str, keys: Sequence[str]) -> str:
    """A key without its table, where that leaves no doubt."""
    short = key.rpartition(".")[2]
    return short if [other.rpartition(".")[2] for other in keys].count(short) == 1 else key


def _cell(row: Row, column: Column) -> str:
    value = column.of(row)
    return "-" if value is None else column.written(value) if value else "0"


def _differs(comparison: Comparison, column: Column) -> bool:
    cells = [_cell(row, column) for row in comparison.compared]
    return len(set(cells)) > 1 or (len(cells) == 1 and cells[0] not in _NOTHING)


def _remarks(comparison: Comparison, shown: Sequence[Column]) -> list[Text]:
    remarks = [Text(line, style="dim") for line in (*_the_same(comparison, shown), *_explained(comparison, shown))]
    remarks += [
        Text(f"Stopped: {row.label}: {row.record.error}", style="bold red")
        for row in comparison.rows
        if row.record.outcome == "stalled"
    ]
    if not comparison.has_same_traffic:
        remarks.append(Text(f"Note: {_traffic_differs(comparison)}", style="yellow"))
    remarks += [Text(f"Note: {note}", style="yellow") for note in comparison.notes[:_MOST_NOTES]]
    if len(comparison.notes) > _MOST_NOTES:
        remarks.append(Text(f"Note: and {len(comparison.notes) - _MOST_NOTES:,} notes more.", style="yellow"))
    return [*remarks, Text(CLAIM, style="dim italic")]


def _the_same(comparison: Comparison, shown: Sequence[Column]) -> list[str]:
    """What need not stand in every row."""
    if not comparison.compared:
        return []
    first = comparison.compared[0]
    same = [(column, _cell(first, column)) for column in COLUMNS if column not in shown]
    some = [f"{column.name} {cell}{_unit(column)}" for column, cell in same if cell not in _NOTHING]
    none = [column.name for column, cell in same if cell == "0"]
    lines = [f"The same in all: {', '.join(some)}."] if some else []
    lines += [f"0 in all: {', '.join(none)}."] if none else []
    if comparison.has_same_traffic and len(comparison.compared) > 1:
        lines.append("Arrivals, lengths and content of the requests were the same in all, by their digests.")
    return lines


def _unit(column: Column) -> str:
    return " %" if column.written is _percent else ""


def _explained(comparison: Comparison, shown: Sequence[Column]) -> list[str]:
    names = {column.name for column in shown}
    allocated = [part for part in ALLOCATED_PARTS if part in names]
    pool = [name for name in ("allocated", "external", "cached") if name in names]
    of_what = [f"{', '.join(allocated)}: of what is allocated", *([f"{', '.join(pool)}: of the pool"] if pool else [])]
    lines = ["; ".join(of_what) + "."]
    if "external" in names:
        lines.append("external: free, and in no extent large enough for the request at the head of the queue.")
    lines.append(PERIOD)
    kinds = dict.fromkeys(row.allocator.partition(":")[0] for row in comparison.rows)
    forms = {"paged": "paged:B", "predicted": "predicted:ERROR"}
    return [*lines, "; ".join(f"{forms.get(kind, kind)}: {ABOUT[kind]}" for kind in kinds) + "."]


def _traffic_differs(comparison: Comparison) -> str:
    different = " and ".join(name for name, same in comparison.same.items() if not same)
    if varied := [axis.key for axis in comparison.axes if axis.key.partition(".")[0] in ("workload", "model")]:
        return f"{different} differ between rows, as {', '.join(varied)} varies."
    return (
        f"{different} differ between rows: in this workload requests follow the end of others, so that what memory "
        "decides comes back to it as traffic. The seed is the same."
    )


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """All runs, the answer, whether the traffic was the same, and what a reader should know."""
    return {
        "question": comparison.question,
        "overrides": list(comparison.overrides),
        "seed": comparison.seed,
        "vary": {axis.key: [value.shown for value in axis.values] for axis in comparison.axes},
        "period": PERIOD,
        "same_traffic": comparison.same,
        "answer": answer(comparison),
        "runs": [_run_json(row) for row in comparison.rows],
        "notes": list(comparison.notes),
        "claim": CLAIM,
    }


def _run_json(row: Row) -> dict[str, Any]:
    """`share` is of what was allocated, `pool_share` of the pool, both by time; figures are those of `kvsim run`."""
    return {
        "allocator": row.allocator,
        "parameters": row.run.parameters,
        "outcome": row.record.outcome,
        "error": row.record.error,
        "share": {part: row.share(part) for part in ALLOCATED_PARTS},
        "pool_share": {part: row.pool_share(part) for part in POOL_PARTS},
        "refused_share": row.refused_share,
        **{name: row.figure(name) for name in FIGURES},
        "digests": row.digests,
    }
