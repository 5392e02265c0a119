"""What allocators have in common that swap nothing out and promise nothing."""

from collections.abc import Mapping

from kvsim.memory.allocator import Hit, SwappedIn
from kvsim.workload.request import Request


class StaysOnDevice:
    """What is left of the protocol for allocators that swap nothing out and make no promises."""

    def swap_out(self, request: Request, num_computed_tokens: int) -> int | None:
        return None

    def swap_in(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> SwappedIn | None:
        raise AssertionError("nothing was swapped out")

    def drop_swapped(self, request: Request) -> int:
        raise AssertionError("nothing was swapped out")

    def swapped_tokens(self) -> dict[int, int]:
        return {}

    def promised_blocks(self, promised_tokens: Mapping[int, int], request: Request, hit: Hit, num_tokens: int) -> int:
        raise AssertionError("nothing is promised here")
