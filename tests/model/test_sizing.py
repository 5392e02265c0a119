"""What people ask of a calculator, and the arithmetic that is quoted everywhere, to the byte."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.errors import ModelError, UnsupportedModelError
from kvsim.model.catalogue import catalogue, load_geometry
from kvsim.model.deployment import Deployment
from kvsim.model.geometry import LayerKV, ModelGeometry, uniform_geometry
from kvsim.model.mix import mix_of_lengths
from kvsim.model.sizing import size

GIB = 2**30
GB = 10**9
TINY = uniform_geometry(2, 1, 4, "tiny")
"""32 B a token in bf16, 512 B a block of 16."""


def model(name: str) -> ModelGeometry:
    return load_geometry(name, Path())


def test_llama_8b_takes_one_gib_for_8192_tokens_in_fp16():
    got = size(model("llama-3.1-8b"), 16 * GIB, max_model_len=8192, num_sequences=16)
    assert got.engine is not None
    for accounting in (got.ideal, got.engine):
        assert accounting.bytes_per_request == GIB
        assert accounting.raw_bytes == accounting.allocated_bytes == 16 * GIB


def test_with_32_kv_heads_it_would_take_four():
    assert size(uniform_geometry(32, 32, 128), GIB, max_model_len=8192).ideal.bytes_per_request == 4 * GIB


def test_fifteen_requests_are_fourteen_beside_the_null_block_and_thirteen_in_decimal_units():
    in_gib = size(model("qwen2.5-32b"), 30 * GIB, max_model_len=8192)
    in_gb = size(model("qwen2.5-32b"), 30 * GB, max_model_len=8192)
    assert in_gib.ideal.bytes_per_request == 2 * GIB
    assert (in_gib.ideal.max_concurrency, in_gib.ideal.whole_requests) == (15.0, 15)
    assert in_gib.engine is not None
    assert in_gb.engine is not None
    assert (in_gib.engine.max_concurrency, in_gib.engine.whole_requests) == (15.0, 14)
    assert (in_gib.engine.num_blocks, in_gib.engine.capacity_tokens) == (7680, 122_880)
    assert (in_gb.ideal.whole_requests, in_gb.engine.whole_requests) == (13, 13)


@pytest.mark.parametrize(("kv_dtype", "num_bytes"), [("fp16", 4 * GIB), ("fp8", 2 * GIB), ("int4", GIB)])
def test_mixtral_at_32768_tokens(kv_dtype, num_bytes):
    got = size(model("mixtral-8x7b"), 64 * GIB, Deployment(kv_dtype=kv_dtype), max_model_len=32_768)
    assert got.ideal.bytes_per_request == num_bytes


def test_bytes_per_token_that_are_often_quoted():
    def bytes_per_token(name: str) -> int:
        return size(model(name), GIB, max_model_len=2048).ideal.bytes_per_token

    assert bytes_per_token("qwen2.5-7b") == 57_344
    assert bytes_per_token("opt-13b") == 819_200
    by_hidden_over_heads = uniform_geometry(28, 8, 1024 // 16)
    assert bytes_per_token("qwen3-0.6b") == 2 * by_hidden_over_heads.bytes_per_token("bf16") == 114_688


def test_refused_length_names_the_bytes_it_misses():
    got = size(TINY, 10 * 512, max_model_len=160)
    assert got.engine is not None
    assert (got.ideal.fits, got.ideal.missing_bytes) == (True, 0)
    assert (got.engine.fits, got.engine.missing_bytes) == (
        False,
        512,
    )  # 10 blocks + the null block - 10 blocks
    assert (got.engine.longest_model_len, got.ideal.longest_model_len) == (144, 160)
    assert (got.engine.whole_requests, got.engine.max_concurrency) == (0, 1.0)


def test_slack_is_what_the_last_block_leaves_empty():
    got = size(TINY, 10_000, max_model_len=100, num_sequences=3, num_tokens=33)
    assert got.engine is not None
    assert (got.engine.raw_bytes, got.engine.allocated_bytes) == (3 * 33 * 32, 3 * 3 * 512)
    assert got.engine.slack_bytes == 3 * 15 * 32
    assert (got.ideal.raw_bytes, got.ideal.slack_bytes) == (3 * 33 * 32, 0)


def test_padding_layers_of_a_hybrid_are_slack():
    got = size(model("gemma-3-27b"), 40 * GIB, max_model_len=8192, num_tokens=512)
    assert got.engine is not None
    assert got.engine.bytes_per_token == 70 * 8192  # 62 layers and 8 of padding
    assert got.engine.slack_bytes == 512 * 8 * 8192
    assert (got.engine.bytes_per_block, got.engine.formulas[0]) == (
        1_310_720,
        "block = 10 layers x 131,072 B = 1,310,720 B",
    )


def test_windows_and_states_stop_growing():
    gemma = size(model("gemma-3-1b"), GIB).ideal
    assert (gemma.bytes_per_token, gemma.growth_bytes_per_token) == (26_624, 4096)
    mamba = size(model("rwkv-5-world-3b"), GIB).ideal
    assert (mamba.bytes_per_token, mamba.fixed_bytes_per_request) == (0, 10_813_440)
    assert mamba.longest_model_len is None


def test_ideal_and_engine_agree_on_what_tokens_need():
    for name in catalogue():
        got = size(model(name), 80 * GIB, Deployment(source_tokens=1500), max_model_len=5000, num_tokens=3001)
        if got.engine is None:
            assert "compressed caches" in str(got.engine_refusal)
            continue
        assert got.engine.raw_bytes == got.ideal.raw_bytes == got.ideal.allocated_bytes
        assert got.engine.slack_bytes >= 0
        assert got.engine.bytes_per_token >= got.ideal.bytes_per_token
        assert got.engine.whole_requests <= got.ideal.whole_requests


def test_layout_that_is_not_described_leaves_the_ideal():
    got = size(model("deepseek-v4-flash"), 80 * GIB)
    assert got.engine is None
    assert "compressed caches" in str(got.engine_refusal)
    assert got.ideal.growth_bytes_per_token == 5536 + 693


def test_poorest_rank_decides():
    served = Deployment(pipeline_parallel=2)
    got = size(uniform_geometry(3, 1, 4), [640, 400], served, max_model_len=16)
    assert got.engine is not None
    assert (got.ideal.memory_bytes, got.ideal.max_concurrency) == (640, 640 / 512)
    assert (got.engine.memory_bytes, got.engine.num_blocks, got.engine.bytes_per_block) == (640, 1, 512)
    assert got.engine.formulas[0] == "block = 2 layers x 256 B = 512 B"
    with pytest.raises(ModelError, match="> 0 bytes on each rank"):
        size(TINY, 0, max_model_len=16)


def test_budget_for_a_target_includes_the_null_block():
    got = size(TINY, 10_000, max_model_len=100, target_concurrency=5)
    assert got.engine is not None
    assert got.ideal.target_budget_bytes == 5 * 100 * 32
    assert got.engine.target_budget_bytes == (5 * 7 + 1) * 512
    with_it = size(TINY, got.engine.target_budget_bytes, max_model_len=100)
    assert with_it.engine is not None
    assert with_it.engine.whole_requests == 5


def test_worst_case_stands_beside_the_mix():
    mix = mix_of_lengths([10, 20, 1000])
    got = size(TINY, 20_992, max_model_len=100, num_sequences=4, target_concurrency=3, mix=mix)
    assert got.engine is not None
    assert got.engine.mix is not None
    assert got.engine.provisioned_bytes == 4 * 7 * 512
    assert got.engine.mix.mean_bytes_per_request == -(-(1 + 2 + 7) * 512 // 3)  # 1,000 tokens end at 100
    assert got.engine.mix.mix_bytes == -(-4 * 10 * 512 // 3)
    assert got.engine.mix.concurrency == 40 / (10 / 3)
    assert got.engine.mix.target_budget_bytes == 11 * 512
    assert got.ideal.mix is not None
    assert got.ideal.mix.mean_bytes_per_request == -(-130 * 32 // 3)


def test_the_first_experiment():
    """Twice the context and eight times the sequences are as many times the bytes; a length may miss its block."""

    def bytes_of(num_tokens: int, num_sequences: int = 1, block_size: int = 16):
        served = Deployment(block_size=block_size)
        got = size(model("llama-3.1-8b"), 16 * GIB, served, num_tokens=num_tokens, num_sequences=num_sequences)
        assert got.engine is not None
        return got.engine

    assert [bytes_of(tokens).raw_bytes for tokens in (8192, 16_384)] == [GIB, 2 * GIB]
    assert bytes_of(8192, 8).raw_bytes == 8 * GIB
    assert bytes_of(8192).tail_slots == (0,)
    assert (bytes_of(8193).tail_slots, bytes_of(8193).slack_bytes) == ((15,), 15 * 131_072)
    assert (bytes_of(8193, 8, 256).tail_slots, bytes_of(8193, 8, 256).slack_bytes) == ((255,), 8 * 255 * 131_072)
    assert bytes_of(8192, 8).used_share == 0.5


def test_where_sequences_stop_fitting():
    """One block of 8,192 is held back: 15 of 8,192 tokens fit, and 16 of 8,176."""
    got = size(model("llama-3.1-8b"), 16 * GIB, num_tokens=8192, num_sequences=16)
    assert (got.ideal.most_sequences, got.ideal.longest_of_sequences, got.ideal.sequences_fit) == (16, 8192, True)
    assert got.engine is not None
    assert (got.engine.most_sequences, got.engine.longest_of_sequences, got.engine.sequences_fit) == (15, 8176, False)
    for num_tokens, fits in ((8176, True), (8177, False)):
        asked = size(model("llama-3.1-8b"), 16 * GIB, num_tokens=num_tokens, num_sequences=16)
        assert asked.engine is not None
        assert asked.engine.sequences_fit == fits


def test_empty_slots_are_of_blocks_that_tokens_fill():
    states_beside = size(model("jamba-v0.1"), 16 * GIB, num_tokens=1000)
    assert states_beside.engine is not None
    assert len(states_beside.engine.tokens_per_block) == 2
    assert states_beside.engine.tail_slots == (-1000 % states_beside.engine.tokens_per_block[0],)
    states_alone = size(model("rwkv-5-world-3b"), 16 * GIB, max_model_len=1000)
    assert states_alone.engine is not None
    assert (states_alone.engine.tail_slots, states_alone.engine.longest_of_sequences) == ((), None)


def test_every_answer_is_plain_json_and_has_the_promised_keys():
    got = json.loads(json.dumps(size(TINY, 10_000, max_model_len=100).to_json()))
    promised = {
        "bytes_per_token",
        "bytes_per_block",
        "num_blocks",
        "capacity_tokens",
        "max_concurrency",
        "whole_requests",
        "longest_model_len",
        "raw_bytes",
        "allocated_bytes",
        "slack_bytes",
        "tail_slots",
        "used_share",
        "most_sequences",
        "longest_of_sequences",
    }
    assert promised <= set(got["ideal"])
    assert promised <= set(got["engine"])
    assert got["formula"] == "2 layers x 1 KV head x (4 K + 4 V) x 2 B = 32 B"


def test_answers_come_without_what_only_simulations_need():
    code = (
        "import sys, kvsim.model.sizing, kvsim.model.scaling, kvsim.model.budget, kvsim.model.catalogue\n"
        "heavy = {'numpy', 'polars', 'matplotlib', 'simpy', 'rich', 'typer', 'cattrs'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_length_comes_from_the_model_unless_given():
    assert size(model("llama-3.1-8b"), GIB).max_model_len == 131_072
    with pytest.raises(ModelError, match="max_model_len must be given: tiny names no"):
        size(TINY, GIB)


def test_length_that_nobody_names_is_the_one_asked_about_and_an_assumption():
    got = size(TINY, GIB, num_tokens=70)
    assert got.max_model_len == 70
    assert got.assumptions == ("longest request 70 tokens, those asked about: tiny names no maximum length",)
    with pytest.raises(ModelError, match="num_tokens must be between 1"):
        size(TINY, GIB, num_tokens=0)


def test_padding_is_the_slack_of_smaller_groups():
    """gemma-3-27b: 52 windowed layers make 6 groups for blocks of 10 layers, so 8 pages stay empty."""
    got = size(model("gemma-3-27b"), GIB, num_tokens=8192, num_sequences=15).engine
    assert got is not None
    assert (got.tail_slots, got.padding_bytes) == ((0,), got.slack_bytes)
    uneven = size(model("gemma-3-27b"), GIB, num_tokens=8193).engine
    assert uneven is not None
    assert 0 < uneven.padding_bytes < uneven.slack_bytes
    alike = size(model("llama-3.1-8b"), GIB, num_tokens=8193).engine
    assert alike is not None
    assert (alike.padding_bytes, alike.peak_bytes) == (0, alike.allocated_bytes)
    states = size(model("jamba-v0.1"), GIB, num_tokens=1000).engine
    assert states is not None
    assert states.padding_bytes == 448 * 2**10


def test_what_sequences_hold_at_most_is_what_their_number_is_asked_by():
    of = size(model("gemma-3-27b"), 16 * GIB, num_tokens=8192, num_sequences=15).engine
    assert of is not None
    assert of.sequences_fit == (of.allocated_bytes <= of.memory_bytes)
    assert of.peak_bytes > of.memory_bytes > of.most_sequences * of.peak_bytes // 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_model_len": 0}, "max_model_len must be between 1 and 1,000,000,000,000, got 0"),
        ({"num_sequences": -1}, "num_sequences must be between 1 and 1,000,000,000,000, got -1"),
        ({"num_tokens": 0}, "num_tokens must be between 1 and 1,000,000,000,000, got 0"),
        ({"num_tokens": 101}, "num_tokens must not exceed max_model_len, got 101 for 100"),
        ({"target_concurrency": 0}, "target_concurrency must be between 1 and 1,000,000,000,000, got 0"),
    ],
)
def test_nonsense_questions_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        size(TINY, GIB, **({"max_model_len": 100} | options))


def test_model_that_keeps_nothing_has_nothing_to_size():
    with pytest.raises(UnsupportedModelError, match="nothing to size"):
        size(ModelGeometry("encoder", (LayerKV("none"),)), GIB, max_model_len=10)
