"""All that a scheduler may ask of memory, whoever manages it."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from kvsim.memory.block_map import BlockMap
from kvsim.workload.request import Request


class Hit(NamedTuple):
    """What the prefix cache holds of a request: its first `num_tokens` tokens.

    `tables` has the blocks of each group, 0 where a window no longer needs one. Where one kind of attention had
    more than all have together, `boundary_tokens` is how much that was (rule 32), else 0.
    """

    num_tokens: int
    tables: tuple[list[int], ...]
    boundary_tokens: int = 0


class Occupancy(NamedTuple):
    """Levels at one instant. Blocks are usable ones: the null block is in none of these.

    `live_bytes` counts written slots of allocated blocks, each physical slot once; `padding_bytes` what blocks of
    smaller groups leave empty; `logical_bytes` computed tokens of the requests that hold memory as if nothing were
    shared or dropped; `window_saving_bytes` those of them whose blocks windows have given back. `host_blocks` are on
    the host, of requests that were swapped out.

    Of what is allocated and not written, allocators that reserve keep `reserved_bytes` for tokens that their requests
    will still write, and `unused_bytes` for such as they never will. `external_bytes` are free and cannot serve the
    head of the queue, as no extent is large enough; allocators leave it 0, as it is known where the head is tried.
    """

    allocated_blocks: int
    cached_blocks: int
    blank_blocks: int
    live_bytes: int
    padding_bytes: int
    logical_bytes: int
    window_saving_bytes: int
    reserved_bytes: int = 0
    unused_bytes: int = 0
    external_bytes: int = 0
    host_blocks: int = 0


LeastChange = Literal["blocks", "gate", "watermark", "extent", "reservation"]
"""What would have let a request in: more free blocks, the first chunk alone sufficing, no spare blocks asked for, all
that is free in one piece, or nothing promised to it and to those that run."""


class Shortfall(NamedTuple):
    """Why memory said no, in blocks: `need` of them against `blank` and `evictable` ones, so `missing` too few.

    `slack_bytes` were allocated and not written at that moment. For an admission, need counts the spare blocks, and
    `least_change` is the first single change that would have sufficed. `external_bytes` were free, and no extent of
    them was large enough (0 when paged).
    """

    need: int
    blank: int
    evictable: int
    missing: int
    slack_bytes: int
    least_change: LeastChange
    external_bytes: int = 0


class SwappedIn(NamedTuple):
    """Bytes that came back from the host, and those dropped there as the prefix cache still had them."""

    moved_bytes: int
    dropped_bytes: int


class Memory(Protocol):
    """What may be asked by those who decide nothing. Sizes are bytes: of a token, and of a block beyond its tokens."""

    token_bytes: int
    padding_bytes: int

    @property
    def moved_bytes(self) -> int:
        """What has been copied so far for requests that outgrew their extent."""
        ...

    def fits_empty_pool(self, prompt_tokens: int, num_tokens: int) -> bool:
        """Whether a request alone in the engine could be admitted with its prompt and grow to `num_tokens`."""
        ...

    def fits_all_up_to(self, num_tokens: int) -> bool:
        """Whether that holds for every request of at most so many tokens, prompt and output; False if not known."""
        ...

    def occupancy(self) -> Occupancy: ...


class Allocator(Memory, Protocol):
    """Questions change nothing; a refused action gives out nothing and returns False."""

    def find_hit(self, request: Request, num_known_tokens: int) -> Hit:
        """The longest prefix of the known tokens that is in the cache, at most all but the last token."""
        ...

    def admit(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> bool:
        """Give a request that holds nothing its hit and room for `num_tokens` tokens in all.

        Refuses unless room for that, and for `must_fit_tokens` where given, is there and leaves `spare_blocks`.
        """
        ...

    def why_not_admitted(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> Shortfall:
        """Asked right after `admit` or `swap_in` refused the same; where they would not, nothing is missing."""
        ...

    def promised_blocks(self, promised_tokens: Mapping[int, int], request: Request, hit: Hit, num_tokens: int) -> int:
        """Free blocks that it takes for all to get what they have been promised, or may still come to take.

        `promised_tokens` has the tokens of each admitted request, `num_tokens` are those of one that has only its hit.
        """
        ...

    def why_not_grown(self, request: Request, num_tokens: int) -> Shortfall:
        """Asked right after `grow` refused the same."""
        ...

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens in all, for a request that was admitted.

        What its windows have passed goes back to the pool first, even where there is no room.
        """
        ...

    def free(self, request: Request) -> None:
        """Take back all that an admitted request holds."""
        ...

    def swap_out(self, request: Request, num_computed_tokens: int) -> int | None:
        """Move what is written of an admitted request to the host, and free it; how many bytes move.

        None, and nothing has changed, where the host has no room for all of it.
        """
        ...

    def swap_in(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> SwappedIn | None:
        """As `admit`, for a request that was swapped out: what its hit does not have comes back from the host.

        None, and nothing has changed, where `admit` would refuse.
        """
        ...

    def drop_swapped(self, request: Request) -> int:
        """Forget a request that was swapped out and will not come back; how many bytes are dropped."""
        ...

    def swapped_tokens(self) -> dict[int, int]:
        """Tokens on the host of each request that was swapped out."""
        ...

    def held_tokens(self) -> dict[int, int]:
        """Tokens that each admitted request has room for."""
        ...

    def block_map(self, time_ns: int) -> BlockMap:
        """Who holds which block now."""
        ...

    def check(self) -> None:
        """Recount everything from scratch; raises InvariantError with the first invariant that does not hold."""
        ...
