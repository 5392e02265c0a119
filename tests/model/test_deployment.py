from pathlib import Path

import pytest

from kvsim.errors import ModelError, UnsupportedModelError
from kvsim.model.catalogue import load_geometry
from kvsim.model.deployment import Deployment, place_caches
from kvsim.model.geometry import LayerKV, ModelGeometry, RecurrentState, uniform_geometry
from kvsim.model.sizing import size
from kvsim.model.specs import AttentionSpec, MambaSpec


def specs_of(geometry: ModelGeometry, **options: object):
    return place_caches(geometry, Deployment(**options), 1000).specs


def test_heads_are_split_over_ranks_and_repeated_beyond_them():
    model = uniform_geometry(2, 8, 128)
    assert [spec.num_kv_heads for spec in specs_of(model, tensor_parallel=4)] == [2, 2]
    assert [spec.num_kv_heads for spec in specs_of(model, tensor_parallel=16)] == [1, 1]
    with pytest.raises(ModelError, match="tensor_parallel"):
        specs_of(model, tensor_parallel=3)


def test_latent_vector_is_whole_on_every_rank():
    model = load_geometry("deepseek-v3", Path())
    (spec,) = set(specs_of(model, tensor_parallel=16))
    assert (spec.kind, spec.entry_bytes, spec.page_size_bytes) == ("mla", 1152, 18_432)


def test_pipeline_stages_hold_their_own_caches():
    placed = place_caches(uniform_geometry(33, 8, 128), Deployment(pipeline_parallel=2, tensor_parallel=2), 1000)
    first, second = frozenset(range(17)), frozenset(range(17, 33))
    assert placed.caches_of_ranks == (first, first, second, second)
    assert [worker.available_memory for worker in placed.workers([5])] == [5, 5, 5, 5]
    assert [worker.available_memory for worker in placed.workers([1, 2, 3, 4])] == [1, 2, 3, 4]
    with pytest.raises(ModelError, match="one for each of 4 ranks, got 2"):
        placed.workers([1, 2])


def test_attention_block_grows_to_the_recurrent_state():
    specs = specs_of(load_geometry("qwen3-next-80b-a3b", Path()))
    state, full = specs[0], specs[3]
    assert isinstance(state, MambaSpec)
    assert isinstance(full, AttentionSpec)
    assert (state.unpadded_page_size_bytes, full.block_size) == (1_097_728, 544)
    assert state.page_size_bytes == full.page_size_bytes == 1_114_112
    assert specs_of(load_geometry("qwen3-next-80b-a3b", Path()), recurrent_value_bytes=4)[3].block_size == 1056


def test_aligned_states_take_the_block_of_attention():
    model = load_geometry("bamba-9b", Path())
    state = specs_of(model, mamba_cache_mode="align")[0]
    assert (state.block_size, state.max_blocks(5000, 0)) == (528, 2)
    assert specs_of(model)[0].block_size == 1000


def test_caches_beside_a_layer_count_and_shared_ones_do_not():
    state = RecurrentState("mamba", num_heads=1, recurrent_values=100)
    both = LayerKV("full", 1, 4, 4, beside=(LayerKV("recurrent", state=state),))
    specs = specs_of(ModelGeometry("both", (both, LayerKV("shared"), LayerKV("none"))))
    assert [type(spec) for spec in specs] == [AttentionSpec, MambaSpec]


def test_cross_attention_wants_its_source_tokens():
    model = load_geometry("whisper-large-v3", Path())
    with pytest.raises(ModelError, match="source_tokens must be given"):
        specs_of(model)
    cross = next(spec for spec in specs_of(model, source_tokens=1500) if spec.kind == "cross")
    assert (cross.max_blocks(448, 8192), cross.bytes_needed(10)) == (94, 1500 * cross.entry_bytes)


def test_tokens_in_flight_are_an_assumption_where_windows_hold_them():
    windowed, full = load_geometry("gemma-3-1b", Path()), load_geometry("llama-3.1-8b", Path())
    assert "max_num_batched_tokens 8,192: not given" in Deployment().assumptions(windowed)[0]
    assert Deployment().assumptions(full) == ()
    assert Deployment(max_num_batched_tokens=2048).assumptions(windowed) == ()


def test_unknown_words_are_refused():
    with pytest.raises(ModelError, match=r"kv_dtype must be one of bf16, .*, got 'fp7'"):
        Deployment(kv_dtype="fp7")
    with pytest.raises(ModelError, match="mamba_cache_mode must be one of none, align, all, got 'some'"):
        Deployment(mamba_cache_mode="some")
    with pytest.raises(UnsupportedModelError, match="engine must be one of"):
        specs_of(uniform_geometry(1, 1, 8), engine="orca")


@pytest.mark.parametrize("option", ["block_size", "tensor_parallel", "pipeline_parallel", "max_num_batched_tokens"])
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_below_one_are_refused(option, value):
    with pytest.raises(ModelError, match=f"{option} must be between 1 and 1,000,000,000, got {value}"):
        Deployment(**{option: value})


def test_tokens_of_a_latent_cache_are_dealt_out_over_ranks() -> None:
    """DeepSeek-V3 at tp 8: every rank holds the one latent vector, or an eighth of the tokens' vectors."""
    geometry = load_geometry("deepseek-v3", Path())
    copied = size(geometry, 20 * 2**30, Deployment(tensor_parallel=8), max_model_len=131_072)
    dealt = size(geometry, 20 * 2**30, Deployment(tensor_parallel=8, decode_context_parallel=8), max_model_len=131_072)
    assert copied.engine is not None
    assert dealt.engine is not None
    for accounting in (copied.ideal, copied.engine):
        assert accounting.bytes_per_token == 70_272
    for accounting in (dealt.ideal, dealt.engine):
        assert accounting.bytes_per_token == 8_784
    # A block keeps its 16 vectors on each rank, and stands for 128 tokens of the sequence.
    assert dealt.engine.bytes_per_block == copied.engine.bytes_per_block == 16 * 70_272
    assert dealt.engine.raw_bytes * 8 == copied.engine.raw_bytes == 131_072 * 70_272
    assert (copied.engine.whole_requests, dealt.engine.whole_requests) == (2, 18)


def test_tokens_cannot_be_dealt_out_over_ranks_with_other_heads() -> None:
    with pytest.raises(ModelError, match="decode_context_parallel must divide the 2 ranks that hold the same KV heads"):
        size(
            load_geometry("llama-3.1-8b", Path()),
            2**30,
            Deployment(tensor_parallel=16, decode_context_parallel=4),
        )
