"""What a server printed of its sizes beside those of a run."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest

from kvsim.engine.results import Results
from kvsim.engine.tables import MemoryShape
from kvsim.study.measured.read import Fact, Measured, read_measured
from kvsim.study.measured.sizes import Conditions, SizeRow, bare_model_name, conditions, printed_sizes
from tests.study.measurements import GOLDEN, like_vllm, measured_of, tight_run


def said(**facts: Any) -> Measured:
    return measured_of({}, {name: Fact(value, "log") for name, value in facts.items()})


def row(found: Conditions, name: str) -> SizeRow:
    return next(each for each in found.sizes if each.name == name)


def test_sizes_of_vllm_itself_agree() -> None:
    found = conditions(like_vllm(), read_measured([GOLDEN / "server.log", GOLDEN / "scrapes.prom.gz"]))
    assert {each.name for each in found.sizes if each.agrees} == {
        "block_size",
        "num_blocks",
        "kv_cache_tokens",
        "max_concurrency",
        "max_model_len",
        "kv_dtype",
        "tensor_parallel",
        "pipeline_parallel",
        "prefix_caching",
    }
    assert len(found.sizes) == 9
    assert row(found, "kv_cache_tokens") == ("kv_cache_tokens", "tokens", 968, 968, True)
    assert found.warnings == ()
    assert found.missing == ("model_revision", "gpu", "peak_memory")
    assert found.known["kv_dtype"].value == "bf16"
    assert found.known["allocator"].value == "paged, prefix caching on"
    assert found.known["kv_peak"].value == "95.00% of the blocks"


def public_rows() -> list[dict[str, str]]:
    path = Path(os.environ.get("KVSIM_SHARED", "nowhere"), "golden", "public_kv_sizes.csv")
    if not path.exists():
        return []
    rows = list(csv.DictReader(path.read_text().splitlines()))
    needed = (
        "num_layers",
        "num_kv_heads",
        "head_dim",
        "gpu_blocks_reported",
        "tokens_reported",
        "max_concurrency_reported",
    )
    return [
        row
        for row in rows
        if row["engine"] == "vllm-v1" and row["attention"] == "full" and row["kv_dtype"] == "bf16" and row["tp"] == "1"
        and row["pp"] == "1" and row["engine_version"].startswith("0.19") and all(row[name] for name in needed)
    ]  # fmt: skip


def results_of(num_blocks: int, block_size: int, max_model_len: int) -> Results:
    """As a run of a model of 2 layers with these sizes leaves them."""
    block_bytes = 2 * 2 * 16 * 2 * 2 * block_size
    results = tight_run()
    from attrs import evolve

    from kvsim.engine.totals import Totals

    per_request = -(-max_model_len // block_size)
    shape = MemoryShape(num_blocks, block_size, block_bytes, 256)
    description = results.description | {
        "scenario": results.description["scenario"] | {
            "engine": results.description["scenario"]["engine"] | {"max_model_len": max_model_len, "max_num_seqs": 4}
        }
    }  # fmt: skip
    return evolve(results, description=description, totals=Totals(shape, 4 * per_request * block_bytes))


@pytest.mark.skipif(not public_rows(), reason="needs KVSIM_SHARED")
@pytest.mark.parametrize("public", public_rows(), ids=lambda public: public["id"])
def test_sizes_that_were_printed_in_public_agree(public: dict[str, str]) -> None:
    results = results_of(int(public["gpu_blocks_reported"]), int(public["block_size"]), int(public["max_model_len"]))
    found = conditions(
        results,
        said(
            engine_version=public["engine_version"],
            kv_cache_tokens=int(public["tokens_reported"]),
            max_concurrency=float(public["max_concurrency_reported"]),
            num_blocks=int(public["gpu_blocks_reported"]),
        ),
    )
    assert {each.name: each.agrees for each in found.sizes} == {
        "num_blocks": True,
        "kv_cache_tokens": True,
        "max_concurrency": True,
    }


def test_tokens_are_counted_in_two_ways() -> None:
    """33 blocks of 4; a request of 126 takes 32, and leaves two slots of the last."""
    results = results_of(33, 4, 126)
    assert printed_sizes(results, newer=False) == (132, 132 / 126)
    assert printed_sizes(results, newer=True) == (int(33 / 32 * 126), 33 / 32)
    old, new = said(engine_version="0.19.1", kv_cache_tokens=132), said(engine_version="0.20.0", kv_cache_tokens=132)
    assert row(conditions(results, old), "kv_cache_tokens").agrees is True
    assert row(conditions(results, new), "kv_cache_tokens").agrees is False


def test_what_differs_is_another_thing_and_said() -> None:
    found = conditions(
        tight_run(),
        said(
            block_size=16,
            num_blocks="1,000",
            max_model_len=128,
            cache_dtype="fp8_e4m3",
            prefix_caching="False",
            max_num_seqs=99,
        ),
    )
    assert found.warnings == (
        "Not the same thing measured: block_size 16 on the server, 4 in the run; num_blocks 1,000 on the server, 33 in "
        "the run; kv_dtype fp8 on the server, bf16 in the run.",
        "Not the same limits: max_num_seqs 99 on the server, 8 in the run; prefix_caching off on the server, on in the run.",
    )
    assert (row(found, "num_blocks").difference, row(found, "max_model_len").agrees) == (33 - 1000, True)


@pytest.mark.parametrize(
    ("facts", "dtype"),
    [
        ({"cache_dtype": "auto", "model_dtype": "torch.float16"}, "fp16"),
        ({"cache_dtype": "auto"}, None),
        ({"cache_dtype": "bfloat16"}, "bf16"),
        ({"cache_dtype": "fp8_e5m2", "model_dtype": "torch.bfloat16"}, "fp8"),
        ({"cache_dtype": "auto", "kv_dtype": "int8"}, "int8"),
        ({}, None),
    ],
)
def test_the_format_of_the_cache_is_named_as_kvsim_names_it(facts: dict[str, str], dtype: str | None) -> None:
    found = conditions(tight_run(), said(**facts))
    assert [each.measured for each in found.sizes if each.name == "kv_dtype"] == ([] if dtype is None else [dtype])
    assert ("kv_dtype" in found.missing) == (dtype is None)


@pytest.mark.parametrize(("printed", "agrees"), [("0.00", True), ("0.01", False)])
def test_memory_agrees_if_it_would_be_printed_so(printed: str, agrees: bool) -> None:
    """33 blocks of 1,024 B."""
    found = row(conditions(tight_run(), said(available_gib=printed)), "available_bytes")
    assert (found.simulated, found.agrees) == (33 * 1024, agrees)


def test_rules_of_another_version_are_said() -> None:
    assert conditions(tight_run(), said(engine_version="0.19.1")).warnings == (
        "The run follows the rules of vLLM 0.32.0, V1; the server was 0.19.1.",
    )
    assert conditions(tight_run(), said(engine_version="0.32.1")).warnings == ()


@pytest.mark.parametrize(
    ("served", "simulated", "agrees"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b", True),
        ("/models/Llama-3.1-8B/", "configs/llama_3.1_8b/config.json", True),
        ("/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f2", "Llama-3.1-8B", True),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "llama-3.1-8b", True),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b", True),
        ("toy/llama", "llama-3.1-8b", False),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-8b", False),
        ("Qwen/Qwen3-8B", "qwen2.5-7b", False),
    ],
)
def test_names_of_models_are_compared_loosely(served: str, simulated: str, agrees: bool) -> None:
    assert (bare_model_name(served) == bare_model_name(simulated)) is agrees


def test_another_model_is_said() -> None:
    from attrs import evolve

    results = tight_run()
    written = results.description["scenario"]
    named = evolve(
        results,
        description=results.description
        | {"scenario": written | {"model": written["model"] | {"config": "llama-3.1-8b"}}},
    )
    assert conditions(named, said(model="toy/llama")).warnings == (
        "Not the same thing measured: model toy/llama on the server, llama-3.1-8b in the run.",
    )
    assert conditions(named, said(model="meta-llama/Llama-3.1-8B")).warnings == ()
    assert conditions(results, said(model="toy/llama")).warnings == (), "sizes that were given have no name"
