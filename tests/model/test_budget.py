from fractions import Fraction

import pytest

from kvsim.errors import ModelError
from kvsim.model.budget import (
    FRACTION_RULES,
    GIB,
    BudgetLine,
    device_budget,
    find_gpu,
    given_budget,
    known_gpus,
    parse_parameters,
    read_budget,
    total_memory,
    weight_bytes,
)
from kvsim.model.engines import ENGINES


def budget(engine: str, fraction: str, total: int = 80, weights: int = 16, activations: int = 2, overhead: int = 1):
    return device_budget(
        BudgetLine("total", total * GIB),
        BudgetLine("weights", weights * GIB),
        engine=engine,
        fraction=Fraction(fraction),
        activation_bytes=activations * GIB,
        overhead_bytes=overhead * GIB,
    )


@pytest.mark.parametrize(
    ("engine", "kv_bytes"),
    [
        ("vllm", 72 * GIB - 19 * GIB),
        ("sglang", 79 * GIB * 9 // 10 - 16 * GIB),
        ("tensorrt-llm", 61 * GIB * 9 // 10),
        ("lmdeploy", 61 * GIB * 9 // 10),
    ],
)
def test_same_fraction_means_other_bytes_in_each_engine(engine, kv_bytes):
    assert budget(engine, "0.9").kv_bytes == kv_bytes


def test_requested_share_of_vllm_is_rounded_up():
    got = device_budget(
        BudgetLine("total", 101),
        BudgetLine("weights", 0),
        fraction=Fraction("0.9"),
        activation_bytes=0,
        overhead_bytes=0,
    )
    assert got.kv_bytes == 91


def test_formula_has_its_numbers_in_it():
    assert budget("vllm", "0.9").formula == (
        "80 GiB total x 0.9 gpu_memory_utilization - 16 GiB weights - 2 GiB activations - 1 GiB overhead = 53 GiB"
    )
    assert budget("tensorrt-llm", "0.5").formula == (
        "(80 GiB total - 1 GiB overhead - 16 GiB weights - 2 GiB activations) x 0.5 free_gpu_memory_fraction "
        "= 30.50 GiB"
    )


def test_given_figures_are_no_assumptions():
    assert budget("vllm", "0.9").assumptions == ()
    assert given_budget(GIB).assumptions == ()


def test_each_figure_that_nobody_gave_is_labelled():
    got = device_budget(total_memory(gpu="h100"), BudgetLine("weights", 16 * GIB))
    assert got.assumptions == (
        "total 79.10 GiB: H100 SXM: the product's 80 GB are 81,559 MiB in the driver "
        "and at least 79.1 GiB for programs, by public logs",
        "activations 1 GiB: not given",
        "overhead 1 GiB: not given",
        "gpu_memory_utilization 0.92: the default of vLLM 0.32.0",
    )
    assert got.kv_bytes == 58_810_987_184  # ceil(84,932,978,278 x 0.92) - 18 GiB


def test_engine_that_derives_its_fraction_wants_it():
    with pytest.raises(ModelError, match="mem_fraction_static must be given: SGLang"):
        device_budget(total_memory(total_bytes=80 * GIB), BudgetLine("weights", 0), engine="sglang")


def test_nothing_left_is_refused_with_the_formula():
    with pytest.raises(ModelError, match=r"no memory is left for KV by the rule of vLLM.*= -4 GiB"):
        budget("vllm", "0.9", total=20, weights=19)


@pytest.mark.parametrize("fraction", ["0", "-0.1", "1.01"])
def test_fraction_outside_zero_and_one_is_refused(fraction):
    with pytest.raises(ModelError, match="gpu_memory_utilization must be > 0 and <= 1"):
        budget("vllm", fraction)


def test_every_engine_has_a_rule_for_its_fraction():
    assert set(FRACTION_RULES) == set(ENGINES)
    with pytest.raises(ModelError, match="engine must be one of vllm, "):
        budget("orca", "0.9")


def test_three_sizes_of_a_gpu_are_told_apart():
    for gpu in known_gpus().values():
        assert gpu.total_bytes <= gpu.driver_mib * 2**20, gpu.key
        assert gpu.total_bytes < gpu.product_gb * GIB, gpu.key
        assert gpu.source
    assert find_gpu("A100_80").total_bytes == 84_975_927_951  # 79.14 GiB: neither 80 GB nor 80 GiB
    assert find_gpu("rtx 4090").driver_mib == 24_564
    assert "are taken not to see 1 GiB" in find_gpu("b300").assumption


def test_unknown_gpu_is_answered_with_the_known_ones():
    with pytest.raises(ModelError, match=r"gpu must be one of t4, l4, .*, got 'h1000'"):
        find_gpu("h1000")
    with pytest.raises(ModelError, match="name of a GPU"):
        total_memory()


def test_weights_follow_their_format():
    assert weight_bytes(8_030_000_000, "bf16") == 16_060_000_000
    assert weight_bytes(8_030_000_000, "bf16", num_ranks=4) == 4_015_000_000
    assert weight_bytes(1000, "int4") == 520  # 519.53 rounded up
    assert weight_bytes(1000, "fp8", num_16bit=100) == 1100


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8.03B", 8_030_000_000),
        ("350M", 350_000_000),
        (2_000_000, 2_000_000),
        ("1000000000", 10**9),
        ("1.1t", 11 * 10**11),
    ],
)
def test_number_of_parameters_is_read(text, count):
    assert parse_parameters(text) == count


@pytest.mark.parametrize("text", ["", "b", "8x7B", "-1B", "0", "infB", "nan", True, "8Q"])
def test_nonsense_parameters_are_refused(text):
    with pytest.raises(ModelError, match="parameters must be from 1M to 1000T"):
        parse_parameters(text)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: given_budget(0),
        lambda: given_budget(-1),
        lambda: total_memory(total_bytes=0),
        lambda: weight_bytes(10, "fp7"),
        lambda: weight_bytes(10, "bf16", num_16bit=11),
        lambda: weight_bytes(10, "bf16", num_ranks=0),
        lambda: budget("vllm", "0.9", activations=-1),
    ],
)
def test_other_nonsense_is_refused(refused):
    with pytest.raises(ModelError):
        refused()


def test_budget_is_read_as_users_write_it():
    assert read_budget(budget="30 GiB") == given_budget(30 * GIB)
    got = read_budget(
        gpu="h100", parameters="8B", weight_dtype="fp8", fraction=0.9, activations="2 GiB", overhead="0 B"
    )
    assert got.formula == (
        "79.10 GiB total x 0.9 gpu_memory_utilization - 7.45 GiB weights - 2 GiB activations - 0 B overhead = 61.74 GiB"
    )
    assert [line.assumption for line in got.lines[1:]] == [
        "8,000,000,000 parameters in fp8, split evenly over 1 ranks",
        None,
        None,
    ]
    assert read_budget(memory="80 GiB", weights="16 GiB", engine="lmdeploy").kv_bytes == 62 * GIB * 8 // 10
    assert got.to_json()["kv_bytes"] == got.kv_bytes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({}, "budget, or gpu, or memory"),
        ({"budget": "30 Gib"}, "budget must be a size such as .* units are B, kB"),
        ({"budget": "1 GiB", "gpu": "h100"}, "budget is given, which leaves nothing for gpu to say"),
        ({"gpu": "h100", "memory": "80 GiB", "weights": "1 GiB"}, "not both"),
        ({"gpu": "h100"}, "weights .* or parameters .* must be given"),
        ({"gpu": "h100", "weights": "1 GiB", "parameters": "8B"}, "weights .* or parameters .* must be given"),
        ({"memory": "80 GiB", "weights": "-1"}, "weights must be a size"),
        ({"memory": "80 GiB", "weights": "1 GiB", "fraction": float("nan")}, "must be a number, got nan"),
    ],
)
def test_missing_and_contradicting_words_are_refused(words, message):
    with pytest.raises(ModelError, match=message):
        read_budget(**words)


@pytest.mark.parametrize("option", ["budget", "memory", "weights", "activations", "overhead"])
def test_a_small_number_without_a_unit_is_a_slip(option):
    device = {"memory": "80 GiB", "weights": "16 GiB", "activations": "1 GiB", "overhead": "1 GiB"}
    words = {} if option == "budget" else device
    with pytest.raises(ModelError, match=f"{option} below 1 MiB needs a unit, such as '30 GiB' or '512 B', got '30'"):
        read_budget(**words | {option: "30"})
    assert read_budget(**device | {"overhead": "0", "activations": "512 B"}).kv_bytes > 0
    assert read_budget(budget="1048576").kv_bytes == 2**20
