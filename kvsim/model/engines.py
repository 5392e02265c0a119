"""What differs between engines and their versions in laying out a KV cache: data with a name.

A rule of `groups.py` and `plan.py` that a version changed, or that another engine lacks, is a field here.
"""

from fractions import Fraction
from typing import Literal

from attrs import field, frozen, validators

from kvsim.errors import UnsupportedModelError
from kvsim.rules import shown


@frozen
class EngineRules:
    """How one engine and version turns KV bytes into blocks and reports them."""

    name: str
    block_size: int = field(validator=validators.ge(1))
    """Tokens of a block where none is asked for."""
    hybrid: Literal["groups", "full", "refuse"]
    """Layers of several kinds: in groups (vLLM V1), all kept as full attention, or not described here."""
    bucket_ratio: Fraction = Fraction(3, 2)
    """Below this ratio of the largest bucket of layers to the smallest, the largest gives the group size."""
    held_back_blocks: int = 0
    """Blocks of the pool that no request gets: vLLM's null block."""
    check_held_back_blocks: int = 0
    """Those that the check whether one request of `max_model_len` fits leaves out."""
    capacity: Literal["concurrency x max_model_len", "blocks / groups x block_size"] = "blocks / groups x block_size"
    """What the engine prints as its KV-cache size in tokens."""
    source: str = ""


ENGINES: dict[str, EngineRules] = {
    "vllm": EngineRules(
        name="vLLM 0.32.0",
        block_size=16,
        hybrid="groups",
        held_back_blocks=1,
        check_held_back_blocks=1,
        capacity="concurrency x max_model_len",
        source="golden/vllm_sizing, rules 1-15",
    ),
    "vllm-0.19": EngineRules(
        name="vLLM V1 up to 0.19",
        block_size=16,
        hybrid="groups",
        bucket_ratio=Fraction(5, 4),
        held_back_blocks=1,
        source="golden/public_kv_sizes.md, rules 1-3",
    ),
    "vllm-v0": EngineRules(name="vLLM V0", block_size=16, hybrid="full", source="golden/public_kv_sizes.md, rule 11"),
    "sglang": EngineRules(
        name="SGLang 0.5", block_size=1, hybrid="refuse", source="golden/public_kv_sizes.md, rule 12"
    ),
    "tensorrt-llm": EngineRules(
        name="TensorRT-LLM", block_size=32, hybrid="refuse", source="geometry_rules.md, 5.1 and 5.5"
    ),
    "lmdeploy": EngineRules(name="LMDeploy 0.18", block_size=64, hybrid="refuse", source="geometry_rules.md, 5.1"),
}


ENGINES["vllm-0.32"] = ENGINES["vllm"]  # the latest that is known, by its version as well


def engine_rules(name: str) -> EngineRules:
    """The rules of an engine by its short name; raises UnsupportedModelError that lists the known ones."""
    if name not in ENGINES:
        raise UnsupportedModelError(f"engine must be one of {', '.join(ENGINES)}, got {shown(name)}")
    return ENGINES[name]
