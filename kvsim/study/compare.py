"""The same traffic through several allocators, or with several values of any keys: what each costs and serves."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import evolve, frozen

from kvsim.engine.metrics import Number
from kvsim.errors import KvsimError
from kvsim.study.allocators import AllocatorSpec, parse_allocators
from kvsim.study.compare_plan import ALLOCATOR, ComparisonPlan, plan_comparison, spec_of
from kvsim.study.compare_record import ALLOCATED_PARTS, POOL_PARTS, Measured, measure
from kvsim.study.notes import on_reserving
from kvsim.study.sweep import Progress, notes_of
from kvsim.study.sweep_plan import Run, Vary, named
from kvsim.study.sweep_record import Record
from kvsim.study.sweep_workers import run_all, tasks_of
from kvsim.study.vary import Axis, Scalar

PERIOD = (
    "Bytes are weighted by time from the beginning to the last change; batched is how many requests run, by time while "
    "any does."
)
"""What averages are over."""


@frozen(eq=False)
class Row:
    """One run. Its figures are those of `kvsim run`, None where it failed."""

    run: Run
    record: Record

    @property
    def allocator(self) -> str:
        """Such as "paged:16", also where it is not what differs."""
        return spec_of(self.run.scenario.memory).name

    @property
    def label(self) -> str:
        """Such as "paged:16", "memory.eviction = fifo" or "max, memory.placement = buddy"."""
        parameters: dict[str, Scalar] = dict(self.run.parameters)
        allocator = str(parameters.pop(ALLOCATOR, ""))
        return ", ".join(part for part in (allocator, named(parameters)) if part)

    @property
    def has_failed(self) -> bool:
        return self.record.outcome == "failed"

    def figure(self, name: str) -> Number:
        return self.record.figures.get(name)

    def share(self, part: str) -> float | None:
        """Of one of ALLOCATED_PARTS in what was allocated."""
        return self._over(part, ALLOCATED_PARTS)

    def pool_share(self, part: str) -> float | None:
        """Of one of POOL_PARTS in the pool; they add up to it."""
        return self._over(part, POOL_PARTS)

    @property
    def refused_share(self) -> float | None:
        """Requests that memory said no to at least once, of those that arrived."""
        refused, requests = self.figure("refused"), self.figure("requests")
        return refused / requests if refused is not None and requests else None

    @property
    def digests(self) -> dict[str, str]:
        return self.record.digests if isinstance(self.record, Measured) else {}

    @property
    def _byte_ns(self) -> dict[str, int]:
        return self.record.byte_ns if isinstance(self.record, Measured) else {}

    def _over(self, part: str, parts: Sequence[str]) -> float | None:
        byte_ns = self._byte_ns
        whole = sum(byte_ns[each] for each in parts) if byte_ns else 0
        return byte_ns[part] / whole if whole else None


@frozen(eq=False, kw_only=True)
class Comparison:
    """The outcome of all runs. `overrides` are the keys set anew in all of them."""

    question: str
    axes: tuple[Axis, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    overrides: tuple[str, ...] = ()

    @property
    def seed(self) -> int:
        """The same for all."""
        return self.rows[0].run.scenario.seed

    @property
    def compared(self) -> tuple[Row, ...]:
        """Those that did not fail."""
        return tuple(row for row in self.rows if not row.has_failed)

    @property
    def failures(self) -> list[str]:
        """Which runs failed, and why."""
        return [f"{row.label}: {row.record.error}" for row in self.rows if row.has_failed]

    @cached_property
    def same(self) -> dict[str, bool]:
        """Whether arrivals, lengths and content were the same in all runs that did not fail."""
        names = ("arrivals", "lengths", "content")
        return {name: len({row.digests[name] for row in self.compared}) <= 1 for name in names}

    @property
    def has_same_traffic(self) -> bool:
        return all(self.same.values())


def compare(
    scenario: str | Path,
    allocators: str | Sequence[AllocatorSpec] | None = None,
    vary: Vary | None = None,
    *,
    overrides: Iterable[str] = (),
    jobs: int | None = None,
    on_progress: Progress | None = None,
) -> Comparison:
    """Run a scenario file with each allocator, such as "paged:16,max,oracle", and all combinations of values in `vary`.

    `vary` is a table of lists, {"memory.eviction": ["lru", "fifo"]}, or texts such as "memory.eviction=lru,fifo".
    Without either it is paging in blocks of the scenario beside max, pow2 and oracle. All have the same seed, and pools
    of the same bytes as far as whole blocks go. Runs are shared among `jobs` processes, one a processor if not given.
    A run that fails is a row that says why.

    Raises KvsimError for allocators and values that cannot be compared, ScenarioError with the problems of all
    combinations, TraceError for a trace that cannot be used.
    """
    if jobs is not None and jobs < 1:
        raise KvsimError(f"jobs must be >= 1, got {jobs}")
    specs = parse_allocators(allocators) if isinstance(allocators, str) else allocators
    overrides = (overrides,) if isinstance(overrides, str) else tuple(overrides)
    planned = plan_comparison(Path(scenario), specs, vary, overrides)
    records: dict[int, Record] = {}
    with TemporaryDirectory(prefix="kvsim-") as packing:
        tasks = tasks_of(planned.runs, Path(packing), measure)
        if on_progress is not None:
            on_progress(0, len(tasks))
        with closing(run_all(tasks, jobs)) as ended:
            for number, record in ended:
                records[number] = record
                if on_progress is not None:
                    on_progress(len(records), len(tasks))
    rows = tuple(Row(run, records[run.index]) for run in planned.runs)
    return Comparison(
        question=planned.runs[0].scenario.question,
        axes=planned.axes,
        rows=rows,
        notes=tuple(_notes(planned, rows)),
        overrides=overrides,
    )


def _notes(planned: ComparisonPlan, rows: Sequence[Row]) -> Iterator[str]:
    """Of the plan, one on all that reserve, and those of the runs."""
    yield from planned.notes
    reserving = [row for row in rows if row.run.scenario.memory.allocator != "paged"]
    if reserving:
        names = ", ".join(dict.fromkeys(row.allocator for row in reserving))
        finds = any(row.figure("hit_tokens") for row in rows)
        yield (
            f"{names}: every request holds one extent of slots, of a token each, in the bytes of the pool that is "
            "paged in the scenario's own blocks; the engine's rules but for memory still hold. No prefix is shared"
            + (": with --set memory.prefix_sharing=false it is not when paged either." if finds else ".")
        )
    known = {on_reserving(row.run.scenario.memory) for row in reserving}
    others = [evolve(row.record, notes=tuple(note for note in row.record.notes if note not in known)) for row in rows]
    yield from notes_of([row.label for row in rows], others)
