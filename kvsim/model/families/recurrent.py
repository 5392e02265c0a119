"""Families with layers that keep a state of constant size: Mamba, linear attention, short convolutions, RWKV.

Shapes follow vLLM: a convolution of kernel k keeps its last k - 1 inputs.
"""

from collections.abc import Callable

from attrs import evolve

from kvsim.model.config_fields import HIDDEN, QUERY_HEADS, ConfigFields
from kvsim.model.families.latent import latent_layer
from kvsim.model.families.layers import FULL_WORDS, full_layer
from kvsim.model.geometry import LayerKV, RecurrentState

STATE_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a recurrent value by the name that a config declares it with."""


def _state_width(config: ConfigFields, default: int | None = None) -> int:
    """Bytes of a recurrent value: as declared, else vLLM's choice: `default` or the model's own dtype."""
    declared = config.get("mamba_ssm_cache_dtype", "mamba_ssm_dtype")
    if declared is None or declared == "auto":
        width = default or config.value_bytes()
        config.assumptions.append(f"recurrent state in {width}-byte values, as vLLM keeps it unless told otherwise")
        return width
    if not isinstance(declared, str) or declared not in STATE_WIDTHS:
        raise config.error(f"mamba_ssm_cache_dtype must be one of {', '.join(STATE_WIDTHS)}, got {declared!r}")
    return STATE_WIDTHS[declared]


def _mamba1(config: ConfigFields) -> LayerKV:
    """Mamba-1: one channel after the other, each with its own state."""
    channels = config.count("intermediate_size") if config.model_type in ("mamba", "falcon_mamba") else None
    channels = channels or config.required("mamba_expand", "expand") * config.required(*HIDDEN)
    columns = config.required("mamba_d_conv", "conv_kernel") - 1
    state = RecurrentState(
        "mamba",
        num_heads=channels,
        recurrent_values=channels * config.required("mamba_d_state", "state_size"),
        head_conv_values=channels * columns,
        conv_value_bytes=config.value_bytes(),
        recurrent_value_bytes=_state_width(config),
    )
    return LayerKV("recurrent", state=state)


def _mamba2(config: ConfigFields) -> LayerKV:
    """Mamba-2: heads with a state each; the convolution also runs over two vectors a group."""
    pure = config.model_type == "mamba2"
    heads = config.required("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", *(["num_heads"] if pure else []))
    names = ("mamba_head_dim", "mamba_d_head", "mamba_headdim", *(["head_dim"] if pure else []))
    if config.get(*names) in (None, "auto"):
        channels = config.required("mamba_expand", "expand") * config.required(*HIDDEN)
    else:
        channels = heads * config.required(*names)
    states = config.required("ssm_state_size", "mamba_d_state", "state_size")
    columns = config.required("conv_kernel", "mamba_d_conv") - 1
    state = RecurrentState(
        "mamba",
        num_heads=heads,
        recurrent_values=channels * states,
        head_conv_values=channels * columns,
        num_groups=config.required("n_groups", "mamba_n_groups", "mamba_ngroups"),
        group_conv_values=2 * states * columns,
        conv_value_bytes=config.value_bytes(),
        recurrent_value_bytes=_state_width(config),
    )
    return LayerKV("recurrent", state=state)


def _gated_delta_net(config: ConfigFields) -> LayerKV:
    """Qwen3-Next and later: keys and values of a linear attention with heads of their own."""
    k_heads, v_heads = config.required("linear_num_key_heads"), config.required("linear_num_value_heads")
    k_dim, v_dim = config.required("linear_key_head_dim"), config.required("linear_value_head_dim")
    columns = config.required("linear_conv_kernel_dim") - 1
    if v_heads % k_heads:
        raise config.error(f"linear_num_value_heads {v_heads} must be a multiple of linear_num_key_heads {k_heads}")
    state = RecurrentState(
        "linear",
        num_heads=k_heads,
        recurrent_values=v_heads * v_dim * k_dim,
        head_conv_values=(2 * k_heads * k_dim + v_heads * v_dim) * columns,
        conv_value_bytes=config.value_bytes(),
        recurrent_value_bytes=_state_width(config),
    )
    return LayerKV("recurrent", state=state)


def _lightning(config: ConfigFields) -> LayerKV:
    """MiniMax: a square state for each query head, fp32 in vLLM."""
    heads = config.heads()
    state = RecurrentState(
        "linear",
        num_heads=heads.num_query_heads,
        recurrent_values=heads.num_query_heads * heads.head_dim**2,
        recurrent_value_bytes=_state_width(config, default=4),
    )
    return LayerKV("recurrent", state=state)


def _short_convolution(config: ConfigFields) -> LayerKV:
    """LFM2: the last inputs of a short convolution."""
    channels = config.count("conv_dim") or config.required(*HIDDEN)
    values = channels * (config.required("conv_L_cache") - 1)
    state = RecurrentState("conv", channels, 0, head_conv_values=values, conv_value_bytes=config.value_bytes())
    return LayerKV("recurrent", state=state)


def _either(
    config: ConfigFields, is_attention: Callable[[int], bool], attention: LayerKV, recurrent: LayerKV
) -> list[LayerKV]:
    return [attention if is_attention(index) else recurrent for index in range(config.num_layers())]


def _by_word(config: ConfigFields, layers_of: dict[str, LayerKV], *names: str) -> list[LayerKV]:
    """Layers by the words of the first of these per-layer lists that is present."""
    for name in names:
        words = config.words(name, layers_of)
        if words is not None:
            return [layers_of[word] for word in words]
    raise config.undetermined(*names)


def jamba(config: ConfigFields) -> list[LayerKV]:
    """Jamba: attention where i mod period is the offset, Mamba-1 elsewhere."""
    period, offset = config.required("attn_layer_period"), config.number("attn_layer_offset")
    if offset is None:
        raise config.undetermined("attn_layer_offset")
    return _either(config, lambda index: index % period == offset, full_layer(config), _mamba1(config))


def bamba(config: ConfigFields) -> list[LayerKV]:
    """Bamba: attention in the layers of `attn_layer_indices`, Mamba-2 elsewhere."""
    attention = config.layer_numbers("attn_layer_indices")
    if attention is None:
        raise config.undetermined("attn_layer_indices")
    return _either(config, attention.__contains__, full_layer(config), _mamba2(config))


def granite_hybrid(config: ConfigFields) -> list[LayerKV]:
    """Granite 4 hybrid: "attention" or "mamba" for each layer."""
    layers_of = dict.fromkeys(FULL_WORDS, full_layer(config)) | {"mamba": _mamba2(config)}
    return _by_word(config, layers_of, "layer_types", "layers_block_type")


def nemotron_h(config: ConfigFields) -> list[LayerKV]:
    """Nemotron-H: a letter a layer: * attention, M Mamba-2; - dense MLP and E experts keep nothing."""
    attention, mamba, nothing = full_layer(config), _mamba2(config), LayerKV("none")
    pattern = config.get("hybrid_override_pattern")
    if pattern is None:
        layers_of = {"attention": attention, "mamba": mamba, "mlp": nothing, "moe": nothing}
        return _by_word(config, layers_of, "layers_block_type")
    letters = {"*": attention, "M": mamba, "-": nothing, "E": nothing}
    num_layers = config.num_layers()
    if not isinstance(pattern, str) or len(pattern) != num_layers or set(pattern) - set(letters):
        raise config.error(f"hybrid_override_pattern must be a letter of {''.join(letters)} for each layer")
    config.notes.append(
        f"pattern letters: '*' attention, M mamba2, - dense MLP, E MoE; "
        f"only {pattern.count('*')} of {num_layers} layers hold KV"
    )
    return [letters[letter] for letter in pattern]


def falcon_h1(config: ConfigFields) -> list[LayerKV]:
    """Falcon-H1: attention and Mamba-2 side by side in every layer."""
    config.notes.append("attention and mamba2 in every layer: KV on all layers plus a state on all layers")
    return [evolve(full_layer(config), beside=(_mamba2(config),))] * config.num_layers()


def qwen_next(config: ConfigFields) -> list[LayerKV]:
    """Qwen3-Next and Qwen3.5: every `full_attention_interval`-th layer is full, the others a delta net."""
    full, linear = full_layer(config), _gated_delta_net(config)
    if config.per_layer("layer_types") is not None:
        return _by_word(config, {"full_attention": full, "linear_attention": linear}, "layer_types")
    interval = config.required("full_attention_interval")
    config.notes.append(f"full attention on every {interval}th layer")
    return _either(config, lambda index: (index + 1) % interval == 0, full, linear)


def kimi_linear(config: ConfigFields) -> list[LayerKV]:
    """Kimi-Linear: latent attention in the layers listed (from 1), delta attention elsewhere."""
    section = config.section("linear_attn_config")
    attention = section.layer_numbers("full_attn_layers", first=1)
    if attention is None:
        raise config.undetermined("linear_attn_config.full_attn_layers")
    heads, width = section.required("num_heads"), section.required("head_dim")
    state = RecurrentState(
        "linear",
        num_heads=heads,
        recurrent_values=heads * width * width,
        head_conv_values=3 * heads * width * (section.required("short_conv_kernel_size") - 1),
        conv_value_bytes=config.value_bytes(),
        recurrent_value_bytes=_state_width(config, default=4),
    )
    return _either(config, attention.__contains__, latent_layer(config), LayerKV("recurrent", state=state))


def minimax(config: ConfigFields) -> list[LayerKV]:
    """MiniMax-Text-01, M1, M2: `attn_type_list` 1 is softmax attention, 0 lightning attention."""
    full = full_layer(config)
    marks = config.marks("attn_type_list")
    if marks is not None:
        lightning = _lightning(config)
        return [full if softmax else lightning for softmax in marks]
    if config.model_type == "minimax_m2":
        return [full] * config.num_layers()
    return _by_word(config, {"full_attention": full, "linear_attention": _lightning(config)}, "layer_types")


def lfm2(config: ConfigFields) -> list[LayerKV]:
    """LFM2: short convolutions with attention in the layers listed."""
    full, short = full_layer(config), _short_convolution(config)
    attention = config.layer_numbers("full_attn_idxs")
    if config.list_of("layer_types") is None and attention is not None:
        return _either(config, attention.__contains__, full, short)
    return _by_word(config, {"full_attention": full, "conv": short}, "layer_types", "full_attn_idxs")


def zamba(config: ConfigFields) -> list[LayerKV]:
    """Zamba 1 and 2: a Mamba state in every layer, and a cache of the shared attention at hybrid positions.

    The shared block's weights are one, its caches are not; it sees two hidden vectors side by side.
    """
    mamba = _mamba1(config) if config.model_type == "zamba" else _mamba2(config)
    query_heads = config.required(*QUERY_HEADS)
    width = config.head_dim("attention_head_dim")
    if width is None:
        hidden = config.required(*HIDDEN)
        if 2 * hidden % query_heads:
            raise config.undetermined("attention_head_dim")
        width = 2 * hidden // query_heads
    kv_heads = config.count("num_key_value_heads") or query_heads
    hybrid = LayerKV("full", kv_heads, width, width, beside=(mamba,))
    places = config.layer_numbers("hybrid_layer_ids")
    if places is not None:
        return _either(config, places.__contains__, hybrid, mamba)
    return _by_word(config, {"hybrid": hybrid, "mamba": mamba}, "layers_block_type", "hybrid_layer_ids")


def mamba(config: ConfigFields) -> list[LayerKV]:
    """Mamba, Falcon-Mamba and Mamba-2: no KV, a state in every layer."""
    return [_mamba2(config) if config.model_type == "mamba2" else _mamba1(config)] * config.num_layers()


def rwkv(config: ConfigFields) -> list[LayerKV]:
    """RWKV 5 and 6: two token-shift vectors and a square state for each head."""
    hidden, head_size = config.required(*HIDDEN), config.required("head_size")
    if hidden % head_size:
        raise config.error(f"hidden_size {hidden} must be a multiple of head_size {head_size}")
    heads = hidden // head_size
    config.notes.append(f"no KV cache; per layer 2 token-shift vectors + {heads}*{head_size}*{head_size} state")
    state = RecurrentState(
        "rwkv",
        num_heads=heads,
        recurrent_values=hidden * head_size,
        head_conv_values=2 * hidden,
        conv_value_bytes=config.value_bytes(),
        recurrent_value_bytes=_state_width(config),
    )
    return [LayerKV("recurrent", state=state)] * config.num_layers()
