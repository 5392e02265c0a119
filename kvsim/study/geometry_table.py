"""A geometry as a person reads it: what each sort of layer keeps, and the formula of a token."""

from attrs import evolve
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.model.describe import kind_word
from kvsim.model.geometry import KVDtype, LayerKV, ModelGeometry


def model_page(
    geometry: ModelGeometry, kv_dtype: KVDtype, tensor_parallel: int, pipeline_parallel: int
) -> RenderableType:
    """The table of the rank that holds most, the formula with its numbers, and what was assumed."""
    stage = geometry.heaviest_stage(kv_dtype, tensor_parallel, pipeline_parallel)
    title = f"{geometry.name}: {geometry.model_type}, {len(geometry.layers)} layers"
    if pipeline_parallel > 1:
        title += f", {len(stage.layers)} on the fullest of {pipeline_parallel} stages"
    lines = [Text(f"bytes per token = {geometry.formula(kv_dtype, tensor_parallel, pipeline_parallel)}")]
    state_bytes = stage.state_bytes_per_seq(tensor_parallel)
    if state_bytes:
        wide = stage.state_bytes_per_seq(tensor_parallel, recurrent_value_bytes=4)
        lines.append(Text(f"state per sequence = {state_bytes:,} B ({wide:,} B with fp32 recurrent values)"))
    lines += [Text(f"Assumed: {assumption}", style="yellow") for assumption in geometry.assumptions]
    lines += [Text(f"Note: {note}", style="dim") for note in geometry.notes]
    table = geometry_table(stage, kv_dtype, tensor_parallel)
    return Group(Text(title, style="bold"), Padding(table, (1, 0)), *lines)


def geometry_table(geometry: ModelGeometry, kv_dtype: KVDtype = "bf16", tensor_parallel: int = 1) -> Table:
    """One row for each sort of cache; a + marks those that lie beside another in the same layer.

    Heads and widths are the model's, bytes those of one rank that holds all layers.
    """
    headings = (
        "cache",
        "layers",
        "KV heads",
        "K",
        "V",
        "window",
        f"B/token ({kv_dtype})",
        "state B/sequence",
    )
    table = Table(*headings)
    for column in table.columns[1:]:
        column.justify = "right"
    counts: dict[tuple[str, LayerKV], int] = {}
    for layer in geometry.layers:
        for place, cache in enumerate(layer.caches()):
            key = ("+ " * (place > 0) + kind_word(cache), evolve(cache, beside=()))
            counts[key] = counts.get(key, 0) + 1
    for (word, cache), count in counts.items():
        size = -(-count * cache.entry_bytes(kv_dtype, tensor_parallel) // cache.tokens_per_entry)
        state = count * cache.state.bytes_per_seq(tensor_parallel) if cache.state else 0
        numbers = (count, cache.num_kv_heads, cache.k_dim, cache.v_dim, cache.window, size, state)
        table.add_row(word, *(f"{number:,}" if number else "-" for number in numbers))
    return table
