"""A sweep as a person reads it on a console, and as JSON."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.engine.results import CLAIM
from kvsim.study.scenario import named_overrides
from kvsim.study.sweep_best import best_values, first_key, sentence, varied
from kvsim.study.sweep_result import Combination, Sweep
from kvsim.study.vary import Scalar
from kvsim.units import format_duration

_MOST_NOTES = 10
_MANY_COLUMNS = 7


class Column(NamedTuple):
    """A figure of the runs and how it is written; a rare one is left out where it is 0 in all of them."""

    name: str
    figure: str
    written: Callable[[float], str]
    rare: bool = False


def _share(value: float) -> str:
    return f"{value:.2%}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _time(value: float) -> str:
    return format_duration(round(value))


COLUMNS = (
    Column("slack", "slack_share", _share),
    Column("hits", "hit_share", _share),
    Column("pool used", "pool_used_mean", _share),
    Column("rejected", "rejected", _count, rare=True),
    Column("timed out", "timed_out", _count, rare=True),
    Column("refused", "refused", _count, rare=True),
    Column("preemptions", "preemptions", _count, rare=True),
    Column("mean wait", "waited_mean_ns", _time),
)


def sweep_page(sweep: Sweep) -> RenderableType:
    """A row a combination, the best marked, then what is best and why, what failed apart."""
    columns = [column for column in COLUMNS if not (column.rare and _is_zero(sweep, column))]
    table = Table(box=None, pad_edge=False, padding=(0, 2 if len(columns) < _MANY_COLUMNS else 1, 0, 0))
    for name in (*_short_names([axis.key for axis in sweep.axes]), *map(_heading, columns)):
        table.add_column(name, justify="right", overflow="fold", vertical="top")
    best = best_values(sweep)
    for combination in sweep.combinations:
        is_best = any(one.point.parameters == combination.parameters for one in best)
        cells = (*map(_value, combination.parameters.values()), *_cells(combination, columns))
        table.add_row(*cells, style="bold" if is_best else None)
    said = [Text(sentence(one, first_key(sweep)), style="bold") for one in best]
    about = [named_overrides(sweep.overrides), varied(sweep)]
    heading = (Text(sweep.question, style="bold"), *(Text(line) for line in about if line))
    return Group(*heading, Padding(table, (1, 0)), *said, *_remarks(sweep))


def _heading(column: Column) -> str:
    """In two lines, so that all columns fit 80 characters."""
    return {"preemptions": "preemp-\ntions"}.get(column.name, column.name.replace(" ", "\n"))


def _is_zero(sweep: Sweep, column: Column) -> bool:
    return not sweep.table[column.figure].sum()


def _short_names(keys: list[str]) -> list[str]:
    """Keys without their tables, where that leaves no doubt."""
    short = [key.rpartition(".")[2] for key in keys]
    return short if len(set(short)) == len(short) else keys


def _cells(combination: Combination, columns: list[Column]) -> list[str]:
    if (combination.rows["outcome"] == "failed").all():
        return ["failed", *("" for _ in columns[1:])]
    return [_cell(combination, column) for column in columns]


def _cell(combination: Combination, column: Column) -> str:
    mean, spread = combination.mean(column.figure), combination.spread(column.figure)
    if mean is None:
        return "-"
    return column.written(mean) + ("" if spread is None else f"\n\u00b1{column.written(spread)}")


def _value(value: Scalar) -> str:
    return f"{value:,}" if type(value) is int else str(value)


def _remarks(sweep: Sweep) -> list[Text]:
    remarks = []
    if never := [column.name for column in COLUMNS if column.rare and _is_zero(sweep, column)]:
        remarks.append(Text(f"0 in all runs: {', '.join(never)}.", style="dim"))
    if sweep.num_seeds > 1:
        remarks.append(Text(f"Mean \u00b1 standard deviation over {sweep.num_seeds:,} seeds.", style="dim"))
    stalled = sweep.table.filter(sweep.table["outcome"] == "stalled")
    if stalled.height:
        remarks.append(Text(f"Stopped: in {stalled.height:,} runs nothing could move any more.", style="bold red"))
    remarks += [Text(f"Note: {note}", style="yellow") for note in sweep.notes[:_MOST_NOTES]]
    if len(sweep.notes) > _MOST_NOTES:
        remarks.append(Text(f"Note: and {len(sweep.notes) - _MOST_NOTES:,} notes more.", style="yellow"))
    remarks.append(Text(CLAIM, style="dim italic"))
    return remarks


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """All runs, what is best, and what a reader should know."""
    return {
        "question": sweep.question,
        "overrides": list(sweep.overrides),
        "vary": {axis.key: [value.shown for value in axis.values] for axis in sweep.axes},
        "seeds": sweep.num_seeds,
        "runs": sweep.table.to_dicts(),
        "combinations": [
            {
                "parameters": combination.parameters,
                "mean": {column.figure: combination.mean(column.figure) for column in COLUMNS},
                "spread": {column.figure: combination.spread(column.figure) for column in COLUMNS},
            }
            for combination in sweep.combinations
        ],
        "best": [
            {"parameters": one.point.parameters, "reason": sentence(one, first_key(sweep))}
            for one in best_values(sweep)
        ],
        "notes": list(sweep.notes),
        "claim": CLAIM,
    }
