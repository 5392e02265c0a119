"""Which tokens a layer still reads: all, the last `window`, or those of the current chunk of `window`.

    full             0 ... now
    sliding_window       |<-- window -->| now
    chunked_local            | chunk start ... now ...| chunk end

Rules named "sizing" are those of `golden/vllm_sizing/README.md`, the others of `golden/vllm_scheduler/README.md`.
"""

from math import gcd
from typing import Literal

from attrs import field, frozen, validators

AttentionReach = Literal["full", "sliding_window", "chunked_local"]


@frozen
class Attention:
    """What the attention of a group of layers reaches back to, in tokens."""

    kind: AttentionReach = "full"
    window: int | None = field(default=None, validator=validators.optional(validators.ge(1)))

    def __attrs_post_init__(self) -> None:
        assert (self.window is None) == (self.kind == "full"), "all but full attention has a window"

    def first_needed_token(self, num_tokens: int) -> int:
        """Index of the first token that the last of `num_tokens` tokens attends to.

        Before token number c + 1 is computed, what lies below `first_needed_token(c + 1)` can go (rule 27).
        """
        if self.window is None or num_tokens == 0:
            return 0
        if self.kind == "chunked_local":
            return (num_tokens - 1) // self.window * self.window
        return max(0, num_tokens - self.window)

    def blocks_held(self, num_tokens: int, block_size: int) -> int:
        """Blocks of one request just after its token number `num_tokens` was written by itself.

        0        dropped    first needed                num_tokens    block end
        |........|..........|---------------------------|.............|
                 blocks held: whole ones that reach past the first needed token
        """
        return -(-num_tokens // block_size) - self.first_needed_token(num_tokens) // block_size

    def max_blocks(self, num_tokens: int, max_in_flight_tokens: int, block_size: int) -> int:
        """Blocks that a request of `num_tokens` tokens can hold at any moment (rule 28, sizing rule 10)."""
        if self.window is None:
            return -(-num_tokens // block_size)
        if self.kind == "chunked_local":
            return -(-min(self.window + max_in_flight_tokens, num_tokens) // block_size)
        # The window may start in the middle of a block, hence one more.
        return -(-min(self.window - 1 + max_in_flight_tokens, num_tokens) // block_size) + 1

    def max_blocks_in_decode(self, num_tokens: int, block_size: int) -> int:
        """The most blocks that are held on the way to `num_tokens` tokens, one token at a time."""
        blocks = -(-num_tokens // block_size)
        if self.window is None:
            return blocks
        # A window may start at any token of a block, a chunk at multiples of what chunk and block share.
        step = gcd(self.window, block_size) if self.kind == "chunked_local" else 1
        return min(blocks, -(-(self.window + block_size - step) // block_size))
