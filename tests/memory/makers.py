"""Worlds of chains: pools and those who run on them, with contents that can be read.

A token is a letter, and a key is told by all letters up to its end.
"""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from kvsim.memory.beams import Beams
from kvsim.memory.chain import Holder
from kvsim.memory.chains import ChainAllocator
from kvsim.memory.prefix import Node
from kvsim.workload.request import Content, Request, Span, merged


def content(text: str) -> Content:
    return merged(Span("text", ord(letter), 1) for letter in text)


def text_of(node: Node, depth: int) -> str:
    """All letters up to a depth of a node."""
    text = ""
    if node.parent is not None:
        assert node.name is not None
        text = text_of(node.parent, node.name[1])
    for _source, start, length in node.spans:
        text += "".join(chr(start + i) for i in range(length))
    return text[:depth]


class Asker:
    """One request and how far it has got."""

    def __init__(self, request: Request, holder: Holder) -> None:
        self.request = request
        self.holder = holder
        self.known = request.prompt_tokens
        self.computed = 0
        self.decodes = False

    @property
    def stop(self) -> int:
        """Tokens to be computed in its life."""
        return self.request.prompt_tokens + self.request.output_tokens - 1


class Pool:
    """A chain allocator and those who run on it, all invariants recounted after every action.

    The recount is made of a copy, as it catches up with those who publish lazily.
    """

    def __init__(self, blocks: int = 9, block_size: int = 2, prefix_sharing: bool = True, **sizes: int) -> None:
        """`blocks` are usable ones."""
        self.allocator = ChainAllocator(blocks + 1, block_size, prefix_sharing, **sizes)
        self.running: dict[Asker, None] = {}
        self.num_asked = 0

    def ask(self, prompt: str, output: str = ".") -> Asker:
        request = Request(self.num_asked, 0, content(prompt), content(output))
        self.num_asked += 1
        return Asker(request, self.allocator.look_up(request, len(prompt) + len(output) - 1))

    def found(self, asker: Asker) -> tuple[int, int]:
        """Blocks that are there, and how many of them others hold."""
        return self.allocator.find(asker.holder, asker.known)[:2]

    def admit(self, asker: Asker, num_tokens: int | None = None) -> int:
        """Compute all that is known or as much as is told; the blocks that were hit."""
        hit, _in_use = self.found(asker)
        self.allocator.admit(asker.holder, hit)
        asker.computed = hit * self.allocator.block_size
        self.running[asker] = None
        self.extend(asker, asker.known if num_tokens is None else num_tokens)
        return hit

    def extend(self, asker: Asker, num_tokens: int) -> None:
        self.allocator.extend(asker.holder, asker.computed, num_tokens)
        asker.computed = num_tokens
        self.check()

    def begin_decode(self, *askers: Asker) -> None:
        for asker in askers:
            asker.known += 1
            asker.decodes = True
            if self.allocator.shares:
                self.allocator.begin_decode(asker.holder, asker.computed)
        self.check()

    def start(self, prompt: str, output: str = ".") -> Asker:
        """Ask, compute the prompt, and decode from the next tick on."""
        asker = self.ask(prompt, output)
        self.admit(asker)
        self.begin_decode(asker)
        return asker

    def tick(self, num_ticks: int = 1) -> None:
        decoding = [asker for asker in self.running if asker.decodes]
        need = 0
        for asker in decoding:
            need -= self.allocator.blocks_for(asker.computed)
            asker.computed += num_ticks
            asker.known += num_ticks
            assert asker.computed <= asker.stop, "its output has ended"
            need += self.allocator.blocks_for(asker.computed)
        self.allocator.decode(num_ticks, len(decoding), need)
        self.check()

    def preempt(self, asker: Asker) -> None:
        del self.running[asker]
        self.allocator.release(asker.holder, asker.computed)
        asker.computed, asker.decodes = 0, False
        self.check()

    def forget(self, asker: Asker) -> None:
        self.allocator.forget(asker.holder)
        self.check()

    def leave(self, *askers: Asker) -> None:
        for asker in askers:
            self.preempt(asker)
            self.forget(asker)

    def remember(self, *texts: str) -> None:
        """Requests come with these prompts and leave, one after the other."""
        for text in texts:
            asker = self.ask(text)
            self.admit(asker)
            self.leave(asker)

    def take(self, num_blocks: int) -> None:
        """By somebody who shares nothing and stays: these are no longer part of the pool."""
        self.allocator.take(num_blocks)
        self.allocator.num_usable -= num_blocks
        self.check()

    def check(self) -> None:
        check_in_a_copy(self.allocator, self.running)

    @property
    def cached(self) -> list[str]:
        """The cached order, next to be evicted first."""
        return cached_order(self.allocator)

    @property
    def free(self) -> tuple[int, int]:
        """Blank and cached blocks."""
        return self.allocator.num_blank, self.allocator.num_cached

    @property
    def chains(self) -> list[str]:
        """The text of each chain that is known, from the root on."""
        return [text_of(chain, chain.end) for chain in self.allocator._tree]


def check_in_a_copy(allocator: ChainAllocator, running: Iterable[Asker]) -> ChainAllocator:
    """Recount a copy, as a recount catches up with those who write; the copy, in which that is done."""
    computed = [(asker.holder, asker.computed) for asker in running]
    copied, numbers = deepcopy((allocator, computed))
    copied.check(numbers)
    return copied


def cached_order(allocator: ChainAllocator) -> list[str]:
    size = allocator.block_size
    order = []
    for run in allocator._cached_order:
        indices = range(run.high - 1, run.low - 1, -1)
        if run.copies is not None:
            indices = [copy.index for copy in run.copies]
        order += [text_of(run.chain, (index + 1) * size) for index in indices]
    return order


def make_pool(blocks: int = 9, *remembered: str, **options: Any) -> Pool:
    """A pool that has seen requests with these prompts come and go."""
    pool = Pool(blocks, **options)
    pool.remember(*remembered)
    return pool


class Chosen(Beams):
    """Beams that go on as a test says: the parents of step after step."""

    def __init__(self, *parents: list[int]) -> None:
        super().__init__(len(parents[0]), 1.0, 0)
        self.chosen = parents

    def parents(self, request_id: int, step: int) -> list[int]:
        return self.chosen[step]
