from fractions import Fraction

import pytest

from kvsim.errors import UnsupportedModelError
from kvsim.model.groups import (
    blocks_per_request,
    bytes_per_block,
    group_layers,
    resolve_block_sizes,
    tensors_of_worker,
    with_equal_pages,
)
from kvsim.model.specs import AttentionSpec, KVCacheSpec
from tests.model.makers import attention, mamba

FULL = attention()
SLIDING = attention("sliding_window", 8)
RATIO = Fraction(3, 2)


def groups_of(*specs: KVCacheSpec, **options: object):
    return group_layers(specs, bucket_ratio=RATIO, **options)


def layers_of(*specs: KVCacheSpec, **options: object) -> list[tuple[int, ...]]:
    return [group.layers for group in groups_of(*specs, **options)]


def test_equal_layers_are_one_group():
    (group,) = groups_of(FULL, FULL, FULL)
    assert (group.layers, group.page_size_bytes, group.bytes_per_block) == ((0, 1, 2), 32, 96)


def test_full_and_latent_layers_share_a_group_whose_page_is_the_sum():
    latent = attention("mla", head_size=5, head_size_v=0)
    (group,) = groups_of(FULL, latent, attention(num_kv_heads=2))
    assert group.page_size_bytes == group.bytes_per_block == 32 + 20 + 64


def test_windows_of_one_size_share_a_group_and_others_do_not():
    assert layers_of(SLIDING, attention("sliding_window", 8, num_kv_heads=2)) == [(0, 1)]
    assert layers_of(SLIDING, attention("sliding_window", 9)) == [(0,), (1,)]


def test_layers_of_a_kind_are_dealt_out_in_turn():
    pattern = [SLIDING, SLIDING, SLIDING, FULL] * 2
    assert layers_of(*pattern) == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_smallest_bucket_gives_the_group_size_unless_the_largest_is_close():
    assert layers_of(*[SLIDING] * 2, *[FULL] * 3) == [(0, 1), (2, 4), (3,)]
    assert layers_of(*[SLIDING] * 3, *[FULL] * 4) == [(0, 1, 2), (3, 4, 5, 6)]


def test_bucket_ratio_belongs_to_the_version():
    specs = [SLIDING] * 3 + [FULL] * 4
    assert len(group_layers(specs, bucket_ratio=Fraction(5, 4))) == 3
    assert len(group_layers(specs, bucket_ratio=Fraction(3, 2))) == 2


def test_missing_layers_of_a_group_are_paid_for():
    groups = groups_of(*[SLIDING] * 4, *[FULL] * 3)
    assert [len(group.layers) for group in groups] == [4, 3]
    assert bytes_per_block(groups) == 4 * 32


def test_smaller_page_that_divides_the_largest_gets_a_longer_block():
    sliding, full = with_equal_pages([SLIDING, attention(head_size=12)])
    assert (sliding.block_size, sliding.page_size_bytes) == (8, 64)
    assert full.block_size == 4


def test_other_pages_are_padded_to_the_largest():
    sliding, state, full = with_equal_pages([attention("sliding_window", 8), mamba(24), attention(head_size=6)])
    assert [spec.page_size_bytes for spec in (sliding, state, full)] == [40, 40, 40]
    assert isinstance(sliding, AttentionSpec)
    assert (sliding.block_size, sliding.unpadded_page_size_bytes) == (4, 32)


def test_latent_page_that_does_not_divide_is_refused():
    with pytest.raises(UnsupportedModelError, match="an MLA page of 20 B does not divide"):
        groups_of(attention("mla", head_size=5, head_size_v=0), SLIDING)


def test_windows_count_as_full_without_the_hybrid_manager():
    (group,) = groups_of(SLIDING, FULL, attention("chunked_local", 8), disable_hybrid_kv_cache_manager=True)
    assert group.is_uniform
    assert group.specs[0].family == ("full", None)


@pytest.mark.parametrize("specs", [(SLIDING, attention("sliding_window", 9)), (FULL, mamba())])
def test_layers_that_cannot_be_one_kind_are_refused_without_the_hybrid_manager(specs):
    with pytest.raises(UnsupportedModelError, match="disable_hybrid_kv_cache_manager"):
        groups_of(*specs, disable_hybrid_kv_cache_manager=True)


def test_unequal_pages_in_a_block_outermost_layout_are_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="BLHNC"):
        groups_of(SLIDING, attention(head_size=6), kv_cache_layout="BLHNC")


def test_no_layers_are_no_groups():
    assert groups_of() == ()


def test_request_needs_the_sum_over_the_groups():
    groups = groups_of(SLIDING, SLIDING, FULL)
    assert [group.max_blocks(40, 5) for group in groups] == [4, 4, 10]
    assert blocks_per_request(groups, 40, 5) == 18
    assert [group.blocks_held(13) for group in groups] == [3, 3, 4]


def test_block_counts_the_layers_of_one_worker():
    groups = groups_of(*[SLIDING, FULL] * 3)
    assert bytes_per_block(groups) == 96
    assert bytes_per_block(groups, frozenset({0, 1})) == 32
    with pytest.raises(UnsupportedModelError, match="each worker must hold a layer"):
        bytes_per_block(groups, frozenset())


def test_block_sizes_are_multiple_and_divisor_of_the_groups():
    groups = groups_of(SLIDING, attention(head_size=12))
    assert resolve_block_sizes(groups, enable_prefix_caching=True) == (8, 4)
    assert resolve_block_sizes(groups, enable_prefix_caching=False) == (8, 8)
    assert resolve_block_sizes(groups_of(FULL), enable_prefix_caching=True) == (4, 4)


def test_states_kept_between_blocks_leave_no_finer_hash():
    running = groups_of(FULL, mamba(32, block_size=12))
    aligned = groups_of(FULL, mamba(32, block_size=12, cache_mode="align"))
    assert resolve_block_sizes(running, enable_prefix_caching=True) == (12, 12)
    assert resolve_block_sizes(aligned, enable_prefix_caching=True) == (12, 4)


def test_tensors_of_several_pages_follow_each_other_in_one_allocation():
    groups = groups_of(FULL, FULL, attention(num_kv_heads=2))
    everything = frozenset(range(3))
    assert tensors_of_worker(groups, everything, 10, "LBNHC") == [
        ((0, 1), 1280, 0, 320, 32),
        ((2,), 1280, 640, 640, 64),
    ]
    assert tensors_of_worker(groups, everything, 10, "BLHNC") == [
        ((0, 1), 1280, 0, 32, 128),
        ((2,), 1280, 64, 64, 128),
    ]


def test_layout_with_heads_outermost_is_refused():
    with pytest.raises(UnsupportedModelError, match="must begin with LB or BL"):
        tensors_of_worker(groups_of(FULL), frozenset({0}), 10, "LHBNC")
