"""Sizing checked against cases that vLLM's own sizing code answered: `python -m tests.check_sizing DIR`.

DIR holds files in the format of `golden/vllm_sizing`. Prints `N of M match`, every number that differs with
both values and the cases whose layout is refused by name; exits 1 if anything differs or nothing was found.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.errors import UnsupportedModelError
from kvsim.model.engines import ENGINES
from kvsim.model.formats import KVDtype
from kvsim.model.groups import KVCacheGroup, blocks_per_request, bytes_per_block
from kvsim.model.plan import (
    CacheOptions,
    KVCachePlan,
    StartRefusedError,
    Worker,
    groups_of,
    largest_model_len,
    plan_cache,
)
from kvsim.model.specs import AttentionSpec, KVCacheSpec, MambaSpec

KV_DTYPES: dict[str, KVDtype] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "fp8": "fp8",
    "uint8": "int8",
}
STATE_DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "uint8": 1}
SPEC_NAMES = {
    "full": "FullAttentionSpec",
    "mla": "MLAAttentionSpec",
    "sliding_window": "SlidingWindowSpec",
    "chunked_local": "ChunkedLocalAttentionSpec",
}
OPTION_NAMES = (
    "max_model_len",
    "max_num_batched_tokens",
    "async_scheduling",
    "enable_prefix_caching",
    "kv_cache_layout",
    "disable_hybrid_kv_cache_manager",
    "num_gpu_blocks_override",
    "auto_fit_max_model_len",
)


class Mismatch(NamedTuple):
    """One number of one case: where it stands, what the engine said and what kvsim says."""

    place: str
    expected: object
    got: object


class Outcome(NamedTuple):
    """What the check found for one case; `refused` is the reason where kvsim does not support the layout."""

    case: str
    mismatches: list[Mismatch]
    refused: str | None


def spec_of(kind: dict[str, Any], block_size: int) -> KVCacheSpec:
    """The cache spec of one entry of a case's `kinds`."""
    if kind["type"] == "mamba":
        return MambaSpec(
            block_size=kind["block_size"],
            shapes=tuple(tuple(shape) for shape in kind["shapes"]),
            dtype_bytes=tuple(STATE_DTYPE_BYTES[dtype] for dtype in kind["dtypes"]),
            cache_mode=kind["cache_mode"],
            page_size_padded=kind["page_size_padded"],
        )
    head_size = kind["head_size"]
    return AttentionSpec(
        kind=kind["type"],
        block_size=block_size,
        num_kv_heads=kind["num_kv_heads"],
        head_size=head_size,
        head_size_v=0 if kind["type"] == "mla" else kind.get("head_size_v") or head_size,
        kv_dtype=KV_DTYPES[kind["dtype"]],
        window=kind.get("window", kind.get("chunk")),
        state_content_bytes=kind.get("state_content_bytes"),
    )


def spec_name(group: KVCacheGroup) -> str:
    """The group's spec as the cases call it."""
    if not group.is_uniform:
        return "several page sizes of one type"
    spec = group.specs[0]
    return "MambaSpec" if isinstance(spec, MambaSpec) else SPEC_NAMES[spec.kind]


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """kvsim's `result` for one case, in the format of the cases."""
    given = case["input"]
    kinds = [spec_of(kind, given["block_size"]) for kind in case["kinds"]]
    specs = [kinds[index] for index in case["layers"]]
    options = CacheOptions(**{name: given[name] for name in OPTION_NAMES})
    all_layers = frozenset(range(len(specs)))
    worker_layers = given["worker_layers"] or [sorted(all_layers)] * len(given["available_memory"])
    workers = [
        Worker(memory, frozenset(layers))
        for memory, layers in zip(given["available_memory"], worker_layers, strict=True)
    ]
    rules = ENGINES["vllm"]
    result: dict[str, Any] = {
        "max_in_flight_tokens": options.max_in_flight_tokens,
        "page_size_bytes_per_kind": [spec.page_size_bytes for spec in kinds],
    }
    groups = groups_of(specs, options, rules)
    if groups:
        block_bytes = bytes_per_block(groups)
        needed = blocks_per_request(groups, options.max_model_len, options.max_in_flight_tokens)
        result |= {
            "bytes_per_block": block_bytes,
            "bytes_for_one_request": needed * block_bytes,
            "largest_model_len_that_fits": largest_model_len(
                groups, workers[0].available_memory // block_bytes, options, rules
            ),
        }
    try:
        plan = plan_cache(specs, workers, options, rules)
    except StartRefusedError as refusal:
        return result | {
            "error": "not enough memory",
            "estimated_max_model_len": refusal.estimated_max_model_len,
        }
    return result | plan_answer(plan)


def plan_answer(plan: KVCachePlan) -> dict[str, Any]:
    """The part of a `result` that only a started engine has."""
    result: dict[str, Any] = {
        "max_model_len": plan.max_model_len,
        "num_blocks": plan.num_blocks,
        "num_groups": len(plan.groups),
        "groups": [
            {
                "spec": spec_name(group),
                "layers": list(group.layers),
                "block_size": group.block_size,
                "page_size_bytes": group.page_size_bytes,
                "blocks_per_max_len_request": group.max_blocks(plan.max_model_len, plan.options.max_in_flight_tokens),
            }
            for group in plan.groups
        ],
        "tensors_per_worker": [
            [tensor._asdict() | {"layers": list(tensor.layers)} for tensor in plan.tensors(worker)]
            for worker in plan.workers
        ],
    }
    if plan.groups:
        result |= {
            "kv_cache_size_tokens": plan.kv_cache_size_tokens,
            "max_concurrency": plan.max_concurrency,
            "log_line": plan.log_line,
            "scheduler_block_size": plan.block_sizes.scheduler,
            "hash_block_size": plan.block_sizes.hash,
        }
    return result


def differences(place: str, expected: object, got: object) -> Iterator[Mismatch]:
    """The leaves in which two JSON values differ."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in expected | got:
            yield from differences(f"{place}.{key}".lstrip("."), expected.get(key), got.get(key))
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        for index, (left, right) in enumerate(zip(expected, got, strict=True)):
            yield from differences(f"{place}[{index}]", left, right)
    elif expected != got:
        yield Mismatch(place, expected, got)


def check_case(path: Path) -> Outcome:
    """One case file, answered and compared."""
    case = json.loads(path.read_text(encoding="utf-8"))
    try:
        got = answer(case)
    except UnsupportedModelError as error:
        return Outcome(path.stem, [], str(error))
    return Outcome(path.stem, list(differences("", case["result"], got)), None)


def main(arguments: list[str]) -> int:
    """Check every case of a folder; 0 if all match."""
    if len(arguments) != 1:
        print("usage: python -m tests.check_sizing DIR", file=sys.stderr)
        return 2
    outcomes = [check_case(path) for path in sorted(Path(arguments[0]).glob("*.json"))]
    matching = [outcome for outcome in outcomes if not outcome.mismatches and outcome.refused is None]
    print(f"{len(matching)} of {len(outcomes)} match")
    for outcome in outcomes:
        for mismatch in outcome.mismatches:
            print(f"{outcome.case}: {mismatch.place}: expected {mismatch.expected}, got {mismatch.got}")
        if outcome.refused is not None:
            print(f"{outcome.case}: refused: {outcome.refused}")
    return 0 if outcomes and not any(outcome.mismatches for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
