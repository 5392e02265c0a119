"""What a server said of itself beside what was simulated: sizes to the unit, and what else a comparison rests on."""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from attrs import frozen

from kvsim.engine.results import Results
from kvsim.engine.rules import ENGINE_RULES
from kvsim.study.measured.read import Fact, Measured

Size = int | float | str


class SizeRow(NamedTuple):
    """A size on both sides; None where one does not say. `agrees` allows for the digits that a log prints."""

    name: str
    unit: str
    measured: Size | None
    simulated: Size | None
    agrees: bool | None

    @property
    def difference(self) -> int | float | None:
        """run - server, of numbers."""
        if isinstance(self.measured, int | float) and isinstance(self.simulated, int | float):
            return self.simulated - self.measured
        return None


CONDITIONS = {
    "model": "the model",
    "model_revision": "its revision",
    "engine": "the engine",
    "engine_version": "its version",
    "gpu": "the GPU",
    "allocator": "how KV memory is allocated",
    "kv_dtype": "number format of the cache",
    "block_size": "tokens of a block",
    "num_blocks": "number of blocks",
    "kv_peak": "the most KV memory seen in use",
    "peak_memory": "the most device memory seen in use",
}
"""What must be known for a comparison to mean anything, as --fact names it."""

_SAME_THING = ("model", "block_size", "num_blocks", "max_model_len", "kv_dtype", "tensor_parallel", "pipeline_parallel")
_SAME_LIMITS = ("max_num_seqs", "max_num_batched_tokens", "prefix_caching")

_NO_MATTER = (
    "meta",
    "hf",
    "instruct",
    "it",
    "chat",
    "base",
    "pt",
    "awq",
    "gptq",
    "bnb",
    "quantized",
    "dynamic",
    "config",
)
_NUMBER_FORMAT = re.compile(r"(int|fp|bf|nf|nvfp|mxfp)\d+|w\d+a\d+|\d+bit|\d{4}")

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_FP8 = ("fp8", "fp8_e4m3", "fp8_e5m2")


@frozen(kw_only=True)
class Conditions:
    """Sizes of both sides, the facts that there are by the names of CONDITIONS, and those that are missing.

    `different` names what makes it another model, server or limit than the run has.
    """

    sizes: tuple[SizeRow, ...]
    known: Mapping[str, Fact]
    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    different: tuple[str, ...]


def conditions(results: Results, measured: Measured) -> Conditions:
    rows = _sizes(results, measured)
    known = _known(results, measured)
    return Conditions(
        sizes=tuple(row for row in rows if row.measured is not None),
        known=known,
        missing=tuple(name for name in CONDITIONS if name not in known),
        warnings=(*_warnings(rows), *_on_rules(results, known)),
        different=tuple(row.name for row in rows if row.agrees is False and row.name in (*_SAME_THING, *_SAME_LIMITS)),
    )


def _sizes(results: Results, measured: Measured) -> list[SizeRow]:
    written, facts = results.description["scenario"], measured.facts
    engine, memory, model = written["engine"], written["memory"], written["model"]
    tokens, concurrency = printed_sizes(results, newer=_is_newer(measured))

    def said(name: str) -> Size | None:
        return facts[name].value if name in facts else None

    def exact(name: str, unit: str, simulated: Size | None) -> SizeRow:
        value = _number(said(name))
        return SizeRow(name, unit, value, simulated, None if value is None or simulated is None else value == simulated)

    printed = said("max_concurrency")
    agrees = None if not isinstance(printed, int | float) else _rounds_to(concurrency, printed)
    sharing = "on" if memory.get("prefix_sharing", True) else "off"
    return [
        _model(said("model"), model.get("config")),
        exact("block_size", "tokens", results.shape.block_size),
        exact("num_blocks", "blocks", results.shape.num_blocks),
        exact("kv_cache_tokens", "tokens", tokens),
        SizeRow("max_concurrency", "requests", printed, concurrency, agrees),
        _available(results, said("available_gib")),
        exact("max_model_len", "tokens", _max_model_len(results)),
        _words("kv_dtype", _kv_dtype(measured), model.get("kv_dtype")),
        exact("tensor_parallel", "ranks", model.get("tensor_parallel", 1)),
        exact("pipeline_parallel", "ranks", model.get("pipeline_parallel", 1)),
        exact("max_num_seqs", "requests", engine["max_num_seqs"]),
        exact("max_num_batched_tokens", "tokens", engine["max_num_batched_tokens"]),
        _words("prefix_caching", _on_or_off(said("prefix_caching")), sharing),
    ]


def _model(measured: Size | None, config: object) -> SizeRow:
    """By names, which say little: it differs if what is left of them does, and a geometry that was given has none."""
    name, other = (None if value is None else str(value) for value in (measured, config))
    agrees = None if name is None or other is None else bare_model_name(name) == bare_model_name(other)
    return SizeRow("model", "", name if agrees is not None else None, other, agrees)


def bare_model_name(name: str) -> tuple[str, ...]:
    """What tells the layers of a model, of a name in the catalogue, on the hub, or of a file.

    Case, organisation, folders, signs between words, numbers of four digits (months), and words of tuning or weights
    such as Instruct and AWQ, which leave its KV cache as it is, do not count.
    """
    parts = [part for part in re.split(r"[/\\]+", name.lower()) if part]
    if len(parts) > 1 and parts[-1].endswith(".json"):
        parts.pop()
    hub = next((part for part in reversed(parts) if part.startswith("models--")), None)
    last = hub.rpartition("--")[2] if hub is not None else parts[-1] if parts else ""
    words = re.findall(r"[a-z0-9]+", last.removesuffix(".json").removesuffix(".gguf"))
    kept = [word for word in words if word not in _NO_MATTER and not _NUMBER_FORMAT.fullmatch(word)]
    return tuple(re.findall(r"[a-z]+|\d+", " ".join(kept)))


def _number(value: Size | None) -> Size | None:
    """What was given on the command line is text."""
    if isinstance(value, str) and len(value) <= 20 and value.replace(",", "").isdecimal():
        return int(value.replace(",", ""))
    return value


def _words(name: str, measured: str | None, simulated: str | None) -> SizeRow:
    return SizeRow(name, "", measured, simulated, None if None in (measured, simulated) else measured == simulated)


def printed_sizes(results: Results, *, newer: bool) -> tuple[int, float]:
    """Tokens and concurrency as vLLM would print them for the simulated pool, its null block counted (sizing rule 11).

    Until 0.19 tokens are blocks / groups x block size; since then concurrency x max_model_len, which is less by what
    does not fill a request's last block.
    """
    shape, groups = results.shape, results.description["geometry"]["groups"]
    engine = results.description["scenario"]["engine"]
    max_model_len = _max_model_len(results)
    # The worst case is that of max_num_seqs requests, each with all blocks it can hold (sizing rule 10).
    per_request = results.worst_case_bytes / engine["max_num_seqs"] / shape.block_bytes
    concurrency = shape.num_blocks / per_request
    if newer:
        return int(concurrency * max_model_len), concurrency
    tokens = shape.num_blocks // len(groups) * shape.block_size
    return tokens, tokens / max_model_len if [group["kind"] for group in groups] == ["full"] else concurrency


def _max_model_len(results: Results) -> int:
    written = results.description["scenario"]["engine"].get("max_model_len")
    return int(written or results.description["geometry"]["max_model_len"])


def _is_newer(measured: Measured) -> bool:
    """Whether tokens were counted by the concurrency; by the version where no line shows it, else as today."""
    version = measured.facts.get("engine_version")
    if measured.newer_sizes or version is None:
        return True
    major, _dot, minor = str(version.value).removeprefix("v").partition(".")
    minor = minor.partition(".")[0]
    return not (major.isdecimal() and minor.isdecimal()) or (int(major), int(minor)) > (0, 19)


def _rounds_to(exact: float, printed: float) -> bool:
    """Whether `exact` is printed so, with two digits or with all."""
    return exact == printed or float(f"{exact:.2f}") == printed


def _available(results: Results, printed: Size | None) -> SizeRow:
    """Bytes for the cache; a log has GiB of two digits, and blocks fill them but for less than one."""
    budget = results.description["scenario"]["memory"].get("budget")
    shape = results.shape
    held = shape.num_blocks * shape.block_bytes
    simulated = held if budget is None else int(budget)
    if printed is None:
        return SizeRow("available_bytes", "bytes", None, simulated, None)
    number = Decimal(str(printed))
    digits = -int(number.as_tuple().exponent)
    half = Decimal(10) ** -digits * 2**30 / 2
    measured = number * 2**30
    most = simulated + (shape.block_bytes if budget is None else 0)
    agrees = simulated - half <= measured <= most + half if budget is None else abs(simulated - measured) <= half
    return SizeRow("available_bytes", "bytes", int(measured), simulated, bool(agrees))


def _on_or_off(value: Size | None) -> str | None:
    return {"True": "on", "False": "off"}.get(str(value))


def _kv_dtype(measured: Measured) -> str | None:
    """In kvsim's words; `auto` is the model's own format."""
    given = measured.facts.get("kv_dtype")
    if given is not None:
        return str(given.value)
    cache, own = measured.facts.get("cache_dtype"), measured.facts.get("model_dtype")
    if cache is None:
        return None
    word = str(cache.value).removeprefix("torch.")
    if word == "auto":
        if own is None:
            return None
        word = str(own.value).removeprefix("torch.")
    return "fp8" if word in _FP8 else _DTYPES.get(word, word)


def _known(results: Results, measured: Measured) -> dict[str, Fact]:
    facts = dict(measured.facts)
    dtype = _kv_dtype(measured)
    sharing = _on_or_off(facts["prefix_caching"].value) if "prefix_caching" in facts else None
    if dtype is not None:
        facts.setdefault("kv_dtype", Fact(dtype, facts["cache_dtype"].source if "cache_dtype" in facts else "--fact"))
    if sharing is not None:
        facts.setdefault("allocator", Fact(f"paged, prefix caching {sharing}", facts["prefix_caching"].source))
    usage = measured.series.get("kv_usage")
    if usage is not None:
        most = float(usage.values.max())
        facts.setdefault("kv_peak", Fact(f"{most:.2%} of the blocks", measured.source))
    return {name: facts[name] for name in CONDITIONS if name in facts}


def _warnings(rows: list[SizeRow]) -> list[str]:
    different = {row.name: row for row in rows if row.agrees is False}
    things = [_both(different[name]) for name in _SAME_THING if name in different]
    limits = [_both(different[name]) for name in _SAME_LIMITS if name in different]
    warnings = []
    if things:
        warnings.append(f"Not the same thing measured: {'; '.join(things)}.")
    if limits:
        warnings.append(f"Not the same limits: {'; '.join(limits)}.")
    return warnings


def _both(row: SizeRow) -> str:
    def told(value: Any) -> str:
        return f"{value:,}" if isinstance(value, int | float) else str(value)

    return f"{row.name} {told(row.measured)} on the server, {told(row.simulated)} in the run"


def _on_rules(results: Results, known: Mapping[str, Fact]) -> list[str]:
    """A sentence where the server is of another version than the rules of the run."""
    rules = results.description["scenario"]["engine"].get("rules")
    version = known.get("engine_version")
    if version is None or rules not in ENGINE_RULES:
        return []
    name = ENGINE_RULES[rules].name  # vLLM 0.32.0, V1
    simulated = name.partition(",")[0].rpartition(" ")[2].split(".")
    if str(version.value).removeprefix("v").split(".")[:2] == simulated[:2]:
        return []
    return [f"The run follows the rules of {name}; the server was {version.value}."]
