"""Bytes against context length for the sequences that are asked about, and the budget that ends them."""

from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, NumeralTickFormatter, Range1d

from kvsim.study.colours import COLOURS
from kvsim.units import format_bytes
from kvsim.view.calculator_fields import Answer
from kvsim.view.chart import plain_figure

MOST_LENGTHS, MOST_SIZES = 4, 6
"""Labels of each axis, so that they do not touch on a phone."""


class ContextChart:
    """One figure, drawn anew with `show`; both axes double."""

    def __init__(self) -> None:
        self._line = ColumnDataSource({"tokens": [], "num_bytes": [], "length": [], "bytes": []})
        self._marks = ColumnDataSource(
            {"tokens": [], "num_bytes": [], "length": [], "bytes": [], "colour": [], "size": []}
        )
        self._budget = ColumnDataSource({"num_bytes": []})
        self.figure = plain_figure(
            said="Bytes against context length, and the budget; the same stands in words above",
            name="context_chart",
            height=250,
            x_axis_type="log",
            y_axis_type="log",
            x_range=Range1d(start=1, end=2),
            y_range=Range1d(start=1, end=2),
            x_axis_label="context length (tokens)",
            y_axis_label="KV cache (bytes)",
        )
        line = self.figure.line("tokens", "num_bytes", source=self._line, line_width=3, color=COLOURS["live"])
        dots = self.figure.scatter(
            "tokens",
            "num_bytes",
            source=self._marks,
            size="size",
            fill_color="colour",
            line_color="#ffffff",
            line_width=1.5,
        )
        tooltips = [("length", "@length"), ("holds", "@bytes")]
        self.figure.hspan(
            "num_bytes", source=self._budget, line_color=COLOURS["preempted"], line_dash="dashed", line_width=2
        )
        self.figure.add_tools(
            HoverTool(renderers=[line], tooltips=tooltips, mode="vline"), HoverTool(renderers=[dots], tooltips=tooltips)
        )
        self.figure.xaxis.formatter = NumeralTickFormatter(format="0,0")

    def show(self, answer: Answer) -> None:
        """Draw the line, the budget, what is asked about and the longest that fits."""
        lines = answer.lines
        line = lines.lines[0]
        self._line.data = _columns(list(zip(lines.lengths, line.num_bytes, strict=True)))
        of = answer.accounting
        # The line is the most that is held on the way, so the mark is too: what is allocated in the end can be less.
        marks = [(answer.sizing.num_tokens, of.peak_bytes, COLOURS["slack"], 9)]
        if line.longest_model_len and line.longest_model_len <= lines.lengths[-1]:
            marks.insert(0, (line.longest_model_len, line.bytes_at_longest, COLOURS["preempted"], 14))
        self._marks.data = _columns([mark[:2] for mark in marks]) | {
            "colour": [mark[2] for mark in marks],
            "size": [mark[3] for mark in marks],
        }
        self._budget.data = {"num_bytes": [lines.memory_bytes]}
        tokens = [*lines.lengths, answer.sizing.num_tokens]
        sizes = [*line.num_bytes, of.peak_bytes, lines.memory_bytes]
        # One length is a point, and an axis needs two ends.
        self.figure.x_range.update(start=min(tokens) / 1.1, end=max(tokens) * 1.1)
        self.figure.y_range.update(start=min(sizes) / 1.5, end=max(sizes) * 1.5)
        self.figure.xaxis.ticker = FixedTicker(ticks=_powers(min(tokens), max(tokens), MOST_LENGTHS))
        ticks = _powers(min(sizes), max(sizes), MOST_SIZES)
        self.figure.yaxis.ticker = FixedTicker(ticks=ticks)
        self.figure.yaxis.major_label_overrides = {size: format_bytes(size) for size in ticks}


def _columns(points: list[tuple[int, int]]) -> dict[str, list[float] | list[str] | list[int]]:
    return {
        "tokens": [tokens for tokens, _ in points],
        "num_bytes": [num_bytes for _, num_bytes in points],
        "length": [f"{tokens:,} tokens" for tokens, _ in points],
        "bytes": [f"{format_bytes(num_bytes)} = {num_bytes:,} B" for _, num_bytes in points],
    }


def _powers(low: int, high: int, most: int) -> list[int]:
    """Powers of two, or of a power of it, between both ends: `most` of them or fewer."""
    powers = range((low - 1).bit_length(), high.bit_length())
    return [2**power for power in powers[:: max(1, -(-len(powers) // most))]]
