"""The scenario file: one question in TOML, one frozen class a table, every problem reported at once."""

import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import evolve, field, frozen, validators

from kvsim.engine.admission import GATES
from kvsim.engine.config import EngineConfig
from kvsim.errors import ScenarioError
from kvsim.memory.eviction import EVICTION
from kvsim.model.geometry import KVDtype
from kvsim.rules import BYTES, Consistent, at_least, between, not_blank, one_of, shown, token_count
from kvsim.study.outputs import SampleSharing, is_grouped, sharing_contradicts, sharing_of
from kvsim.study.structure import StructureError, TableReader, table_of
from kvsim.study.toml import parse_toml, toml_text, typed_value
from kvsim.study.vary import vary_table
from kvsim.units import exact_duration, exact_size
from kvsim.workload.generate import ARRIVALS, DURATIONS, LENGTHS, Arrivals
from kvsim.workload.outputs import SeveralOutputs
from kvsim.workload.traces import Trace

MAX_BLOCKS = 2**24
"""More blocks than this take gigabytes to keep; larger blocks answer the same question."""

MAX_POOL_BYTES = 2**50
"""One PiB on one device: beyond it lies a slip of the pen."""

MAX_SCENARIO_BYTES = 2**20

MAX_SEEDS = 10_000

_NOT_IN_FILE = {"in_file": False}

OutputFile = Literal["summary", "timeline", "requests", "pressure", "blocks", "plot"]
Workload = Arrivals | Trace

WORKLOADS: dict[str, type[Workload]] = {**ARRIVALS, "trace": Trace}


@frozen(kw_only=True)
class ModelTable(Consistent):
    """[model]: a config.json (relative to the scenario file), a catalogue name, or the geometry itself."""

    config: str | None = field(default=None, validator=validators.optional(not_blank))
    num_layers: int | None = field(default=None, validator=validators.optional(between(1, 10_000)))
    num_kv_heads: int | None = field(default=None, validator=validators.optional(between(1, 100_000)))
    head_dim: int | None = field(default=None, validator=validators.optional(between(1, 100_000)))
    kv_dtype: KVDtype = "bf16"
    tensor_parallel: int = field(default=1, validator=between(1, 100_000))
    pipeline_parallel: int = field(default=1, validator=between(1, 10_000))

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        names = ("num_layers", "num_kv_heads", "head_dim")
        given = [name for name in names if values[name] is not None]
        missing = [name for name in names if values[name] is None]
        if values["config"] is not None and given:
            return [f"config and {', '.join(given)} contradict each other: give one or the other"]
        if values["config"] is None and missing:
            return [f"config, or else {', '.join(names)}, must be given; missing: {', '.join(missing)}"]
        return []


@frozen(kw_only=True)
class MemoryTable(Consistent):
    """[memory]: bytes for KV on each device, or the number of blocks (the null block included) itself.

    `prefix_cache_retention` says which blocks of sliding windows can be found again: those before the positions
    that a later request can resume at, as vLLM does by default, or all full ones. `eviction` says which cached block
    goes first; all but vLLM's "lru" are decided block by block.

    `allocator` is vLLM's, or how many slots in a row a request reserves; then `placement` says where they lie, and
    `prediction_error` by what share of its true length an output may be misjudged. `sample_sharing` is about several
    outputs from one prompt, and prefix_cache where these are asked for and it is left out.
    """

    budget: int | None = field(default=None, validator=validators.optional(at_least(1)), metadata=BYTES)
    num_blocks: int | None = field(default=None, validator=validators.optional(between(2, MAX_BLOCKS)))
    block_size: int = field(default=16, validator=token_count)
    prefix_sharing: bool = True
    watermark: float = field(default=0.0, validator=between(0, 1))
    prefix_cache_retention: Literal["boundaries", "all"] = "boundaries"
    eviction: str = field(default="lru", validator=one_of(EVICTION))
    block_ids: bool = False
    allocator: Literal["paged", "max", "pow2", "oracle", "predicted"] = "paged"
    placement: Literal["buddy", "first_fit", "best_fit"] | None = None
    prediction_error: float | None = field(default=None, validator=validators.optional(between(0, 1)))
    sample_sharing: SampleSharing | None = None

    @property
    def retention_interval(self) -> int | None:
        """vLLM's prefix_cache_retention_interval: 0 or None."""
        return 0 if self.prefix_cache_retention == "boundaries" else None

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        sentences = []
        if (values["budget"] is None) == (values["num_blocks"] is None):
            sentences.append("one of budget and num_blocks must be given, and not both")
        if values["allocator"] == "predicted" and values["prediction_error"] is None:
            sentences.append("prediction_error must be given with allocator = predicted")
        return sentences


@frozen(kw_only=True)
class StudyTable:
    """[study]: which files a run writes, and what a sweep varies, with how many seeds.

    `vary` has the keys of a scenario, and in place of each value a list of values or a text such as "2:12:2".
    """

    write: tuple[OutputFile, ...] = ("summary", "timeline", "requests", "pressure", "blocks", "plot")
    vary: dict[str, Any] | None = field(default=None, metadata={"parse": vary_table})
    seeds: int | None = field(default=None, validator=validators.optional(between(1, MAX_SEEDS)))


@frozen(kw_only=True)
class Scenario(Consistent):
    """One question, with all that is needed to answer it.

    `base` is the folder that paths in it start from, `source` what messages call it, `overrides` the keys that were
    set anew, as they were typed.
    """

    question: str = field(validator=not_blank)
    seed: int = field(default=0, validator=between(0, 2**63 - 1))
    model: ModelTable
    memory: MemoryTable
    workload: Workload
    engine: EngineConfig = field(factory=EngineConfig)
    study: StudyTable = field(factory=StudyTable)
    base: Path = field(default=Path(), metadata=_NOT_IN_FILE)
    source: str = field(default="scenario", metadata=_NOT_IN_FILE)
    overrides: tuple[str, ...] = field(default=(), metadata=_NOT_IN_FILE)

    @property
    def sample_sharing(self) -> SampleSharing | None:
        """How several outputs of a request share memory; None where there is one of each."""
        return sharing_of(self.workload, self.memory.sample_sharing)

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        engine = values["engine"]
        if not isinstance(engine, EngineConfig):
            return []
        workload, memory = values["workload"], values["memory"]
        sentences = []
        if isinstance(workload, SeveralOutputs) and isinstance(memory, MemoryTable):
            sentences += sharing_contradicts(workload, memory.sample_sharing, memory.prefix_sharing, engine)
            sentences += _plain_paging_contradicts(sharing_of(workload, memory.sample_sharing), memory, engine)
        budget = engine.max_num_batched_tokens
        if budget < engine.max_num_seqs:
            sentences.append(
                f"engine.max_num_batched_tokens must be >= max_num_seqs = {engine.max_num_seqs:,}, got {budget:,}"
            )
        if not engine.enable_chunked_prefill and engine.max_model_len is not None and budget < engine.max_model_len:
            sentences.append(
                f"engine.max_num_batched_tokens must be >= max_model_len = {engine.max_model_len:,} "
                f"with enable_chunked_prefill = false, got {budget:,}"
            )
        if engine.admission == "expected" and engine.expected_output_tokens is None:
            sentences.append('engine.expected_output_tokens must be given with admission = "expected"')
        if not engine.scheduler_reserve_full_isl and engine.admission not in (None, "first_chunk"):
            sentences.append(
                "engine.scheduler_reserve_full_isl = false contradicts admission = "
                f'"{engine.admission}": leave one of them out'
            )
        return sentences


def _plain_paging_contradicts(
    sharing: SampleSharing | None, memory: MemoryTable, engine: EngineConfig
) -> Iterator[str]:
    """What is worked out only for the paged allocator, one sequence a request."""
    if memory.allocator != "paged":
        other = f"memory.allocator = {memory.allocator}"
        if is_grouped(sharing):
            yield f"memory.allocator must be paged with sample_sharing = {sharing}, got {memory.allocator}"
    elif is_grouped(sharing):
        other = f"memory.sample_sharing = {sharing}"
    else:
        return
    if engine.preemption == "swap":
        yield f"engine.preemption must be recompute with {other}, got swap"
    if engine.admission_policy not in GATES:
        yield f"engine.admission must be one of {', '.join(GATES)} with {other}, got {engine.admission}"


def load_scenario(path: str | Path, overrides: str | Iterable[str] = ()) -> Scenario:
    """Read a scenario file, with one or several `table.key=value` overrides, which are checked in the same way.

    Raises ScenarioError with all problems of the file.
    """
    path = Path(path)
    return parse_scenario(_read_text(path), overrides, base=path.parent, source=str(path))


def parse_scenario(
    text: str, overrides: str | Iterable[str] = (), *, base: Path = Path(), source: str = "scenario"
) -> Scenario:
    """As `load_scenario`, of the text of a file that would be called `source` and stand in the folder `base`."""
    overrides = (overrides,) if isinstance(overrides, str) else tuple(overrides)
    table = overridden(_parsed(text, source), overrides)
    try:
        scenario = TableReader(WORKLOADS, LENGTHS, DURATIONS).read(table, Scenario)
    except StructureError as error:
        raise ScenarioError(source, error.problems) from None
    return evolve(scenario, base=base, source=source, overrides=overrides)


def load_study(path: str | Path, overrides: Iterable[str] = ()) -> StudyTable:
    """The table [study] of a scenario file, whatever is wrong with the rest of it."""
    path = Path(path)
    table = overridden(_parsed(_read_text(path), str(path)), overrides).get("study", {})
    try:
        return TableReader().read({"study": table}, _OnlyStudy).study
    except StructureError as error:
        raise ScenarioError(str(path), error.problems) from None


@frozen(kw_only=True)
class _OnlyStudy:
    study: StudyTable


def scenario_dict(scenario: Scenario) -> dict[str, Any]:
    """The scenario as the tables of its file, with defaults filled in; sizes in bytes, times in nanoseconds."""
    return table_of(scenario, WORKLOADS, LENGTHS, DURATIONS)


def scenario_text(scenario: Scenario) -> str:
    """A scenario file that says the same, with defaults filled in and overrides applied; paths as they were written."""
    units = {"ns": exact_duration, "bytes": exact_size, "bytes/s": lambda rate: f"{exact_size(rate)}/s"}
    tables = table_of(scenario, WORKLOADS, LENGTHS, DURATIONS, units=units)
    lines = []
    for name, value in tables.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {toml_text(inner)}" for key, inner in value.items())]
        else:
            lines.append(f"{name} = {toml_text(value)}")
    return "\n".join(lines) + "\n"


def scenario_units(table: Mapping[str, Any]) -> dict[str, str]:
    """The unit of each key of a `scenario_dict` that has one, by its dotted name: bytes, bytes/s or ns."""
    return TableReader(WORKLOADS, LENGTHS, DURATIONS).units(table, Scenario)


def scenario_words(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What each key may say that may say only some words, by its dotted name, for the tables of a scenario file.

    Such as "memory.prefix_sharing": true or false; "workload.kind": the kinds that there are.
    """
    return TableReader(WORKLOADS, LENGTHS, DURATIONS).words(table, Scenario)


def named_overrides(overrides: Iterable[str]) -> str:
    """Such as "with memory.block_size = 128, without engine.timeout"; "" for none. The last of a key counts."""
    values = {key.strip(): value.strip() for key, _, value in (override.partition("=") for override in overrides)}
    values.pop("question", None)  # is shown itself
    kept = [f"{key} = {value}" for key, value in values.items() if value]
    removed = [key for key, value in values.items() if not value]
    parts = (("with", kept), ("without", removed))
    return ", ".join(f"{word} {', '.join(listed)}" for word, listed in parts if listed)


def overridden(table: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The tables of a scenario, with some keys set anew in place."""
    for override in overrides:
        _override(table, override)
    return table


def _read_text(path: Path) -> str:
    """The text of a regular file or a pipe; anything else might never end."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise ScenarioError(str(path), ["is a device, not a file"])
        with path.open("rb") as file:
            content = file.read(MAX_SCENARIO_BYTES + 1)
    except OSError as error:
        raise ScenarioError(str(path), [f"cannot be read: {error.strerror}"]) from None
    if len(content) > MAX_SCENARIO_BYTES:
        raise ScenarioError(str(path), [f"must be at most {MAX_SCENARIO_BYTES:,} bytes"])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ScenarioError(str(path), ["not UTF-8 text"]) from None


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ScenarioError(source, [f"not TOML: {error}"]) from None


def _override(table: dict[str, Any], override: str) -> None:
    """Set one key, or remove it where the value is empty."""
    name, equals, text = override.partition("=")
    *parents, key = name.strip().split(".")
    if not equals or not key or not all(parents):
        raise ScenarioError("--set", [f"must be key=value or table.key=value, got {shown(override)}"])
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise ScenarioError("--set", [f"{parent} is not a table, got {shown(override)}"])
    if not text.strip():
        if key not in table:
            raise ScenarioError("--set", [f"{name.strip()} is not there to be removed"])
        del table[key]
        return
    table[key] = typed_value(text)
