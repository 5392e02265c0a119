import io
from pathlib import Path

from rich.console import Console

from kvsim.model.budget import given_budget, read_budget
from kvsim.model.catalogue import load_geometry
from kvsim.model.mix import mix_of_mean
from kvsim.model.sizing import CLAIM, size
from kvsim.study.sizing_table import sizing_table

GIB = 2**30


def shown(name: str, budget=None, **options: object) -> list[str]:
    given = budget or given_budget(30 * GIB)
    sizing = size(load_geometry(name, Path()), given.kv_bytes, assumptions=given.assumptions, **options)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(sizing_table(sizing, given))
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_both_accountings_stand_side_by_side():
    lines = shown("qwen2.5-32b", max_model_len=8192)
    assert "ideal vLLM 0.32.0" in lines
    assert "whole requests at their largest 15 14" in lines
    assert "longest length 122,880 122,864" in lines
    assert CLAIM in lines


def test_formulas_have_their_numbers_in_them():
    lines = shown("qwen2.5-32b", max_model_len=8192)
    assert "bytes per token = 64 layers x 8 KV heads x (128 K + 128 V) x 2 B = 262,144 B" in lines
    assert "vLLM 0.32.0: blocks = 32,212,254,720 B // 4,194,304 B = 7,680, 1 held back" in lines
    assert "vLLM 0.32.0: concurrency = 7,680 / 512 = 15.00" in lines


def test_refused_length_says_what_it_misses():
    assert "fits misses 2,147,483,648 B misses 2,151,677,952 B" in shown("qwen2.5-32b", max_model_len=131_072)


def test_target_and_mix_appear_when_asked():
    lines = shown("qwen2.5-32b", max_model_len=8192, target_concurrency=15, mix=mix_of_mean(1000))
    # To the byte: the engine's 7,680 blocks and the null block.
    assert "Budget for 15 requests at once" in lines
    assert f"of max_model_len {30 * 2**30:,} B {7_681 * 4 * 2**20:,} B" in lines
    assert "Mix: every request at the mean of 1,000 tokens (assumed)" in lines
    assert not any(line.startswith("Mix") for line in shown("qwen2.5-32b"))


def test_every_assumption_is_named():
    lines = shown("llama-3.1-8b", read_budget(gpu="h100", weights="16 GiB"))
    assert "Assumed: 1 GiB of activations, none being given" in lines


def test_layout_that_is_not_described_leaves_one_column_and_the_reason():
    lines = shown("deepseek-v4-flash")
    assert "ideal" in lines
    assert "vLLM 0.32.0: how an engine packs compressed caches beside others is not described" in lines


def test_sequences_say_what_they_leave_empty_and_where_they_stop_fitting():
    lines = shown("qwen2.5-32b", num_tokens=8193, num_sequences=2)
    for line in (
        "slots empty in a last block 0 15",
        "of all memory 13.33% 13.36%",
        "all fit, once computed yes yes",
        "most that fit during prefill 14 14",
        "longest that fit during prefill 61,440 61,424",
    ):
        assert line in lines
