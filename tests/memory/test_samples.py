"""Blocks have 4 slots; the null block is one of `blocks`, so that ids are handed out from 1 on."""

from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.errors import InvariantError
from kvsim.memory.allocator import Allocator, Hit, Shortfall
from kvsim.memory.beams import Beams
from kvsim.memory.samples import SampleAllocator
from kvsim.workload.request import Request
from tests.makers import make_request
from tests.memory.makers import Chosen

NO_HIT = Hit(0, ([],))


def make_memory(num_seqs: int = 2, blocks: int = 30, **options: object) -> SampleAllocator:
    return SampleAllocator(blocks, 4, num_seqs, token_bytes=10, **options)  # type: ignore[arg-type]


def admit(memory: SampleAllocator, request: Request, num_tokens: int | None = None, gate: int | None = None) -> bool:
    tokens = request.prompt_tokens if num_tokens is None else num_tokens
    admitted = memory.admit(request, memory.find_hit(request, tokens), tokens, gate, 0)
    memory.check()
    return admitted


def grow(memory: SampleAllocator, request: Request, num_tokens: int) -> bool:
    grown = memory.grow(request, num_tokens)
    memory.check()
    return grown


def levels(memory: SampleAllocator) -> tuple[int, int, int]:
    """Blocks in use, written slots, slots as if nothing were shared."""
    held = memory.occupancy()
    return held.allocated_blocks, held.live_bytes // 10, held.logical_bytes // 10


# the paper's rules


def test_the_first_to_write_into_a_shared_last_block_copies_it_and_the_last_writes_in_place() -> None:
    """The paper's figure 8: a prompt of 7 tokens in blocks of 4, two samples."""
    memory, request = make_memory(), make_request(own=7)
    assert admit(memory, request)
    assert memory.tables(request) == [[1, 2], [1, 2]]
    assert [memory.pool.ref_count(block) for block in (1, 2)] == [1, 2]
    assert levels(memory) == (2, 7, 14)
    assert grow(memory, request, 8)
    assert memory.tables(request) == [[1, 3], [1, 2]]
    assert [memory.pool.ref_count(block) for block in (1, 2, 3)] == [2, 1, 1]
    assert (memory.num_copies, levels(memory)) == (1, (3, 4 + 4 + 4, 16))


def test_a_full_last_block_is_not_copied() -> None:
    memory, request = make_memory(num_seqs=3), make_request(own=8)
    admit(memory, request)
    grow(memory, request, 9)
    assert memory.tables(request) == [[1, 2, 3], [1, 2, 4], [1, 2, 5]]
    assert (memory.num_copies, levels(memory)) == (0, (5, 8 + 3, 27))


def test_who_has_copied_writes_on_without_another_copy() -> None:
    memory, request = make_memory(num_seqs=3), make_request(own=5)
    admit(memory, request)
    for num_tokens in range(6, 10):
        grow(memory, request, num_tokens)
    assert memory.tables(request) == [[1, 3, 5], [1, 4, 6], [1, 2, 7]]
    assert memory.num_copies == 2


def test_a_prompt_is_written_once_chunk_by_chunk_and_counts_for_every_sequence() -> None:
    memory, request = make_memory(num_seqs=4), make_request(own=11)
    admit(memory, request, 3)
    assert (memory.tables(request), levels(memory), memory.num_unshared) == ([[1]], (1, 3, 12), 4)
    grow(memory, request, 6)
    grow(memory, request, 11)
    assert memory.tables(request) == [[1, 2, 3]] * 4
    assert (memory.num_copies, levels(memory), memory.num_unshared) == (0, (3, 11, 44), 12)


def test_prompt_and_outputs_can_be_written_at_once() -> None:
    """As after a preemption: 6 tokens of the prompt once, 4 more of each sample."""
    memory, request = make_memory(), make_request(own=6)
    admit(memory, request, 10)
    assert memory.tables(request) == [[1, 3, 4], [1, 2, 5]]
    assert (memory.num_copies, levels(memory)) == (1, (5, 4 + 2 * 4 + 2 * 2, 20))


def test_beams_share_what_their_parent_has_and_drop_what_nobody_goes_on_from() -> None:
    memory, request = make_memory(num_seqs=3, beams=Chosen([0, 1, 2], [1, 1, 2])), make_request(own=4)
    admit(memory, request)
    memory.choose_beams(request)  # the first tokens: all from the prompt
    grow(memory, request, 5)
    memory.choose_beams(request)
    grow(memory, request, 6)
    assert memory.tables(request) == [[1, 2], [1, 3], [1, 4]]
    memory.choose_beams(request)
    memory.check()
    assert memory.tables(request) == [[1, 3], [1, 3], [1, 4]]
    assert next(memory.pool.free_queue()) == 2
    assert levels(memory) == (3, 4 + 2 + 2, 18)
    grow(memory, request, 7)
    assert memory.tables(request) == [[1, 2], [1, 3], [1, 4]]
    assert (memory.num_copies, levels(memory)) == (1, (4, 4 + 3 * 3, 21))


def test_all_beams_from_one_give_back_the_whole_tables_of_the_others() -> None:
    """Blocks go back sequence by sequence, each table with its last block foremost."""
    memory, request = make_memory(beams=Chosen(*[[0, 1]] * 5, [1, 1])), make_request(own=4)
    admit(memory, request)
    for num_tokens in range(5, 11):
        grow(memory, request, num_tokens)
        memory.choose_beams(request)
    memory.check()
    assert memory.tables(request) == [[1, 3, 5], [1, 3, 5]]
    assert list(memory.pool.free_queue())[:2] == [4, 2]
    assert memory.pool.ref_count(3) == 1, "only the link behind it and no table"
    grow(memory, request, 11)
    assert memory.tables(request) == [[1, 3, 4], [1, 3, 5]]


def test_all_that_a_request_holds_is_freed_at_once() -> None:
    memory, first, second = make_memory(), make_request(0, own=6), make_request(1, own=6)
    for request in (first, second):
        admit(memory, request)
        grow(memory, request, 9)
    assert memory.tables(second) == [[6, 8, 9], [6, 7, 10]]
    memory.free(first)
    memory.check()
    assert (memory.held_tokens(), levels(memory), memory.num_unshared) == ({1: 9}, (5, 14, 18), 6)
    memory.free(second)
    memory.check()
    assert (levels(memory), memory.num_unshared, memory.pool.num_free) == ((0, 0, 0), 0, 29)


def test_different_requests_share_nothing() -> None:
    memory = make_memory()
    alike = [make_request(id, shared=8) for id in (0, 1)]
    for request in alike:
        admit(memory, request)
    assert memory.find_hit(alike[0], 9) == NO_HIT
    assert [memory.tables(request)[0] for request in alike] == [[1, 2], [3, 4]]


# without sharing


def test_without_sharing_every_output_has_all_blocks_of_its_own() -> None:
    memory, request = make_memory(num_seqs=3, sharing=False), make_request(own=6)
    admit(memory, request, 3)
    assert (memory.tables(request), memory.num_copies) == ([[1], [2], [3]], 0)
    grow(memory, request, 6)
    assert (memory.tables(request), memory.num_copies) == ([[1, 4], [2, 5], [3, 6]], 2 * 2)
    grow(memory, request, 9)
    assert levels(memory) == (9, 27, 27)
    assert memory.num_unshared == memory.num_allocated


def test_without_sharing_a_beam_with_another_parent_copies_its_whole_table() -> None:
    memory = make_memory(num_seqs=3, sharing=False, beams=Chosen([2, 1, 1]))
    request = make_request(own=4)
    admit(memory, request)
    assert memory.num_copies == 2
    grow(memory, request, 5)
    memory.choose_beams(request)
    memory.check()
    assert memory.num_copies == 2 + 2 * 2
    assert levels(memory) == (6, 15, 15)


# how much is needed


def test_a_copy_needs_a_block_and_a_refusal_changes_nothing() -> None:
    memory, request = make_memory(num_seqs=3, blocks=4), make_request(own=6)
    admit(memory, request)
    assert not grow(memory, request, 7)
    assert memory.tables(request) == [[1, 2]] * 3
    assert memory.why_not_grown(request, 7) == Shortfall(2, 1, 0, 1, 20, "blocks")
    assert make_memory(num_seqs=3, blocks=5).fits_empty_pool(6, 8)
    assert not make_memory(num_seqs=3, blocks=5).fits_empty_pool(6, 9)


def test_admission_asks_for_the_prompt_alone_or_for_all_that_is_known() -> None:
    memory, request = make_memory(blocks=5), make_request(own=6)
    assert not admit(memory, request, 4, gate=9)
    assert memory.why_not_admitted(request, NO_HIT, 4, 9, 0) == Shortfall(5, 4, 0, 1, 0, "gate")
    assert memory.why_not_admitted(request, NO_HIT, 12, None, 0) == Shortfall(5, 4, 0, 1, 0, "blocks")
    assert not memory.admit(request, NO_HIT, 8, None, 2)
    assert memory.why_not_admitted(request, NO_HIT, 8, None, 2) == Shortfall(5, 4, 0, 1, 0, "watermark")
    assert (memory.held_tokens(), memory.pool.num_free) == ({}, 4)
    assert admit(memory, request, 8, gate=8)


@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("num_seqs", [1, 2, 5])
@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("total", [9, 12, 14])
def test_what_fits_an_empty_pool_is_what_samples_need(sharing: bool, num_seqs: int, prompt: int, total: int) -> None:
    request = make_request(own=prompt)
    for blocks in range(2, 25):
        memory = make_memory(num_seqs=num_seqs, blocks=blocks, sharing=sharing)
        grows = admit(memory, request) and all(grow(memory, request, tokens) for tokens in range(prompt, total + 1))
        assert grows == memory.fits_empty_pool(prompt, total)


def test_blocks_larger_than_their_tokens_are_padded() -> None:
    memory, request = make_memory(block_bytes=50), make_request(own=5)
    admit(memory, request)
    assert memory.occupancy().padding_bytes == 2 * 10
    assert memory.unshared_bytes == 4 * 50


DAMAGES = [
    (6, lambda memory: memory.pool._ref_counts.__setitem__(1, 7)),
    (7, lambda memory: memory.groups[0].ends.pop()),
    (7, lambda memory: setattr(memory.groups[0], "num_tokens", 13)),
    (7, lambda memory: setattr(memory.groups[1], "ends", memory.groups[0].ends)),
    (9, lambda memory: setattr(memory, "_live_tokens", 3)),
    (10, lambda memory: setattr(memory, "_logical_tokens", 3)),
    (10, lambda memory: setattr(memory, "num_unshared", 3)),
]


@pytest.mark.parametrize(("number", "damage"), DAMAGES)
def test_a_recount_names_what_is_broken(number: int, damage) -> None:
    memory = make_memory()
    for id in (0, 1):
        admit(memory, make_request(id, own=6), 9)
    damage(memory)
    with pytest.raises(InvariantError) as caught:
        memory.check()
    assert caught.value.number == number


def test_it_is_an_allocator() -> None:
    memory: Allocator = make_memory()
    assert memory.held_tokens() == {}


# against lists of tokens


class Sequences:
    """The outputs of one request as plain lists of tokens, and as tables of blocks that are lists themselves.

    No two tokens are equal unless one is inherited. A block is copied when somebody writes to it whom others see.
    """

    def __init__(self, prompt_tokens: int, num_seqs: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.tokens: list[list[int]] = [[] for _ in range(num_seqs)]
        self.tables: list[list[list[int]]] = [[] for _ in range(num_seqs)]

    def holders(self, block: list[int]) -> int:
        return sum(any(block is other for other in table) for table in self.tables)

    def write_prompt(self, token: int) -> None:
        """One write that all tables see."""
        if len(self.tokens[0]) % 4 == 0:
            block: list[int] = []
            for table in self.tables:
                table.append(block)
        self.tables[0][-1].append(token)
        for tokens in self.tokens:
            tokens.append(token)

    def write(self, seq: int, token: int) -> int:
        """The blocks copied for it."""
        table = self.tables[seq]
        copied = 0
        if len(self.tokens[seq]) % 4 == 0:
            table.append([])
        elif self.holders(table[-1]) > 1:
            table[-1] = list(table[-1])
            copied = 1
        table[-1].append(token)
        self.tokens[seq].append(token)
        return copied

    def go_on_from(self, parents: list[int]) -> None:
        self.tokens = [list(self.tokens[parent]) for parent in parents]
        self.tables = [list(self.tables[parent]) for parent in parents]

    def blocks(self) -> list[list[int]]:
        return list({id(block): block for table in self.tables for block in table}.values())


class SamplesAreListsOfTokens(RuleBasedStateMachine):
    """Random admissions, growth, choices of beams and releases against plain lists."""

    @initialize(num_seqs=st.integers(1, 4), beams=st.booleans(), blocks=st.integers(3, 25), seed=st.integers(0, 99))
    def start(self, num_seqs: int, beams: bool, blocks: int, seed: int) -> None:
        self.beams = Beams(num_seqs, 0.6, seed) if beams else None
        self.memory = SampleAllocator(blocks, 4, num_seqs, beams=self.beams)
        self.num_seqs = num_seqs
        self.held: dict[int, tuple[Request, Sequences]] = {}
        self.ids: Iterator[int] = count()
        self.new_tokens: Iterator[int] = count()
        self.num_copies = 0

    @rule(prompt=st.integers(1, 14), beyond=st.integers(-5, 6))
    def admit(self, prompt: int, beyond: int) -> None:
        request = make_request(next(self.ids), own=prompt)
        num_tokens = max(1, prompt + beyond)
        sequences = Sequences(prompt, self.num_seqs)
        free = self.memory.pool.num_free
        if self.memory.admit(request, NO_HIT, num_tokens, None, 0):
            self.held[request.id] = request, sequences
            self.write(sequences, num_tokens)
            assert len(sequences.blocks()) == free - self.memory.pool.num_free
        else:
            assert self.memory.pool.num_free == free
            assert self.memory.why_not_admitted(request, NO_HIT, num_tokens, None, 0).need > free

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=st.integers(1, 6))
    def grow(self, data: st.DataObject, more: int) -> None:
        request, sequences = self.pick(data)
        num_tokens = len(sequences.tokens[0]) + more
        before = self.memory.tables(request)
        free = self.memory.pool.num_free
        if self.memory.grow(request, num_tokens):
            self.write(sequences, num_tokens)
        else:
            assert self.memory.tables(request) == before
            shortfall = self.memory.why_not_grown(request, num_tokens)
            assert (shortfall.missing, shortfall.blank) == (shortfall.need - free, free)
            copied = self.num_copies
            self.write(sequences := self.copied(sequences), num_tokens)
            self.num_copies = copied
            assert len(sequences.blocks()) - self.num_blocks(request) == shortfall.need > free

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def choose(self, data: st.DataObject) -> None:
        request, sequences = self.pick(data)
        step = len(sequences.tokens[0]) - sequences.prompt_tokens - 1
        self.memory.choose_beams(request)
        if self.beams is not None and step >= 0:
            sequences.go_on_from(self.beams.parents(request.id, step))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        request, _sequences = self.pick(data)
        del self.held[request.id]
        self.memory.free(request)

    @invariant()
    def agrees(self) -> None:
        self.memory.check()
        held = self.memory.occupancy()
        blocks = [block for _request, sequences in self.held.values() for block in sequences.blocks()]
        tokens = [tokens for _request, sequences in self.held.values() for tokens in sequences.tokens]
        assert held.allocated_blocks == len(blocks)
        assert held.live_bytes == sum(map(len, blocks))
        assert held.logical_bytes == sum(map(len, tokens))
        assert self.memory.num_unshared == sum(-(-len(each) // 4) for each in tokens)
        assert self.memory.num_copies == self.num_copies
        shown = [piece for piece in self.memory.block_map(0).runs if piece.state == "held"]
        assert sum(piece.num_blocks for piece in shown) == held.allocated_blocks
        assert sum(piece.written_tokens for piece in shown) == held.live_bytes
        assert {piece.request_ids for piece in shown} == {(id,) for id in self.held}
        names: dict[int, int] = {}
        for request, sequences in self.held.values():
            tables = self.memory.tables(request)
            tables = tables * self.num_seqs if len(tables) == 1 else tables
            for table, own in zip(tables, sequences.tables, strict=True):
                assert [names.setdefault(block, id(mine)) for block, mine in zip(table, own, strict=True)] == list(
                    map(id, own)
                )
            for table, expected in zip(sequences.tables, sequences.tokens, strict=True):
                assert [token for block in table for token in block] == expected
        assert len(set(names.values())) == len(names)

    def pick(self, data: st.DataObject) -> tuple[Request, Sequences]:
        return self.held[data.draw(st.sampled_from(sorted(self.held)))]

    def num_blocks(self, request: Request) -> int:
        return len({block for table in self.memory.tables(request) for block in table})

    def copied(self, sequences: Sequences) -> Sequences:
        """The same structure, to be written to without consequences."""
        other = Sequences(sequences.prompt_tokens, self.num_seqs)
        blocks = {id(block): list(block) for block in sequences.blocks()}
        other.tokens = [list(tokens) for tokens in sequences.tokens]
        other.tables = [[blocks[id(block)] for block in table] for table in sequences.tables]
        return other

    def write(self, sequences: Sequences, num_tokens: int) -> None:
        while len(sequences.tokens[0]) < min(num_tokens, sequences.prompt_tokens):
            sequences.write_prompt(next(self.new_tokens))
        for seq in range(self.num_seqs):
            while len(sequences.tokens[seq]) < num_tokens:
                self.num_copies += sequences.write(seq, next(self.new_tokens))


TestSamplesAreListsOfTokens = SamplesAreListsOfTokens.TestCase
