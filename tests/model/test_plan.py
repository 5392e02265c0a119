import pytest

from kvsim.errors import UnsupportedModelError
from kvsim.model.engines import ENGINES, engine_rules
from kvsim.model.plan import CacheOptions, StartRefusedError, Worker, plan_cache
from tests.model.makers import attention, mamba

FULL = attention()
SLIDING = attention("sliding_window", 8)
BLOCK = 2 * 32
TWO_LAYERS = frozenset({0, 1})


def plan(memory: int, specs=(FULL, FULL), engine: str = "vllm", **options):
    given = {"max_model_len": 40, "max_num_batched_tokens": 5} | options
    return plan_cache(specs, [Worker(memory, frozenset(range(len(specs))))], CacheOptions(**given), ENGINES[engine])


def test_blocks_are_what_memory_holds_the_null_block_included():
    got = plan(21 * BLOCK + BLOCK - 1)
    assert (got.num_blocks, got.kv_cache_size_tokens, got.max_concurrency) == (21, 84, 2.1)
    assert got.log_line == ("KV cache size: 84 tokens, Maximum concurrency for 40 tokens per request: 2.10x")


def test_request_must_fit_beside_the_null_block():
    assert plan(11 * BLOCK).num_blocks == 11
    with pytest.raises(StartRefusedError, match="1 B are missing, the longest that fits is 36") as refusal:
        plan(11 * BLOCK - 1)
    assert refusal.value.estimated_max_model_len == 36


def test_older_versions_checked_without_the_null_block():
    assert plan(10 * BLOCK, engine="vllm-0.19").num_blocks == 10


@pytest.mark.parametrize("memory", [0, -1, BLOCK])
def test_memory_for_less_than_a_request_of_one_token_fits_no_length(memory):
    with pytest.raises(StartRefusedError) as refusal:
        plan(memory)
    assert refusal.value.estimated_max_model_len == 0


def test_length_is_lowered_to_what_fits_if_asked():
    got = plan(8 * BLOCK, auto_fit_max_model_len=True)
    assert (got.max_model_len, got.num_blocks) == (28, 8)
    assert got.max_concurrency == 8 / 7
    assert plan(80 * BLOCK, auto_fit_max_model_len=True).max_model_len == 40
    with pytest.raises(StartRefusedError):
        plan(BLOCK, auto_fit_max_model_len=True)


def test_override_replaces_the_blocks_and_the_check_follows_it():
    assert plan(1000 * BLOCK, num_gpu_blocks_override=11).num_blocks == 11
    with pytest.raises(StartRefusedError, match="64 B are missing"):
        plan(1000 * BLOCK, num_gpu_blocks_override=10)


def test_worker_with_fewest_blocks_decides():
    workers = [Worker(30 * 64, frozenset({0, 1})), Worker(25 * 32, frozenset({2}))]
    got = plan_cache([FULL] * 3, workers, CacheOptions(40, 5))
    assert got.num_blocks == 25
    assert [tensor.size for worker in workers for tensor in got.tensors(worker)] == [25 * 64, 25 * 32]


def test_async_scheduling_doubles_what_windows_hold():
    specs = (SLIDING, FULL)
    assert plan(2000, specs).blocks_per_request == 4 + 10
    assert plan(2000, specs, async_scheduling=True).blocks_per_request == 6 + 10


def test_older_print_divides_the_blocks_by_the_groups():
    got = plan(2000, (SLIDING, FULL), engine="vllm-0.19")
    assert (got.num_blocks, got.kv_cache_size_tokens) == (62, 31 * 4)
    assert got.max_concurrency == 62 / 14
    assert plan(21 * BLOCK, max_model_len=39, engine="vllm-0.19").max_concurrency == 84 / 39


def test_model_without_a_cache_gets_one_block_and_no_group():
    got = plan(0, ())
    assert (got.num_blocks, got.groups, got.tensors(Worker(0, frozenset()))) == (1, (), [])


def test_first_engine_kept_windows_whole():
    got = plan(2000, (SLIDING, FULL), engine="vllm-v0")
    assert [group.layers for group in got.groups] == [(0, 1)]


def test_other_engines_refuse_what_is_not_described_of_them():
    assert plan(2000, engine="sglang").num_blocks == 2000 // BLOCK
    with pytest.raises(UnsupportedModelError, match="how SGLang"):
        plan(2000, (FULL, mamba()), engine="sglang")
    with pytest.raises(UnsupportedModelError, match="engine must be one of vllm, "):
        engine_rules("orca")


def test_lengths_below_one_are_refused():
    with pytest.raises(ValueError, match="max_model_len"):
        CacheOptions(0)


def test_older_versions_print_tokens_over_length_for_full_attention_alone():
    """20 blocks of 4 tokens: 80 / 38 where every token is kept, blocks over need where a window drops some."""
    assert plan(20 * BLOCK, engine="vllm-0.19", max_model_len=38).max_concurrency == 80 / 38
    windowed = plan(20 * BLOCK, (SLIDING, SLIDING), engine="vllm-0.19", max_model_len=38)
    # ceil(min(8 - 1 + 5, 38) / 4) + 1 = 4 blocks a request.
    assert (windowed.kv_cache_size_tokens, windowed.max_concurrency) == (80, 20 / 4)
