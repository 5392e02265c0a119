"""How many blocks an engine makes of its memory, and what they hold.

Rule numbers are those of `golden/vllm_sizing/README.md`, vLLM 0.32.0; `engines.py` has what other engines do.
"""

from bisect import bisect_right
from collections.abc import Sequence

from attrs import evolve, field, frozen, validators

from kvsim.errors import KvsimError, UnsupportedModelError
from kvsim.model.engines import ENGINES, EngineRules
from kvsim.model.groups import (
    LAYER_OUTERMOST,
    BlockSizes,
    KVCacheGroup,
    KVCacheTensor,
    blocks_per_request,
    bytes_per_block,
    group_layers,
    resolve_block_sizes,
    tensors_of_worker,
    windows_as_full,
)
from kvsim.model.specs import KVCacheSpec, growth


class StartRefusedError(KvsimError):
    """The engine does not start: one request of `max_model_len` tokens does not fit (rule 12)."""

    def __init__(self, max_model_len: int, estimated_max_model_len: int, missing_bytes: int) -> None:
        self.max_model_len = max_model_len
        self.estimated_max_model_len = estimated_max_model_len
        self.missing_bytes = missing_bytes
        super().__init__(
            f"a request of max_model_len {max_model_len:,} tokens does not fit: "
            f"{missing_bytes:,} B are missing, the longest that fits is {estimated_max_model_len:,}"
        )


@frozen
class CacheOptions:
    """What the engine is told about lengths and its cache, by vLLM's names."""

    max_model_len: int = field(validator=validators.ge(1))
    max_num_batched_tokens: int = field(default=8192, validator=validators.ge(1))
    async_scheduling: bool = False
    enable_prefix_caching: bool = True
    kv_cache_layout: str = LAYER_OUTERMOST
    disable_hybrid_kv_cache_manager: bool = False
    num_gpu_blocks_override: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    auto_fit_max_model_len: bool = False

    @property
    def max_in_flight_tokens(self) -> int:
        """Rule 10: tokens that may be scheduled and not yet computed."""
        return self.max_num_batched_tokens * (2 if self.async_scheduling else 1)


@frozen
class Worker:
    """One rank: the bytes it has for KV and the layers it holds, by their index in the model."""

    available_memory: int
    layers: frozenset[int]


@frozen
class KVCachePlan:
    """The blocks that an engine made of its memory; `max_model_len` may have been lowered to fit."""

    rules: EngineRules
    groups: tuple[KVCacheGroup, ...]
    workers: tuple[Worker, ...]
    options: CacheOptions
    max_model_len: int
    num_blocks: int

    def blocks_of_request(self, num_tokens: int) -> int:
        """Rule 10: blocks that one request of `num_tokens` tokens can hold at any moment."""
        return blocks_per_request(self.groups, num_tokens, self.options.max_in_flight_tokens)

    @property
    def blocks_per_request(self) -> int:
        """Rule 10: blocks that one request of `max_model_len` tokens can hold."""
        return self.blocks_of_request(self.max_model_len)

    @property
    def max_concurrency(self) -> float:
        """Rule 11: requests of `max_model_len` at once as the engine prints it, held-back blocks counted."""
        one_full_group = len(self.groups) == 1 and growth(self.groups[0].specs[0]) == "unbounded"
        if self.rules.capacity == "blocks / groups x block_size" and one_full_group:
            return self.kv_cache_size_tokens / self.max_model_len
        return self.num_blocks / self.blocks_per_request

    @property
    def kv_cache_size_tokens(self) -> int:
        """Rule 11: capacity as the engine prints it, which multiplies floats: so does this, to match it."""
        if self.rules.capacity == "blocks / groups x block_size":
            return self.num_blocks // len(self.groups) * min(group.tokens_per_block for group in self.groups)
        return int(self.max_concurrency * self.max_model_len)

    @property
    def log_line(self) -> str:
        """Rule 11: the line in the engine's log."""
        return (
            f"KV cache size: {self.kv_cache_size_tokens:,} tokens, Maximum concurrency for "
            f"{self.max_model_len:,} tokens per request: {self.max_concurrency:.2f}x"
        )

    @property
    def block_sizes(self) -> BlockSizes:
        """Rule 14: the scheduler's and the hashes' block size."""
        return resolve_block_sizes(self.groups, self.options.enable_prefix_caching)

    def tensors(self, worker: Worker) -> list[KVCacheTensor]:
        """Rule 13: how the layers lie in the worker's allocation."""
        if not self.groups:
            return []
        return tensors_of_worker(self.groups, worker.layers, self.num_blocks, self.options.kv_cache_layout)


def plan_cache(
    specs: Sequence[KVCacheSpec],
    workers: Sequence[Worker],
    options: CacheOptions,
    rules: EngineRules = ENGINES["vllm"],
) -> KVCachePlan:
    """Blocks for the layers `specs` of a model on its workers, checked for a start (rules 4 to 12 and 15).

    Raises StartRefusedError if one request of `max_model_len` tokens does not fit, UnsupportedModelError for
    layers that the engine refuses or whose layout is not described.
    """
    plan = lay_out(specs, workers, options, rules)
    groups = plan.groups
    if options.auto_fit_max_model_len and groups:
        fitting = largest_model_len(groups, plan.num_blocks, options, rules)
        plan = evolve(plan, max_model_len=fitting or options.max_model_len)
    for worker in workers if groups else ():
        missing = missing_bytes(groups, worker, evolve(options, max_model_len=plan.max_model_len), rules)
        if missing > 0:
            num_blocks = num_blocks_of(groups, worker, options)
            raise StartRefusedError(plan.max_model_len, largest_model_len(groups, num_blocks, options, rules), missing)
    return plan


def lay_out(
    specs: Sequence[KVCacheSpec], workers: Sequence[Worker], options: CacheOptions, rules: EngineRules
) -> KVCachePlan:
    """The blocks of `plan_cache` without its check: what the memory makes, whether or not a request fits."""
    groups = groups_of(specs, options, rules)
    # A model without a cache gets one block and no group (rule 15).
    num_blocks = min(num_blocks_of(groups, worker, options) for worker in workers) if groups else 1
    return KVCachePlan(rules, groups, tuple(workers), options, options.max_model_len, num_blocks)


def groups_of(specs: Sequence[KVCacheSpec], options: CacheOptions, rules: EngineRules) -> tuple[KVCacheGroup, ...]:
    """The groups that the engine makes of the layers of a model."""
    if rules.hybrid == "full":
        specs = windows_as_full(specs)
    groups = group_layers(
        specs,
        bucket_ratio=rules.bucket_ratio,
        kv_cache_layout=options.kv_cache_layout,
        disable_hybrid_kv_cache_manager=options.disable_hybrid_kv_cache_manager,
    )
    if len(groups) > 1 and rules.hybrid != "groups":
        raise UnsupportedModelError(f"how {rules.name} lays out layers of several kinds is not described")
    return groups


def num_blocks_of(groups: Sequence[KVCacheGroup], worker: Worker, options: CacheOptions) -> int:
    """Rule 9: blocks that one worker's memory makes, held-back ones included."""
    if options.num_gpu_blocks_override is not None:
        return options.num_gpu_blocks_override
    return max(0, worker.available_memory) // bytes_per_block(groups, worker.layers)


def largest_model_len(
    groups: Sequence[KVCacheGroup], num_blocks: int, options: CacheOptions, rules: EngineRules
) -> int:
    """Rule 12: the longest request up to `max_model_len` that fits `num_blocks` blocks; 0 if none does."""

    def blocks_needed(num_tokens: int) -> int:
        return blocks_per_request(groups, num_tokens, options.max_in_flight_tokens)

    lengths = range(1, options.max_model_len + 1)
    return bisect_right(lengths, num_blocks - rules.check_held_back_blocks, key=blocks_needed)


def missing_bytes(groups: Sequence[KVCacheGroup], worker: Worker, options: CacheOptions, rules: EngineRules) -> int:
    """Rule 12: by how much a worker's memory misses one request of `max_model_len`; 0 or less if it fits.

    Need x bytes per block + the held-back blocks - the memory, which an override of the blocks replaces.
    """
    block_bytes = bytes_per_block(groups, worker.layers)
    needed = blocks_per_request(groups, options.max_model_len, options.max_in_flight_tokens)
    memory = worker.available_memory
    if options.num_gpu_blocks_override is not None:
        memory = options.num_gpu_blocks_override * block_bytes
    return (needed + rules.check_held_back_blocks) * block_bytes - memory
