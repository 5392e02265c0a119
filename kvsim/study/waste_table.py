"""What allocators waste as a person reads it: a table, the answer in a sentence, and a figure of stacked bars."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.study.allocators import KINDS
from kvsim.study.colours import COLOURS
from kvsim.study.waste import AllocatorWaste, Waste, left_out_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = ("live", "tail", "reserved", "unused")
"""From the axis outwards: what is written, what paging leaves, what reserving leaves."""

_MEANINGS = {
    "live": "live (written)",
    "tail": "tail (rest of the last block)",
    "reserved": "reserved (for its own later tokens)",
    "unused": "unused (never written)",
}
_TALLEST = 100.0
"""Inches of a figure, beyond which bars get thinner."""

_MANY = 10_000_000
"""Token-steps beyond which a table has them in millions."""


def waste_page(waste: Waste, name: str) -> RenderableType:
    """Who was counted, a row an allocator, the answer, and what the words mean."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("allocator", overflow="fold", vertical="bottom")
    scale, unit = (1_000_000, "million\n") if waste.live_token_steps > _MANY else (1, "")
    table.add_column(f"allocated\n{unit}token-steps", justify="right", no_wrap=True)
    for part in DRAWN:
        table.add_column(part, justify="right", no_wrap=True, vertical="bottom")
    for each in waste.allocators:
        table.add_row(
            each.spec.name,
            f"{each.allocated / scale:,.1f}" if unit else f"{each.allocated:,}",
            *(f"{each.share(part):.2%}" if getattr(each, part) else "0" for part in DRAWN),
        )
    return Group(
        Text(
            f"{name}: {waste.kept:,} of {waste.num_rows:,} requests, {waste.live_token_steps:,} live token-steps",
            style="bold",
        ),
        Text(_left_out(waste)),
        Padding(table, (1, 0)),
        Text(answer(waste), style="bold"),
        *(Text(note, style="yellow") for note in _notes(waste)),
        *(Text(line, style="dim") for line in _explained(waste)),
    )


def answer(waste: Waste) -> str:
    """How much the best and the worst waste, and how many times as much the one holds in the same memory."""
    best = min(waste.allocators, key=lambda each: each.allocated)
    worst = max(waste.allocators, key=lambda each: each.allocated)
    if best.allocated == worst.allocated:
        both = " and ".join(each.spec.name for each in waste.allocators)
        return f"{both} waste{'s' * (len(waste.allocators) == 1)} {_wasted(best)} of what is allocated."
    return (
        f"{best.spec.name} wastes {_wasted(best)} of what it allocates, {worst.spec.name} {_wasted(worst)}: the same "
        f"memory holds {worst.allocated / best.allocated:,.2f} times as much with {best.spec.name}."
    )


def _wasted(each: AllocatorWaste) -> str:
    return f"{1 - each.share('live'):.2%}"


def _left_out(waste: Waste) -> str:
    words = left_out_words(waste)
    return f"Left out: {words}." if words else "No request was left out."


def _notes(waste: Waste) -> list[str]:
    notes = [
        f"{each.spec.name} sets more than {each.spec.argument:,} slots aside for {each.beyond:,} requests: it is not "
        "cut there."
        for each in waste.allocators
        if each.beyond
    ]
    if waste.turns_lack_history:
        notes.append("Later turns count without what was said before them, which this format leaves out of prompts.")
    return notes


def _explained(waste: Waste) -> list[str]:
    """What an allocator does, and what a column is; only those that are there."""
    kinds = list(dict.fromkeys(each.spec.kind for each in waste.allocators))
    lines = [f"{KINDS[kind].form}: {KINDS[kind].about}." for kind in kinds]
    if any(each.spec.kind in ("max", "pow2") for each in waste.allocators):
        lines.append(f"LEN: the longest request to be held; where it is not given, {waste.bounds.max_total:,} tokens.")
    parts = [part for part in DRAWN if any(getattr(each, part) for each in waste.allocators)]
    return [
        "; ".join(_MEANINGS[part] for part in parts) + ", of what is allocated.",
        *lines,
        "Closed form: each request alone for as many steps as it has output tokens, holding prompt + t tokens after "
        "step t, one more than an engine writes, as the literature counts; all steps weigh the same. No clock, no "
        "queue, no sharing: what a scheduler makes of it is for kvsim run.",
    ]


def plot_waste(waste: Waste, *, ax: "Axes | None" = None) -> "Axes":
    """A bar an allocator, in the order given, of what is live, tail, reserved and unused."""
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(layout="constrained").subplots()
    places = range(len(waste.allocators))
    left = [0.0] * len(places)
    for part in DRAWN:
        widths = [100 * each.share(part) for each in waste.allocators]
        if any(widths):
            ax.barh(places, widths, left=left, color=COLOURS[part], label=_MEANINGS[part])
        left = [start + width for start, width in zip(left, widths, strict=True)]
    names = [f"{each.spec.name}\n{each.share('live'):.2%} live" for each in waste.allocators]
    ax.set_yticks(places, names)
    ax.invert_yaxis()
    ax.set(xlim=(0, 100), xlabel="share of allocated token-steps (%)")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return ax


def save_waste_plot(waste: Waste, name: str, path: Path) -> None:
    """Draw into a file, whose name says the format; equal numbers give equal bytes."""
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context("default"):
        height = min(_TALLEST, 2.2 + 0.5 * len(waste.allocators))
        figure = Figure(figsize=(10, height), dpi=120, layout="constrained")
        plot_waste(waste, ax=figure.subplots())
        # Escaped, as what stands between two dollars would be read as a formula.
        title = f"{name}: {waste.kept:,} requests, each alone and alive for its output".replace("$", r"\$")
        figure.suptitle(title, wrap=True)
        figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
