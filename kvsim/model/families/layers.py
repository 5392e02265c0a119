"""From fields to layers: the steps that several families share."""

from collections.abc import Callable

from attrs import evolve

from kvsim.model.config_fields import WINDOW, ConfigFields
from kvsim.model.geometry import LayerKV

FULL_WORDS = ("full_attention", "global_attention", "attention")
"""What `layer_types` calls a layer that keeps every token."""


def full_layer(config: ConfigFields, kv_heads: int | None = None) -> LayerKV:
    """A layer that keeps K and V of every token, in the model's common shape."""
    heads = config.heads(kv_heads)
    return LayerKV("full", heads.num_kv_heads, heads.head_dim, heads.head_dim)


def windowed_layer(config: ConfigFields, full: LayerKV) -> LayerKV:
    """`full` with the config's sliding window, unless that is 0 (off) or as long as the model's length."""
    window = config.number(*WINDOW)
    if window is None:
        raise config.undetermined(*WINDOW)
    length = config.max_length()
    if window == 0 or (length is not None and window >= length):
        return full
    return evolve(full, kind="sliding_window", window=window)


def sliding_layers(config: ConfigFields, slides: Callable[[int], bool]) -> list[LayerKV]:
    """Layers of one shape where `layer_types`, else `slides(index)`, tells which keep a window only."""
    full = full_layer(config)
    if config.per_layer("layer_types") is not None:
        return layers_from_types(config, full)
    return [windowed_layer(config, full) if slides(index) else full for index in range(config.num_layers())]


def layers_from_types(config: ConfigFields, full: LayerKV, sliding: LayerKV | None = None) -> list[LayerKV]:
    """Layers as the `layer_types` list says; `sliding` has another shape than `full` in some families."""
    words = config.words("layer_types", {*FULL_WORDS, "sliding_attention", "chunked_attention"})
    if words is None:
        raise config.undetermined("layer_types")
    layers = dict.fromkeys(FULL_WORDS, full)
    if "sliding_attention" in words:
        layers["sliding_attention"] = windowed_layer(config, sliding or full)
    if "chunked_attention" in words:
        chunk = config.required("attention_chunk_size")
        layers["chunked_attention"] = evolve(full, kind="chunked_local", window=chunk)
    return [layers[word] for word in words]


def never_binds(config: ConfigFields, window: int) -> bool:
    """Whether the window is no shorter than the model's length, which makes it full attention; notes it."""
    length = config.max_length()
    if length is None or window < length:
        return False
    config.notes.append(f"sliding_window={window} >= max positions: never binds, counted as full")
    return True


def switched_off(config: ConfigFields, window: int | None) -> bool:
    """Whether `use_sliding_window` is false, which makes a window in the file a decoy; notes it."""
    if config.flag("use_sliding_window", default=True):
        return False
    if window:
        config.notes.append(f"sliding_window={window} present but use_sliding_window=false: full attention")
    return True
