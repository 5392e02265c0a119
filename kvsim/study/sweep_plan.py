"""What a sweep will run, known to be sound before anything runs, and what tells it from any other sweep."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from attrs import evolve, frozen

from kvsim import __version__
from kvsim.errors import KvsimError, ScenarioError
from kvsim.rules import Contradiction, shown
from kvsim.study.input_files import input_files
from kvsim.study.plan import plan
from kvsim.study.scenario import MAX_SEEDS, Scenario, Workload, load_scenario, load_study
from kvsim.study.vary import Axis, Scalar, read_axes
from kvsim.workload.traces import Trace

MAX_RUNS = 100_000

_MOST_IN_64_BITS = 2**63 - 1
_MOST_PROBLEMS = 20

Vary = Mapping[str, Any] | Iterable[str]
"""A table as [study] vary, or texts such as "memory.block_size=1,2,4"."""


class Chosen(NamedTuple):
    """A combination of values: as results show them, and as `--set` would be told."""

    parameters: dict[str, Scalar]
    texts: tuple[str, ...]


@frozen(eq=False, kw_only=True)
class Run:
    """One combination of values with one seed; `index` counts the runs of a sweep."""

    index: int
    parameters: dict[str, Scalar]
    scenario: Scenario

    @property
    def name(self) -> str:
        return named({**self.parameters, "seed": self.scenario.seed})


@frozen(eq=False, kw_only=True)
class SweepPlan:
    """All runs in the order of the results: the last key varies fastest, and the seeds of a combination are together.

    `identity` is ready for JSON, and equal for sweeps that give equal results.
    """

    axes: tuple[Axis, ...]
    num_seeds: int
    runs: tuple[Run, ...]
    identity: dict[str, Any]


def named(parameters: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in parameters.items())


def plan_sweep(path: Path, vary: Vary | None, overrides: Iterable[str], seeds: int | None) -> SweepPlan:
    """What `vary` and `seeds` leave open is what the scenario's [study] says.

    Raises ScenarioError with the problems of all combinations.
    """
    need_regular(path)
    overrides = tuple(overrides)
    study = load_study(path, overrides)
    axes = varied_axes(study.vary or {} if vary is None else vary, overrides)
    num_seeds = _num_seeds(study.seeds or 1 if seeds is None else seeds)
    if not axes and num_seeds == 1:
        raise ScenarioError(str(path), ["nothing varies: give --vary KEY=VALUES, or [study] vary in the scenario"])
    num_runs = prod(len(axis.values) for axis in axes) * num_seeds
    if num_runs > MAX_RUNS:
        raise ScenarioError(str(path), [f"a sweep must have at most {MAX_RUNS:,} runs, got {num_runs:,}"])
    sound = load_all(path, overrides, combinations_of(axes), num_seeds)
    runs = [
        (parameters, evolve(scenario, seed=scenario.seed + more))
        for parameters, scenario in sound
        for more in range(num_seeds)
    ]
    return SweepPlan(
        axes=axes,
        num_seeds=num_seeds,
        runs=tuple(
            Run(index=index, parameters=parameters, scenario=scenario)
            for index, (parameters, scenario) in enumerate(runs)
        ),
        identity={
            "kvsim": __version__,
            "scenario": hashlib.sha256(path.read_bytes()).hexdigest(),
            "overrides": list(overrides),
            "vary": {axis.key: [value.text for value in axis.values] for axis in axes},
            "seeds": num_seeds,
            "files": input_files(scenario for _, scenario in sound),
        },
    )


def need_regular(path: Path) -> None:
    """Raises ScenarioError for what can be read once only."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ScenarioError(str(path), ["must be a regular file, as it is read for every combination"])


def varied_axes(vary: Vary, overrides: Iterable[str]) -> tuple[Axis, ...]:
    """The keys that vary; raises ScenarioError for what is none, or is set as well."""
    try:
        axes = read_axes(vary)
    except ValueError as error:
        raise ScenarioError("--vary", [str(error)]) from None
    for axis in axes:
        for value in axis.values:
            if isinstance(value.shown, int) and not -_MOST_IN_64_BITS <= value.shown <= _MOST_IN_64_BITS:
                raise ScenarioError("--vary", [f"{axis.key} must fit in 64 bits, got {shown(value.shown)}"])
    for override in overrides:
        for axis in axes:
            if is_within(override.partition("=")[0].strip(), axis.key):
                raise ScenarioError("--vary", [f"{axis.key} is varied and set as well, got --set {override}"])
    return axes


def is_within(key: str, other: str) -> bool:
    """Whether a key is the other or below it."""
    return f"{key}.".startswith(f"{other}.")


def _num_seeds(seeds: int) -> int:
    if not 1 <= seeds <= MAX_SEEDS:
        raise ScenarioError("--seeds", [f"must be between 1 and {MAX_SEEDS:,}, got {seeds}"])
    return seeds


def combinations_of(axes: Sequence[Axis]) -> list[Chosen]:
    """The last key varies fastest."""
    return [
        Chosen(
            {axis.key: value.shown for axis, value in zip(axes, values, strict=True)},
            tuple(f"{axis.key}={value.text}" for axis, value in zip(axes, values, strict=True)),
        )
        for values in product(*(axis.values for axis in axes))
    ]


def load_all(
    path: Path, overrides: Iterable[str], combinations: Sequence[Chosen], num_seeds: int = 1
) -> list[tuple[dict[str, Scalar], Scenario]]:
    """The scenario of each combination of values; raises ScenarioError where one of them is not sound."""
    sound: list[tuple[dict[str, Scalar], Scenario]] = []
    where: dict[str, list[str]] = {}
    known: dict[Workload, list[str]] = {}
    for parameters, texts in combinations:
        try:
            scenario = load_scenario(path, (*overrides, *texts))
            if scenario.workload not in known:
                known[scenario.workload] = _workload_problems(scenario)
            problems = known[scenario.workload] + _seed_problems(scenario, num_seeds)
            if not problems:
                plan(scenario)
                sound.append((parameters, scenario))
        except ScenarioError as error:
            problems = error.problems
        for problem in problems:
            where.setdefault(problem, []).append(named(parameters))
    if where:
        raise ScenarioError(str(path), list(_sentences(where, len(combinations))))
    return sound


def _seed_problems(scenario: Scenario, num_seeds: int) -> list[str]:
    if num_seeds > 1 and isinstance(scenario.workload, Trace):
        return [f"seeds must be 1, got {num_seeds}: a seed changes nothing in the replay of a trace"]
    if scenario.seed + num_seeds - 1 > _MOST_IN_64_BITS:
        return [f"seed must leave room for {num_seeds:,} seeds up to {_MOST_IN_64_BITS:,}, got {scenario.seed}"]
    return []


def _workload_problems(scenario: Scenario) -> list[str]:
    """What a run would find wrong with the files of its workload at once."""
    workload = scenario.workload
    try:
        if isinstance(workload, Trace):
            path = scenario.base / workload.path
            if path.exists() and not path.is_file():
                return [f"workload.path must be a regular file, got {workload.path}"]
            workload.format_of(scenario.base)
        else:
            workload.traffic(scenario.seed, scenario.base)
    except Contradiction as error:
        return [f"workload: {sentence}" for sentence in error.sentences]
    except KvsimError as error:
        return [str(error)]
    return []


def _sentences(where: dict[str, list[str]], num_combinations: int) -> Iterator[str]:
    """Each problem once, with the combinations that have it."""
    for problem, names in list(where.items())[:_MOST_PROBLEMS]:
        if len(names) == num_combinations:
            yield problem
        elif len(names) == 1:
            yield f"{problem} (with {names[0]})"
        else:
            yield f"{problem} (in {len(names):,} of {num_combinations:,} combinations; the first is {names[0]})"
    if len(where) > _MOST_PROBLEMS:
        yield f"and {len(where) - _MOST_PROBLEMS:,} problems more"
