"""All that a scheduler may ask of memory, whoever manages it."""

from typing import NamedTuple, Protocol

from kvsim.workload.request import Request


class Hit(NamedTuple):
    """What the prefix cache holds of a request: its first `num_tokens` tokens, in `blocks`."""

    num_tokens: int
    blocks: list[int]


NO_HIT = Hit(0, [])


class Occupancy(NamedTuple):
    """Levels at one instant. Blocks are usable ones: the null block is in none of these.

    `live_tokens` counts written slots of allocated blocks, each physical slot once; `logical_tokens` counts
    computed tokens of the requests that hold memory, as if nothing were shared.
    """

    allocated_blocks: int
    cached_blocks: int
    blank_blocks: int
    live_tokens: int
    logical_tokens: int


class Allocator(Protocol):
    """Questions change nothing; a refused action changes nothing and returns False."""

    def fits_empty_pool(self, num_tokens: int) -> bool:
        """Whether a request alone in the engine could ever hold `num_tokens` tokens."""
        ...

    def find_hit(self, request: Request, num_known_tokens: int) -> Hit:
        """The longest prefix of the known tokens that is in the cache, at most all but the last token."""
        ...

    def admit(self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int, spare_blocks: int) -> bool:
        """Give a request that holds nothing its hit and room for `num_tokens` tokens in all.

        Refuses unless room for `must_fit_tokens` (>= num_tokens) is there and `spare_blocks` more are left.
        """
        ...

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens in all, for a request that was admitted."""
        ...

    def free(self, request: Request) -> None:
        """Take back all that an admitted request holds."""
        ...

    def occupancy(self) -> Occupancy: ...
