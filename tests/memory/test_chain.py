"""One chain by itself: who holds it up to where. Blocks have 2 slots, and the chain is that of a root."""

import pytest

from kvsim.memory.chain import Chain, Holder, Run


def make_chain(*ends: int, first: int = 0, resident: int | None = None) -> Chain:
    """Held up to each of these ends by one request, and resident as far as it is held unless told further."""
    chain = Chain(2, 0, 2 * first, None, None)
    for end in ends:
        chain.hold(end)
    chain.resident = chain.used if resident is None else resident
    return chain


def make_child(start: int = 4) -> Chain:
    """A chain that leaves a root at this depth."""
    root = make_chain()
    return Chain(2, 1, start, root, (root.id, start, "a", 0))


def make_spare(chain: Chain, low: int) -> Run:
    spare = Run(chain, low, low + 1)
    spare.is_spare = True
    return spare


def holders(chain: Chain) -> tuple[int, int, dict[int, int] | None]:
    """How far it is in use, by how many, and up to which ends if these differ."""
    return chain.used, chain.num_holders, chain.end_counts


@pytest.mark.parametrize(("start", "first"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2)])
def test_a_chain_begins_with_the_block_that_its_first_token_is_in(start: int, first: int) -> None:
    chain = make_child(start)
    assert (chain.first, chain.used, chain.resident) == (first, first, first)


# holding


def test_those_who_hold_up_to_one_end_are_only_counted() -> None:
    assert holders(make_chain()) == (0, 0, None)
    assert holders(make_chain(3)) == (3, 1, None)
    assert holders(make_chain(3, 3)) == (3, 2, None)


def test_who_holds_less_is_counted_apart_and_the_chain_is_in_use_as_before() -> None:
    assert holders(make_chain(3, 3, 1)) == (3, 3, {3: 2, 1: 1})


def test_who_holds_more_has_it_in_use_further() -> None:
    assert holders(make_chain(1, 1, 3)) == (3, 3, {1: 2, 3: 1})


def test_once_ends_are_counted_all_are() -> None:
    assert holders(make_chain(1, 3, 3, 1, 2)) == (3, 5, {1: 2, 3: 2, 2: 1})


def test_the_last_of_the_furthest_that_lets_go_leaves_it_to_the_next_end() -> None:
    chain = make_chain(1, 3, 3, 2)
    assert chain.let_go(3) == 3
    assert holders(chain) == (3, 3, {1: 1, 3: 1, 2: 1})
    assert chain.let_go(3) == 2
    assert holders(chain) == (2, 2, {1: 1, 2: 1})


def test_who_held_less_lets_go_unnoticed() -> None:
    chain = make_chain(1, 3, 3, 2)
    assert chain.let_go(1) == 3
    assert holders(chain) == (3, 3, {3: 2, 2: 1})


def test_ends_are_forgotten_when_one_is_left() -> None:
    chain = make_chain(1, 3, 1)
    assert chain.let_go(3) == 1
    assert holders(chain) == (1, 2, None)


def test_of_several_with_one_end_one_lets_go() -> None:
    chain = make_chain(3, 3)
    assert chain.let_go(3) == 3
    assert holders(chain) == (3, 1, None)


def test_letting_go_leaves_blocks_resident() -> None:
    chain = make_chain(1, 3)
    chain.let_go(3)
    assert chain.resident == 3


# publishing


def test_who_publishes_first_in_a_chain_holds_it_from_then_on() -> None:
    chain = make_child()
    chain.publish(2, 4)
    assert holders(chain) == (4, 1, None)
    assert chain.resident == 4


def test_who_holds_all_of_a_chain_alone_goes_on() -> None:
    chain = make_chain(2)
    chain.publish(2, 5)
    assert holders(chain) == (5, 1, None)
    assert chain.resident == 5


def test_who_goes_on_leaves_the_others_behind() -> None:
    chain = make_chain(2, 2, 2)
    chain.publish(2, 3)
    assert holders(chain) == (3, 3, {2: 2, 3: 1})
    chain.publish(3, 4)
    assert holders(chain) == (4, 3, {2: 2, 4: 1})
    assert chain.resident == 4


def test_who_goes_on_is_told_from_those_who_held_less() -> None:
    chain = make_chain(1, 2)
    chain.publish(2, 3)
    assert holders(chain) == (3, 2, {1: 1, 3: 1})


# spares


def test_dropped_spares_leave_the_others_in_order_and_none_when_all_are_gone() -> None:
    chain = make_chain(3)
    first, second, third = (make_spare(chain, low) for low in (0, 2, 2))
    chain.spares = [first, second, third]
    chain.drop_spare(second)
    assert chain.spares == [first, third]
    chain.drop_spare(first)
    chain.drop_spare(third)
    assert chain.spares is None


def test_a_key_may_have_several_blocks_where_there_are_spares_or_copies() -> None:
    chain = make_chain(3)
    assert not chain.has_copies
    chain.spares = [make_spare(chain, 2)]
    assert chain.has_copies
    chain.spares, chain.copies = None, {}
    assert chain.has_copies


# forgetting


def test_a_chain_that_nobody_knows_and_nothing_is_left_of_may_be_forgotten() -> None:
    assert make_child().is_forgettable


def test_the_root_stays() -> None:
    assert not make_chain().is_forgettable


@pytest.mark.parametrize("name", ["num_paths", "num_children"])
def test_who_has_it_on_a_path_or_hangs_on_it_keeps_it(name: str) -> None:
    chain = make_child()
    setattr(chain, name, 1)
    assert not chain.is_forgettable


def test_what_is_resident_keeps_it() -> None:
    chain = make_child()
    chain.resident = chain.first + 1
    assert not chain.is_forgettable


def test_a_spare_keeps_it() -> None:
    chain = make_child()
    chain.spares = [make_spare(chain, 2)]
    assert not chain.is_forgettable


# what a request holds and what a release leaves, as they begin


def test_a_holder_begins_with_its_path_and_nothing_else() -> None:
    chain = make_chain(3)
    holder = Holder([(chain, 2)])
    assert (holder.path, holder.published, holder.order) == ([(chain, 2)], 0, 0)
    assert (holder.offset, holder.spare, holder.copies) == (None, None, None)


def test_a_run_begins_as_what_a_release_leaves() -> None:
    chain = make_chain(3)
    run = Run(chain, 1, 3)
    assert (run.chain, run.low, run.high) == (chain, 1, 3)
    assert (run.is_spare, run.owner, run.copies) == (False, None, None)
