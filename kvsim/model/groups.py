"""How vLLM lays the layers of a model into KV-cache groups, pages and blocks.

Layers that can share a block table form a *group*. Block number b of every group is the same memory, so a
block is as large as the largest group's pages, and what a smaller group leaves of it is padding:

    group 0   | layer 0 | layer 6 | layer 12 |
    group 1   | layer 1 | layer 7 | padding  |
    group 2   | layer 5 | layer 11| layer 17 |
              |<------- bytes per block ---->|      one block id, used by one group at a time

Rule numbers are those of `golden/vllm_sizing/README.md`, vLLM 0.32.0.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import NamedTuple

from attrs import evolve, field, frozen, validators

from kvsim.errors import UnsupportedModelError
from kvsim.model.specs import WINDOWED, AttentionSpec, KVCacheSpec, MambaSpec, ceil_div

LAYER_OUTERMOST = "LBNHC"
"""vLLM's default KV-cache layout: layer, block, token, head, value. `BLHNC` has the block outermost."""


@frozen
class KVCacheGroup:
    """Layers, by their index in the model, that share one block table; `specs` has one entry a layer."""

    layers: tuple[int, ...]
    specs: tuple[KVCacheSpec, ...] = field(validator=validators.min_len(1))

    @property
    def block_size(self) -> int:
        """Tokens of a block, or the reach of a state."""
        return self.specs[0].block_size

    @property
    def tokens_per_block(self) -> int:
        """Tokens of the sequence that one block of each rank stands for."""
        spec = self.specs[0]
        return self.block_size * (spec.dealt_over if isinstance(spec, AttentionSpec) else 1)

    @property
    def is_uniform(self) -> bool:
        """Whether all layers have the same spec."""
        return len(set(self.specs)) == 1

    @property
    def page_size_bytes(self) -> int:
        """Page of each layer, or of all layers together where they differ (rule 4)."""
        return self.specs[0].page_size_bytes if self.is_uniform else self.bytes_per_block

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block of this group really uses."""
        return sum(spec.page_size_bytes for spec in self.specs)

    def max_blocks(self, max_model_len: int, max_in_flight_tokens: int) -> int:
        """Rule 10: blocks that one request can hold in this group."""
        return max(spec.max_blocks(max_model_len, max_in_flight_tokens) for spec in set(self.specs))

    def blocks_held(self, num_tokens: int) -> int:
        """Blocks of one request just after its token number `num_tokens` was written."""
        return max(spec.blocks_held(num_tokens) for spec in set(self.specs))

    def tail_slots(self, num_tokens: int) -> int:
        """Token slots of the last block that stay empty when token number `num_tokens` is written; 0 for states."""
        return max(spec.tail_slots(num_tokens) for spec in set(self.specs))


def group_layers(
    specs: Sequence[KVCacheSpec],
    *,
    bucket_ratio: Fraction,
    kv_cache_layout: str = LAYER_OUTERMOST,
    disable_hybrid_kv_cache_manager: bool = False,
) -> tuple[KVCacheGroup, ...]:
    """The KV-cache groups of a whole model, all its ranks together (rules 4 to 7); none if it keeps no KV.

    Raises UnsupportedModelError where vLLM refuses the layers, or lays them out in a way not described here.
    """
    if disable_hybrid_kv_cache_manager:
        specs = windows_as_full(specs)
    if not specs:
        return ()
    if any(spec.family[0] == "compressed" for spec in specs):
        raise UnsupportedModelError("how an engine packs compressed caches beside others is not described")
    if _is_one_family(specs):
        return (KVCacheGroup(tuple(range(len(specs))), tuple(specs)),)
    if disable_hybrid_kv_cache_manager:
        raise UnsupportedModelError(
            "disable_hybrid_kv_cache_manager: these layers cannot be made one kind, vLLM refuses them"
        )
    if kv_cache_layout.startswith("B") and len({spec.page_size_bytes for spec in specs}) > 1:
        raise UnsupportedModelError(
            f"kv_cache_layout {kv_cache_layout}: the packing of unequal pages in a block-outermost layout "
            f"is not supported"
        )
    return _split_buckets(with_equal_pages(specs), bucket_ratio)


def windows_as_full(specs: Sequence[KVCacheSpec]) -> tuple[KVCacheSpec, ...]:
    """Rule 5: with one full-attention layer in the model, windowed layers are kept as full ones."""
    if _is_one_family(specs) or not any(spec.family[0] == "full" for spec in specs):
        return tuple(specs)
    return tuple(
        evolve(spec, kind="full", window=None) if isinstance(spec, AttentionSpec) and spec.kind in WINDOWED else spec
        for spec in specs
    )


def with_equal_pages(specs: Sequence[KVCacheSpec]) -> tuple[KVCacheSpec, ...]:
    """Rule 6: blocks of layers with small pages grow to the largest page, or their pages are padded to it."""
    largest = max(spec.page_size_bytes for spec in specs)
    return tuple(_with_page(spec, largest) for spec in specs)


def _with_page(spec: KVCacheSpec, page_size_bytes: int) -> KVCacheSpec:
    ratio, rest = divmod(page_size_bytes, spec.page_size_bytes)
    if ratio == 1 and not rest:
        return spec
    if isinstance(spec, MambaSpec):
        return evolve(spec, page_size_padded=page_size_bytes)
    if not rest:
        return evolve(
            spec,
            block_size=spec.block_size * ratio,
            page_size_padded=None if spec.page_size_padded is None else page_size_bytes,
        )
    if spec.kind == "mla":
        raise UnsupportedModelError(
            f"an MLA page of {spec.page_size_bytes:,} B does not divide the largest page of "
            f"{page_size_bytes:,} B and cannot be padded to it, vLLM refuses it"
        )
    return evolve(spec, page_size_padded=page_size_bytes)


def grown_to_states(specs: Sequence[KVCacheSpec], alignment: int = 16) -> tuple[KVCacheSpec, ...]:
    """Rule 3: beside recurrent layers the attention block grows until its page covers a state.

    The page of the state is then padded to it. The block stays a multiple of `alignment`, or of 128 with
    latent attention. Layers of one sort come back as they are.
    """
    attention = [spec for spec in specs if isinstance(spec, AttentionSpec)]
    states = [spec for spec in specs if isinstance(spec, MambaSpec)]
    if not attention or not states:
        return tuple(specs)
    state_bytes = max(spec.unpadded_page_size_bytes for spec in states)
    widest = max(attention, key=lambda spec: spec.entry_bytes)
    multiple = max(alignment, 128 if widest.kind == "mla" else 1)
    block_size = max(widest.block_size, multiple * ceil_div(state_bytes, multiple * widest.entry_bytes))
    page = evolve(widest, block_size=block_size).page_size_bytes
    return tuple(
        evolve(spec, block_size=block_size)
        if isinstance(spec, AttentionSpec)
        else evolve(
            spec,
            page_size_padded=page,
            block_size=block_size if spec.cache_mode == "align" else spec.block_size,
        )
        for spec in specs
    )


def _is_one_family(specs: Sequence[KVCacheSpec]) -> bool:
    """Rule 4: whether one block table serves all layers."""
    return len({spec.family for spec in specs}) <= 1 and len({spec.block_size for spec in specs}) <= 1


def _split_buckets(specs: Sequence[KVCacheSpec], bucket_ratio: Fraction) -> tuple[KVCacheGroup, ...]:
    """Rule 7: groups of equal size, the layers of a kind dealt out to its groups in turn."""
    buckets: dict[KVCacheSpec, list[int]] = {}
    for layer, spec in enumerate(specs):
        buckets.setdefault(spec, []).append(layer)
    smallest = min(len(layers) for layers in buckets.values())
    largest = max(len(layers) for layers in buckets.values())
    group_size = largest if largest < smallest * bucket_ratio else smallest
    groups = []
    for spec, layers in buckets.items():
        num_groups = ceil_div(len(layers), group_size)
        for first in range(num_groups):
            members = tuple(layers[first::num_groups])
            groups.append(KVCacheGroup(members, (spec,) * len(members)))
    return tuple(groups)


def bytes_per_block(groups: Sequence[KVCacheGroup], layers: frozenset[int] | None = None) -> int:
    """Rule 8: the largest sum of pages over the groups, counting the given layers of one worker or all.

    Raises UnsupportedModelError for a worker without any cached layer: vLLM cannot start it.
    """
    largest = max(
        sum(
            spec.page_size_bytes
            for layer, spec in zip(group.layers, group.specs, strict=True)
            if layers is None or layer in layers
        )
        for group in groups
    )
    if largest == 0:
        raise UnsupportedModelError("each worker must hold a layer with a KV cache, one holds none")
    return largest


def blocks_per_request(groups: Sequence[KVCacheGroup], max_model_len: int, max_in_flight_tokens: int) -> int:
    """Rule 10: blocks that one request of `max_model_len` tokens can hold, all groups together."""
    return sum(group.max_blocks(max_model_len, max_in_flight_tokens) for group in groups)


class BlockSizes(NamedTuple):
    """Tokens that prefix hits are multiples of, and tokens that one block hash covers."""

    scheduler: int
    hash: int


def resolve_block_sizes(groups: Sequence[KVCacheGroup], enable_prefix_caching: bool) -> BlockSizes:
    """Rule 14: the least common multiple of the groups' block sizes, and the greatest common divisor."""
    sizes = [group.block_size for group in groups]
    scheduler = lcm(*sizes)
    specs = [spec for group in groups for spec in group.specs]
    states_between_blocks = any(isinstance(spec, MambaSpec) and spec.cache_mode != "align" for spec in specs)
    if len(groups) == 1 or not enable_prefix_caching or states_between_blocks:
        return BlockSizes(scheduler, scheduler)
    return BlockSizes(scheduler, gcd(*sizes))


class KVCacheTensor(NamedTuple):
    """Where layers of equal spec lie in a worker's one allocation of `size` bytes.

    Layer number i of `layers` starts at `offset + i x layer_stride`, its block b at `b x block_stride` more.
    """

    layers: tuple[int, ...]
    size: int
    offset: int
    layer_stride: int
    block_stride: int


def tensors_of_worker(
    groups: Sequence[KVCacheGroup], layers: frozenset[int], num_blocks: int, kv_cache_layout: str
) -> list[KVCacheTensor]:
    """Rule 13: each group's view of the allocation of the worker that holds `layers`.

    Raises UnsupportedModelError for a layout whose two outermost dimensions are not layer and block.
    """
    if not kv_cache_layout.startswith(("LB", "BL")):
        raise UnsupportedModelError(
            f"kv_cache_layout must begin with LB or BL (layer and block outermost), got {kv_cache_layout}"
        )
    layer_outermost = kv_cache_layout.startswith("L")
    block_bytes = bytes_per_block(groups, layers)
    tensors = []
    for group in groups:
        by_spec: dict[KVCacheSpec, list[int]] = {}
        for layer, spec in zip(group.layers, group.specs, strict=True):
            if layer in layers:
                by_spec.setdefault(spec, []).append(layer)
        page_offset = 0
        for spec, members in by_spec.items():
            page = spec.page_size_bytes
            tensors.append(
                KVCacheTensor(
                    layers=tuple(members),
                    size=num_blocks * block_bytes,
                    offset=page_offset * num_blocks if layer_outermost else page_offset,
                    layer_stride=page * num_blocks if layer_outermost else page,
                    block_stride=page if layer_outermost else block_bytes,
                )
            )
            page_offset += page * len(members)
    return tensors
