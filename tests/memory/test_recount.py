"""A recount of chains that are drawn, and of what is damaged, the sentence with which it is found.

Blocks have 2 slots, a token is a letter, and a key is told by all letters up to its end. Of the chain "abcdefgh"

    "ab"     is held by three, a request that goes on elsewhere, one that holds "abcd" as well, and the owner of a spare
    "abcd"   is held by one; a spare, held by its owner, has the same key
    "abcdef" is cached, released last, and "abcdefgh", released first

and of the contested chain "uvwxyz" two requests hold "uv", and each a block of its own with "uvwx".
"""

from collections.abc import Callable

import pytest

from kvsim.errors import InvariantError
from kvsim.memory.chain import Chain, Copy, Run
from kvsim.memory.recount import recount
from tests.memory.makers import Asker, make_pool


class Drawn:
    def __init__(self) -> None:
        self.pool = make_pool(20, "abcdefgh", "abcdef!")
        self.goes_on, self.holds_more, self.owner = (self.pool.ask(text) for text in ("ab?", "abcd?", "abcd"))
        for asker in (self.goes_on, self.holds_more, self.owner):
            self.pool.admit(asker)
        self.writers = self.pool.start("uvw", "xyz"), self.pool.start("uvw", "xyz")
        self.pool.tick()

    def chain(self, asker: Asker) -> Chain:
        return asker.holder.path[0][0]

    @property
    def root(self) -> Chain:
        return self.chain(self.owner)

    @property
    def contested(self) -> Chain:
        return self.chain(self.writers[0])

    @property
    def copies(self) -> dict[int, list[Copy]]:
        assert self.contested.copies is not None
        return self.contested.copies

    @property
    def spare(self) -> Run:
        assert self.owner.holder.spare is not None
        return self.owner.holder.spare

    @property
    def cached_order(self) -> list[Run]:
        return list(self.pool.allocator._cached_order)

    def recount(self, cached_order: list[Run] | None = None) -> tuple[int, int, int]:
        computed = {asker.holder: asker.computed for asker in self.pool.running}
        return recount(self.pool.allocator._tree, cached_order or self.cached_order, computed, 2)

    def refusal(self, cached_order: list[Run] | None = None) -> str:
        with pytest.raises(InvariantError) as caught:
            self.recount(cached_order)
        return str(caught.value)


def test_it_is_as_it_is_drawn() -> None:
    drawn = Drawn()
    assert drawn.pool.cached == ["abcdefgh", "abcdef"]
    root = drawn.root
    assert (root.first, root.used, root.resident, root.end_counts) == (0, 2, 4, {1: 2, 2: 1})
    assert [(run.low, run.high) for run in root.runs] == [(3, 4), (2, 3)]
    assert root.spares == [drawn.spare]
    assert (drawn.spare.low, drawn.spare.high, drawn.spare.owner) == (1, 2, drawn.owner.holder)
    assert {index: [copy.ref_count for copy in copies] for index, copies in drawn.copies.items()} == {0: [2], 1: [1, 1]}


def test_blocks_in_use_cached_ones_and_written_tokens() -> None:
    """In use are "ab", "abcd" and its spare, "uv" and "uvwx" twice; and two more blocks, each with a "?" written."""
    drawn = Drawn()
    assert drawn.recount() == (6 + 2, 2, 6 * 2 + 2)


def test_a_block_that_is_not_full_counts_by_its_tokens() -> None:
    pool = make_pool(9)
    asker = pool.start("abcde", "f")
    assert recount(pool.allocator._tree, [], {asker.holder: 5}, 2) == (3, 0, 5)


def test_cached_copies_and_spares_count_one_by_one() -> None:
    drawn = Drawn()
    drawn.pool.leave(drawn.owner, *drawn.writers)
    assert drawn.pool.cached == ["abcdefgh", "abcdef", "abcd", "uvwx", "uvwx", "uv"]
    assert drawn.recount() == (2 + 2, 6, 2 * 2 + 2)


def swap_runs(drawn: Drawn) -> None:
    drawn.root.runs.reverse()


def empty_run(drawn: Drawn) -> None:
    drawn.root.runs.append(Run(drawn.root, 2, 2))


def use_more(drawn: Drawn) -> None:
    """The last run gives way."""
    drawn.root.used += 1
    drawn.pool.allocator._cached_order.pop(drawn.root.runs.pop())


def unlist_holder(drawn: Drawn) -> None:
    drawn.goes_on.holder.published = 0


def strange_copy(drawn: Drawn) -> None:
    drawn.copies[1].append(Copy(1))


DAMAGES: list[tuple[Callable[[Drawn], object], int, str]] = [
    (
        lambda drawn: drawn.pool.allocator._cached_order.update({Run(drawn.root, 2, 3): None}),
        14,
        "the cached order has runs that no chain knows",
    ),
    (lambda drawn: setattr(drawn.root, "first", 3), 15, "chain 0: ends are out of order"),
    (lambda drawn: setattr(drawn.root, "used", 5), 15, "chain 0: ends are out of order"),
    (lambda drawn: setattr(drawn.contested, "used", 9), 15, "chain 5: ends are out of order"),
    (lambda drawn: setattr(drawn.root, "resident", 5), 15, "chain 0: its runs leave a gap or overlap"),
    (lambda drawn: setattr(drawn.root.runs[1], "high", 2), 15, "chain 0: its runs leave a gap or overlap"),
    (lambda drawn: setattr(drawn.root.runs[0], "low", 2), 15, "chain 0: its runs leave a gap or overlap"),
    (swap_runs, 15, "chain 0: its runs leave a gap or overlap"),
    (empty_run, 15, "chain 0: its runs leave a gap or overlap"),
    (
        lambda drawn: drawn.pool.allocator._cached_order.move_to_end(drawn.root.runs[0]),
        15,
        "chain 0: a deeper run is evicted later",
    ),
    (lambda drawn: setattr(drawn.root, "used", 1), 15, "chain 0: its runs do not end where it is in use"),
    (lambda drawn: setattr(drawn.root, "num_holders", 2), 16, "chain 0: 3 requests hold it, counted 2"),
    (unlist_holder, 16, "chain 0: 2 requests hold it, counted 3"),
    (use_more, 16, "chain 0: it is not in use as far as it is held"),
    (
        lambda drawn: setattr(drawn.root, "end_counts", None),
        16,
        "chain 0: it is held up to {1: 2, 2: 1}, counted {2: 3}",
    ),
    (
        lambda drawn: setattr(drawn.root, "end_counts", {1: 1, 2: 2}),
        16,
        "chain 0: it is held up to {1: 2, 2: 1}, counted {1: 1, 2: 2}",
    ),
    (lambda drawn: setattr(drawn.spare, "high", 3), 17, "chain 0: a spare is not the last block of its owner"),
    (lambda drawn: setattr(drawn.spare, "low", 4), 17, "chain 0: a spare stands in for a block that is gone"),
    (lambda drawn: setattr(drawn.spare, "low", -1), 17, "chain 0: a spare stands in for a block that is gone"),
    (
        lambda drawn: setattr(drawn.contested, "writer", drawn.writers[0].holder),
        18,
        "chain 5: it is contested and has a lazy writer",
    ),
    (lambda drawn: drawn.copies.pop(0), 18, "chain 5: its keys are not a prefix"),
    (lambda drawn: setattr(drawn.contested, "resident", 3), 18, "chain 5: its keys are not a prefix"),
    (lambda drawn: setattr(drawn.copies[0][0], "ref_count", 1), 18, "chain 5: block 0 is miscounted"),
    (lambda drawn: setattr(drawn.copies[1][0], "index", 0), 18, "chain 5: block 1 is miscounted"),
    (strange_copy, 18, "chain 5: a copy of block 1 is neither in use nor cached"),
]


@pytest.mark.parametrize(("damage", "number", "sentence"), DAMAGES)
def test_what_is_damaged_is_said(damage: Callable[[Drawn], object], number: int, sentence: str) -> None:
    drawn = Drawn()
    damage(drawn)
    assert drawn.refusal() == f"invariant {number} does not hold: {sentence}"


def test_a_run_is_in_the_cached_order_once() -> None:
    drawn = Drawn()
    order = drawn.cached_order
    assert drawn.refusal([*order, order[0]]) == "invariant 14 does not hold: a run is in the cached order twice"


def test_a_spare_that_nobody_holds_is_in_the_cached_order() -> None:
    drawn = Drawn()
    drawn.spare.owner = None
    assert drawn.refusal() == "invariant 14 does not hold: the cached order has runs that no chain knows"
