"""Families where some or all layers keep a window of the last tokens, or the chunk they are in."""

from attrs import evolve

from kvsim.model.config_fields import HEAD_DIM, WINDOW, ConfigFields
from kvsim.model.families.layers import (
    full_layer,
    layers_from_types,
    never_binds,
    sliding_layers,
    switched_off,
    windowed_layer,
)
from kvsim.model.geometry import LayerKV


def all_sliding(config: ConfigFields) -> list[LayerKV]:
    """Mistral, Mixtral, Phi-3, StarCoder2: every layer slides if there is a window that binds."""
    window = config.number(*WINDOW)
    if window is None and config.model_type == "mistral" and not any(name in config.values for name in WINDOW):
        config.assumptions.append("sliding_window is not in the file: taken as none")
    if not window or never_binds(config, window):
        return sliding_layers(config, lambda index: False)
    config.notes.append(f"window {window} on all layers")
    return sliding_layers(config, lambda index: True)


def qwen(config: ConfigFields) -> list[LayerKV]:
    """Qwen 2 to 3: the window is a decoy while `use_sliding_window` is false, as in released chat models.

    Switched on, dense models slide from layer `max_window_layers` on, Qwen3-MoE in every layer, Qwen2-MoE in
    the even layers before it. The flag is off where it is absent.
    """
    window = config.number(*WINDOW)
    if switched_off(config, window) or "use_sliding_window" not in config.values:
        return sliding_layers(config, lambda index: False)
    if config.per_layer("layer_types") is not None or config.model_type.startswith("qwen3_moe"):
        return sliding_layers(config, lambda index: True)
    border = config.number("max_window_layers")
    if border is None:
        raise config.undetermined("max_window_layers")
    if config.model_type.startswith("qwen2_moe"):
        return sliding_layers(config, lambda index: index % 2 == 0 and index < border)
    return sliding_layers(config, lambda index: index >= border)


def even_layers_slide(config: ConfigFields) -> list[LayerKV]:
    """Gemma 2 and gpt-oss: layers 0, 2, 4, ... slide unless a layer list says otherwise."""
    if config.per_layer("layer_types") is None:
        config.notes.append("no layer list in the file: even layers slide")
    return sliding_layers(config, lambda index: index % 2 == 0)


def gemma3(config: ConfigFields) -> list[LayerKV]:
    """Gemma 3: every `sliding_window_pattern`-th layer is full, every 6th unless the file says otherwise."""
    return _every_nth_full(config, config.count("sliding_window_pattern", "_sliding_window_pattern") or 6)


def cohere2(config: ConfigFields) -> list[LayerKV]:
    """Command-R7B and Command-A: every `sliding_window_pattern`-th layer is full, every 4th by default."""
    return _every_nth_full(config, config.count("sliding_window_pattern", "_sliding_window_pattern") or 4)


def olmo3(config: ConfigFields) -> list[LayerKV]:
    """Olmo 3: every 4th layer is full unless a layer list says otherwise."""
    return _every_nth_full(config, 4)


def _every_nth_full(config: ConfigFields, period: int) -> list[LayerKV]:
    return sliding_layers(config, lambda index: (index + 1) % period != 0)


def exaone4(config: ConfigFields) -> list[LayerKV]:
    """EXAONE 4: a pattern such as LLLG repeated, with the last layer full; the small model has no window."""
    if config.number(*WINDOW) is None:
        return [full_layer(config)] * config.num_layers()
    if config.per_layer("layer_types") is not None:
        return layers_from_types(config, full_layer(config))
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, int) and not isinstance(pattern, bool):
        pattern = "L" * min(pattern - 1, config.num_layers()) + "G"
    if not isinstance(pattern, str) or not pattern or set(pattern) - set("LG"):
        raise config.undetermined("layer_types", "sliding_window_pattern")
    last = config.num_layers() - 1
    return sliding_layers(config, lambda index: pattern[index % len(pattern)] == "L" and index != last)


def step(config: ConfigFields) -> list[LayerKV]:
    """Step-3.5 and later: the layer list; sliding layers may have heads of their own.

    The released files keep those in `attention_other_setting`.
    """
    full = full_layer(config)
    other = config.section("attention_other_setting")
    width = other.head_dim("head_dim") or full.k_dim
    return layers_from_types(
        config, full, LayerKV("full", other.count("num_attention_groups") or full.num_kv_heads, width, width)
    )


def gemma4(config: ConfigFields) -> list[LayerKV]:
    """Gemma 3n and 4: full layers may have heads of their own; the last layers read an earlier one's cache.

    The last `num_kv_shared_layers` own nothing. `attention_k_eq_v` shares a projection, not the cached
    vectors: norm and rotation differ, so engines store both.
    """
    sliding = full_layer(config)
    width = config.head_dim("global_head_dim") or sliding.k_dim
    full = LayerKV("full", config.count("num_global_key_value_heads") or sliding.num_kv_heads, width, width)
    layers = layers_from_types(config, full, sliding)
    num_shared = config.number("num_kv_shared_layers")
    if num_shared is None and config.model_type == "gemma3n_text":
        raise config.undetermined("num_kv_shared_layers")
    num_shared = num_shared or 0
    if num_shared >= len(layers):
        raise config.error(f"num_kv_shared_layers must be less than {len(layers)} layers, got {num_shared}")
    if config.flag("attention_k_eq_v"):
        config.notes.append("attention_k_eq_v: K and V are still both stored")
    return layers[: len(layers) - num_shared] + [LayerKV("shared")] * num_shared


def llama4(config: ConfigFields) -> list[LayerKV]:
    """Llama 4: layers with rotary positions attend within chunks, those without (NoPE) to everything.

    `no_rope_layers` holds 1 for rotary: the name reads the other way. Without it every 4th layer is full.
    """
    full = full_layer(config)
    chunk = config.count("attention_chunk_size")
    if chunk is None or never_binds(config, chunk):
        return [full] * config.num_layers()
    if config.per_layer("layer_types") is not None:
        return layers_from_types(config, full)
    rotary = config.marks("no_rope_layers")
    if rotary is None:
        interval = config.count("no_rope_layer_interval") or 4
        config.notes.append(f"every {interval}th layer is full (NoPE); the others are chunked at {chunk}")
        rotary = [(index + 1) % interval != 0 for index in range(config.num_layers())]
    chunked = evolve(full, kind="chunked_local", window=chunk)
    return [chunked if uses_rope else full for uses_rope in rotary]


def mimo_v2(config: ConfigFields) -> list[LayerKV]:
    """MiMo-V2: `hybrid_layer_pattern` 1 slides, with heads and widths of its own; V is narrower than K."""
    pattern = config.marks("hybrid_layer_pattern")
    if pattern is None:
        raise config.undetermined("hybrid_layer_pattern")
    heads = config.heads()
    v_dim = config.head_dim("v_head_dim") or heads.head_dim
    full = LayerKV("full", heads.num_kv_heads, heads.head_dim, v_dim)
    sliding = LayerKV(
        "full",
        config.count("swa_num_key_value_heads") or heads.num_kv_heads,
        config.head_dim("swa_head_dim", *HEAD_DIM) or heads.head_dim,
        config.head_dim("swa_v_head_dim") or v_dim,
    )
    return [windowed_layer(config, sliding) if slides else full for slides in pattern]


def gpt_neo(config: ConfigFields) -> list[LayerKV]:
    """GPT-Neo: global and local layers by turns, local ones with a window of `window_size`."""
    full = full_layer(config)
    words = config.words("attention_layers", ("global", "local"))
    if words is None:
        raise config.undetermined("attention_layers")
    local = evolve(full, kind="sliding_window", window=config.required("window_size"))
    return [local if word == "local" else full for word in words]
