"""The runs of a comparison: every allocator with every combination of the keys that vary, on the same bytes.

    --allocators paged:16,max  --vary memory.placement=buddy,best_fit

    paged:16  buddy         memory.allocator=paged  memory.block_size=16  memory.placement=buddy
    paged:16  best_fit      ...

A scenario gives its pool as a budget or as a number of its own blocks. A budget stays the same for all. A number of
blocks, the null block among them, is turned into the bytes that it takes, of which other sizes of blocks then have as
many as fit, the null block among them again. What reserves has no blocks, and gets the bytes that the pool of the
scenario's own block size has for use.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from attrs import frozen

from kvsim.errors import KvsimError, ScenarioError
from kvsim.study.allocators import KINDS, AllocatorSpec
from kvsim.study.plan import plan
from kvsim.study.scenario import MemoryTable, Scenario, load_scenario
from kvsim.study.sweep_plan import (
    Chosen,
    Run,
    Vary,
    combinations_of,
    is_within,
    load_all,
    need_regular,
    varied_axes,
)
from kvsim.study.toml import typed_value
from kvsim.study.vary import Axis
from kvsim.units import format_bytes

MAX_RUNS = 100
"""More are no page and no picture any more."""

ALLOCATOR = "allocator"
"""Beside the varied keys, the parameter that names the allocator of a run, where allocators were asked for."""


@frozen(eq=False, kw_only=True)
class ComparisonPlan:
    """All runs in the order of the results: by allocator, and the last key varies fastest."""

    axes: tuple[Axis, ...]
    runs: tuple[Run, ...]
    notes: tuple[str, ...]


def plan_comparison(
    path: Path, specs: Sequence[AllocatorSpec] | None, vary: Vary | None, overrides: Iterable[str]
) -> ComparisonPlan:
    """Where neither allocators nor keys are given, paging in blocks of the scenario beside what reserves.

    Raises KvsimError for what cannot be compared, ScenarioError with the problems of all combinations.
    """
    need_regular(path)
    overrides = tuple(overrides)
    axes = _axes(vary or (), overrides)
    remark: tuple[str, ...] = ()
    if specs is None and axes:
        specs = ()
    elif specs is None:
        specs = _usual(load_scenario(path, overrides).memory)
        remark = ("without --allocators or --vary, paging is compared with max, pow2 and oracle",)
    _need_comparable(path, specs, overrides)
    _need_apart(specs, axes, overrides)
    combinations = combinations_of(axes)
    num_runs = max(1, len(specs)) * len(combinations)
    if num_runs > MAX_RUNS:
        raise KvsimError(f"a comparison must have at most {MAX_RUNS:,} runs, got {num_runs:,}; kvsim sweep has more")
    notes: tuple[str, ...] = ()
    if specs:
        paged = load_all(path, (*overrides, "memory.allocator=paged"), combinations)
        own = [_Pool.of(scenario) for _, scenario in paged]
        combinations = [
            Chosen({ALLOCATOR: spec.name, **parameters}, (*texts, *settings(spec), *pool.kept_by(spec)))
            for spec in specs
            for (parameters, texts), pool in zip(combinations, own, strict=True)
        ]
        notes = tuple(dict.fromkeys(pool.note for pool in own if any(pool.kept_by(spec) for spec in specs)))
    try:
        runs = load_all(path, overrides, combinations)
    except ScenarioError as error:
        problems = [_as_written(problem) if notes else problem for problem in error.problems]
        raise ScenarioError(error.source, [*problems, *remark]) from None
    return ComparisonPlan(
        axes=axes,
        runs=tuple(
            Run(index=index, parameters=parameters, scenario=scenario)
            for index, (parameters, scenario) in enumerate(runs)
        ),
        notes=notes,
    )


def _as_written(problem: str) -> str:
    """By the key that the scenario has, whose blocks were turned into bytes."""
    return re.sub(r"^memory\.budget ", "memory.num_blocks ", problem)


def spec_of(memory: MemoryTable) -> AllocatorSpec:
    """The allocator of a scenario, as a comparison names it."""
    argument: int | Fraction | None = None
    if memory.allocator == "paged":
        argument = memory.block_size
    elif memory.allocator == "predicted":
        argument = Fraction(str(memory.prediction_error))
    return AllocatorSpec(memory.allocator, argument)


def settings(spec: AllocatorSpec) -> tuple[str, ...]:
    """What makes a scenario use an allocator, as `--set` would be told."""
    chosen = f"memory.allocator={spec.kind}"
    if spec.argument is None:
        return (chosen,)
    key = {"paged": "memory.block_size", "predicted": "memory.prediction_error"}[spec.kind]
    return chosen, f"{key}={spec.name.partition(':')[2]}"


class _Pool(NamedTuple):
    """The pool of a scenario as it is when paged in its own blocks; `num_blocks` is None where it has a budget."""

    num_blocks: int | None
    block_size: int
    num_bytes: int

    @classmethod
    def of(cls, scenario: Scenario) -> "_Pool":
        shape = plan(scenario).shape
        return cls(scenario.memory.num_blocks, shape.block_size, shape.num_blocks * shape.block_bytes)

    def kept_by(self, spec: AllocatorSpec) -> tuple[str, ...]:
        """What gives an allocator the same bytes where the number of blocks would not."""
        if self.num_blocks is None or spec.kind != "paged" or spec.argument == self.block_size:
            return ()
        return "memory.num_blocks=", f"memory.budget={self.num_bytes}"

    @property
    def note(self) -> str:
        return (
            f"memory.num_blocks = {self.num_blocks:,} of {self.block_size:,} tokens are taken as the "
            f"{format_bytes(self.num_bytes)} that they are: blocks of another size get as many as fit into these, the "
            "engine's null block included."
        )


def _axes(vary: Vary, overrides: tuple[str, ...]) -> tuple[Axis, ...]:
    if not isinstance(vary, Mapping):
        vary = [vary] if isinstance(vary, str) else list(vary)
    if any(text.partition("=")[0].strip() == "seed" for text in vary):
        raise KvsimError("a comparison has one seed: --set seed=2 gives another, kvsim sweep averages over several")
    return varied_axes(vary, overrides)


def _usual(memory: MemoryTable) -> tuple[AllocatorSpec, ...]:
    return (AllocatorSpec("paged", memory.block_size), *map(AllocatorSpec, ("max", "pow2", "oracle")))


def _need_comparable(path: Path, specs: Sequence[AllocatorSpec], overrides: tuple[str, ...]) -> None:
    """All serve the same requests, so none is told which is the longest."""
    for spec in specs:
        if spec.kind == "predicted" and spec.argument is not None and spec.argument > 1:
            raise KvsimError(
                f"the ERROR of predicted:ERROR must be at most 1 in a run, where it goes both ways, got {spec.name}"
            )
        if spec.argument is not None and KINDS[spec.kind].argument == "LEN":
            longest = load_scenario(path, overrides).engine.max_model_len
            known = "that of the model" if longest is None else f"{longest:,}"
            raise KvsimError(
                f"{spec.name} must be written {spec.kind} here: the longest request is engine.max_model_len, {known}, "
                f"for all allocators alike; --set engine.max_model_len={spec.argument} changes it for all"
            )


def _need_apart(specs: Sequence[AllocatorSpec], axes: Sequence[Axis], overrides: tuple[str, ...]) -> None:
    """Raises ScenarioError where something else says a key of an allocator, and not the same."""
    for spec in specs:
        for key, value in (setting.split("=") for setting in settings(spec)):
            if any(is_within(axis.key, key) for axis in axes):
                raise ScenarioError("--vary", [f"{key} is varied, and said by the allocator {spec.name} as well"])
            for override in overrides:
                name, _, text = override.partition("=")
                if is_within(name.strip(), key) and typed_value(text) != typed_value(value):
                    raise ScenarioError(
                        "--set", [f"{key} is {value} for the allocator {spec.name}, and set as well, got {override}"]
                    )
