"""What changed between two runs as a person reads it on a console."""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.engine.results import CLAIM
from kvsim.study.diff import Differences, Figure
from kvsim.study.diff_effects import ORDER, Effect, written_factor
from kvsim.study.diff_inputs import Input
from kvsim.study.written import written_amount, written_change, written_share

_INDEPENDENT = "*"
"""Marks what does not depend on how long steps take."""

_WIDE = 130
"""Columns of a console beside whose figures there is room for their meaning; else it stands below, once."""

_GAP = 2
_LONGEST_KEY = 40
"""A key as long as this is not broken, whatever its values are."""

_PART_FIGURES = {
    "lost": ("{}",),
    "slack_mean_bytes": ("{}_mean_bytes", "{}_share"),
    "allocated_mean_bytes": ("{}_mean_bytes",),
    "live_mean_bytes": ("{}_mean_bytes",),
    "pool_shares": ("{}_mean_bytes",),
    "requests": ("{}",),
    "held_back_steps": ("refusals_for_{}", "held_back_by_{}"),
    "preemptions": ("{}",),
}
"""What figures of METRICS are called that the parts of an effect have told already."""

_SHARE_FIGURES = {
    "slack_mean_bytes": ("slack_share", "utilization"),
    "external_mean_bytes": ("external_share",),
    "allocated_mean_bytes": ("pool_used_mean",),
    "hit_tokens": ("hit_share",),
}
"""Those that the share of an effect has told, be it as what is left of it."""

_INPUT_FIGURES = {"pool.pool_bytes": "pool_bytes", "pool.block_bytes": "null_block_bytes"}
"""Those that stand above, as what follows from what was put in."""


class Row(NamedTuple):
    """What it is, both values, the change and what that is of what was before, what it means."""

    name: str
    before: str = ""
    after: str = ""
    change: str = ""
    percent: str = ""
    meaning: str = ""
    is_bold: bool = False
    indent: int = 2

    @property
    def figures(self) -> tuple[str, str, str, str]:
        return self.before, self.after, self.change, self.percent


def differences_page(found: Differences, before: str, after: str) -> RenderableType:
    """The answer, then what was put in, what came out by cause in the order of ORDER, and other figures that changed;
    `before` and `after` are what the runs are called.
    """
    parts: list[RenderableType] = [
        Text(f"before: {before}"),
        Text(f"after:  {after}"),
        Padding(Text(found.answer, style="bold"), (1, 0, 0, 0)),
    ]
    parts += [Padding(part, (1, 0, 0, 0)) for part in _inputs(found)]
    told = _told(found)
    little = [figure for figure in told if figure.hardly_changed]
    sections = (
        *_effect_sections(found.effects),
        _section("Other figures", [_figure_row(figure) for figure in told if figure not in little]),
    )
    if found.effects:
        parts.append(Padding(Text(ORDER, style="dim"), (1, 0, 0, 0)))
    if any(sections):
        parts.append(Padding(_Fitting([row for rows in sections for row in rows]), (1, 0, 0, 0)))
    return Group(*parts, Text(""), *_remarks(found, little))


def _inputs(found: Differences) -> Iterator[RenderableType]:
    """Keys in columns, and files, whose names may be long, a line each."""
    if keys := [changed for changed in found.inputs if not changed.is_file]:
        yield _inputs_table(keys)
    if files := [changed for changed in found.inputs if changed.is_file]:
        yield Group(Text("Files", style="bold"), *(Text(f"  {changed.sentence}") for changed in files))


def _inputs_table(keys: Sequence[Input]) -> Table:
    longest = max(len(changed.name) for changed in keys)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    table.add_column(overflow="fold", min_width=min(longest, _LONGEST_KEY) + _GAP)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for heading, inputs in (
        ("What was put in", [changed for changed in keys if not changed.follows]),
        ("What follows from it", [changed for changed in keys if changed.follows]),
    ):
        if inputs:
            table.add_row(*(Text(cell, style="bold") for cell in (heading, "before", "after")))
        for changed in inputs:
            table.add_row(Text(f"  {changed.name}"), Text(changed.before_text), Text(changed.after_text))
    return table


def _section(title: str, rows: list[Row]) -> list[Row]:
    return [Row(title, "before", "after", "change", is_bold=True, indent=0), *rows] if rows else []


class _Fitting:
    """With what rows mean beside them where the console is wide enough, else below them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width >= _WIDE:
            yield self._with_meaning_beside()
        else:
            yield from self._with_meaning_below(options.max_width)

    def _with_meaning_beside(self) -> Table:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
        table.add_column(overflow="fold")
        for _ in range(4):
            table.add_column(justify="right", no_wrap=True)
        table.add_column(style="dim", overflow="fold")
        for row in self._rows:
            cells = [Text(cell) for cell in (*row.figures, row.meaning)]
            table.add_row(Padding(Text(row.name), (0, 0, 0, row.indent)), *cells, style="bold" if row.is_bold else "")
        return table

    def _with_meaning_below(self, width: int) -> Iterator[RenderableType]:
        """Each meaning once: many rows have the same. A name that leaves no room for figures has a line of its own."""
        widths = [max(len(row.figures[column]) for row in self._rows) for column in range(len(Row("").figures))]
        room = width - sum(_GAP + column for column in widths)
        names = min(room, max(row.indent + len(row.name) for row in self._rows))
        said: set[str] = set()
        for row in self._rows:
            name = f"{' ' * row.indent}{row.name}"
            figures = "".join(f"{' ' * _GAP}{cell:>{column}}" for cell, column in zip(row.figures, widths, strict=True))
            style = "bold" if row.is_bold else ""
            if len(name) > names:
                yield Text(name, style=style)
                name = ""
            yield Text(f"{name:<{max(names, 0)}}{figures}".rstrip(), style=style)
            if row.meaning and row.meaning not in said:
                said.add(row.meaning)
                yield Padding(Text(row.meaning, style="dim"), (0, 0, 0, row.indent + _GAP))


def _effect_sections(effects: Sequence[Effect]) -> Iterator[list[Row]]:
    much = [effect for effect in effects if not effect.stands_below]
    at_peak = [effect for effect in effects if effect.kind == "peak"]
    little = [effect for effect in effects if effect.stands_below and effect.kind != "peak"]
    yield _section("What changed, by cause", list(_effect_rows(much)))
    yield _section("Hardly changed in all", list(_effect_rows(little)))
    yield _section("Peaks", list(_effect_rows(at_peak)))


def _effect_rows(effects: Sequence[Effect]) -> Iterator[Row]:
    """The whole, the share that it is of all there was, and the parts that changed."""
    for effect in effects:
        yield Row(
            f"{effect.title}{_mark(effect)}",
            written_amount(effect.before, effect.unit),
            written_amount(effect.after, effect.unit),
            written_change(effect.change, effect.unit),
            written_factor(effect.before, effect.after),
            effect.counted,
            is_bold=True,
        )
        old, new = effect.shares
        if effect.shows_shares and old is not None and new is not None:
            yield Row(
                f"of {effect.out_of}",
                written_share(old),
                written_share(new),
                written_change(new - old, "share"),
                indent=4,
            )
        for part in effect.changed_parts if len(effect.parts) > 1 else ():
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
    """What is counted stands before its meaning, as a number alone does not say it."""
    change = figure.change
    says_unit = figure.unit in ("bytes", "ns", "share", *figure.meaning.split())
    counted = "" if says_unit else f"{figure.unit}: "
    return Row(
        f"{figure.name}{_mark(figure)}",
        written_amount(figure.before, figure.unit),
        written_amount(figure.after, figure.unit),
        "" if change is None else written_change(change, figure.unit),
        "" if change is None else written_factor(Fraction(figure.before or 0), Fraction(figure.after or 0)),
        f"{counted}{figure.meaning}",
    )


def _mark(of: Effect | Figure) -> str:
    return _INDEPENDENT if of.independent_of_step_times else ""


def _told(found: Differences) -> list[Figure]:
    """Figures that nothing has told already, as itself, a part or a share."""
    said = {effect.name for effect in found.effects}
    said |= {_INPUT_FIGURES.get(changed.name, "") for changed in found.inputs}
    for effect in found.effects:
        for form in _PART_FIGURES.get(effect.name, ()):
            said |= {form.format(part.name) for part in effect.parts}
        said |= set(_SHARE_FIGURES.get(effect.name, ()))
    return [figure for figure in found.figures if figure.name not in said]


def _remarks(found: Differences, little: Sequence[Figure]) -> list[Text]:
    lines = []
    if little:
        names = ", ".join(f"{figure.name}{_mark(figure)}" for figure in little)
        lines.append(Text(f"Other figures that changed by less than 1%: {names}.", style="dim"))
    if found.effects and found.same_effects:
        lines.append(Text(f"The same in both: {', '.join(found.same_effects)}.", style="dim"))
    if not found.are_equal and found.have_same_traffic:
        lines.append(Text(found.traffic_sentence, style="dim"))
    figures: list[Effect | Figure] = [*found.effects, *_told(found)]
    if any(figure.independent_of_step_times for figure in figures):
        lines.append(Text(f"{_INDEPENDENT} does not depend on step times; all else does.", style="dim"))
    for when, stalled, notes in zip(("before", "after"), found.stalled, found.notes, strict=True):
        lines += [Text(f"Note ({when}): {note}", style="yellow") for note in notes]
        if stalled is not None:
            lines.append(Text(f"Stopped ({when}): {stalled}", style="bold red"))
    return [*lines, Text(CLAIM, style="dim italic")]
