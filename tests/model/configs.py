"""Small configs, and a short way to say what layers a geometry has."""

from typing import Any

from kvsim.model.geometry import LayerKV, ModelGeometry, RecurrentState
from kvsim.model.hf_config import geometry_from_config

LETTERS = {
    "full": "F",
    "mla": "L",
    "sliding_window": "s",
    "chunked_local": "c",
    "recurrent": "r",
    "cross": "x",
    "shared": "-",
    "none": ".",
}

PLAIN = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64}
WINDOWED = {**PLAIN, "sliding_window": 16, "max_position_embeddings": 1024}
LISTED = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]

MAMBA_2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
}
DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
LATENT = {**PLAIN, "kv_lora_rank": 32, "qk_rope_head_dim": 8}


def make_geometry(model_type: str, config: dict[str, Any], **fields: Any) -> ModelGeometry:
    return geometry_from_config({"model_type": model_type, **config, **fields}, "test")


def kinds(geometry: ModelGeometry) -> str:
    return "".join(LETTERS[layer.kind] for layer in geometry.layers)


def shape(layer: LayerKV) -> tuple[int, int, int]:
    return (layer.num_kv_heads, layer.k_dim, layer.v_dim)


def state(layer: LayerKV) -> RecurrentState:
    assert layer.state is not None
    return layer.state
