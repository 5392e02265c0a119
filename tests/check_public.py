"""Sizes that real engines printed, checked: `python -m tests.check_public CSV`.

The CSV has the columns of `golden/public_kv_sizes.csv`. The printed memory is rounded, so a row matches if
some memory within the rounding gives every figure of the row by the rule of its engine and version; rules
have the numbers of `public_kv_sizes.md`. Prints `N of M match`, every other row with its figures and the
allowed ones, and the rows that need something not printed; exits 1 if a row differs or there is none.
"""

import csv
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import product
from math import ceil, floor
from pathlib import Path
from typing import NamedTuple, cast

from attrs import evolve

from kvsim.errors import KvsimError, ModelError
from kvsim.model.catalogue import catalogue, load_geometry
from kvsim.model.deployment import Deployment, PlacedCaches, place_caches
from kvsim.model.formats import KVDtype, entry_bytes
from kvsim.model.geometry import KV_KINDS, LayerKV, ModelGeometry, RecurrentState
from kvsim.model.groups import bytes_per_block
from kvsim.model.plan import KVCachePlan, largest_model_len, lay_out
from kvsim.model.specs import MambaCacheMode

Row = dict[str, str]

BYTE_UNITS = {"GiB": 2**30, "GB": 2**30, "gb": 2**30, "MiB": 2**20}
"""What engines print as GB are GiB (rule 12)."""

SWAP_BYTES = 4 * 2**30
"""vLLM V0's default CPU pool (rule 11)."""

NOT_PRINTED = ("printed figure is one rank",)
"""What a note says of a row whose figure needs something that was not printed; rule 8."""


class Figures(NamedTuple):
    """What an engine reports of its pool; None where it prints nothing."""

    blocks: int | None
    tokens: int | None
    concurrency: str | None


class Verdict(NamedTuple):
    """A row's outcome: whether it matches, both values if not, and why if it cannot be checked wholly."""

    row_id: str
    matches: bool
    told: str
    not_printed: str | None


class Interval(NamedTuple):
    """Bytes that a rounded print stands for."""

    low: Fraction
    high: Fraction

    def __contains__(self, num_bytes: object) -> bool:
        return isinstance(num_bytes, int) and self.low <= num_bytes <= self.high


def printed_bytes(text: str, decimals: int | None = None) -> Interval:
    """The bytes of a print such as "69.8 GiB", rounded to `decimals` places or to those that it shows.

    A whole number of GiB was set and is exact.
    """
    found = re.search(r"([\d.]+) (GiB|GB|gb|MiB)", text)
    if found is None:
        raise ModelError(f"no size in {text!r}")
    number, unit = found.groups()
    shown = len(number.partition(".")[2])
    half = Fraction(1, 2 * 10 ** (shown if decimals is None else decimals))
    if shown == 0 and unit == "GiB":
        half = Fraction(0)
    return Interval((Fraction(number) - half) * BYTE_UNITS[unit], (Fraction(number) + half) * BYTE_UNITS[unit])


def number(row: Row, column: str, default: int = 1) -> int:
    """A whole number of a row, or what holds where the source printed none."""
    return int(row[column]) if row[column] else default


def reported(row: Row) -> Figures:
    """The figures of a row as printed."""
    return Figures(
        int(row["gpu_blocks_reported"]) if row["gpu_blocks_reported"] else None,
        int(row["tokens_reported"]) if row["tokens_reported"] else None,
        row["max_concurrency_reported"] or None,
    )


def geometry_of(row: Row) -> ModelGeometry:
    """The model's geometry: of the catalogue where the row names one of its models, else as the columns say.

    Raises ModelError where the two do not keep the same of a token.
    """
    by_columns = ModelGeometry(row["model"] or row["id"], tuple(layers_of(row)))
    known = catalogue()
    name = row["model"].rpartition("/")[2].lower().removeprefix("meta-")
    while name not in known and "-" in name:
        name = name.rpartition("-")[0]  # drops -Instruct, -FP8-dynamic and the like
    if name not in known:
        return by_columns
    from_config = load_geometry(name, Path())
    if kept_of_tokens(from_config) != kept_of_tokens(by_columns):
        raise ModelError(f"{name} of the catalogue keeps other layers than the columns say")
    return from_config


def kept_of_tokens(geometry: ModelGeometry) -> Counter[LayerKV]:
    """How many layers of each shape keep KV of tokens."""
    return Counter(cache for cache in geometry.caches() if cache.kind in KV_KINDS)


def layers_of(row: Row) -> Iterator[LayerKV]:
    """The layers that the columns of a row describe, or equal ones of the bytes that its note derives."""
    if not row["num_layers"]:
        found = re.search(r"bytes_per_token=(\d+)|(\d+) B/token|\*(\d+) B", row["note"])
        if found is None:
            raise ModelError(f"{row['id']} has neither a geometry nor bytes per token")
        num_bytes = int(next(group for group in found.groups() if group))
        yield LayerKV("full", 1, 1, 1, fixed_entry_bytes=num_bytes)
        return
    latent = re.fullmatch(r"mla:(\d+)\+(\d+)", row["attention"])
    if latent is not None:
        yield from [LayerKV("mla", 1, int(latent[1]) + int(latent[2]))] * int(row["num_layers"])
        return
    heads = int(row["num_kv_heads"])
    widths = [int(width) for width in re.findall(r"\d+", row["head_dim"])]
    full = LayerKV("full", heads, widths[0], widths[-1])
    parts = re.fullmatch(r"hybrid:(sliding|gdn)(?:(\d+)x)?(\d+)\+full(\d+)", row["attention"])
    if parts is None:
        yield from [full] * int(row["num_layers"])
        return
    if parts[1] == "sliding":
        other = LayerKV("sliding_window", heads, widths[0], widths[-1], window=int(parts[2]))
    else:
        # Its page is padded to that of attention, whose block the row names: any smaller state does.
        ranks = number(row, "tp")
        other = LayerKV("recurrent", state=RecurrentState("linear", ranks, ranks))
    yield from [other] * int(parts[3])
    yield from [full] * int(parts[4])


def layouts_of(row: Row) -> Iterator[Callable[[int], KVCachePlan]]:
    """What vLLM may have made of a row's memory, one way for each combination that the source leaves open."""
    geometry = geometry_of(row)
    length = number(row, "max_model_len", 8192)
    dtypes = {"": ("bf16", "fp8"), "auto-16bit": ("bf16",)}.get(row["kv_dtype"], (row["kv_dtype"],))
    block_sizes = [int(row["block_size"])] if row["block_size"] else [16, 32, 64, 128, 256]
    modes: tuple[MambaCacheMode, ...] = ("none", "align") if "gdn" in row["attention"] else ("none",)
    for engine, dtype, block_size, mode in product(versions_of(row), dtypes, block_sizes, modes):
        deployment = Deployment(
            kv_dtype=cast(KVDtype, dtype),
            engine=engine,
            block_size=block_size,
            tensor_parallel=number(row, "tp"),
            pipeline_parallel=number(row, "pp"),
            mamba_cache_mode=mode,
        )
        yield partial(lay_out_row, place_caches(geometry, deployment, length), deployment, length)


def lay_out_row(placed: PlacedCaches, deployment: Deployment, length: int, memory: int) -> KVCachePlan:
    """The blocks that every rank with `memory` bytes gets."""
    return lay_out(placed.specs, placed.workers([memory]), deployment.cache_options(length), deployment.rules)


def versions_of(row: Row) -> tuple[str, ...]:
    """The rules of layout that a row's engine may have had: V1 changed its print after 0.19 (rule 4)."""
    if row["engine"] == "vllm-v0":
        return ("vllm-v0",)
    found = re.match(r"0\.(\d+)", row["engine_version"])
    if found is not None:
        return ("vllm-0.19",) if int(found[1]) <= 19 else ("vllm",)
    return ("vllm", "vllm-0.19")


def figures_of(row: Row, plan: KVCachePlan) -> Figures:
    """What the engine prints of a plan; a refused start names the longest length instead (rule 6)."""
    if "estimated maximum model length" in row["note"]:
        longest = largest_model_len(plan.groups, plan.num_blocks, plan.options, plan.rules)
        return Figures(plan.num_blocks, longest, None)
    return Figures(plan.num_blocks, plan.kv_cache_size_tokens, f"{plan.max_concurrency:.2f}")


def agrees(row: Row, plan: KVCachePlan) -> bool:
    """Whether a plan gives every figure that the row has."""
    printed, ours = reported(row), figures_of(row, plan)
    if row["tokens_reported"] and "refused" in row["note"] and ours.concurrency is None:
        printed = printed._replace(concurrency=None)
    return all(theirs in (None, own) for theirs, own in zip(printed, ours, strict=True))


def check_vllm(row: Row) -> Verdict:
    """Rules 1 to 11: some memory within the print makes some layout give all figures."""
    told = []
    not_printed = next((row["note"] for words in NOT_PRINTED if words in row["note"]), None)
    for layout in layouts_of(row):
        block_bytes = bytes_per_block(layout(1).groups, layout(1).workers[0].layers)
        cpu_blocks = re.search(r"cpu_blocks=(\d+)", row["note"])
        if cpu_blocks is not None and int(cpu_blocks[1]) != SWAP_BYTES // block_bytes:
            told.append(f"cpu blocks {cpu_blocks[1]}, by rule {SWAP_BYTES // block_bytes}")
            continue
        if row["available_kv_bytes_printed"]:
            memory = printed_bytes(row["available_kv_bytes_printed"], decimals_of(row))
            low, high = layout(ceil(memory.low)), layout(floor(memory.high))
        else:
            low = high = layout(number(row, "gpu_blocks_reported") * block_bytes)
        least = 1 if not_printed else low.num_blocks
        if any(agrees(row, evolve(high, num_blocks=blocks)) for blocks in range(least, high.num_blocks + 1)):
            return Verdict(row["id"], not not_printed, "", not_printed)
        told.append(f"{words(reported(row))}; by rule {words(figures_of(row, low))} to {words(figures_of(row, high))}")
    return Verdict(row["id"], False, told[0], None)


def decimals_of(row: Row) -> int | None:
    """vLLM rounds GiB to two places and leaves out zeros at the end, unless the whole number was set."""
    vllm = row["engine"] in ("vllm-v1", "vllm-v0", "vllm-tpu", "vllm-metal")
    return 2 if vllm and "." in row["available_kv_bytes_printed"] else None


def words(figures: Figures) -> str:
    """Figures in words."""
    named = zip(figures._fields, figures, strict=True)
    return ", ".join(f"{name} {figure}" for name, figure in named if figure is not None)


def cell_bytes(row: Row) -> tuple[int, int]:
    """Bytes that one token takes of K and of V on one rank, all layers of the row being alike."""
    layer = next(layers_of(row | {"attention": row["attention"].replace("hybrid", "one part of a hybrid")}))
    heads = layer.num_kv_heads_on_rank(number(row, "tp"))
    dtype = "bf16" if row["kv_dtype"] == "auto-16bit" else row["kv_dtype"]
    layers = int(row["num_layers"])
    return (
        layers * entry_bytes(dtype, heads, layer.k_dim, 0),
        layers * entry_bytes(dtype, heads, layer.v_dim, 0) if layer.v_dim else 0,
    )


def check_buffers(row: Row) -> Verdict:
    """Rules 12 and 14: the bytes of the reported tokens, K and V apart or together, round to the print.

    SGLang's buffers have a page more than its tokens.
    """
    padding = number(row, "block_size") if row["engine"] == "sglang" else 0
    tokens = number(row, "tokens_reported") + padding
    prints = re.findall(r"[\d.]+ (?:GiB|GB|gb|MiB)", row["available_kv_bytes_printed"])
    cells = cell_bytes(row) if len(prints) == 2 else (sum(cell_bytes(row)),)
    sizes = [tokens * cell for cell in cells]
    matches = all(size in printed_bytes(text) for size, text in zip(sizes, prints, strict=True))
    return Verdict(row["id"], matches, f"printed {', '.join(prints)}; by rule {sizes} B", None)


def check_tensorrt_llm(row: Row) -> Verdict:
    """Rule 13: 0.9 of the free memory, blocks rounded up."""
    block_bytes = number(row, "block_size") * sum(cell_bytes(row))
    memory = printed_bytes(row["available_kv_bytes_printed"])
    low, high = (ceil(bound * Fraction(9, 10) / block_bytes) for bound in memory)
    told = f"blocks {row['gpu_blocks_reported']}; by rule {low} to {high}"
    return Verdict(row["id"], low <= number(row, "gpu_blocks_reported") <= high, told, None)


def check_pegainfer(row: Row) -> Verdict:
    """Rule 15: whole blocks, of which one is held back from the tokens."""
    block_size = number(row, "block_size")
    memory = printed_bytes(row["available_kv_bytes_printed"])
    low, high = (floor(bound / (block_size * sum(cell_bytes(row)))) for bound in memory)
    fits = any(reported(row) == (blocks, (blocks - 1) * block_size, None) for blocks in range(low, high + 1))
    return Verdict(row["id"], fits, f"{words(reported(row))}; by rule blocks {low} to {high}, less one", None)


CHECKS: dict[str, Callable[[Row], Verdict]] = {
    "vllm-v0": check_vllm,
    "vllm-v1": check_vllm,
    "vllm-tpu": check_vllm,
    "vllm-metal": check_vllm,
    "sglang": check_buffers,
    "llama.cpp": check_buffers,
    "lmcache": check_buffers,
    "tensorrt-llm": check_tensorrt_llm,
    "pegainfer": check_pegainfer,
}
"""The rule of each engine."""


def check_row(row: Row) -> Verdict:
    """One row by its engine's rule."""
    if row["engine"] not in CHECKS:
        return Verdict(row["id"], False, f"no rule for the engine {row['engine']}", None)
    try:
        return CHECKS[row["engine"]](row)
    except KvsimError as error:
        return Verdict(row["id"], False, str(error), None)


def main(arguments: list[str]) -> int:
    """Check every row of a file; 0 if all match that can."""
    if len(arguments) != 1:
        print("usage: python -m tests.check_public CSV", file=sys.stderr)
        return 2
    with Path(arguments[0]).open(encoding="utf-8", newline="") as file:
        verdicts = [check_row(row) for row in csv.DictReader(file)]
    print(f"{sum(verdict.matches for verdict in verdicts)} of {len(verdicts)} match")
    wrong = [verdict for verdict in verdicts if not verdict.matches and verdict.not_printed is None]
    for verdict in wrong:
        print(f"{verdict.row_id}: {verdict.told}")
    for verdict in verdicts:
        if verdict.not_printed is not None:
            print(f"{verdict.row_id}: needs something not printed: {verdict.not_printed}")
    return 0 if verdicts and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
