"""Families whose layers keep every token: how many KV heads, and which layers have a cache of their own."""

from kvsim.errors import UnsupportedModelError
from kvsim.model.config_fields import QUERY_HEADS, WINDOW, ConfigFields
from kvsim.model.families.layers import full_layer, layers_from_types, never_binds, switched_off
from kvsim.model.geometry import LayerKV

NOT_PLAIN = (
    "kv_lora_rank",
    "index_head_dim",
    "sparse_attention_config",
    "compress_ratios",
    "attention_chunk_size",
    "hybrid_layer_pattern",
    "global_head_dim",
    "swa_head_dim",
    "num_kv_shared_layers",
    "use_cla",
    "block_configs",
    "cross_attention_layers",
    "is_encoder_decoder",
    "linear_attn_config",
    "full_attention_interval",
    "attn_type_list",
    "attn_layer_period",
    "attn_layer_indices",
    "full_attn_idxs",
    "layers_block_type",
    "hybrid_override_pattern",
    "mamba_d_state",
    "ssm_state_size",
    "state_size",
    "conv_L_cache",
    "linear_num_key_heads",
    "mamba_num_heads",
    "mamba_n_heads",
    "layer_group_size",
    "use_mla",
    "mb_per_layer",
    "block_types",
    "attention_layers",
    "attention_types",
    "attention_window_size",
    "n_shared_head",
)
"""Fields that say that some layer keeps something else than K and V of every token."""


def full_attention(config: ConfigFields) -> list[LayerKV]:
    """Layers that are all alike (MHA, GQA or MQA), unless a `layer_types` list makes some of them slide.

    Refuses a config with a field that means another kind of cache.
    """
    strange = next((name for name in NOT_PLAIN if config.values.get(name) not in (None, False, 0, [], {})), None)
    if strange is not None:
        raise UnsupportedModelError(
            f"{config.name}: {strange} means a cache that is not plain attention, "
            f"and kvsim does not know it for model_type {config.model_type!r}"
        )
    layer = full_layer(config)
    if config.per_layer("layer_types") is not None:
        return layers_from_types(config, layer)
    window = config.number(*WINDOW)
    if window and not switched_off(config, window) and not never_binds(config, window):
        raise UnsupportedModelError(
            f"{config.name}: layer_types is missing, so sliding_window {window} does not say "
            f"which layers slide in model_type {config.model_type!r}"
        )
    return [layer] * config.num_layers()


def multi_query(config: ConfigFields) -> list[LayerKV]:
    """GPT-BigCode (StarCoder, SantaCoder): one KV head where `multi_query` says so, which is its default."""
    kv_heads = 1 if config.flag("multi_query", default=True) else None
    if kv_heads:
        config.notes.append("multi_query: 1 KV head")
    return [full_layer(config, kv_heads)] * config.num_layers()


def falcon(config: ConfigFields) -> list[LayerKV]:
    """Falcon: the KV heads of the new decoder (40B, 180B), else one with `multi_query` (7B), else all.

    Old 40B files have the KV heads and no flag that says that the decoder is new.
    """
    if config.flag("new_decoder_architecture") or (
        config.model_type == "RefinedWeb" and config.get("n_head_kv") is not None
    ):
        return [full_layer(config)] * config.num_layers()
    if config.flag("multi_query", default=True):
        config.notes.append("multi_query and old decoder: 1 KV head")
        return [full_layer(config, 1)] * config.num_layers()
    return [full_layer(config, config.required(*QUERY_HEADS))] * config.num_layers()


def chatglm(config: ConfigFields) -> list[LayerKV]:
    """ChatGLM 2, 3 and GLM-4-9B: KV heads are the multi-query groups."""
    if not config.flag("multi_query_attention"):
        return [full_layer(config)] * config.num_layers()
    config.notes.append("KV heads from multi_query_group_num")
    return [full_layer(config, config.required("multi_query_group_num"))] * config.num_layers()


def attn_config(config: ConfigFields) -> list[LayerKV]:
    """DBRX and MPT: KV heads in `attn_config.kv_n_heads`, else one for each query head."""
    kv_heads = config.section("attn_config").count("kv_n_heads")
    if kv_heads:
        config.notes.append("KV heads from attn_config.kv_n_heads")
    return [full_layer(config, kv_heads)] * config.num_layers()


def cross_layer_attention(config: ConfigFields) -> list[LayerKV]:
    """Hunyuan: with `use_cla` every `cla_share_factor`-th layer owns a cache, which the next ones read."""
    if config.flag("use_mla"):
        raise UnsupportedModelError(f"{config.name}: use_mla is true, which kvsim does not know for Hunyuan")
    layer = full_layer(config)
    factor = config.count("cla_share_factor")
    if not config.flag("use_cla"):
        if factor:
            config.notes.append("cla_share_factor present but use_cla=false: no sharing")
        return [layer] * config.num_layers()
    factor = config.required("cla_share_factor")
    return [LayerKV("shared") if index % factor else layer for index in range(config.num_layers())]


def openelm(config: ConfigFields) -> list[LayerKV]:
    """OpenELM: KV heads differ from layer to layer."""
    head_dim = config.required("head_dim")
    kv_heads = config.list_of("num_kv_heads")
    if kv_heads is None:
        raise config.undetermined("num_kv_heads")
    per_layer = [ConfigFields(config.name, {"num_kv_heads": heads}).required("num_kv_heads") for heads in kv_heads]
    return [LayerKV("full", heads, head_dim, head_dim) for heads in per_layer]


def nemotron_nas(config: ConfigFields) -> list[LayerKV]:
    """Llama-Nemotron Super and Ultra: heads a group differ by block, and many blocks keep nothing."""
    blocks = config.per_layer("block_configs")
    if blocks is None:
        raise config.undetermined("block_configs")
    heads = config.heads()
    layers = []
    for index, block in enumerate(blocks):
        if not isinstance(block, dict):
            raise config.error(f"block_configs[{index}] must be an object")
        attention = ConfigFields(f"{config.name}: block_configs[{index}]", block).section("attention")
        if attention.flag("no_op") or attention.flag("replace_with_linear"):
            layers.append(LayerKV("none"))
            continue
        group = attention.required("n_heads_in_group")
        if heads.num_query_heads % group:
            raise config.error(f"{heads.num_query_heads} query heads must be a multiple of n_heads_in_group {group}")
        layers.append(LayerKV("full", heads.num_query_heads // group, heads.head_dim, heads.head_dim))
    return layers
