"""What requests differ in: slack and blocks at their end, how long they waited, and what they found in the cache."""

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
from bokeh.models import FixedTicker, HoverTool, NoOverlap, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

from kvsim.engine.results import Results
from kvsim.study.colours import COLOURS
from kvsim.study.histogram import Histogram, Unit, histogram
from kvsim.study.per_request import AtEnd, held_at_end, prefix_hits, spread
from kvsim.units import format_bytes, format_duration
from kvsim.view.chart import Chart, exact_bytes, legend_above, plain_figure

_SHARE_BINS = 20
_QUANTILES = {"median": 0.5, "90 % up to": 0.9, "99 % up to": 0.99, "the most": 1.0}


def distributions(results: Results) -> tuple[Chart, Chart, Chart]:
    """Slack bytes and blocks of each request at its end, and its waiting time."""
    at_end = held_at_end(results)
    slack = _distribution(
        "Slack of each request at its end", at_end.requests["slack_bytes"], "bytes", "slack", _of_those_at_end(at_end)
    )
    shared = "a shared block counts for each who holds it"
    blocks = _distribution(
        "Blocks of each request at its end",
        at_end.requests["num_blocks"],
        "blocks",
        "live",
        f"{_of_those_at_end(at_end)}; {shared}",
    )
    waits = _distribution(
        "Waiting time of each request", results.totals.waits, "ns", "waiting", "from arrival to first admission"
    )
    return slack, blocks, waits


def _of_those_at_end(at_end: AtEnd) -> str:
    text = "in the last step of those that finished or were cut"
    if at_end.num_not_known:
        text += f", but for {at_end.num_not_known:,} of which it is not known: {at_end.why_not_known}"
    return text


_LABELS: dict[Unit, Callable[[int], str]] = {
    "bytes": format_bytes,
    "blocks": lambda blocks: f"{blocks:,}",
    "ns": lambda ns: format_duration(ns) if ns else "0",
}

_EXACT: dict[Unit, Callable[[int], str]] = {
    "bytes": exact_bytes,
    "blocks": lambda blocks: "1 block" if blocks == 1 else f"{blocks:,} blocks",
    "ns": lambda ns: f"{format_duration(ns)} ({ns:,} ns)" if ns >= 1000 else f"{ns} ns",
}

_AXES: dict[Unit, str] = {"bytes": "slack", "blocks": "blocks", "ns": "waiting time"}


def _distribution(title: str, values: pl.Series, unit: Unit, colour: str, of_what: str) -> Chart:
    known = values.drop_nulls()
    measured = spread(known)
    if measured is None:
        return Chart(title, None, (f"No request to count: {of_what}.",))
    exact = _EXACT[unit]
    marks = {
        "median": measured.median,
        "90 % up to": measured.p90,
        "99 % up to": measured.p99,
        "the most": measured.maximum,
    }
    said = ", ".join(f"{name} {exact(value)}" for name, value in marks.items())
    requests = "1 request" if measured.num_values == 1 else f"{measured.num_values:,} requests"
    sentence = f"Of {requests}: {said} ({of_what})."
    drawn = histogram(known.to_numpy(), unit)
    edges = [_LABELS[unit](edge) for edge in drawn.edges]
    plot = _histogram(drawn.counts, edges, COLOURS[colour], f"{title}. {sentence}")
    plot.xaxis.axis_label = _AXES[unit] + (", bins grow" if drawn.grows else "")
    _mark(plot, drawn, {f"{name} {_LABELS[unit](value)}": value for name, value in marks.items()})
    rows = (("requests", f"{measured.num_values:,}"), *((name, exact(value)) for name, value in marks.items()))
    return Chart(title, plot, (sentence,), ("", "value"), rows)


def _histogram(counts: Sequence[int], edges: Sequence[str], colour: str, said: str) -> figure:
    """Bins equally wide, whatever they hold, with their edges below."""
    num_bins, most = len(counts), max(counts)
    plot = plain_figure(said=said, height=260, x_range=Range1d(start=-0.02 * num_bins, end=1.02 * num_bins))
    plot.y_range = Range1d(start=0, end=1.08 * most)
    data = {
        "left": list(range(num_bins)),
        "right": list(range(1, num_bins + 1)),
        "top": list(counts),
        "from": list(edges[:-1]),
        "below": list(edges[1:]),
    }
    bars = plot.quad("left", "right", "top", 0, source=data, fill_color=colour, line_color="#7f7f7f", line_width=0.5)
    plot.add_tools(
        HoverTool(renderers=[bars], tooltips=[("from", "@from"), ("below", "@below"), ("requests", "@top{0,0}")])
    )
    plot.xaxis.ticker = FixedTicker(ticks=list(range(num_bins + 1)))
    plot.xaxis.major_label_overrides = dict(enumerate(edges))
    plot.xaxis.major_label_policy = NoOverlap(min_distance=12)
    plot.yaxis.axis_label = "requests"
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0")
    plot.xgrid.grid_line_color = None
    return plot


def _mark(plot: figure, drawn: Histogram, marks: dict[str, int]) -> None:
    """A line at each value, told apart by its dashes."""
    top = 1.08 * max(drawn.counts)
    for (name, value), dash in zip(marks.items(), ("solid", "dashed", "dotted", "dotdash"), strict=True):
        place = drawn.place(value)
        drawn_line = plot.segment([place], [0], [place], [top], line_width=2, line_dash=dash, legend_label=name)
        drawn_line.glyph.line_color = COLOURS["preempted"]
    legend_above(plot, columns=2)


def prefix_hits_of_each(results: Results) -> Chart:
    """What share of its prompt each request found in the prefix cache at first admission; none at all stands apart."""
    title, of_each = "Prefix hits of each request", prefix_hits(results).of_each
    if of_each.is_empty():
        return Chart(title, None, ("No request was admitted.",))
    shares, found = of_each["share"], of_each.filter(pl.col("hit_tokens") > 0)
    nothing = of_each.height - found.height
    bin_of_each = (found["hit_tokens"] * _SHARE_BINS // found["prompt_tokens"]).to_numpy()
    bins = np.bincount(np.minimum(bin_of_each, _SHARE_BINS - 1), minlength=_SHARE_BINS)
    quantiles = {name: float(shares.quantile(at, "linear") or 0) for name, at in _QUANTILES.items()}
    sentence = (
        f"Of {len(shares):,} requests, {nothing:,} ({nothing / len(shares):.2%}) found nothing in the prefix cache at "
        f"first admission; the median found {quantiles['median']:.2%} of its prompt."
    )
    edges = ["none", "> 0", *(f"{place / _SHARE_BINS:.0%}" for place in range(1, _SHARE_BINS + 1))]
    plot = _histogram([nothing, *bins.tolist()], edges, COLOURS["live"], f"{title}. {sentence}")
    plot.xaxis.axis_label = "share of the prompt that was found"
    rows = (
        ("requests", f"{len(shares):,}"),
        ("found nothing", f"{nothing:,}"),
        *((name, f"{share:.2%}") for name, share in quantiles.items()),
    )
    return Chart(title, plot, (sentence,), ("", "value"), rows)
