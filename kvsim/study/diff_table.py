"""What changed between two runs as a person reads it on a console."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.engine.results import CLAIM
from kvsim.study.diff import Differences, Effect, Figure
from kvsim.study.written import written, written_amount, written_change, written_percent, written_share

_INDEPENDENT = "*"
"""Marks what does not depend on how long steps take."""

_WIDE = 130
"""Columns of a console beside whose figures there is room for their meaning."""

_PART_FIGURES = {
    "allocated_mean_bytes": ("{}_mean_bytes", "{}_share"),
    "live_mean_bytes": ("{}_mean_bytes",),
    "pool_shares": ("{}_mean_bytes", "{}_share"),
    "requests": ("{}",),
    "rejected": ("rejected_{}",),
    "held_back_steps": ("refusals_for_{}", "held_back_by_{}"),
    "preemptions": ("{}",),
    "admitted_prompt_tokens": ("{}_tokens",),
}
"""What figures of METRICS are called that the parts of an effect have told already."""


class Row(NamedTuple):
    """What it is, both values, the change and its share of what was before, what it means."""

    name: str
    before: str = ""
    after: str = ""
    change: str = ""
    percent: str = ""
    meaning: str = ""
    is_bold: bool = False
    indent: int = 2


def differences_page(found: Differences, before: str, after: str) -> RenderableType:
    """The answer, then what was put in, what came out by cause with the largest first, and other figures that changed;
    `before` and `after` are what the runs are called.
    """
    parts: list[RenderableType] = [
        Text(f"before: {before}"),
        Text(f"after:  {after}"),
        Padding(Text(found.answer, style="bold"), (1, 0, 0, 0)),
    ]
    if found.inputs:
        parts.append(Padding(_inputs_table(found), (1, 0, 0, 0)))
    sections = (
        _section("What changed, by cause", list(_effect_rows(found.effects))),
        _section("Other figures", [_figure_row(figure) for figure in _told(found)]),
    )
    if any(sections):
        parts.append(Padding(_Fitting([row for rows in sections for row in rows]), (1, 0, 0, 0)))
    return Group(*parts, Text(""), *_remarks(found))


def _inputs_table(found: Differences) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(overflow="fold")
    for heading, inputs in (
        ("What was put in", found.given),
        ("What follows from it", tuple(changed for changed in found.inputs if changed.follows)),
    ):
        if inputs:
            table.add_row(*(Text(cell, style="bold") for cell in (heading, "before", "after")))
        for changed in inputs:
            table.add_row(Text(f"  {changed.name}"), Text(changed.before_text), Text(changed.after_text))
    return table


def _section(title: str, rows: list[Row]) -> list[Row]:
    return [Row(title, "before", "after", "change", is_bold=True, indent=0), *rows] if rows else []


class _Fitting:
    """With what rows mean where the console is wide enough."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        is_wide = options.max_width >= _WIDE
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(overflow="fold")
        for _ in range(4):
            table.add_column(justify="right", no_wrap=True)
        if is_wide:
            table.add_column(style="dim", overflow="fold")
        for row in self._rows:
            cells: list[RenderableType] = [Padding(Text(row.name), (0, 0, 0, row.indent))]
            cells += [Text(cell) for cell in (row.before, row.after, row.change, row.percent)]
            if is_wide:
                cells.append(Text(row.meaning))
            table.add_row(*cells, style="bold" if row.is_bold else "")
        yield table


def _effect_rows(effects: Sequence[Effect]) -> Iterator[Row]:
    """The whole, with the share of all there was by which its largest part moved, and the parts that changed."""
    for effect in effects:
        counted = f"; {effect.counted}" if effect.counted else ""
        yield Row(
            f"{effect.title}{_mark(effect)}",
            written(effect.before, effect.unit),
            written(effect.after, effect.unit),
            written_change(effect.change, effect.unit),
            _percent(effect.relative_change),
            f"largest cause: {written_share(effect.moved)} of {effect.out_of}{counted}",
            is_bold=True,
        )
        for part in effect.changed_parts:
            yield Row(
                part.name.replace("_", " "),
                written_amount(part.before, effect.unit),
                written_amount(part.after, effect.unit),
                written_change(part.change, effect.unit),
                "",
                part.meaning,
                indent=4,
            )


def _figure_row(figure: Figure) -> Row:
    change = figure.change
    return Row(
        f"{figure.name}{_mark(figure)}",
        written(figure.before, figure.unit),
        written(figure.after, figure.unit),
        "" if change is None else written_change(change, figure.unit),
        _percent(figure.relative_change),
        figure.meaning,
    )


def _percent(relative: Fraction | None) -> str:
    return "" if not relative else written_percent(relative)


def _mark(of: Effect | Figure) -> str:
    return _INDEPENDENT if of.independent_of_step_times else ""


def _told(found: Differences) -> list[Figure]:
    """Figures that no effect has told already, as itself or as one of its parts."""
    said = {effect.name for effect in found.effects}
    for effect in found.effects:
        for form in _PART_FIGURES.get(effect.name, ()):
            said |= {form.format(part.name) for part in effect.parts}
    return [figure for figure in found.figures if figure.name not in said]


def _remarks(found: Differences) -> list[Text]:
    lines = []
    if not found.are_equal:
        lines.append(Text(found.traffic_sentence, style="dim"))
    if found.effects and found.same_effects:
        lines.append(Text(f"The same in both: {', '.join(found.same_effects)}.", style="dim"))
    figures: list[Effect | Figure] = [*found.effects, *_told(found)]
    if any(figure.independent_of_step_times for figure in figures):
        lines.append(Text(f"{_INDEPENDENT} does not depend on step times; all else does.", style="dim"))
    for when, stalled, notes in zip(("before", "after"), found.stalled, found.notes, strict=True):
        lines += [Text(f"Note ({when}): {note}", style="yellow") for note in notes]
        if stalled is not None:
            lines.append(Text(f"Stopped ({when}): {stalled}", style="bold red"))
    return [*lines, Text(CLAIM, style="dim italic")]
