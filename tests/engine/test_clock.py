"""The decode clock in small examples, and against a list of requests that are all touched in every tick."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine.clock import DecodeClock
from kvsim.engine.state import RequestState
from tests.makers import make_request


def make_state(computed: int, left: int = 100) -> RequestState:
    """Its next token has just been sampled; it computes `left` more."""
    state = RequestState(make_request(own=computed, output=left + 1), 0, 10**6)
    state.num_computed_tokens = computed
    state.num_tokens = computed + 1
    return state


def make_clock(*states: RequestState, block_size: int = 4, tick: int = 0) -> DecodeClock:
    clock = DecodeClock(block_size)
    for state in states:
        clock.join(state, tick)
    return clock


# who needs a block when


def test_a_block_is_needed_when_all_are_full() -> None:
    clock = make_clock(make_state(4), make_state(5), make_state(7), make_state(8))
    assert clock.blocks_taken(0, 4) == [2, 1, 0, 1]
    assert [clock.num_blocks(0, ticks) for ticks in range(10)] == [0, 2, 3, 3, 4, 6, 7, 7, 8, 10]
    assert clock.counts == [2, 1, 0, 1] * 2


def test_it_does_not_matter_at_which_tick_one_joins() -> None:
    clock = make_clock(make_state(4), make_state(5), tick=7)
    assert clock.blocks_taken(7, 4) == [1, 0, 0, 1]
    assert clock.counts == [0, 0, 1, 1] * 2


def test_of_more_ticks_than_a_block_has_slots_only_the_first_are_told() -> None:
    clock = make_clock(make_state(4), make_state(6))
    assert clock.blocks_taken(0, 3) == [1, 0, 1]
    assert clock.blocks_taken(0, 9) == clock.blocks_taken(0, 4) == [1, 0, 1, 0]
    assert clock.blocks_taken(3, 9) == [0, 1, 0, 1]


def test_with_one_slot_to_a_block_all_need_one_in_every_tick() -> None:
    clock = make_clock(make_state(4), make_state(7), block_size=1)
    assert clock.num_blocks(5, 3) == 6
    assert clock.blocks_taken(5, 3) == [2]
    assert len(clock.in_need(5)) == 2


def test_those_in_need_come_in_the_order_in_which_they_joined() -> None:
    first, other, second, third = make_state(8), make_state(5), make_state(4), make_state(3)
    clock = make_clock(first, other, second)
    assert clock.in_need(0) == [first, second]
    clock.join(third, 3)
    assert clock.in_need(3) == [other]
    assert clock.in_need(4) == [first, second, third]
    clock.leave(first)
    assert clock.in_need(0) == [second, third]


def test_nobody_is_in_need_where_nobody_is() -> None:
    clock = make_clock()
    assert clock.in_need(0) == []
    assert (clock.num_blocks(0, 9), clock.blocks_taken(0, 9)) == (0, [0, 0, 0, 0])
    assert (clock.num_seqs, clock.sum_offsets) == (0, 0)


# how long blocks suffice


@pytest.mark.parametrize(
    ("num_blocks", "ticks"), [(0, 0), (1, 0), (2, 1), (3, 3), (4, 4), (5, 4), (6, 5), (7, 7), (8, 8), (10, 9), (11, 11)]
)
def test_ticks_that_so_many_blocks_suffice_for(num_blocks: int, ticks: int) -> None:
    """Two in the first of four ticks, one in the second, one in the fourth."""
    clock = make_clock(make_state(4), make_state(5), make_state(7), make_state(8))
    assert clock.ticks_with(0, num_blocks, 1000) == ticks


def test_no_more_ticks_than_are_asked_for() -> None:
    clock = make_clock(make_state(4), make_state(5))
    assert clock.ticks_with(0, 1, 10) == 3
    assert [clock.ticks_with(0, 1, most) for most in (1, 2, 3)] == [1, 2, 3]
    assert clock.ticks_with(0, 99, 10) == 10
    assert clock.ticks_with(1, 0, 10) == 2


# ends


def test_who_has_ended_leaves_in_running_order() -> None:
    first, longer, second = make_state(8, left=3), make_state(8, left=4), make_state(2, left=2)
    clock = make_clock(first, longer)
    clock.join(second, 1)
    assert clock.next_end() == 3
    assert clock.take_ended(2) == []
    assert clock.take_ended(3) == [first, second]
    assert clock.next_end() == 4
    assert (clock.num_seqs, clock.sum_offsets, clock.counts) == (1, 8, [1, 0, 0, 0] * 2)
    assert clock.take_ended(4) == [longer]


def test_an_end_at_which_nobody_is_left_is_passed_over() -> None:
    soon, later, last = make_state(4, left=2), make_state(4, left=3), make_state(4, left=9)
    clock = make_clock(last, soon, later)
    clock.leave(soon)
    clock.leave(later)
    assert clock.next_end() == 9
    assert clock.take_ended(2) == []


def test_who_leaves_before_its_end_leaves_the_others_that_end_with_it() -> None:
    first, second = make_state(4, left=2), make_state(5, left=2)
    clock = make_clock(first, second)
    clock.leave(first)
    assert (clock.num_seqs, clock.sum_offsets, clock.next_end()) == (1, 5, 2)
    assert clock.take_ended(2) == [second]


def test_an_end_that_was_passed_over_may_come_again() -> None:
    early = make_state(4, left=2)
    clock = make_clock(make_state(4, left=9), early)
    clock.leave(early)
    again = make_state(4, left=1)
    clock.join(again, 1)
    assert clock.next_end() == 2
    assert clock.take_ended(2) == [again]
    assert clock.next_end() == 9


# against brute force


class Seq:
    def __init__(self, computed: int, left: int) -> None:
        self.computed = computed
        self.left = left
        self.state = make_state(computed, left)


def needs(seqs: list[Seq], num_ticks: int, block_size: int) -> list[int]:
    """Blocks that are taken in each of so many ticks, if nobody ends."""
    return [sum((seq.computed + tick) % block_size == 0 for seq in seqs) for tick in range(num_ticks)]


ACTIONS = st.one_of(
    st.tuples(st.just("join"), st.integers(1, 12), st.integers(1, 14)),
    st.tuples(st.just("leave"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("tick"), st.integers(1, 6), st.just(0)),
)


@settings(max_examples=300)
@given(st.integers(1, 6), st.integers(0, 9), st.lists(ACTIONS, max_size=25), st.data())
def test_a_clock_says_what_touching_all_says(
    block_size: int, tick: int, actions: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    clock = make_clock(block_size=block_size)
    seqs: list[Seq] = []
    for action, number, left in actions:
        if action == "join":
            seqs.append(Seq(number, left))
            clock.join(seqs[-1].state, tick)
        elif action == "leave" and seqs:
            clock.leave(seqs.pop(number % len(seqs)).state)
        elif action == "tick" and seqs:
            for _ in range(min(number, min(seq.left for seq in seqs))):
                tick += 1
                for seq in seqs:
                    seq.computed += 1
                    seq.left -= 1
            ended = [seq for seq in seqs if not seq.left]
            assert clock.take_ended(tick) == [seq.state for seq in ended]
            seqs = [seq for seq in seqs if seq.left]
        assert clock.num_seqs == len(seqs)
        assert clock.sum_offsets + clock.num_seqs * tick == sum(seq.computed for seq in seqs)
        assert [seq.state.offset + tick for seq in seqs] == [seq.computed for seq in seqs]
        assert clock.in_need(tick) == [seq.state for seq in seqs if seq.computed % block_size == 0]
        ticks = data.draw(st.integers(0, 20))
        need = needs(seqs, ticks, block_size)
        assert clock.num_blocks(tick, ticks) == sum(need)
        assert clock.blocks_taken(tick, ticks) == need[:block_size]
        if seqs:
            assert clock.next_end() == tick + min(seq.left for seq in seqs)
            num_blocks = data.draw(st.integers(0, 20))
            suffice = [count for count in range(ticks + 1) if sum(need[:count]) <= num_blocks]
            assert clock.ticks_with(tick, num_blocks, ticks) == suffice[-1]
