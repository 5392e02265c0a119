"""The sizes of a run as formulas with their numbers in."""

from collections import Counter
from typing import NamedTuple

from kvsim.engine.results import Results


class Formula(NamedTuple):
    """Such as "16 tokens x 131,072 B = 2,097,152 B", of "a block"."""

    of: str
    text: str


def formulas(results: Results) -> list[Formula]:
    """From a token to the pool and the worst case, all on one device."""
    geometry, shape = results.description["geometry"], results.shape
    lines = [Formula("a token", geometry["formula"])]
    if results.description["scenario"]["memory"]["allocator"] == "paged":
        alike = Counter(tuple(group.values()) for group in geometry["groups"])
        for (kind, window, token_bytes, padding), count in alike.items():
            padded = f" + {padding:,} B of padding" if padding else ""
            text = f"{shape.block_size:,} tokens x {token_bytes:,} B{padded} = {shape.block_bytes:,} B"
            lines.append(Formula(_block(kind, window, count, alike.total()), text))
        pool = f"({shape.num_blocks:,} blocks - {shape.num_null_blocks:,} null block)"
    else:
        pool = f"{shape.usable_blocks:,} slots of a token"
    lines.append(Formula("the pool", f"{pool} x {shape.block_bytes:,} B = {shape.pool_bytes:,} B"))
    seqs = results.description["scenario"]["engine"]["max_num_seqs"]
    each, longest = results.worst_case_bytes // seqs, geometry["max_model_len"]
    text = f"{seqs:,} requests x {each:,} B, for {longest:,} tokens each = {results.worst_case_bytes:,} B"
    return [*lines, Formula("the worst case", text)]


def _block(kind: str, window: int | None, count: int, of: int) -> str:
    if of == 1:
        return "a block"
    within = f" of {window:,} tokens" if window else ""
    return f"a block of {count:,} of {of:,} groups of layers ({kind.replace('_', ' ')}{within})"
