"""The host's memory for blocks of requests that were swapped out, as vLLM V0 had it (vLLM V1 only recomputes).

Nothing is shared and nothing is found there, so blocks need no ids: what counts is how many, and whose.

    moved out = moved in + dropped + still held
"""

from typing import NamedTuple

from kvsim.invariants import hold


class SwappedOut(NamedTuple):
    """What of one request is on the host: its first `num_tokens` tokens.

    Of each group of layers the blocks before `first_blocks` are not there, as a window has passed them.
    """

    num_tokens: int
    first_blocks: tuple[int, ...]
    num_blocks: int


class HostPool:
    """`num_blocks` blocks of the size of those on the device."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 0, "a pool of no blocks is full from the start"
        self.num_blocks = num_blocks
        self.num_used = 0
        self.moved_out = 0
        self.moved_in = 0
        self.dropped = 0
        self._held: dict[int, SwappedOut] = {}

    def get(self, id: int) -> SwappedOut | None:
        """What is held of a request; None if it was not swapped out."""
        return self._held.get(id)

    def held_tokens(self) -> dict[int, int]:
        """Tokens of each request that was swapped out."""
        return {id: held.num_tokens for id, held in self._held.items()}

    def put(self, id: int, swapped: SwappedOut) -> bool:
        """Take in the blocks of a request; False, and nothing has changed, where there is no room for all of them."""
        assert id not in self._held, "a request is swapped out once at a time"
        if self.num_used + swapped.num_blocks > self.num_blocks:
            return False
        self._held[id] = swapped
        self.num_used += swapped.num_blocks
        self.moved_out += swapped.num_blocks
        return True

    def give_back(self, id: int, num_moved: int) -> int:
        """A request leaves the host and `num_moved` of its blocks go to the device; how many are dropped unmoved."""
        num_blocks = self._held.pop(id).num_blocks
        assert 0 <= num_moved <= num_blocks, "no more comes back than there is"
        self.num_used -= num_blocks
        self.moved_in += num_moved
        self.dropped += num_blocks - num_moved
        return num_blocks - num_moved

    def check(self) -> None:
        """Recount invariant 19."""
        used = sum(held.num_blocks for held in self._held.values())
        hold(22, used == self.num_used, f"{used} blocks are on the host, counted {self.num_used}")
        hold(22, used <= self.num_blocks, f"{used} blocks are on the host, which has room for {self.num_blocks}")
        accounted = self.moved_in + self.dropped + used
        hold(22, self.moved_out == accounted, f"{self.moved_out} blocks went out, {accounted} are accounted for")
