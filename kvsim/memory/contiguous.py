"""The reserving baselines: every request holds one extent of contiguous slots, a slot a token, from admission to end.

How many slots a request is given is a line in RESERVE, where they lie one in `extents.py`. Nothing is shared and
nothing is kept for later. The extent of one request:

    0            computed        last token written      end
    |------------|...............|.......................|
      written      reserved        unused

A request of P prompt and O output tokens writes P + O - 1 slots, as the last token is never computed (fewer where
`max_model_len` cuts it), and an allocator that knows the lengths still gives it a slot for each of its tokens. What is
unused is known here beforehand; no hang-up and no preemption is.
"""

from collections.abc import Callable, Iterator

from attrs import define, field, frozen

from kvsim.invariants import hold
from kvsim.memory.allocator import Hit, LeastChange, Occupancy, Shortfall
from kvsim.memory.block_map import BlockMap, Piece, block_map
from kvsim.memory.extents import PLACEMENTS, Extent
from kvsim.memory.on_device import StaysOnDevice
from kvsim.rules import between
from kvsim.workload.generate.streams import random_stream
from kvsim.workload.request import Request

Reserve = Callable[[int, int, int], int]
"""Slots for so many prompt and output tokens, under a `max_model_len`."""


def reserve_max(prompt_tokens: int, output_tokens: int, max_model_len: int) -> int:
    """As many as any request can need: nothing is known of its output."""
    return max_model_len


def reserve_pow2(prompt_tokens: int, output_tokens: int, max_model_len: int) -> int:
    """The prompt, and the next power of two of the output: less than twice too much."""
    return min(prompt_tokens + (1 << (output_tokens - 1).bit_length()), max_model_len)


def reserve_oracle(prompt_tokens: int, output_tokens: int, max_model_len: int) -> int:
    """Exactly the final length."""
    return min(prompt_tokens + output_tokens, max_model_len)


RESERVE: dict[str, Reserve] = {
    "max": reserve_max,
    "pow2": reserve_pow2,
    "oracle": reserve_oracle,
    "predicted": reserve_oracle,  # of a predicted output
}
"""The first three are the Orca baselines of the PagedAttention paper (Kwon et al. 2023, section 6.1)."""


@frozen
class Prediction:
    """A guess of the output of a request, off by at most `error` of its true length, up or down, every share equally
    likely; at least one token. Equal seed and request id give an equal guess.
    """

    error: float = field(validator=between(0, 1))
    seed: int = 0

    def output_tokens(self, request: Request) -> int:
        share = random_stream(self.seed, f"prediction of {request.id}").uniform(-self.error, self.error)
        return max(1, round(request.output_tokens * (1 + float(share))))

    def most_output_tokens(self, output_tokens: int) -> int:
        """No guess of so many is larger."""
        return round(output_tokens * (1 + self.error))


EXACT = Prediction(0.0)


@define
class Reservation:
    """What one request holds: its first `num_tokens` slots are written once the current step has run, and
    `final_tokens` will be if nothing ends it before.
    """

    extent: Extent
    num_tokens: int
    final_tokens: int

    @property
    def reserved(self) -> int:
        return min(self.final_tokens, self.extent.size) - self.num_tokens

    @property
    def unused(self) -> int:
        return max(0, self.extent.size - self.final_tokens)


class ReservingAllocator(StaysOnDevice):
    """Extents out of a pool of `num_slots` slots of `token_bytes`, shown as blocks of one token; no null block.

    `reserve` is a name of RESERVE and `placement` one of PLACEMENTS. With "predicted", `prediction` says how long the
    output is taken to be. A request that outgrows what it was given is given the slots behind it, as it needs them,
    where these are free; else it moves to a new extent with room for twice its output so far, found while it still
    holds the old one; else it is refused. A request that resumes with more tokens than are reserved for it is given
    these. So the gate asks for no more than a reservation, but then.
    """

    padding_bytes = 0

    def __init__(
        self,
        num_slots: int,
        reserve: str,
        placement: str,
        max_model_len: int,
        *,
        token_bytes: int = 1,
        prediction: Prediction = EXACT,
    ) -> None:
        self.token_bytes = token_bytes
        self.max_model_len = max_model_len
        self.extents = PLACEMENTS[placement](num_slots)
        self.reservations: dict[int, Reservation] = {}
        self.moved_tokens = 0
        self._reserve = RESERVE[reserve]
        self._prediction = prediction if reserve == "predicted" else EXACT
        self._written = 0
        self._reserved = 0
        self._unused = 0

    # questions

    @property
    def moved_bytes(self) -> int:
        return self.moved_tokens * self.token_bytes

    def fits_empty_pool(self, prompt_tokens: int, num_tokens: int) -> bool:
        """Whatever its output is predicted to be, and however often it is preempted on the way."""
        output_tokens = self._prediction.most_output_tokens(num_tokens - prompt_tokens + 1)
        most = max(self._reserve(prompt_tokens, output_tokens, self.max_model_len), num_tokens)
        return most <= self.extents.largest_possible

    def fits_all_up_to(self, num_tokens: int) -> bool:
        """No way of reserving gives more than twice the tokens of a request, or `max_model_len`."""
        return self._reserve(num_tokens, num_tokens, self.max_model_len) <= self.extents.largest_possible

    def find_hit(self, request: Request, num_known_tokens: int) -> Hit:
        """Nothing is shared."""
        return Hit(0, ([],))

    def occupancy(self) -> Occupancy:
        free, size = self.extents.num_free, self.token_bytes
        live = self._written * size
        return Occupancy(
            self.extents.num_slots - free, 0, free, live, 0, live, 0, self._reserved * size, self._unused * size
        )

    def held_tokens(self) -> dict[int, int]:
        return {id: reservation.num_tokens for id, reservation in self.reservations.items()}

    # actions

    def admit(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> bool:
        """In one extent, or not at all."""
        assert request.id not in self.reservations, "a request is admitted with nothing in its hands"
        assert hit.num_tokens == 0, "nothing is shared"
        size = self._size(request, num_tokens, must_fit_tokens)
        extent = self.extents.find(size)
        if extent is None or size + spare_blocks > self.extents.num_free:
            return False
        self.extents.take(extent)
        final = min(request.prompt_tokens + request.output_tokens, self.max_model_len) - 1
        reservation = self.reservations[request.id] = Reservation(extent, num_tokens, final)
        self._count(reservation, 1)
        return True

    def grow(self, request: Request, num_tokens: int) -> bool:
        reservation = self.reservations[request.id]
        extent = reservation.extent
        if num_tokens > extent.size:
            more = Extent(extent.end, num_tokens - extent.size)
            if self.extents.is_free(more):
                self.extents.take(more)
                extent = Extent(extent.start, num_tokens)
            else:
                roomier = self.extents.find(self._roomier(request, num_tokens))
                if roomier is None:
                    return False
                self.extents.take(roomier)
                self.extents.give_back(extent)
                self.moved_tokens += reservation.num_tokens
                extent = roomier
        self._count(reservation, -1)
        reservation.extent, reservation.num_tokens = extent, num_tokens
        self._count(reservation, 1)
        return True

    def free(self, request: Request) -> None:
        reservation = self.reservations.pop(request.id)
        self.extents.give_back(reservation.extent)
        self._count(reservation, -1)

    def why_not_admitted(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> Shortfall:
        free, largest = self.extents.num_free, self.extents.largest_free
        size = self._size(request, num_tokens, must_fit_tokens)
        first_chunk = self._size(request, num_tokens, None)
        change: LeastChange = "blocks"
        if size <= largest:
            change = "watermark"
        elif first_chunk <= largest and first_chunk + spare_blocks <= free:
            change = "gate"
        elif size + spare_blocks <= free:
            change = "extent"
        return self._shortfall(size + spare_blocks, size, change)

    def why_not_grown(self, request: Request, num_tokens: int) -> Shortfall:
        size = self._roomier(request, num_tokens)
        return self._shortfall(size, size, "extent" if size <= self.extents.num_free else "blocks")

    def _size(self, request: Request, num_tokens: int, must_fit_tokens: int | None) -> int:
        output_tokens = self._prediction.output_tokens(request) if self._prediction.error else request.output_tokens
        reserved = self._reserve(request.prompt_tokens, output_tokens, self.max_model_len)
        return max(reserved, num_tokens, must_fit_tokens or 0)

    def _roomier(self, request: Request, num_tokens: int) -> int:
        """Slots for a request that has outgrown its extent."""
        output_tokens = max(1, num_tokens - request.prompt_tokens)
        return max(num_tokens, min(request.prompt_tokens + 2 * output_tokens, self.max_model_len))

    def _shortfall(self, need: int, size: int, change: LeastChange) -> Shortfall:
        """Of blocks in all, and of an extent of a size."""
        free = self.extents.num_free
        slack_bytes = (self.extents.num_slots - free - self._written) * self.token_bytes
        external = free if size > self.extents.largest_free else 0
        return Shortfall(need, free, 0, max(0, need - free), slack_bytes, change, external * self.token_bytes)

    def _count(self, reservation: Reservation, sign: int) -> None:
        self._written += sign * reservation.num_tokens
        self._reserved += sign * reservation.reserved
        self._unused += sign * reservation.unused

    def block_map(self, time_ns: int) -> BlockMap:
        return block_map(time_ns, self.extents.num_slots, 1, self.token_bytes, self._pieces(), has_block_numbers=True)

    def _pieces(self) -> Iterator[Piece]:
        """Slot after slot, each a block of one token."""
        holders = {reservation.extent: id for id, reservation in self.reservations.items()}
        for extent in sorted([*holders, *self.extents.free_extents()]):
            if extent not in holders:
                yield extent.size, "blank", (), 0, 0
                continue
            ids = (holders[extent],)
            reservation = self.reservations[ids[0]]
            yield reservation.num_tokens, "held", ids, reservation.num_tokens, self.token_bytes
            yield reservation.reserved, "reserved", ids, 0, self.token_bytes
            yield reservation.unused, "unused", ids, 0, self.token_bytes

    def check(self) -> None:
        """Recount invariants 19 to 21."""
        self.extents.check()
        held = [reservation.extent for reservation in self.reservations.values()]
        end = 0
        for extent in sorted([*held, *self.extents.free_extents()]):
            hold(20, extent.start == end, f"slot {min(end, extent.start)} is held twice, or neither held nor free")
            end = extent.end
        hold(20, end == self.extents.num_slots, f"the slots end at {end} and not at {self.extents.num_slots}")
        for id, (extent, tokens) in {id: (r.extent, r.num_tokens) for id, r in self.reservations.items()}.items():
            hold(21, tokens <= extent.size, f"request {id} has written {tokens} tokens in {extent.size} slots")
        counted = self._written, self._reserved, self._unused
        written = sum(reservation.num_tokens for reservation in self.reservations.values())
        unused = sum(max(0, r.extent.size - r.final_tokens) for r in self.reservations.values())
        recounted = written, sum(extent.size for extent in held) - written - unused, unused
        hold(21, counted == recounted, f"written, reserved and unused slots are {recounted}, counted {counted}")
