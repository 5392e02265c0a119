"""Two accountings of one memory, answered by the same formulas.

*Ideal*: each layer keeps only what it needs, byte by byte. *Engine*: blocks, groups and padding as the engine
lays them out, with the block it holds back. Either is a pool of units (bytes, blocks) to take from.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

from attrs import frozen

from kvsim.model.groups import KVCacheGroup, bytes_per_block
from kvsim.model.mix import LengthMix
from kvsim.model.plan import KVCachePlan, Worker, num_blocks_of
from kvsim.model.specs import AttentionSpec, KVCacheSpec, growth

NO_LIMIT = 2**50
"""Tokens; a length that fits up to here fits at any length, as nothing grows with it."""


@frozen
class Pool:
    """Memory of one rank as an accounting sees it: `num_units` units, and what requests take of them."""

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


@frozen
class MixAnswers:
    """What a mix of lengths takes, each request counted at its full length."""

    origin: str
    mean_tokens: float
    mean_bytes_per_request: int
    concurrency: float
    """Requests of the mix that fit at once, on average."""
    mix_bytes: int
    """For `num_sequences` requests of the mix."""
    target_budget_bytes: int | None


@frozen
class Question:
    """What is asked: up to which length, how many sequences of how many tokens, which mix, which target."""

    max_model_len: int
    num_sequences: int
    num_tokens: int
    target_concurrency: int | None = None
    mix: LengthMix | None = None


@frozen
class Accounting:
    """The answers on the rank that fills first; all sizes in bytes of that rank."""

    name: str
    memory_bytes: int
    bytes_per_token: int
    """While the token is inside every window."""
    growth_bytes_per_token: int
    """What a further token costs once every window is full."""
    fixed_bytes_per_request: int
    """Recurrent states, and the keys and values of source tokens."""
    bytes_per_block: int
    num_blocks: int
    capacity_tokens: int
    max_concurrency: float
    whole_requests: int
    bytes_per_request: int
    """The most that a request of `max_model_len` tokens can hold at any moment."""
    longest_model_len: int | None
    """None where nothing grows with the length."""
    fits: bool
    missing_bytes: int
    raw_bytes: int
    allocated_bytes: int
    slack_bytes: int
    slack_share: float
    sequences_fit: bool
    provisioned_bytes: int
    """For `num_sequences` requests that all reach `max_model_len`."""
    target_budget_bytes: int | None
    mix: MixAnswers | None
    formulas: tuple[str, ...]


def ideal_accounting(
    name: str, specs: Sequence[KVCacheSpec], workers: Sequence[Worker], question: Question
) -> Accounting:
    """Byte by byte, on the rank where the fewest requests fit."""
    length = question.max_model_len

    def requests_on(worker: Worker) -> Fraction:
        pool = _ideal_pool(_specs_of(specs, worker), worker.available_memory)
        return Fraction(pool.num_units, pool.units_of_request(length))

    scarcest = min((worker for worker in workers if worker.layers), key=requests_on)
    of_rank = _specs_of(specs, scarcest)
    pool = _ideal_pool(of_rank, scarcest.available_memory)
    request_bytes = pool.units_of_request(length)
    concurrency = pool.memory_bytes / request_bytes
    per_token = _whole(sum(_token_bytes(spec) for spec in of_rank if growth(spec) != "fixed"))
    fixed = sum(spec.peak_bytes_needed(1) for spec in of_rank if growth(spec) == "fixed")
    return _account(
        pool,
        question,
        raw_bytes_of_sequence=pool.units_held(question.num_tokens),
        name=name,
        bytes_per_token=per_token,
        growth_bytes_per_token=_whole(
            sum(_token_bytes(spec) for spec in of_rank if growth(spec) == "unbounded")
        ),
        fixed_bytes_per_request=fixed,
        bytes_per_block=per_token or fixed,
        num_blocks=pool.memory_bytes // (per_token or fixed),
        capacity_tokens=pool.memory_bytes * length // request_bytes,
        max_concurrency=concurrency,
        formulas=(
            f"a request of {length:,} tokens = {request_bytes:,} B",
            f"concurrency = {pool.memory_bytes:,} B / {request_bytes:,} B = {concurrency:.2f}",
        ),
    )


def engine_accounting(plan: KVCachePlan, specs: Sequence[KVCacheSpec], question: Question) -> Accounting:
    """In the engine's blocks, on the rank that has memory for the fewest."""
    groups, rules = plan.groups, plan.rules
    worker = min(plan.workers, key=lambda worker: num_blocks_of(groups, worker, plan.options))
    block_bytes = bytes_per_block(groups, worker.layers)
    pool = Pool(
        memory_bytes=worker.available_memory,
        unit_bytes=block_bytes,
        num_units=plan.num_blocks,
        held_back=rules.held_back_blocks,
        check_held_back=rules.check_held_back_blocks,
        units_of_request=plan.blocks_of_request,
        units_held=lambda num_tokens: sum(group.blocks_held(num_tokens) for group in groups),
    )
    of_rank = _ideal_pool(_specs_of(specs, worker), worker.available_memory)

    def block_bytes_per_token(*kinds: str) -> int:
        counting = [group for group in groups if growth(group.specs[0]) in kinds]
        return _whole(sum(Fraction(block_bytes, group.block_size) for group in counting))

    return _account(
        pool,
        question,
        raw_bytes_of_sequence=of_rank.units_held(question.num_tokens),
        name=rules.name,
        bytes_per_token=block_bytes_per_token("unbounded", "window"),
        growth_bytes_per_token=block_bytes_per_token("unbounded"),
        fixed_bytes_per_request=sum(
            group.blocks_held(1) * block_bytes for group in groups if growth(group.specs[0]) == "fixed"
        ),
        bytes_per_block=block_bytes,
        num_blocks=plan.num_blocks,
        capacity_tokens=plan.kv_cache_size_tokens,
        max_concurrency=plan.max_concurrency,
        formulas=_engine_formulas(plan, worker, block_bytes),
    )


def _specs_of(specs: Sequence[KVCacheSpec], worker: Worker) -> list[KVCacheSpec]:
    return [specs[cache] for cache in sorted(worker.layers)]


def _ideal_pool(specs: Sequence[KVCacheSpec], memory_bytes: int) -> Pool:
    counts = Counter(specs)
    return Pool(
        memory_bytes=memory_bytes,
        unit_bytes=1,
        num_units=memory_bytes,
        held_back=0,
        check_held_back=0,
        units_of_request=lambda num_tokens: sum(
            spec.peak_bytes_needed(num_tokens) * count for spec, count in counts.items()
        ),
        units_held=lambda num_tokens: sum(
            spec.bytes_needed(num_tokens) * count for spec, count in counts.items()
        ),
    )


def _account(
    pool: Pool,
    question: Question,
    *,
    raw_bytes_of_sequence: int,
    name: str,
    bytes_per_token: int,
    growth_bytes_per_token: int,
    fixed_bytes_per_request: int,
    bytes_per_block: int,
    num_blocks: int,
    capacity_tokens: int,
    max_concurrency: float,
    formulas: tuple[str, ...],
) -> Accounting:
    """The answers that both accountings share, from what a pool says of its units."""
    request_units = pool.units_of_request(question.max_model_len)
    held_units = question.num_sequences * pool.units_held(question.num_tokens)
    raw_bytes = question.num_sequences * raw_bytes_of_sequence
    allocated_bytes = held_units * pool.unit_bytes
    missing_bytes = pool.missing_bytes(question.max_model_len)
    return Accounting(
        name=name,
        memory_bytes=pool.memory_bytes,
        bytes_per_token=bytes_per_token,
        growth_bytes_per_token=growth_bytes_per_token,
        fixed_bytes_per_request=fixed_bytes_per_request,
        bytes_per_block=bytes_per_block,
        num_blocks=num_blocks,
        capacity_tokens=capacity_tokens,
        max_concurrency=max_concurrency,
        whole_requests=pool.usable_units // request_units,
        bytes_per_request=request_units * pool.unit_bytes,
        longest_model_len=pool.longest(),
        fits=missing_bytes == 0,
        missing_bytes=missing_bytes,
        raw_bytes=raw_bytes,
        allocated_bytes=allocated_bytes,
        slack_bytes=allocated_bytes - raw_bytes,
        slack_share=(allocated_bytes - raw_bytes) / allocated_bytes,
        sequences_fit=held_units <= pool.usable_units,
        provisioned_bytes=question.num_sequences * request_units * pool.unit_bytes,
        target_budget_bytes=(
            None
            if question.target_concurrency is None
            else pool.budget_for(question.target_concurrency * request_units)
        ),
        mix=None if question.mix is None else _mix_answers(pool, question, question.mix),
        formulas=formulas,
    )


def _mix_answers(pool: Pool, question: Question, mix: LengthMix) -> MixAnswers:
    def units(num_tokens: int) -> int:
        # The engine ends a request at max_model_len.
        return pool.units_held(min(num_tokens, question.max_model_len))

    mean_units = mix.mean(units)
    return MixAnswers(
        origin=mix.origin,
        mean_tokens=float(mix.mean(lambda num_tokens: num_tokens)),
        mean_bytes_per_request=_whole(mean_units * pool.unit_bytes),
        concurrency=float(pool.usable_units / mean_units),
        mix_bytes=_whole(question.num_sequences * mean_units * pool.unit_bytes),
        target_budget_bytes=(
            None
            if question.target_concurrency is None
            else pool.budget_for(question.target_concurrency * mean_units)
        ),
    )


def _token_bytes(spec: KVCacheSpec) -> Fraction:
    """Bytes that a token adds to a cache; a fraction where one entry stands for several tokens."""
    assert isinstance(spec, AttentionSpec), "a state does not grow with tokens"
    return Fraction(spec.entry_bytes, spec.tokens_per_state)


def _whole(num_bytes: Fraction | int) -> int:
    """A fraction of a byte counts as one."""
    return int(-(-num_bytes // 1))


def _engine_formulas(plan: KVCachePlan, worker: Worker, block_bytes: int) -> tuple[str, ...]:
    """The engine's rules with their numbers in them."""
    length, needed = plan.max_model_len, plan.blocks_per_request
    holding = Counter(group.max_blocks(length, plan.options.max_in_flight_tokens) for group in plan.groups)
    terms = [f"{count} x {blocks:,}" if count > 1 else f"{blocks:,}" for blocks, count in holding.items()]
    return (
        f"block = {_pages(plan.groups, worker)} = {block_bytes:,} B",
        f"blocks = {worker.available_memory:,} B // {block_bytes:,} B = {plan.num_blocks:,}, "
        f"{plan.rules.held_back_blocks} held back",
        f"a request of {length:,} tokens = {' + '.join(terms)} blocks over the groups = {needed:,}",
        f"concurrency = {plan.num_blocks:,} / {needed:,} = {plan.num_blocks / needed:.2f}",
    )


def _pages(groups: Sequence[KVCacheGroup], worker: Worker) -> str:
    """The pages of the group that makes a block as large as it is."""

    def pages(group: KVCacheGroup) -> Counter[int]:
        of_layers = zip(group.layers, group.specs, strict=True)
        return Counter(spec.page_size_bytes for layer, spec in of_layers if layer in worker.layers)

    largest = max((pages(group) for group in groups), key=lambda sizes: sum(sizes.elements()))
    return " + ".join(f"{count} layers x {page:,} B" for page, count in largest.items())
