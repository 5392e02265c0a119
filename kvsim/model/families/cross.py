"""Families that attend to another input: K and V of image or encoder tokens, constant while decoding."""

from attrs import evolve

from kvsim.model.config_fields import ConfigFields
from kvsim.model.families.layers import full_layer
from kvsim.model.geometry import LayerKV


def mllama(config: ConfigFields) -> list[LayerKV]:
    """Llama 3.2 Vision: the listed layers keep image tokens instead of text tokens."""
    layer = full_layer(config)
    cross = config.layer_numbers("cross_attention_layers")
    if cross is None:
        raise config.undetermined("cross_attention_layers")
    config.notes.append(
        f"num_hidden_layers counts the {len(cross)} cross-attention layers; those hold image-token KV, not text KV"
    )
    return [evolve(layer, kind="cross") if index in cross else layer for index in range(config.num_layers())]


def encoder_decoder(config: ConfigFields) -> list[LayerKV]:
    """T5, BART, Whisper: decoder layers keep K and V of their own tokens and of the encoder's."""
    layer = full_layer(config)
    config.notes.append("encoder-decoder: decoder layers also keep K and V of every encoder token")
    return [evolve(layer, beside=(evolve(layer, kind="cross"),))] * config.num_layers()
