"""The picture of a sweep: slack, hits, refusals and preemptions against the first varied key, a line for each
combination of the others. It only draws; the numbers are those of `Sweep`.
"""

import warnings
from pathlib import Path
from textwrap import fill, shorten
from typing import TYPE_CHECKING, NamedTuple

from kvsim.study.scenario import named_overrides
from kvsim.study.sweep_best import best_values, first_key, lines, sentence, varied
from kvsim.study.sweep_plan import named
from kvsim.study.sweep_result import Combination, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_IN_LEGEND = 12
_MOST_SENTENCES = 3
_MOST_TICKS = 16
_LOGARITHMIC = 16


class Panel(NamedTuple):
    """A figure of the runs, what its axis says, and by what it is multiplied."""

    figure: str
    label: str
    scale: float = 1.0


PANELS = (
    Panel("slack_share", "slack (% of allocated)", 100),
    Panel("hit_share", "prefix hits (% of prompt tokens)", 100),
    Panel("refused", "refused by memory (requests)"),
    Panel("preemptions", "preemptions (times)"),
)


def plot_panel(sweep: Sweep, panel: Panel, *, ax: "Axes | None" = None) -> "Axes":
    """Means over the seeds, each with a bar from the least to the most and the band between these shaded; the best are
    marked by stars.
    """
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(layout="constrained").subplots()
    places = _places(sweep, ax)
    best = best_values(sweep)
    most = 0.0
    for number, line in enumerate(lines(sweep)):
        points = [point for point in line.points if point.mean(panel.figure) is not None]
        if not points:
            continue
        x = [places[point.parameters[first_key(sweep)]] for point in points]
        low, high = zip(*(_range(point, panel) for point in points), strict=True)
        most = max(most, *high)
        colour = f"C{number % 10}"
        label = _plain(shorten(named(line.parameters), 60, placeholder=" ...")) if number < _MOST_IN_LEGEND else None
        ax.plot(x, [_mean(point, panel) for point in points], "o-", color=colour, markersize=4, label=label or None)
        if sweep.num_seeds > 1:
            ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
            ax.vlines(x, low, high, color=colour, linewidth=1.2)
        for one in best:
            if one.line.parameters == line.parameters:
                at = places[one.point.parameters[first_key(sweep)]]
                ax.plot(at, _mean(one.point, panel), "*", color=colour, markersize=15, markeredgecolor="black")
    ax.set(xlabel=first_key(sweep), ylabel=panel.label, ylim=(0, 1.15 * most or 1))
    ax.grid(alpha=0.3)
    return ax


def save_sweep_plot(sweep: Sweep, path: Path) -> None:
    """The panels that are not 0 in all runs, under the question, and below them what is best and at what price; equal
    numbers give equal bytes.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", {"font.size": 11}]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        figure = Figure(figsize=(14, 10), dpi=100, layout="constrained")
        _draw_all(sweep, figure)
        figure.savefig(path, format="png", metadata={"Software": None})


def _draw_all(sweep: Sweep, figure: "Figure") -> None:
    shown = [panel for panel in PANELS if sweep.table[panel.figure].sum()] or [*PANELS[:1]]
    columns = 1 if len(shown) == 1 else 2
    rows = -(-len(shown) // columns)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, ax in zip(shown, axes, strict=False):
        plot_panel(sweep, panel, ax=ax)
    for ax in axes[len(shown) :]:
        ax.set_axis_off()
    if sweep.axes[1:]:
        axes[0].legend(fontsize=9)
    about = [sweep.question, named_overrides(sweep.overrides), varied(sweep)]
    title = "\n".join(
        _plain(shorten(line, 120 if at else 200, placeholder=" ...")) for at, line in enumerate(about) if line
    )
    figure.suptitle(title, fontsize=15, wrap=True)
    best = best_values(sweep)
    said = [sentence(one, first_key(sweep)) for one in best[:_MOST_SENTENCES]]
    if len(best) > _MOST_SENTENCES:
        said.append(f"(and {len(best) - _MOST_SENTENCES} lines more)")
    if none := [panel.label for panel in PANELS if panel not in shown]:
        said.append(f"None in any run: {', '.join(none)}.")
    if sweep.num_seeds > 1:
        said.append(f"Points are means over {sweep.num_seeds:,} seeds, bars go from the least to the most.")
    figure.supxlabel("\n".join(_plain(fill(one, 140)) for one in said), fontsize=10.5)


def _plain(text: str) -> str:
    """Escaped, as what stands between two dollars would be read as a formula."""
    return text.replace("$", r"\$")


def _places(sweep: Sweep, ax: "Axes") -> dict[object, float]:
    """Where each value stands on the x axis: numbers to scale, doublings alike where they go far; others in a row."""
    key = first_key(sweep)
    values = list(dict.fromkeys(point.parameters[key] for line in lines(sweep) for point in line.points))
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        ax.set_xticks(range(len(values)), [_plain(shorten(str(value), 30, placeholder=" ...")) for value in values])
        return {value: float(place) for place, value in enumerate(values)}
    if min(numbers) > 0 and max(numbers) >= _LOGARITHMIC * min(numbers):
        ax.set_xscale("log", base=2)
    if len(numbers) <= _MOST_TICKS:
        ax.set_xticks(numbers, [f"{number:,.6g}" for number in numbers])
        ax.minorticks_off()
    return dict(zip(values, numbers, strict=True))


def _mean(point: Combination, panel: Panel) -> float:
    mean = point.mean(panel.figure)
    return float("nan") if mean is None else mean * panel.scale


def _range(point: Combination, panel: Panel) -> tuple[float, float]:
    """The least and the most of any seed."""
    values = point.rows[panel.figure].drop_nulls()
    return float(values.min()) * panel.scale, float(values.max()) * panel.scale  # type: ignore[arg-type]  # not empty
