"""Prompts that continue earlier requests, so that what these generated is found again in them."""

from collections.abc import Hashable
from itertools import chain

from attrs import define

from kvsim.workload.request import Content, Source, Span, merged, num_tokens

MOST_TURNS = 200_000
MOST_NAMED_BLOCKS = 2_000_000
"""What is remembered: a turn continued after so many others shares its prompt, and not its output."""


def part(content: Content, start: int, length: int) -> Content:
    """Tokens `start ... start + length` of a content, as far as it goes."""
    spans = []
    for span in content:
        taken = min(span.length - start, length)
        if taken > 0 and start >= 0:
            spans.append(Span(span.source, span.start + start, taken))
            length -= taken
        start = max(start - span.length, 0)
    return tuple(spans)


@define
class _Turn:
    """A request that another may continue: the tokens after its last full block, and what it generated."""

    prompt_tokens: int
    last_full_block: Source | None
    tail: Content
    output: Span
    continued: bool = False


class Lineage:
    """Names the ids of blocks that hold an earlier output after that output.

        parent   |--- id 1 ---|--- id 2 ---|- tail -|..... output .....|
        child    |--- id 1 ---|--- id 2 ---|--- id 8 ---|--- id 9 ---|-- id 10 --|
                                            tail, output  output      output, own tokens of id 10

    Ids are of prefix blocks: the last full block of the parent stands for all before it. An id is named when the
    first child of a request is read, and keeps that name, so equal ids stay equal tokens; another child that goes
    on differently has other ids, which keep tokens of their own. A child shorter than prompt and output together
    does not contain the output, and names nothing.
    """

    def __init__(self) -> None:
        self._turns: dict[Hashable, _Turn] = {}
        self._named: dict[Source, Content] = {}

    def prompt(self, parent: Hashable, blocks: Content, block_tokens: int) -> Content:
        """The content of a prompt whose blocks are spans of their ids, one each."""
        turn = self._turns.get(parent)
        if turn is not None and not turn.continued and self._continues(turn, blocks, block_tokens):
            turn.continued = True
            self._name(turn, blocks[turn.prompt_tokens // block_tokens :])
        return merged(chain.from_iterable(self._pieces(block) for block in blocks))

    def remember(self, key: Hashable, blocks: Content, prompt: Content, block_tokens: int, output: Span) -> None:
        """Later prompts may continue this request; a key that comes again stands for the later one."""
        prompt_tokens = num_tokens(prompt)
        full = prompt_tokens // block_tokens
        tail = part(prompt, full * block_tokens, block_tokens)
        self._turns.pop(key, None)
        self._turns[key] = _Turn(prompt_tokens, blocks[full - 1].source if full else None, tail, output)
        if len(self._turns) > MOST_TURNS:
            del self._turns[next(iter(self._turns))]

    def _continues(self, turn: _Turn, blocks: Content, block_tokens: int) -> bool:
        full = turn.prompt_tokens // block_tokens
        if num_tokens(blocks) < turn.prompt_tokens + turn.output.length:
            return False
        return full == 0 or blocks[full - 1].source == turn.last_full_block

    def _name(self, turn: _Turn, blocks: Content) -> None:
        known = (*turn.tail, turn.output)
        position, left = 0, num_tokens(known)
        for block in blocks:
            taken = min(block.length, left)
            if taken == 0:
                return
            pieces = (*part(known, position, taken), Span(block.source, taken, block.length - taken))
            self._named.setdefault(block.source, merged(pieces))
            position, left = position + taken, left - taken
            if len(self._named) > MOST_NAMED_BLOCKS:
                del self._named[next(iter(self._named))]

    def _pieces(self, block: Span) -> Content:
        pieces = self._named.get(block.source)
        return pieces if pieces is not None and num_tokens(pieces) == block.length else (block,)
