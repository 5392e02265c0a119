"""Who holds which block, at moments of a run: cells that a reader can point at.

What is sent to a page are the runs of the maps, and every sentence and figure that it shows of a moment. The page
itself (`static/blocks.js`) cuts runs into cells, as many in a row as its width has room for.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from attrs import frozen
from bokeh.models import Column, ColumnDataSource, CustomJS, InlineStyleSheet, LayoutDOM
from bokeh.models.widgets import Div
from bokeh.plotting import figure

from kvsim.memory.block_map import BlockMap, BlockRun, BlockState
from kvsim.study.colours import COLOURS, OWNERS
from kvsim.units import format_moment
from kvsim.view.chart import Chart, exact_bytes
from kvsim.view.pages import TEMPLATES, static_text

MOST_CELLS = 50_000
"""So many blocks are a cell each."""

CELLS_OF_SEVERAL = 12_000
"""At most, where there are more blocks than that: large enough for their parts to be seen."""

_IDS_NAMED = 4
STATES: tuple[BlockState, ...] = get_args(BlockState)

_LEGEND = {
    "owner": "held by one request; colours repeat, so point at a cell to see whose it is",
    "shared": "held by several requests",
    "slack": "held and not written yet (slack)",
    "reserved": "reserved for tokens still to come (slack)",
    "unused": "reserved and never used (slack)",
    "cached": "cached: held by nobody, still findable",
    "blank": "blank",
}


@frozen
class Moment:
    """What a map comes to: blocks by their state, and the bytes of those that requests hold and have not written."""

    time_ns: int
    num_blocks: int
    blocks: dict[BlockState, int]
    shared_blocks: int
    slack_bytes: int

    @property
    def name(self) -> str:
        return f"at {format_moment(self.time_ns)}"

    @property
    def totals(self) -> str:
        """In a sentence."""
        parts = [f"{self.blocks[state]:,} {state}" for state in STATES if self.blocks[state] or state == "held"]
        if self.shared_blocks:
            parts[0] += f" ({self.shared_blocks:,} by several requests)"
        return f"{', '.join(parts)} of {self.num_blocks:,} blocks; slack {exact_bytes(self.slack_bytes)}"


def moment_of(block_map: BlockMap) -> Moment:
    blocks: Counter[BlockState] = Counter()
    shared = slack = 0
    for run in block_map.runs:
        blocks[run.state] += run.num_blocks
        slack += run.slack_bytes(block_map.block_bytes)
        shared += run.num_blocks if len(run.request_ids) > 1 else 0
    by_state = {state: blocks[state] for state in STATES}
    return Moment(block_map.time_ns, block_map.num_blocks, by_state, shared, slack)


def moments_in_words(maps: Sequence[BlockMap]) -> Chart:
    """The totals of each map as a table, as a page shows the cells of one at a time."""
    moments = [moment_of(block_map) for block_map in maps]
    states = [state for state in STATES if state == "held" or any(one.blocks[state] for one in moments)]
    rows = tuple(
        (
            format_moment(one.time_ns),
            *(f"{one.blocks[state]:,}" for state in states),
            f"{one.shared_blocks:,}",
            exact_bytes(one.slack_bytes),
        )
        for one in moments
    )
    columns = ("time", *(f"{state} blocks" for state in states), "held by several", "slack")
    return Chart("Blocks at moments of the run", None, (), columns, rows)


class BlockChart:
    """`figures` has the one model "blocks", which `show` fills, before it is embedded or on a live page."""

    def __init__(self) -> None:
        self._source = ColumnDataSource(data=_nothing())
        host = Div(
            text=_frame(),
            disable_math=True,
            sizing_mode="stretch_width",
            margin=0,
            stylesheets=[InlineStyleSheet(css=static_text("blocks.css"))],
        )
        draw = CustomJS(args={"host": host, "source": self._source}, code=static_text("blocks.js"))
        self._source.js_on_change("data", draw)
        root = Column(children=[host, _awakener(draw)], sizing_mode="stretch_width", spacing=0)
        self.figures: dict[str, LayoutDOM] = {"blocks": root}

    def show(self, maps: Sequence[BlockMap], *, chosen: int | None = None) -> None:
        """Maps of one pool, in order of time. `chosen` is the one shown first, the fullest if left out, of equals the
        last. Who has moved the slider stays at that moment. Without a map there is nothing to see.
        """
        if not maps:
            self._source.data = _nothing()
            return
        moments = [moment_of(block_map) for block_map in maps]
        fullest = max(range(len(maps)), key=lambda index: (_allocated(moments[index]), index))
        kinds = _Kinds()
        kind_of_run = [kinds.number(run) for block_map in maps for run in block_map.runs]
        page = {
            "moments": [{"time": str(one.time_ns), "name": one.name, "totals": one.totals} for one in moments],
            "kinds": kinds.found,
            "chosen": fullest if chosen is None else chosen % len(maps),
            "block_size": maps[0].block_size,
            "blocks_per_cell": blocks_per_cell(maps[0].num_blocks),
            "notes": _notes(maps[0]),
            "legend": _in_legend(moments),
            "colours": {**COLOURS, "owners": OWNERS},
        }
        self._source.data = {
            "page": [json.dumps(page)],
            "runs_of": [_narrow([len(block_map.runs) for block_map in maps])],
            "kind": [_narrow(kind_of_run)],
            "num_blocks": [_narrow([run.num_blocks for block_map in maps for run in block_map.runs])],
            "written": [_narrow([run.written_tokens for block_map in maps for run in block_map.runs])],
        }


def blocks_per_cell(num_blocks: int) -> int:
    """One, or for a pool of very many blocks as many as leave cells that show what they consist of."""
    return 1 if num_blocks <= MOST_CELLS else -(-num_blocks // CELLS_OF_SEVERAL)


def _allocated(moment: Moment) -> int:
    return moment.num_blocks - moment.blocks["cached"] - moment.blocks["blank"]


class _Kinds:
    """What runs have in common: their state and who holds them, with the words and the look for it."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._numbers: dict[tuple[BlockState, tuple[int, ...], int], int] = {}

    def number(self, run: BlockRun) -> int:
        key = run.state, run.request_ids, run.slot_bytes
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.found)
            self.found.append({**_kind(run.state, run.request_ids), "slot_bytes": run.slot_bytes})
        return number


def _kind(state: BlockState, ids: tuple[int, ...]) -> dict[str, Any]:
    if not ids:
        return {"state": state, "look": state, "owner": 0, "text": state}
    named = ", ".join(f"{id:,}" for id in ids[:_IDS_NAMED])
    more = len(ids) - _IDS_NAMED
    holders = f"request {named}" if len(ids) == 1 else f"{len(ids):,} requests: {named}"
    if more > 0:
        holders += f" and {more:,} more"
    look: str = state
    if state == "held":
        look = "owner" if len(ids) == 1 else "shared"
    words = {"held": "held by", "unused": "reserved and never used, of"}.get(state, f"{state} for")
    return {"state": state, "look": look, "owner": ids[0] % len(OWNERS), "text": f"{words} {holders}"}


def _notes(block_map: BlockMap) -> list[str]:
    """What a reader must know to read the cells."""
    together = blocks_per_cell(block_map.num_blocks)
    tokens = "1 token" if block_map.block_size == 1 else f"{block_map.block_size:,} tokens"
    notes = [
        f"A cell is a block of {tokens}."
        if together == 1
        else f"A cell is {together:,} blocks of {tokens} each, and shows in what parts they are held."
    ]
    if not block_map.has_block_numbers:
        notes.append(
            "Blocks are counted off by who holds them, not by where they lie in the pool, as this run kept no block "
            "numbers (memory.block_ids = true keeps them)."
        )
    return notes


def _in_legend(moments: Sequence[Moment]) -> list[str]:
    """What there can be, and of reservations and sharing what there is."""
    there = {"owner", "slack", "cached", "blank"}
    there |= {state for one in moments for state in STATES if one.blocks[state]}
    if any(one.shared_blocks for one in moments):
        there.add("shared")
    if "reserved" in there or "unused" in there:  # extents are cut by what is written
        there.discard("slack")
    return [name for name in _LEGEND if name in there]


def _narrow(values: Sequence[int]) -> npt.NDArray[Any]:
    """In as few bytes as a page can read; whole numbers above 32 bits are exact as floats up to 2^53."""
    highest = max(values)
    kinds = ((np.uint8, 2**8), (np.uint16, 2**16), (np.uint32, 2**32))
    return np.array(values, dtype=next((kind for kind, end in kinds if highest < end), np.float64))


def _nothing() -> dict[str, list[Any]]:
    return {name: [None] for name in ("page", "runs_of", "kind", "num_blocks", "written")}


def _awakener(draw: CustomJS) -> LayoutDOM:
    """Nothing to be seen: of all that Bokeh has, plots alone tell a script when they have come to stand in a page."""
    plot = figure(
        height=1,
        sizing_mode="stretch_width",
        min_border=0,
        outline_line_color=None,
        toolbar_location=None,
        tools="",
        background_fill_alpha=0,
        border_fill_alpha=0,
        html_attributes={"aria-hidden": "true"},
    )
    plot.scatter([0], [0], alpha=0)
    plot.axis.visible = False
    plot.grid.visible = False
    plot.js_on_change("inner_width", draw)
    return plot


_FRAME = """
<div class="kvsim-blocks">
  <label class="moment" hidden>Moment
    <input type="range" min="0" step="1">
  </label>
  <p class="totals"></p>
  <div class="cells">
    <canvas tabindex="0" role="application" aria-roledescription="block map"
      aria-label="Block map. Arrow keys go from cell to cell."></canvas>
    <div class="cursor" hidden></div>
  </div>
  <p class="readout" role="status">Point at a cell, or go there with the arrow keys.</p>
  <ul class="legend">
    {% for name, text in legend.items() %}
    <li data-look="{{ name }}" hidden><span class="swatch {{ name }}"
      {% if name in colours and name != "blank" %}style="background-color: {{ colours[name] }}"{% endif %}>
      {%- if name == "owner" %}{% for colour in owners %}<i style="background-color: {{ colour }}"></i>{% endfor %}
      {%- endif %}</span>{{ text }}</li>
    {% endfor %}
  </ul>
  <p class="notes"></p>
</div>
"""


def _frame() -> str:
    """The page's part that stands around the cells; nothing of a run is in it."""
    template = TEMPLATES.from_string(_FRAME)
    return template.render(legend=_LEGEND, colours=COLOURS, owners=OWNERS)
