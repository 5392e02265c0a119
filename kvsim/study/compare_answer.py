"""What a comparison comes to, in a sentence or two."""

from collections.abc import Callable
from typing import NamedTuple

from kvsim.study.compare import Comparison, Row
from kvsim.units import format_duration

ABOUT_AS_MANY = 1.02
"""Times as many requests at once: up to it, something else tells rows apart."""


class Told(NamedTuple):
    """A figure that may tell rows apart, and how it is said of one."""

    name: str
    said: Callable[[float], str]


TOLD = (
    Told("utilization", lambda value: f"{value:.2%} of what is allocated is live"),
    Told("rejected", lambda value: f"{value:,} requests are rejected"),
    Told("waited_p50_ns", lambda value: f"the median wait is {format_duration(round(value))}"),
    Told("preempted", lambda value: f"{value:,} requests are preempted"),
    Told("refused", lambda value: f"{value:,} requests are refused"),
    Told("hit_share", lambda value: f"{value:.2%} of prompt tokens are found again"),
    Told("pool_used_mean", lambda value: f"{value:.2%} of the pool is allocated"),
)
"""In the order in which they are looked at."""

_MOST_TOLD = 3


def answer(comparison: Comparison) -> str:
    """The row that troubles requests least beside the one that troubles them most: how many times as many requests it
    runs at once, and what else tells the two apart.

    More at once is not better by itself: where memory is no bar, requests that end sooner are fewer at once.
    """
    rows = [row for row in comparison.compared if row.figure("batched_mean")]
    if not rows:
        return "No request ran in any run."
    if len(rows) == 1:
        return f"{rows[0].label} runs {_batched(rows[0]):,.2f} requests at once; {_said(rows[0], TOLD[0])}."
    ground = _ground(comparison, rows)
    if all(row.record.figures == rows[0].record.figures for row in rows):
        return f"{ground} it makes no difference: all figures are equal."
    saved = _saved(rows)
    if saved is not None:
        return f"{ground} {saved}"
    best, worst = min(rows, key=_trouble), max(rows, key=_trouble)
    few, many = _batched(worst), _batched(best)
    if many >= ABOUT_AS_MANY * few:
        held = f"{best.label} holds {many / few:,.2f} times as many requests at once as {worst.label}"
        return f"{ground} {held}: {many:,.2f} against {few:,.2f}.{_apart(best, worst)}"
    if _trouble(best)[:-1] == _trouble(worst)[:-1]:
        return f"{ground} all serve requests alike, {many:,.2f} at once.{_apart(best, worst)}"
    at_once = f"{many:,.2f}" if f"{many:,.2f}" == f"{few:,.2f}" else f"{many:,.2f} and {few:,.2f}"
    troubles = f"{best.label} troubles requests least and {worst.label} most"
    return f"{ground} {troubles}, with {at_once} of them at once.{_apart(best, worst)}"


def _saved(rows: list[Row]) -> str | None:
    """Of several outputs from one prompt what they share is asked; how many run at once counts groups here, and
    single samples there.
    """
    shares = {row.label: row.figure("sample_saved_share") for row in rows}
    known = {label: share for label, share in shares.items() if share is not None}
    if len(known) < len(rows) or len(set(known.values())) == 1:
        return None
    most, least = max(known, key=known.__getitem__), min(known, key=known.__getitem__)
    return (
        f"{most} saves most of the blocks that outputs of one prompt would take without sharing, {known[most]:.2%}, "
        f"and {least} least, {known[least]:.2%}."
    )


def _ground(comparison: Comparison, rows: list[Row]) -> str:
    pools = [row.figure("pool_bytes") or 0 for row in rows]
    # Whole blocks, and one of them held back: two pools of the same bytes differ by no more than two blocks.
    slack = 2 * max(row.figure("block_bytes") or 0 for row in rows)
    same_bytes = max(pools) - min(pools) <= slack
    if comparison.has_same_traffic:
        return f"On the same traffic{' and bytes' if same_bytes else ', in pools of different size'},"
    return f"From the same seed{'' if same_bytes else ', in pools of different size'},"


def _batched(row: Row) -> float:
    return row.figure("batched_mean") or 0.0


def _trouble(row: Row) -> tuple[float, ...]:
    """What requests suffer, the worst first, waits to three digits; and at last what memory is wasted."""
    lost = sum(row.figure(name) or 0 for name in ("rejected", "timed_out", "unfinished"))
    waited = float(f"{row.figure('waited_mean_ns') or 0:.3g}")
    return lost, waited, row.figure("preempted") or 0, row.figure("refused") or 0, -(row.figure("utilization") or 0)


def _said(row: Row, told: Told) -> str:
    value = row.figure(told.name)
    return "" if value is None else told.said(value)


def _apart(one: Row, other: Row) -> str:
    """The first few figures that are said differently of two rows."""
    different = [told for told in TOLD if _said(one, told) != _said(other, told)][:_MOST_TOLD]
    if not different:
        return ""
    here, there = (", ".join(filter(None, (_said(row, told) for told in different))) for row in (one, other))
    return f" With {one.label} {here}; with {other.label} {there}."
