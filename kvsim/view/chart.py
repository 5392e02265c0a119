"""A picture with the same in words, and what all pictures have in common."""

from typing import Any

from attrs import frozen
from bokeh.models import LayoutDOM
from bokeh.plotting import figure

from kvsim.units import format_bytes


@frozen(eq=False)
class Chart:
    """`figure` is None where there is nothing to draw. `sentences` and the table say what it shows, as plain text that
    is not escaped yet, so that print and screen readers lose nothing.
    """

    title: str
    figure: LayoutDOM | None
    sentences: tuple[str, ...]
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()


def plain_figure(*, said: str, **options: Any) -> figure:
    """As wide as its place, on whatever background there is; `said` is what a screen reader says in its place."""
    plot = figure(
        sizing_mode="stretch_width",
        toolbar_location=None,
        tools="",
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=None,
        html_attributes={"role": "img", "aria-label": said},
        **options,
    )
    plot.axis.minor_tick_line_color = None
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.major_label_text_font_size = "13px"
    plot.axis.axis_label_text_font_size = "13px"
    return plot


def exact_bytes(num_bytes: int) -> str:
    """For people, and to the byte: "5 MiB (5,242,880 B)"."""
    short = format_bytes(num_bytes)
    return short if short == f"{num_bytes} B" else f"{short} ({num_bytes:,} B)"


def bars_figure(labels: list[str], axis_label: str, said: str) -> figure:
    """An empty picture with a line for each label, the first on top."""
    plot = plain_figure(said=said, y_range=labels[::-1], height=70 + 46 * len(labels))
    plot.xaxis.axis_label = axis_label
    plot.ygrid.grid_line_color = None
    plot.yaxis.axis_line_color = None
    plot.yaxis.major_tick_line_color = None
    return plot


def legend_above(plot: figure, columns: int | None = None) -> None:
    """In a row, or in so many columns."""
    legend = plot.legend[0]
    legend.orientation = "horizontal"
    if columns is not None:
        legend.ncols = columns
    legend.background_fill_alpha = 0
    legend.border_line_color = None
    legend.update(padding=0)
    legend.spacing = 14
    legend.location = "top_left"
    legend.label_text_font_size = "13px"
    if columns is not None:  # beside each other on a phone, too
        legend.update(spacing=8, glyph_width=16, label_standoff=3, label_text_font_size="12px")
    plot.add_layout(legend, "above")
