"""A geometry in plain data: what `kvsim model` prints, by layer kind, in bf16 and as one rank holds it."""

from attrs import evolve

from kvsim.model.geometry import KV_KINDS, KVDtype, LayerKV, ModelGeometry

KIND_WORDS = {"sliding_window": "sliding", "chunked_local": "chunked"}
"""Shorter words for layer kinds in tables."""


def describe(
    geometry: ModelGeometry,
    kv_dtype: KVDtype = "bf16",
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> dict[str, object]:
    """Everything a geometry says, ready for JSON; sizes are bytes.

    The keys that end in `_bf16` are of the whole model; `rank` is the rank that holds most in `kv_dtype`.
    """
    attention = next((cache for cache in geometry.caches() if cache.kind in KV_KINDS), None)
    return {
        "name": geometry.name,
        "model_type": geometry.model_type,
        "nested_in": geometry.nested_in,
        "layers": len(geometry.layers),
        "q_heads": geometry.num_query_heads,
        "kv_heads": attention.num_kv_heads if attention else 0,
        "head_dim": attention.k_dim if attention and attention.kind != "mla" else None,
        "head_dim_explicit": geometry.head_dim_in_config,
        "max_positions": geometry.max_model_len,
        "groups": _groups(geometry),
        "kv_bytes_per_token_bf16": geometry.token_bytes(KV_KINDS, "bf16"),
        "unbounded_bytes_per_token_bf16": geometry.unbounded_bytes_per_token("bf16"),
        "window_bound_bytes_per_seq_bf16": geometry.window_bytes_per_seq("bf16"),
        "indexer": _indexer(geometry),
        "cross_bytes_per_source_token_bf16": geometry.cross_bytes_per_source_token("bf16"),
        "state": _state(geometry),
        "rank": _rank(geometry, kv_dtype, tensor_parallel, pipeline_parallel),
        "assumptions": list(geometry.assumptions),
        "notes": list(geometry.notes),
    }


def kind_word(layer: LayerKV) -> str:
    """The layer's kind as tables name it, with the sort of state or the ratio of compression."""
    if layer.state is not None:
        return layer.state.kind
    if layer.kind == "sliding_window" and layer.v_dim == 0:
        ratios = [cache.tokens_per_entry for cache in layer.beside if cache.kind == "compressed"]
        return f"v4:r{ratios[0] if ratios else 0}"
    return KIND_WORDS.get(layer.kind, layer.kind)


def _groups(geometry: ModelGeometry) -> list[dict[str, object]]:
    """Layers of equal kind and shape, by first appearance; what lies beside them is counted apart."""
    indices: dict[tuple[str, LayerKV], list[int]] = {}
    for index, layer in enumerate(geometry.layers):
        indices.setdefault((kind_word(layer), evolve(layer, beside=())), []).append(index)
    return [
        {
            "kind": word,
            "layers": len(members),
            "index": members,
            "kv_heads": layer.num_kv_heads,
            "k_dim": layer.k_dim,
            "v_dim": layer.v_dim,
            "window": layer.window,
            "bytes_per_token_bf16": len(members) * layer.bytes_per_token("bf16"),
        }
        for (word, layer), members in indices.items()
    ]


def _indexer(geometry: ModelGeometry) -> dict[str, int] | None:
    """Index keys of sparse attention, which are not in the KV figures."""
    keys = [cache for cache in geometry.caches() if cache.kind == "index"]
    if not keys:
        return None
    return {"layers": len(keys), "bytes_per_token": geometry.token_bytes(frozenset({"index"}), "bf16")}


def _state(geometry: ModelGeometry) -> dict[str, int] | None:
    """Recurrent state of one sequence, in the widths that the config declares and in both usual ones."""
    states = [cache.state for cache in geometry.caches() if cache.state is not None]
    if not states:
        return None
    conv = sum(state.conv_values for state in states)
    recurrent = sum(state.recurrent_values for state in states)
    return {
        "layers": len(states),
        "conv_values_per_layer": states[0].conv_values,
        "recurrent_values_per_layer": states[0].recurrent_values,
        "bytes_per_seq": geometry.state_bytes_per_seq(),
        "bytes_per_seq_conv_bf16_state_fp32": 2 * conv + 4 * recurrent,
        "bytes_per_seq_all_bf16": 2 * conv + 2 * recurrent,
    }


def _rank(
    geometry: ModelGeometry, kv_dtype: KVDtype, tensor_parallel: int, pipeline_parallel: int
) -> dict[str, object]:
    """The same figures on the rank that holds most, in the asked dtype."""
    stage = geometry.heaviest_stage(kv_dtype, tensor_parallel, pipeline_parallel)
    return {
        "kv_dtype": kv_dtype,
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "layers": len(stage.layers),
        "bytes_per_token": stage.bytes_per_token(kv_dtype, tensor_parallel),
        "kv_bytes_per_token": stage.token_bytes(KV_KINDS, kv_dtype, tensor_parallel),
        "unbounded_bytes_per_token": stage.unbounded_bytes_per_token(kv_dtype, tensor_parallel),
        "window_bound_bytes_per_seq": stage.window_bytes_per_seq(kv_dtype, tensor_parallel),
        "cross_bytes_per_source_token": stage.cross_bytes_per_source_token(kv_dtype, tensor_parallel),
        "state_bytes_per_seq": stage.state_bytes_per_seq(tensor_parallel),
        "formula": geometry.formula(kv_dtype, tensor_parallel, pipeline_parallel),
    }
