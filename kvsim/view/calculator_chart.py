"""Bytes against context length for the sequences that are asked about, and the budget that ends them."""

from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

from kvsim.study.colours import COLOURS
from kvsim.units import format_bytes
from kvsim.view.calculator_fields import Answer

GIB = 2**30


class ContextChart:
    """One figure, drawn anew with `show`; both axes double."""

    def __init__(self) -> None:
        self._line = ColumnDataSource({"tokens": [], "gib": [], "length": [], "bytes": []})
        self._marks = ColumnDataSource({"tokens": [], "gib": [], "length": [], "bytes": [], "colour": []})
        self._budget = ColumnDataSource({"gib": []})
        self.figure = figure(
            name="context_chart",
            height=210,
            sizing_mode="stretch_width",
            x_axis_type="log",
            y_axis_type="log",
            x_range=Range1d(start=1, end=2),
            y_range=Range1d(start=1, end=2),
            x_axis_label="context length (tokens)",
            y_axis_label="KV cache (GiB)",
            toolbar_location=None,
            tools="",
            background_fill_alpha=0,
            border_fill_alpha=0,
            outline_line_alpha=0,
        )
        line = self.figure.line("tokens", "gib", source=self._line, line_width=3, color=COLOURS["live"])
        dots = self.figure.scatter(
            "tokens", "gib", source=self._marks, size=11, fill_color="colour", line_color="#ffffff", line_width=1.5
        )
        tooltips = [("length", "@length"), ("holds", "@bytes")]
        self.figure.hspan("gib", source=self._budget, line_color=COLOURS["preempted"], line_dash="dashed", line_width=2)
        self.figure.add_tools(
            HoverTool(renderers=[line], tooltips=tooltips, mode="vline"), HoverTool(renderers=[dots], tooltips=tooltips)
        )
        self.figure.xaxis.formatter = NumeralTickFormatter(format="0,0")
        self.figure.yaxis.formatter = NumeralTickFormatter(format="0,0.[000]")

    def show(self, answer: Answer) -> None:
        """Draw the line, the budget, what is asked about and the longest that fits."""
        lines = answer.lines
        line = lines.lines[0]
        self._line.data = _columns(list(zip(lines.lengths, line.num_bytes, strict=True)))
        of = answer.accounting
        marks = [(answer.sizing.num_tokens, of.allocated_bytes, COLOURS["slack"])]
        if line.longest_model_len and line.longest_model_len <= lines.lengths[-1]:
            marks.append((line.longest_model_len, line.bytes_at_longest, COLOURS["preempted"]))
        self._marks.data = _columns([mark[:2] for mark in marks]) | {"colour": [mark[2] for mark in marks]}
        self._budget.data = {"gib": [lines.memory_bytes / GIB]}
        tokens = [*lines.lengths, answer.sizing.num_tokens]
        sizes = [*line.num_bytes, of.allocated_bytes, lines.memory_bytes]
        # One length is a point, and an axis needs two ends.
        self.figure.x_range.update(start=min(tokens) / 1.1, end=max(tokens) * 1.1)
        self.figure.y_range.update(start=min(sizes) / GIB / 1.5, end=max(sizes) / GIB * 1.5)
        self.figure.xaxis.ticker = FixedTicker(ticks=_powers(min(tokens), max(tokens), step=1))
        self.figure.yaxis.ticker = FixedTicker(ticks=[size / GIB for size in _powers(min(sizes), max(sizes), step=2)])


def _columns(points: list[tuple[int, int]]) -> dict[str, list[float] | list[str] | list[int]]:
    return {
        "tokens": [tokens for tokens, _ in points],
        "gib": [num_bytes / GIB for _, num_bytes in points],
        "length": [f"{tokens:,} tokens" for tokens, _ in points],
        "bytes": [f"{format_bytes(num_bytes)} = {num_bytes:,} B" for _, num_bytes in points],
    }


def _powers(low: int, high: int, step: int) -> list[int]:
    """Powers of two within reach of both ends, every one or every `step`th."""
    return [2**power for power in range(low.bit_length() - 1, high.bit_length() + 1) if power % step == 0]
