"""Latent attention (MLA), the index keys of sparse attention, and DeepSeek-V4's compressed caches."""

from attrs import evolve

from kvsim.model.config_fields import ConfigFields
from kvsim.model.families.layers import full_layer
from kvsim.model.geometry import LayerKV

LONGCAT_CACHES = 2
"""LongCat's attention blocks in each of its layers."""


def latent_layer(config: ConfigFields) -> LayerKV:
    """One vector per token for K and V of all heads: the latent and the rotary part, never split over ranks.

    KV heads and `head_dim` in such files say nothing about the cache.
    """
    width = config.required("kv_lora_rank") + (config.number("qk_rope_head_dim") or 0)
    return LayerKV("mla", 1, width, 0)


def latent(config: ConfigFields) -> list[LayerKV]:
    """DeepSeek V2 and V3, Kimi K2, Moonlight, MiniCPM3; plain attention where `use_mla` is false."""
    if not config.flag("use_mla", default=True):
        return [full_layer(config)] * config.num_layers()
    return [latent_layer(config)] * config.num_layers()


def latent_pairs(config: ConfigFields) -> list[LayerKV]:
    """LongCat: two attention blocks, so two latent caches, in every layer."""
    layer = latent_layer(config)
    return [evolve(layer, beside=(layer,) * (LONGCAT_CACHES - 1))] * config.num_layers()


def sparse_latent(config: ConfigFields) -> list[LayerKV]:
    """DeepSeek V3.2 and GLM-5: latent attention with an index key beside it on the layers that select tokens.

    Sparse attention reads fewer tokens and stores all of them.
    """
    layer = latent_layer(config)
    index = _index_keys(config.required("index_head_dim"))
    indexed = _layers_with_index(config)
    if not all(indexed):
        everywhere = len(indexed) * (index.fixed_entry_bytes or 0)
        config.notes.append(
            f"index keys on {sum(indexed)} of {len(indexed)} layers, as vLLM keeps them; "
            f"an engine that keeps one on every layer takes {everywhere:,} B a token for them"
        )
    return [evolve(layer, beside=(index,)) if has_index else layer for has_index in indexed]


def _layers_with_index(config: ConfigFields) -> list[bool]:
    """Which layers select tokens themselves; the others reuse the selection of an earlier one (GLM-5.2)."""
    types = config.words("indexer_types", ("full", "shared"))
    if types is not None:
        return [word == "full" for word in types]
    pattern = config.get("index_topk_pattern")
    num_layers = config.num_layers()
    if isinstance(pattern, str):
        if len(pattern) != num_layers or set(pattern) - set("FS"):
            raise config.error(f"index_topk_pattern must be a letter F or S for each of {num_layers} layers")
        return [letter == "F" for letter in pattern]
    every = config.count("index_topk_freq") or 1
    offset = config.number("index_skip_topk_offset")
    start = (2 if offset is None else offset) - 1
    return [max(index - start, 0) % every == 0 for index in range(num_layers)]


def _index_keys(head_dim: int, tokens_per_entry: int = 1) -> LayerKV:
    """fp8 index keys with an fp32 scale for every 128 values, whatever the dtype of the cache."""
    return LayerKV(
        "index",
        1,
        head_dim,
        tokens_per_entry=tokens_per_entry,
        fixed_entry_bytes=head_dim + 4 * -(-head_dim // 128),
    )


def sparse_full(config: ConfigFields) -> list[LayerKV]:
    """MiniMax-M3: the layers marked 1 keep one bf16 index key (vLLM's default) beside K and V."""
    layer = full_layer(config)
    sparse = config.section("sparse_attention_config")
    marks = sparse.marks("sparse_attention_freq") if sparse.flag("use_sparse_attention") else None
    if marks is None:
        return [layer] * config.num_layers()
    head_dim = sparse.required("sparse_index_dim")
    indexed = evolve(layer, beside=(LayerKV("index", 1, head_dim, fixed_entry_bytes=2 * head_dim),))
    return [indexed if mark else layer for mark in marks]


def compressed(config: ConfigFields) -> list[LayerKV]:
    """DeepSeek V4: one vector per token in a window, and beside it one for every `compress_ratios[i]` tokens.

    Ratio 0 keeps the window only; ratio 4 also keeps an index key for every 4 tokens.
    """
    ratios = config.per_layer("compress_ratios")
    if ratios is None:
        raise config.undetermined("compress_ratios")
    width = config.required("head_dim")
    window = LayerKV("sliding_window", 1, width, window=config.required("sliding_window"))
    layers = []
    for index, ratio in enumerate(ratios):
        if not isinstance(ratio, int) or isinstance(ratio, bool) or ratio < 0:
            raise config.error(f"compress_ratios[{index}] must be a whole number of at least 0, got {ratio!r}")
        beside: tuple[LayerKV, ...] = ()
        if ratio:
            beside = (LayerKV("compressed", 1, width, tokens_per_entry=ratio),)
        if ratio == 4:
            beside += (_index_keys(config.required("index_head_dim"), ratio),)
        layers.append(evolve(window, beside=beside))
    config.notes.append("the fp32 state of each open group of compressed tokens is not counted")
    return layers
