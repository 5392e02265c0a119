"""A Hugging Face config.json, read as a geometry: find the language model, ask its family for the layers."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from kvsim.errors import ModelError, UnsupportedModelError
from kvsim.model.config_fields import HEAD_DIM, NUM_LAYERS, QUERY_HEADS, ConfigFields
from kvsim.model.families import FAMILIES
from kvsim.model.families.full import full_attention
from kvsim.model.geometry import ModelGeometry

MAX_CONFIG_BYTES = 16 * 2**20
"""A model config takes kilobytes; a larger file is weights or a mistake, and is not read."""

TEXT_PARTS = (("text_config",), ("llm_config",), ("language_config",), ("thinker_config", "text_config"))
"""Where multimodal configs keep their language model, in the order of looking."""

CLASS_DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "mistral": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 32768,
    },
    "gemma": {
        "hidden_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "max_position_embeddings": 8192,
    },
    "gemma2": {
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
    },
    "gemma3_text": {
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
}
"""What transformers fills in where a nested text config, saved as a difference, leaves a field out."""

OTHER_MODELS = {
    "an encoder, which keeps no KV cache": """
        albert bert camembert clip_text_model deberta deberta-v2 distilbert electra modernbert mpnet
        nomic_bert roberta siglip_text_model xlm-roberta""",
    "an image model without a language model": """
        beit clip clip_vision_model convnext deit dinov2 dinov3_vit resnet siglip siglip_vision_model swin
        vit""",
}
"""Values of `model_type` that are no decoder, by what they are."""

IMAGE_FIELDS = ("image_size", "patch_size", "num_channels")


def read_config(path: Path, name: str | None = None) -> ModelGeometry:
    """The geometry of the config.json at `path`, called `name` (the path if there is none).

    Raises ModelError, naming the file, for what is not a config.json.
    """
    if os.path.isdir(path):
        raise ModelError(f"{path}: is a folder, not a config.json")
    if not os.path.exists(path):
        raise ModelError(f"{path}: there is no such file")
    if not os.path.isfile(path):
        raise ModelError(f"{path}: is not a regular file")
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise ModelError(f"{path}: a config must be at most {MAX_CONFIG_BYTES:,} bytes, got {size:,}")
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    return geometry_from_json(content, name or str(path))


def geometry_from_json(content: bytes, name: str) -> ModelGeometry:
    """The geometry of what stands in a config.json; `name` is what messages and outputs call it.

    Raises ModelError for what is no model config.
    """
    try:
        config = json.loads(content)
    except RecursionError as error:
        raise ModelError(f"{name}: is nested too deeply for a model config") from error
    except ValueError as error:  # bad JSON, bad UTF-8 and numbers of thousands of digits alike
        raise ModelError(f"{name}: is not valid JSON ({error})") from error
    return geometry_from_config(config, name)


def geometry_from_config(config: object, name: str) -> ModelGeometry:
    """The geometry of one parsed config.json; `name` is what messages and outputs call it.

    An unknown `model_type` whose fields determine full attention is taken as that; `assumptions` says so.
    Raises UnsupportedModelError naming what the config does not determine, ModelError for nonsense.
    """
    if not isinstance(config, dict):
        raise ModelError(f"{name}: a model config must be a JSON object, got {_json_type(config)}")
    fields = _language_model(config, name)
    family = FAMILIES.get(fields.model_type)
    if family is None:
        fields.assumptions.append(
            f"model_type {fields.model_type!r} is not known: taken as full attention by its plain fields"
        )
        family = full_attention
    layers = tuple(family(fields))
    if len(layers) != fields.num_layers():
        raise fields.error(f"{NUM_LAYERS[2]} is {fields.num_layers()}, but the file describes {len(layers)} layers")
    if fields.num_mtp_layers():
        fields.notes.append(f"{fields.num_mtp_layers()} MTP layer(s) not counted")
    return ModelGeometry(
        name=name,
        layers=layers,
        max_model_len=fields.max_length(),
        assumptions=tuple(dict.fromkeys(fields.assumptions)),
        notes=tuple(dict.fromkeys(fields.notes)),
        model_type=fields.model_type or None,
        nested_in=fields.nested_in,
        num_query_heads=fields.count(*QUERY_HEADS),
        head_dim_in_config=fields.head_dim(*HEAD_DIM) is not None,
    )


def _language_model(config: Mapping[str, object], name: str) -> ConfigFields:
    """The part of `config` that describes the language model; refuses a config that has none."""
    whole = ConfigFields(name, config)
    fields = next((found for path in TEXT_PARTS if (found := _nested(config, name, path))), whole)
    for description, model_types in OTHER_MODELS.items():
        for model_type in (whole.model_type, fields.model_type):
            if model_type in model_types.split():
                raise UnsupportedModelError(f"{name}: model_type {model_type!r} is {description}")
    no_text = "vision_config" in fields.values and fields.get(*NUM_LAYERS) is None
    if no_text or (fields.get(*IMAGE_FIELDS) is not None and "vocab_size" not in fields.values):
        parts = ", ".join(".".join(path) for path in TEXT_PARTS)
        raise UnsupportedModelError(f"{name}: describes an image model, and has no language model in {parts}")
    return fields


def _nested(config: Mapping[str, object], name: str, path: tuple[str, ...]) -> ConfigFields | None:
    """The language model at `path`, with the defaults of its class where it leaves fields out."""
    part: object = config
    for key in path:
        part = part.get(key) if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not part:
        return None
    nested_in = ".".join(path)
    model_type = part.get("model_type", config.get("model_type"))
    defaults = CLASS_DEFAULTS.get(model_type, {}) if isinstance(model_type, str) else {}
    omitted = {field: value for field, value in defaults.items() if field not in part}
    fields = ConfigFields(name, {"model_type": model_type, **omitted, **part}, nested_in)
    if omitted:
        listed = ", ".join(f"{field} {value}" for field, value in omitted.items())
        fields.assumptions.append(f"{nested_in} leaves out {listed}: taken from the defaults of {model_type!r}")
    return fields


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    return {bool: "a true or false", int: "a number", float: "a number", str: "a string", list: "a list"}[type(value)]
