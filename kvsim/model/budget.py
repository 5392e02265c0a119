"""How many bytes of a device are left for KV, and how the answer came about.

Engines take different shares of different bases, so the same 0.9 means other bytes in each:

    vLLM          total x gpu_memory_utilization - weights - activations - overhead
    SGLang        (total - overhead) x mem_fraction_static - weights
    TensorRT-LLM  (total - overhead - weights - activations) x free_gpu_memory_fraction
    LMDeploy      (total - overhead - weights - activations) x cache_max_entry_count

`total` is what programs see of the device: less than the driver shows, and not the number in its name.
Figures that nobody gave are assumptions and carry their reason; a report must show them.
"""

import json
import re
from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction
from math import ceil, floor, isfinite
from pathlib import Path
from typing import Any, Literal

from attrs import asdict, frozen

from kvsim.errors import ModelError
from kvsim.rules import shown
from kvsim.units import format_bytes, parse_bytes

MIB = 2**20
GIB = 2**30

ASSUMED_ACTIVATION_BYTES = GIB
"""Activation peak where none is given; it grows with max_num_batched_tokens and max_num_seqs alone."""

ASSUMED_OVERHEAD_BYTES = GIB
"""Device context, communication buffers and captured graphs where none is given."""

UNSEEN_BYTES = GIB
"""Taken off the driver's figure where the runtime's is not known; known reserves are 0.3 to 0.9 GiB."""


@frozen
class Gpu:
    """One product: memory by its name, by the driver and as programs see it, and its quoted speeds."""

    key: str
    name: str
    product_gb: int
    driver_mib: int
    runtime_gib: tuple[str, str] | None
    """Lowest and highest figure seen; it varies with driver and ECC."""
    bandwidth_gb_per_s: int
    bf16_tflops: int
    source: str

    @property
    def total_bytes(self) -> int:
        """Memory as programs see it, the lowest figure seen: an assumption for any one machine."""
        if self.runtime_gib is None:
            return self.driver_mib * MIB - UNSEEN_BYTES
        return floor(Fraction(self.runtime_gib[0]) * GIB)

    @property
    def assumption(self) -> str:
        """What `total_bytes` takes for granted."""
        driver = f"the product's {self.product_gb} GB are {self.driver_mib:,} MiB in the driver"
        if self.runtime_gib is None:
            return f"{driver}, of which programs are taken not to see {format_bytes(UNSEEN_BYTES)}"
        return f"{driver} and at least {self.runtime_gib[0]} GiB for programs, by public logs"


def known_gpus() -> dict[str, Gpu]:
    """The table of common GPUs by their short names."""
    table = json.loads(Path(__file__).with_name("gpus.json").read_text(encoding="utf-8"))
    return {
        key: Gpu(key=key, **(facts | {"runtime_gib": facts["runtime_gib"] and tuple(facts["runtime_gib"])}))
        for key, facts in table.items()
    }


def find_gpu(name: str) -> Gpu:
    """The GPU of a short name such as "h100" or "RTX 4090"; raises ModelError that lists the known ones."""
    gpus = known_gpus()
    words = name.lower().replace("_", " ").replace("-", " ").split()
    key = "-".join(word for word in words if word != "nvidia")
    if key not in gpus:
        close = get_close_matches(key[:40], gpus, n=3, cutoff=0.4)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise ModelError(f"gpu must be one of {', '.join(gpus)}, got {shown(name)}{hint}; or give its memory in bytes")
    return gpus[key]


WEIGHT_BYTES: dict[str, Fraction] = {
    "fp32": Fraction(4),
    "bf16": Fraction(2),
    "fp16": Fraction(2),
    "fp8": Fraction(1),
    "int8": Fraction(1),
    "int4": Fraction(1, 2) + Fraction(5, 256),  # AWQ or GPTQ: scale and zero point a group of 128
    "mxfp4": Fraction(17, 32),
    "nvfp4": Fraction(9, 16),
    "q8_0": Fraction(34, 32),
    "q6_k": Fraction(210, 256),
    "q5_k": Fraction(176, 256),
    "q4_k": Fraction(144, 256),
    "q4_0": Fraction(18, 32),
}
"""Bytes of one parameter with its scales; embeddings and norms usually stay in 16 bits: count them apart."""

MIN_PARAMETERS, MAX_PARAMETERS = 10**6, 10**15
"""A bare "8" is a forgotten unit."""

_COUNT = re.compile(r"(\d{1,16}(?:\.\d{1,16})?)([kmbt]?)")
_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


def parse_parameters(text: str | int) -> int:
    """A number of parameters such as "8.03B", "350M" or 8030000000; raises ModelError with the rule."""
    match = _COUNT.fullmatch(str(text).strip().lower())
    count = Decimal(match[1]) * _COUNT_UNITS[match[2]] if match else Decimal(0)
    if not MIN_PARAMETERS <= count <= MAX_PARAMETERS:
        raise ModelError(f"parameters must be from 1M to 1000T such as 8.03B or 350M, got {shown(text)}")
    return int(count)


def weight_bytes(num_parameters: int, weight_dtype: str, num_ranks: int = 1, num_16bit: int = 0) -> int:
    """Bytes of weights on each of `num_ranks` ranks, split evenly; `num_16bit` parameters stay in 16 bits.

    All experts of a mixture are resident: the total number counts, not the active one.
    """
    if weight_dtype not in WEIGHT_BYTES:
        raise ModelError(f"weight_dtype must be one of {', '.join(WEIGHT_BYTES)}, got {weight_dtype!r}")
    if not 0 <= num_16bit <= num_parameters or num_ranks < 1:
        raise ModelError(
            f"weights need num_16bit between 0 and the number of parameters and num_ranks > 0, "
            f"got {num_16bit} of {num_parameters} on {num_ranks} ranks"
        )
    size = (num_parameters - num_16bit) * WEIGHT_BYTES[weight_dtype] + num_16bit * 2
    return ceil(size / num_ranks)


@frozen
class FractionRule:
    """Which share of which memory an engine takes for KV."""

    engine: str
    option: str
    default: Fraction | None
    """None where the engine derives it from the device and the batch."""
    base: Literal["total", "total - overhead", "total - overhead - weights - activations"]
    source: str


FRACTION_RULES: dict[str, FractionRule] = {
    "vllm": FractionRule("vLLM 0.32.0", "gpu_memory_utilization", Fraction(92, 100), "total", "v1/worker/utils.py"),
    "vllm-0.19": FractionRule(
        "vLLM V1 up to 0.19", "gpu_memory_utilization", Fraction(9, 10), "total", "v1/worker/utils.py"
    ),
    "vllm-v0": FractionRule("vLLM V0", "gpu_memory_utilization", Fraction(9, 10), "total", "worker/worker.py"),
    "sglang": FractionRule(
        "SGLang 0.5",
        "mem_fraction_static",
        None,
        "total - overhead",
        "srt/mem_cache/kv_cache_configurator.py",
    ),
    "tensorrt-llm": FractionRule(
        "TensorRT-LLM",
        "free_gpu_memory_fraction",
        Fraction(9, 10),
        "total - overhead - weights - activations",
        "its KV-cache documentation",
    ),
    "lmdeploy": FractionRule(
        "LMDeploy 0.18",
        "cache_max_entry_count",
        Fraction(8, 10),
        "total - overhead - weights - activations",
        "pytorch/engine/executor/base.py",
    ),
}
FRACTION_RULES["vllm-0.32"] = FRACTION_RULES["vllm"]


@frozen
class BudgetLine:
    """One figure of a budget; `assumption` says why it was taken, and is None where it was given."""

    name: str
    num_bytes: int
    assumption: str | None = None


@frozen
class KVBudget:
    """Bytes for KV on one rank, and the figures and the formula that made them."""

    kv_bytes: int
    formula: str
    lines: tuple[BudgetLine, ...] = ()
    fraction_assumption: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Everything that was taken and not given, a sentence each."""
        assumed = [
            f"{line.name} {format_bytes(line.num_bytes)}: {line.assumption}"
            for line in self.lines
            if line.assumption is not None
        ]
        if self.fraction_assumption is not None:
            assumed.append(self.fraction_assumption)
        return tuple(assumed)


def given_budget(kv_bytes: int) -> KVBudget:
    """A budget that is given as bytes for KV; the engines' own override of any fraction."""
    if kv_bytes < 1:
        raise ModelError(f"budget must be > 0 bytes, got {kv_bytes}")
    return KVBudget(kv_bytes, f"given = {kv_bytes:,} B")


def total_memory(gpu: str | None = None, total_bytes: int | None = None) -> BudgetLine:
    """A device's memory as programs see it: given, or of a GPU in the table."""
    if total_bytes is not None:
        if total_bytes < 1:
            raise ModelError(f"device memory must be > 0 bytes, got {total_bytes}")
        return BudgetLine("total", total_bytes)
    if gpu is None:
        raise ModelError("a device's memory needs its bytes or the name of a GPU")
    found = find_gpu(gpu)
    return BudgetLine("total", found.total_bytes, f"{found.name}: {found.assumption}")


def device_budget(
    total: BudgetLine,
    weights: BudgetLine,
    *,
    engine: str = "vllm",
    fraction: Fraction | None = None,
    activation_bytes: int | None = None,
    overhead_bytes: int | None = None,
) -> KVBudget:
    """KV bytes on one rank by the engine's own rule; raises ModelError where nothing is left.

    `weights` are those of this rank. With several ranks the engine uses the smallest result on all of them.
    """
    if engine not in FRACTION_RULES:
        raise ModelError(f"engine must be one of {', '.join(FRACTION_RULES)}, got {engine!r}")
    rule = FRACTION_RULES[engine]
    share = rule.default if fraction is None else fraction
    if share is None:
        raise ModelError(f"{rule.option} must be given: {rule.engine} derives it from the device and the batch")
    if not 0 < share <= 1:
        raise ModelError(f"{rule.option} must be > 0 and <= 1, got {float(share):g}")
    activations = _stated("activations", activation_bytes, ASSUMED_ACTIVATION_BYTES)
    overhead = _stated("overhead", overhead_bytes, ASSUMED_OVERHEAD_BYTES)
    taken_before = {
        "total": (),
        "total - overhead": (overhead,),
        "total - overhead - weights - activations": (overhead, weights, activations),
    }[rule.base]
    taken_after = {
        "total": (weights, activations, overhead),
        "total - overhead": (weights,),  # activations live in the share that SGLang leaves
        "total - overhead - weights - activations": (),
    }[rule.base]
    base = total.num_bytes - sum(line.num_bytes for line in taken_before)
    rounded = ceil if rule.base == "total" else floor  # vLLM rounds what it requests up
    kv_bytes = rounded(base * share) - sum(line.num_bytes for line in taken_after)
    formula = _formula(total, taken_before, f"{float(share):g} {rule.option}", taken_after, kv_bytes)
    if kv_bytes < 1:
        raise ModelError(f"no memory is left for KV by the rule of {rule.engine}: {formula}")
    return KVBudget(
        kv_bytes,
        formula,
        (total, weights, activations, overhead),
        None if fraction is not None else f"{rule.option} {float(share):g}: the default of {rule.engine}",
    )


def read_budget(
    *,
    budget: str | None = None,
    gpu: str | None = None,
    memory: str | None = None,
    engine: str = "vllm",
    fraction: float | None = None,
    weights: str | None = None,
    parameters: str | None = None,
    weight_dtype: str = "bf16",
    activations: str | None = None,
    overhead: str | None = None,
    num_ranks: int = 1,
) -> KVBudget:
    """The budget of one rank from what a user wrote: KV bytes, or a device and what else lies on it.

    `budget` is for KV alone. Else the device is a `gpu` of the table or has `memory`; `weights` are those of
    one rank, or follow from `parameters` over `num_ranks` ranks. Raises ModelError for what is missing or
    contradicts itself.
    """
    device = {"gpu": gpu, "memory": memory, "weights": weights, "parameters": parameters}
    given = [name for name, words in device.items() if words is not None]
    if budget is not None:
        beside = {"the share of memory": fraction, "activations": activations, "overhead": overhead}
        given += [name for name, value in beside.items() if value is not None]
        if given:
            raise ModelError(f"budget is given, which leaves nothing for {' and '.join(given)} to say")
        return given_budget(_bytes_of("budget", budget))
    if gpu is None and memory is None:
        raise ModelError("budget, or gpu, or memory (of a device) must be given")
    if gpu is not None and memory is not None:
        raise ModelError("give the memory or the name of a gpu, not both")
    if fraction is not None and not isfinite(fraction):
        raise ModelError(f"the share of memory must be a number, got {fraction}")
    if (weights is None) == (parameters is None):
        raise ModelError("weights (bytes on a rank) or parameters (of the model) must be given, and not both")
    if weights is not None:
        on_rank = BudgetLine("weights", _bytes_of("weights", weights))
    else:
        count = parse_parameters(str(parameters))
        on_rank = BudgetLine(
            "weights",
            weight_bytes(count, weight_dtype, num_ranks),
            f"{count:,} parameters in {weight_dtype}, split evenly over {num_ranks} ranks",
        )
    return device_budget(
        total_memory(gpu, None if memory is None else _bytes_of("memory", memory)),
        on_rank,
        engine=engine,
        fraction=None if fraction is None else Fraction(str(fraction)),
        activation_bytes=None if activations is None else _bytes_of("activations", activations),
        overhead_bytes=None if overhead is None else _bytes_of("overhead", overhead),
    )


def _bytes_of(name: str, words: str) -> int:
    """Bytes of "30 GiB". Whoever types a bare 30 means no 30 bytes; 0 is 0 in any unit."""
    try:
        num_bytes = parse_bytes(words)
    except ValueError as error:
        raise ModelError(f"{name} {error}, got {shown(words)}") from error
    if 0 < num_bytes < MIB and words.strip().isdecimal():
        raise ModelError(f"{name} below 1 MiB needs a unit, such as '30 GiB' or '512 B', got {shown(words)}")
    return num_bytes


def _stated(name: str, given: int | None, assumed: int) -> BudgetLine:
    if given is None:
        return BudgetLine(name, assumed, "not given")
    if given < 0:
        raise ModelError(f"{name} must not be negative, got {given} bytes")
    return BudgetLine(name, given)


def _formula(
    total: BudgetLine,
    before: tuple[BudgetLine, ...],
    share: str,
    after: tuple[BudgetLine, ...],
    kv_bytes: int,
) -> str:
    """The rule with its numbers in it."""

    def minus(lines: tuple[BudgetLine, ...]) -> str:
        return "".join(f" - {format_bytes(line.num_bytes)} {line.name}" for line in lines)

    base = f"{format_bytes(total.num_bytes)} total{minus(before)}"
    if before:
        base = f"({base})"
    return f"{base} x {share}{minus(after)} = {format_bytes(kv_bytes)}"
