"""One memory in two accountings: a pool of units of which requests take some.

*Ideal*: the unit is a byte, and each layer keeps only what it needs. *Engine*: the unit is a block, with
groups, padding and a block held back as the engine has them.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from attrs import frozen

from kvsim.model.groups import bytes_per_block
from kvsim.model.plan import KVCachePlan, Worker, num_blocks_of
from kvsim.model.specs import KVCacheSpec

NO_LIMIT = 2**50
"""Tokens; a length that fits up to here fits at any length, as nothing grows with it."""


@frozen
class Pool:
    """Memory of the rank that fills first: `num_units` units, and what requests take of them."""

    name: str
    specs: Mapping[int, KVCacheSpec]
    """The caches of that rank by their number in the model."""
    memory_bytes: int
    unit_bytes: int
    num_units: int
    held_back: int
    """Units that no request gets."""
    check_held_back: int
    """Those of them that count when the engine checks whether a request fits."""
    units_of_request: Callable[[int], int]
    """Units that one request of so many tokens can hold at any moment, prefill included."""
    units_held: Callable[[int], int]
    """Units that one sequence holds when its last token is written."""

    def raw_bytes(self, num_tokens: int) -> int:
        """Bytes that one sequence needs when its last token is written, however they are laid out."""
        return sum(spec.bytes_needed(num_tokens) * count for spec, count in Counter(self.specs.values()).items())

    @property
    def usable_units(self) -> int:
        """Units that requests can get."""
        return max(0, self.num_units - self.held_back)

    def longest(self, num_requests: int = 1) -> int | None:
        """The longest length at which so many requests fit; 0 if none does, None if any does."""
        fitting = bisect_right(
            range(1, NO_LIMIT + 1),
            self.num_units - self.check_held_back,
            key=lambda num_tokens: num_requests * self.units_of_request(num_tokens),
        )
        return None if fitting == NO_LIMIT else fitting

    def missing_bytes(self, num_tokens: int) -> int:
        """By how much the memory misses one request: need + what is held back - memory; 0 if it fits."""
        needed = self.units_of_request(num_tokens) + self.check_held_back
        return max(0, needed * self.unit_bytes - self.memory_bytes)

    def budget_for(self, units: Fraction | int) -> int:
        """Memory that has `units` units for requests."""
        return (-(-units // 1) + self.held_back) * self.unit_bytes


def ideal_pool(specs: Sequence[KVCacheSpec], workers: Sequence[Worker], max_model_len: int) -> Pool:
    """The bytes of the rank where the fewest requests of `max_model_len` tokens fit."""

    def requests_on(pool: Pool) -> Fraction:
        return Fraction(pool.num_units, pool.units_of_request(max_model_len))

    return min((_bytes_of(specs, worker) for worker in workers if worker.layers), key=requests_on)


def _bytes_of(specs: Sequence[KVCacheSpec], worker: Worker) -> Pool:
    of_rank = _specs_of(specs, worker)
    counts = Counter(of_rank.values())
    return Pool(
        name="ideal",
        specs=of_rank,
        memory_bytes=worker.available_memory,
        unit_bytes=1,
        num_units=worker.available_memory,
        held_back=0,
        check_held_back=0,
        units_of_request=lambda num_tokens: sum(
            spec.peak_bytes_needed(num_tokens) * count for spec, count in counts.items()
        ),
        units_held=lambda num_tokens: sum(spec.bytes_needed(num_tokens) * count for spec, count in counts.items()),
    )


def engine_pool(plan: KVCachePlan, specs: Sequence[KVCacheSpec]) -> Pool:
    """The blocks of a plan, on the rank that has memory for the fewest."""
    worker = min(plan.workers, key=lambda worker: num_blocks_of(plan.groups, worker, plan.options))
    return Pool(
        name=plan.rules.name,
        specs=_specs_of(specs, worker),
        memory_bytes=worker.available_memory,
        unit_bytes=bytes_per_block(plan.groups, worker.layers),
        num_units=plan.num_blocks,
        held_back=plan.rules.held_back_blocks,
        check_held_back=plan.rules.check_held_back_blocks,
        units_of_request=plan.blocks_of_request,
        units_held=lambda num_tokens: sum(group.blocks_held(num_tokens) for group in plan.groups),
    )


def _specs_of(specs: Sequence[KVCacheSpec], worker: Worker) -> dict[int, KVCacheSpec]:
    return {cache: specs[cache] for cache in sorted(worker.layers)}
