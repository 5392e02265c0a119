"""Groups of layers that share one block table a request, and what of a prefix each kind can find in the cache.

All groups of a model draw blocks from one pool (rule 26). Rule numbers are those of
tests/golden/vllm_scheduler/README.md.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attrs import field, frozen

from kvsim.model.attention import Attention


@frozen
class LayerGroup:
    """Layers whose blocks are counted together; `token_bytes` is what one token takes in all of them on a rank."""

    attention: Attention = field(factory=Attention)
    token_bytes: int = 1


class HitRun(NamedTuple):
    """Blocks `first ... end - 1` of a request were found; those before are not needed."""

    first: int
    end: int


IsCached = Callable[[int], bool]
"""Whether the block of this index is in the cache, for all groups of one kind together."""


def _full_hit(_attention: Attention, num_tokens: int, block_size: int, is_cached: IsCached) -> HitRun:
    """From block 0 to the first that is missing (rule 17)."""
    end = 0
    while end < num_tokens // block_size and is_cached(end):
        end += 1
    return HitRun(0, end)


def _sliding_window_hit(attention: Attention, num_tokens: int, block_size: int, is_cached: IsCached) -> HitRun:
    """The rightmost run that fills a window, else the run that starts at block 0 (rule 29)."""
    needed = blocks_of_window(attention, block_size)
    length = 0
    for index in range(num_tokens // block_size - 1, -1, -1):
        if not is_cached(index):
            length = 0
            continue
        length += 1
        if length >= needed:
            return HitRun(index, index + length)
    return HitRun(0, length)


def _chunked_local_hit(attention: Attention, num_tokens: int, block_size: int, is_cached: IsCached) -> HitRun:
    """Blocks before the current chunk count as hit without being there, then those that are."""
    first = attention.first_needed_token(num_tokens + 1) // block_size
    end = first
    while end < num_tokens // block_size and is_cached(end):
        end += 1
    return HitRun(first, end)


_LONGEST_HIT: dict[str, Callable[[Attention, int, int, IsCached], HitRun]] = {
    "full": _full_hit,
    "sliding_window": _sliding_window_hit,
    "chunked_local": _chunked_local_hit,
}


def blocks_of_window(attention: Attention, block_size: int) -> int:
    """Blocks in a row that hold all that the next token of a sliding window reads (rule 29)."""
    assert attention.window is not None, "only windows have so many"
    return -(-(attention.window - 1) // block_size)


class CommonHit(NamedTuple):
    """`num_tokens` tokens are hit by all kinds; `runs` says where in each; `longest` is the most that one kind had."""

    num_tokens: int
    runs: dict[Attention, HitRun]
    longest: int


def longest_common_hit(
    kinds: Sequence[Attention], num_tokens: int, block_size: int, is_cached: Callable[[Attention, int], bool]
) -> CommonHit:
    """The longest prefix of `num_tokens` tokens that every kind of attention can go on from (rule 30).

    Full attention comes first in `kinds`, and its hit limits the others; where one finds less, all look again
    below that, until they agree.
    """
    runs: dict[Attention, HitRun] = {}
    agreed, longest = num_tokens, 0
    while True:
        length = agreed
        for attention in kinds:
            if attention.kind == "full" and attention in runs:
                length = min(length, runs[attention].end * block_size)
                continue

            def cached(index: int, attention: Attention = attention) -> bool:
                return is_cached(attention, index)

            runs[attention] = _LONGEST_HIT[attention.kind](attention, length, block_size, cached)
            length = runs[attention].end * block_size
            longest = max(longest, length)
        if length >= agreed or len(kinds) == 1:
            break
        agreed = length
        if len(kinds) == 2 and kinds[0].kind == "full":
            break
    return CommonHit(length, runs, longest)
