"""Reserving allocators: what is reserved, how it fills, and what happens to those who outgrow it.

A token is a byte, so that slots and bytes are the same numbers, unless a test says otherwise.
"""

from typing import Any

import numpy as np
import pytest

from kvsim.memory.allocator import Hit, Occupancy, Shortfall
from kvsim.memory.contiguous import (
    RESERVE,
    Prediction,
    ReservingAllocator,
    reserve_max,
    reserve_oracle,
    reserve_pow2,
)
from kvsim.memory.extents import PLACEMENTS, Extent
from kvsim.workload.request import Request
from tests.makers import make_request

NOTHING = Hit(0, ([],))

Reserved = tuple[int, int] | None
"""Start and size of an extent, None where it was refused."""


def make_allocator(
    num_slots: int = 100, reserve: str = "oracle", placement: str = "first_fit", max_model_len: int = 64, **more: Any
) -> ReservingAllocator:
    return ReservingAllocator(num_slots, reserve, placement, max_model_len, **more)


def admit(
    allocator: ReservingAllocator,
    request: Request,
    num_tokens: int | None = None,
    must_fit: int | None = None,
    spare: int = 0,
) -> Reserved:
    num_tokens = request.prompt_tokens if num_tokens is None else num_tokens
    admitted = allocator.admit(request, NOTHING, num_tokens, must_fit, spare)
    allocator.check()
    return extent(allocator, request) if admitted else None


def extent(allocator: ReservingAllocator, request: Request) -> tuple[int, int]:
    start, size = allocator.reservations[request.id].extent
    return start, size


def grow(allocator: ReservingAllocator, request: Request, num_tokens: int) -> Reserved:
    grown = allocator.grow(request, num_tokens)
    allocator.check()
    return extent(allocator, request) if grown else None


def why_not(allocator: ReservingAllocator, request: Request, must_fit: int | None = None, spare: int = 0) -> Shortfall:
    asked = request, NOTHING, request.prompt_tokens, must_fit, spare
    assert not allocator.admit(*asked)
    return allocator.why_not_admitted(*asked)


class Wrong(Prediction):
    """Takes every output to be of the same length."""

    def __init__(self, output_tokens: int) -> None:
        super().__init__(1.0)
        object.__setattr__(self, "tokens", output_tokens)

    def output_tokens(self, request: Request) -> int:
        return self.tokens  # type: ignore[attr-defined,no-any-return]


# how much is reserved


@pytest.mark.parametrize(
    ("prompt", "output", "by_max", "by_pow2", "by_oracle"),
    [
        (10, 1, 64, 11, 11),
        (10, 2, 64, 12, 12),
        (10, 3, 64, 14, 13),
        (10, 16, 64, 26, 26),
        (10, 17, 64, 42, 27),
        (10, 33, 64, 64, 43),
        (10, 54, 64, 64, 64),
        (10, 900, 64, 64, 64),
        (63, 1, 64, 64, 64),
    ],
)
def test_what_is_reserved(prompt: int, output: int, by_max: int, by_pow2: int, by_oracle: int) -> None:
    assert reserve_max(prompt, output, 64) == by_max
    assert reserve_pow2(prompt, output, 64) == by_pow2
    assert reserve_oracle(prompt, output, 64) == by_oracle


def test_the_next_power_of_two_is_the_smallest_that_holds_the_output() -> None:
    for output in range(1, 300):
        powers = [2**k for k in range(10) if 2**k >= output]
        assert reserve_pow2(7, output, 10_000) == 7 + powers[0]


def test_a_prediction_is_off_by_at_most_its_error_and_every_share_is_equally_likely() -> None:
    prediction = Prediction(0.25, seed=5)
    guesses = [prediction.output_tokens(make_request(id, own=1, output=1000)) for id in range(2000)]
    assert 750 <= min(guesses) <= max(guesses) <= 1250
    quarters, _edges = np.histogram(guesses, bins=4, range=(750, 1250))
    assert (abs(quarters - 500) < 75).all()
    assert prediction.most_output_tokens(1000) == 1250


def test_a_prediction_hangs_on_seed_and_request_alone() -> None:
    def guesses(seed: int) -> list[int]:
        return [Prediction(0.5, seed).output_tokens(make_request(id, own=1, output=1000)) for id in (3, 1, 2)]

    assert guesses(7) == guesses(7)
    assert guesses(7) != guesses(8)
    assert len(set(guesses(7))) == 3


def test_at_least_one_token_is_predicted_and_without_error_the_true_length() -> None:
    for id in range(50):
        assert Prediction(1.0).output_tokens(make_request(id, own=1, output=1)) in (1, 2)
        assert Prediction(0.0).output_tokens(make_request(id, own=1, output=77)) == 77


# filling an extent


@pytest.mark.parametrize(("reserve", "size"), [("max", 64), ("pow2", 26), ("oracle", 19)])
def test_slack_is_reserved_for_what_will_be_written_and_unused_beyond_it(reserve: str, size: int) -> None:
    """10 prompt and 9 output tokens write 18 slots."""
    allocator = make_allocator(reserve=reserve, token_bytes=100)
    request = make_request(0, own=10, output=9)
    assert admit(allocator, request, 4) == (0, size)
    unused = size - 18
    assert allocator.occupancy() == Occupancy(size, 0, 100 - size, 400, 0, 400, 0, 1400, 100 * unused)
    assert grow(allocator, request, 10) == (0, size)
    assert allocator.occupancy() == Occupancy(size, 0, 100 - size, 1000, 0, 1000, 0, 800, 100 * unused)
    assert grow(allocator, request, 18) == (0, size)
    assert allocator.occupancy() == Occupancy(size, 0, 100 - size, 1800, 0, 1800, 0, 0, 100 * unused)
    assert allocator.held_tokens() == {0: 18}
    allocator.free(request)
    allocator.check()
    assert allocator.occupancy() == Occupancy(0, 0, 100, 0, 0, 0, 0)
    assert allocator.moved_bytes == 0


def test_a_request_that_max_model_len_cuts_uses_all_slots_but_the_last() -> None:
    allocator = make_allocator(reserve="max")
    admit(allocator, make_request(0, own=60, output=50))
    assert allocator.occupancy()[7:10] == (3, 1, 0)


@pytest.mark.parametrize("reserve", ["max", "pow2", "oracle"])
def test_the_gate_asks_for_no_more_than_is_reserved(reserve: str) -> None:
    gated, open = (make_allocator(reserve=reserve) for _ in range(2))
    request = make_request(0, own=20, output=9)
    assert admit(gated, request, 4, must_fit=20) == admit(open, request, 4)


def test_nothing_is_shared() -> None:
    allocator = make_allocator()
    admit(allocator, make_request(0, shared=20, output=5))
    assert allocator.find_hit(make_request(1, shared=20, output=5), 20) == NOTHING


# no room


def with_two_holes(placement: str = "first_fit") -> ReservingAllocator:
    """Of 64 slots those from 16 and from 48 on are free, 32 in all."""
    allocator = make_allocator(64, placement=placement)
    requests = [make_request(id, own=10, output=6) for id in range(4)]
    for request in requests:
        assert admit(allocator, request) == (16 * request.id, 16)
    allocator.free(requests[1])
    allocator.free(requests[3])
    allocator.check()
    return allocator


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_refused_request_is_told_apart_by_what_would_have_let_it_in(placement: str) -> None:
    """40 slots are not free; 20 are, but not in a row; 16 are, with none to spare for 17 more."""
    allocator = with_two_holes(placement)
    slack = 2 * 6
    assert why_not(allocator, make_request(5, own=30, output=10)) == Shortfall(40, 32, 0, 8, slack, "blocks", 32)
    assert why_not(allocator, make_request(5, own=18, output=2)) == Shortfall(20, 32, 0, 0, slack, "extent", 32)
    assert why_not(allocator, make_request(5, own=9, output=7), spare=17) == Shortfall(33, 32, 0, 1, slack, "watermark")
    assert why_not(allocator, make_request(5, own=18, output=2), spare=13) == Shortfall(
        33, 32, 0, 1, slack, "blocks", 32
    )
    assert admit(allocator, make_request(5, own=9, output=7), spare=16) == (16, 16)


def test_a_refusal_changes_nothing() -> None:
    allocator = with_two_holes()
    before = allocator.occupancy(), allocator.held_tokens(), list(allocator.extents.free_extents())
    for own in (17, 30, 60):
        assert admit(allocator, make_request(5, own=own, output=1)) is None
    assert (allocator.occupancy(), allocator.held_tokens(), list(allocator.extents.free_extents())) == before


def test_one_that_resumes_beyond_its_prediction_is_given_all_it_knows() -> None:
    """It was predicted 12 tokens in all, and knows 30: only the gate asks for them."""
    allocator = make_allocator(reserve="predicted", prediction=Wrong(2))
    request = make_request(0, own=10, output=40)
    assert admit(allocator, request, 10, must_fit=30) == (0, 30)
    allocator.free(request)
    assert admit(allocator, request, 10) == (0, 12)


def test_the_gate_is_named_where_the_first_chunk_would_have_been_let_in() -> None:
    allocator = make_allocator(20, reserve="predicted", prediction=Wrong(2))
    request = make_request(0, own=10, output=40)
    assert why_not(allocator, request, must_fit=30) == Shortfall(30, 20, 0, 10, 0, "gate", 20)
    assert admit(allocator, request) == (0, 12)


# outgrown


def outgrown(placement: str = "first_fit", num_slots: int = 64) -> tuple[ReservingAllocator, Request]:
    """A request of which 10 + 2 tokens were expected, and which has written 12."""
    allocator = make_allocator(num_slots, "predicted", placement, prediction=Wrong(2), token_bytes=100)
    request = make_request(0, own=10, output=40)
    assert admit(allocator, request) == (0, 12)
    assert allocator.occupancy()[7:10] == (200, 0, 0)
    grow(allocator, request, 12)
    assert allocator.occupancy()[7:10] == (0, 0, 0)
    return allocator, request


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_one_that_outgrows_its_extent_is_given_the_slots_behind_it_as_it_needs_them(placement: str) -> None:
    allocator, request = outgrown(placement)
    for num_tokens in range(13, 50):
        assert grow(allocator, request, num_tokens) == (0, num_tokens)
    assert allocator.moved_bytes == 0
    allocator.free(request)
    allocator.check()
    assert allocator.extents.largest_free == allocator.extents.largest_possible


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_else_it_moves_to_room_for_twice_its_output_and_the_copy_is_counted(placement: str) -> None:
    """With 13 tokens, 3 of them of the output, it is given 10 + 6 slots, of which only the last 16 are free."""
    allocator, request = outgrown(placement, num_slots=64)
    allocator.extents.take(Extent(12, 36))
    assert allocator.grow(request, 13)
    assert extent(allocator, request) == (48, 16)
    assert allocator.moved_bytes == 12 * 100
    assert list(allocator.extents.free_extents())[-1].end == 12
    assert allocator.extents.is_free(Extent(0, 12))
    assert allocator.occupancy()[7:10] == (3 * 100, 0, 0)


def test_it_moves_to_no_more_than_max_model_len() -> None:
    allocator = make_allocator(200, "predicted", prediction=Wrong(40))
    first, second = (make_request(id, own=10, output=60) for id in range(2))
    assert admit(allocator, first) == (0, 50)
    assert admit(allocator, second) == (50, 50)
    assert grow(allocator, first, 51) == (100, 64)
    assert allocator.occupancy().unused_bytes == 1


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_and_where_it_can_do_neither_it_is_refused_and_keeps_what_it_has(placement: str) -> None:
    allocator, request = outgrown(placement, num_slots=32)
    second = make_request(1, own=4, output=1)
    allocator.extents.take(Extent(12, 6))
    before = allocator.occupancy(), list(allocator.extents.free_extents())
    assert not allocator.grow(request, 13)
    assert (allocator.occupancy(), list(allocator.extents.free_extents())) == before
    assert allocator.why_not_grown(request, 13) == Shortfall(16, 14, 0, 2, 600, "blocks", 1400)
    allocator.extents.give_back(Extent(12, 6))
    assert grow(allocator, request, 13) == (0, 13)
    assert admit(allocator, second) is not None


# an empty pool


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("reserve", RESERVE)
def test_what_fits_an_empty_pool_is_admitted_and_grows_to_its_end(reserve: str, placement: str) -> None:
    for num_slots in (1, 5, 16, 22, 40):
        allocator = make_allocator(num_slots, reserve, placement, 24, prediction=Prediction(0.5))
        some = {True: 0, False: 0}
        for id, (prompt, output) in enumerate((p, o) for p in range(1, 24) for o in (1, 2, 3, 7, 8, 9, 30)):
            request = make_request(id, own=prompt, output=output)
            last = min(prompt + output, 24) - 1
            fits = allocator.fits_empty_pool(prompt, last)
            some[fits] += 1
            assert fits or not allocator.fits_all_up_to(prompt + output)
            if reserve != "predicted":
                assert fits == (admit(allocator, request) is not None)
            elif fits:
                assert admit(allocator, request, must_fit=prompt) is not None
            if fits:
                assert all(grow(allocator, request, tokens) for tokens in range(prompt, last + 1))
                allocator.free(request)
        assert some[False] or num_slots > 24
        assert some[True] or num_slots == 1 or reserve == "max"


def test_what_a_buddy_can_never_place_does_not_fit_though_there_are_slots() -> None:
    """22 slots are zones of 16, 4 and 2."""
    assert make_allocator(22, placement="first_fit").fits_empty_pool(10, 18)
    assert not make_allocator(22, placement="buddy").fits_empty_pool(10, 18)
    assert make_allocator(22, placement="buddy").fits_empty_pool(10, 15)
