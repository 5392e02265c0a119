"""The static answers of one pool; both accountings are answered by the same formulas."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from attrs import frozen

from kvsim.model.groups import KVCacheGroup
from kvsim.model.mix import LengthMix
from kvsim.model.plan import KVCachePlan
from kvsim.model.pools import Pool
from kvsim.model.specs import AttentionSpec, KVCacheSpec, growth


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
    tokens_per_block: tuple[int, ...]
    """Of each size of blocks that groups of layers have; ideally a block is a token."""
    num_blocks: int
    capacity_tokens: int
    max_concurrency: float
    whole_requests: int
    """Requests of `max_model_len` that fit at once, each at its largest: while a prompt is computed, windows hold
    the tokens in flight too.
    """
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
    padding_bytes: int
    """Of the slack, what no layer can use of its block: smaller groups of layers, and pages padded to larger ones."""
    tail_slots: tuple[int, ...]
    """Slots that one sequence leaves empty in its last block, for each size of blocks that tokens fill."""
    used_share: float
    """Allocated of all memory; above 1 where the sequences do not fit."""
    peak_bytes: int
    """The most that the sequences can hold, as while their prompts are computed; at least `allocated_bytes`."""
    sequences_fit: bool
    """Whether `allocated_bytes` fit: the sequences once computed. `most_sequences` asks about `peak_bytes`."""
    most_sequences: int
    """Sequences of `num_tokens` that fit at once, each at its largest."""
    longest_of_sequences: int | None
    """The longest that `num_sequences` sequences can all be, each at its largest; None if of any length."""
    provisioned_bytes: int
    """For `num_sequences` requests that all reach `max_model_len`."""
    target_budget_bytes: int | None
    mix: MixAnswers | None
    formulas: tuple[str, ...]


def ideal_accounting(pool: Pool, question: Question) -> Accounting:
    """The answers byte by byte; a block is what one token takes."""
    specs = pool.specs.values()
    per_token = _whole(sum(_token_bytes(spec) for spec in specs if growth(spec) != "fixed"))
    further = _whole(sum(_token_bytes(spec) for spec in specs if growth(spec) == "unbounded"))
    fixed = sum(spec.peak_bytes_needed(1) for spec in specs if growth(spec) == "fixed")
    length = question.max_model_len
    request_bytes = pool.units_of_request(length)
    concurrency = pool.memory_bytes / request_bytes
    return _account(
        pool,
        question,
        bytes_per_token=per_token,
        growth_bytes_per_token=further,
        fixed_bytes_per_request=fixed,
        bytes_per_block=per_token or fixed,
        tokens_per_block=(1,),
        tail_slots=(0,),
        padding_bytes=0,
        num_blocks=pool.memory_bytes // (per_token or fixed),
        capacity_tokens=pool.memory_bytes * length // request_bytes,
        max_concurrency=concurrency,
        formulas=(
            f"a request of {length:,} tokens = {request_bytes:,} B",
            f"concurrency = {pool.memory_bytes:,} B / {request_bytes:,} B = {concurrency:.2f}",
        ),
    )


def engine_accounting(pool: Pool, plan: KVCachePlan, question: Question) -> Accounting:
    """The answers in the engine's blocks, with its own figures of capacity and concurrency."""

    def block_bytes_per_token(*kinds: str) -> int:
        counting = [group for group in plan.groups if growth(group.specs[0]) in kinds]
        return _whole(sum(Fraction(pool.unit_bytes, group.tokens_per_block) for group in counting))

    fixed_groups = [group for group in plan.groups if growth(group.specs[0]) == "fixed"]
    return _account(
        pool,
        question,
        bytes_per_token=block_bytes_per_token("unbounded", "window"),
        growth_bytes_per_token=block_bytes_per_token("unbounded"),
        fixed_bytes_per_request=sum(group.blocks_held(1) for group in fixed_groups) * pool.unit_bytes,
        bytes_per_block=pool.unit_bytes,
        tokens_per_block=tuple(sorted({group.tokens_per_block for group in plan.groups})),
        tail_slots=_tail_slots(plan, question.num_tokens),
        padding_bytes=question.num_sequences * _padding_bytes(pool, plan, question.num_tokens),
        num_blocks=plan.num_blocks,
        capacity_tokens=plan.kv_cache_size_tokens,
        max_concurrency=plan.max_concurrency,
        formulas=_engine_formulas(pool, plan),
    )


def _account(
    pool: Pool,
    question: Question,
    *,
    bytes_per_token: int,
    growth_bytes_per_token: int,
    fixed_bytes_per_request: int,
    bytes_per_block: int,
    tokens_per_block: tuple[int, ...],
    tail_slots: tuple[int, ...],
    padding_bytes: int,
    num_blocks: int,
    capacity_tokens: int,
    max_concurrency: float,
    formulas: tuple[str, ...],
) -> Accounting:
    """The answers that both accountings share, from what a pool says of its units."""
    request_units = pool.units_of_request(question.max_model_len)
    held_units = question.num_sequences * pool.units_held(question.num_tokens)
    raw_bytes = question.num_sequences * pool.raw_bytes(question.num_tokens)
    allocated_bytes = held_units * pool.unit_bytes
    missing_bytes = pool.missing_bytes(question.max_model_len)
    return Accounting(
        name=pool.name,
        memory_bytes=pool.memory_bytes,
        bytes_per_token=bytes_per_token,
        growth_bytes_per_token=growth_bytes_per_token,
        fixed_bytes_per_request=fixed_bytes_per_request,
        bytes_per_block=bytes_per_block,
        tokens_per_block=tokens_per_block,
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
        padding_bytes=padding_bytes,
        tail_slots=tail_slots,
        used_share=allocated_bytes / pool.memory_bytes,
        peak_bytes=question.num_sequences * pool.units_of_request(question.num_tokens) * pool.unit_bytes,
        sequences_fit=held_units <= pool.usable_units,
        most_sequences=pool.usable_units // pool.units_of_request(question.num_tokens),
        longest_of_sequences=pool.longest(question.num_sequences),
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
    # The engine ends a request at max_model_len.
    mix = mix.cut_at(question.max_model_len)
    mean_units = mix.mean(pool.units_held)
    return MixAnswers(
        origin=mix.origin,
        mean_tokens=float(mix.mean(lambda num_tokens: num_tokens)),
        mean_bytes_per_request=_whole(mean_units * pool.unit_bytes),
        concurrency=float(pool.usable_units / mean_units),
        mix_bytes=_whole(question.num_sequences * mean_units * pool.unit_bytes),
        target_budget_bytes=(
            None if question.target_concurrency is None else pool.budget_for(question.target_concurrency * mean_units)
        ),
    )


def _tail_slots(plan: KVCachePlan, num_tokens: int) -> tuple[int, ...]:
    """Of one group for each size of blocks: those of one size are filled alike."""
    filled = [group for group in plan.groups if growth(group.specs[0]) != "fixed"]
    slots = {group.tokens_per_block: group.tail_slots(num_tokens) for group in filled}
    return tuple(slots[size] for size in sorted(slots))


def _padding_bytes(pool: Pool, plan: KVCachePlan, num_tokens: int) -> int:
    """Of the blocks of one sequence; each is as large as the largest group's pages (rules 6 and 8)."""

    def used(group: KVCacheGroup) -> int:
        of_layers = zip(group.layers, group.specs, strict=True)
        return sum(spec.unpadded_page_size_bytes for layer, spec in of_layers if layer in pool.specs)

    return sum(group.blocks_held(num_tokens) * (pool.unit_bytes - used(group)) for group in plan.groups)


def _token_bytes(spec: KVCacheSpec) -> Fraction:
    """Bytes that a token adds to a cache; a fraction where one entry stands for several tokens."""
    assert isinstance(spec, AttentionSpec), "a state does not grow with tokens"
    return Fraction(spec.entry_bytes, spec.tokens_per_state * spec.dealt_over)


def _whole(num_bytes: Fraction | int) -> int:
    """A fraction of a byte counts as one."""
    return int(-(-num_bytes // 1))


def _engine_formulas(pool: Pool, plan: KVCachePlan) -> tuple[str, ...]:
    """The engine's rules with their numbers in them."""
    length, needed = plan.max_model_len, plan.blocks_per_request
    holding = Counter(group.max_blocks(length, plan.options.max_in_flight_tokens) for group in plan.groups)
    terms = [f"{count} x {blocks:,}" if count > 1 else f"{blocks:,}" for blocks, count in holding.items()]
    return (
        f"block = {_pages(pool, plan.groups)} = {pool.unit_bytes:,} B",
        f"blocks = {pool.memory_bytes:,} B // {pool.unit_bytes:,} B = {plan.num_blocks:,}, {pool.held_back} held back",
        f"a request of {length:,} tokens = {' + '.join(terms)} blocks over the groups = {needed:,}",
        f"concurrency = {_concurrency(plan)} = {plan.max_concurrency:.2f}",
    )


def _concurrency(plan: KVCachePlan) -> str:
    """The division that this engine prints the result of."""
    by_blocks = plan.num_blocks / plan.blocks_per_request
    if plan.max_concurrency == by_blocks:
        return f"{plan.num_blocks:,} / {plan.blocks_per_request:,}"
    return f"{plan.kv_cache_size_tokens:,} tokens / {plan.max_model_len:,}"


def _pages(pool: Pool, groups: Sequence[KVCacheGroup]) -> str:
    """The pages of the group that makes a block of this rank as large as it is."""

    def pages(group: KVCacheGroup) -> Counter[int]:
        of_layers = zip(group.layers, group.specs, strict=True)
        return Counter(spec.page_size_bytes for layer, spec in of_layers if layer in pool.specs)

    largest = max((pages(group) for group in groups), key=lambda counts: sum(counts.elements()))
    return " + ".join(f"{count} layers x {page:,} B" for page, count in largest.items())
