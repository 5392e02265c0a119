"""Block keys: equal keys if and only if the content is equal from token 0 to the block's last token.

Contents are interned in a radix tree over spans whose nodes are never split. A node owns a run of tokens that
begins at some depth; content that leaves the run at depth d goes on in a child, filed under (node, d, its
first token); content that goes on from the end of a run extends it in place.

    depth  0         64          96
    node 0 |---------|-----------|....     the first content that came
                     |-----------|---      node 1: left node 0 at depth 64

So (node that owns it, depth) names a token together with all before it, and the key of block i is
(node of its last token, i). Keys are exact: nothing is hashed, nothing collides. (Rule 16.)
"""

from collections.abc import Iterable
from typing import NamedTuple

from kvsim.workload.request import Source, Span

_BLOCK_BITS = 32


class Piece(NamedTuple):
    """The tokens of a content from the end of the piece before it up to depth `end` are owned by `node`."""

    node: int
    end: int


class _Node:
    """A run of tokens that begins at depth `start`; `spans[j]` ends at depth `ends[j]`."""

    __slots__ = ("end", "ends", "spans", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.spans: list[Span] = []
        self.ends: list[int] = []

    def append(self, span: Span) -> None:
        self.end += span.length
        self.spans.append(span)
        self.ends.append(self.end)


class PrefixTree:
    """Names token sequences; equal sequences get equal pieces, whatever spans they came in."""

    def __init__(self) -> None:
        self._nodes = [_Node(0)]
        self._children: dict[tuple[int, int, Source, int], int] = {}

    def intern(self, spans: Iterable[Span]) -> list[Piece]:
        """The pieces of a content, in order of depth, at a cost that grows with its spans, not its tokens."""
        pieces: list[Piece] = []
        node_id, depth, index = 0, 0, 0
        node = self._nodes[0]
        for source, start, length in spans:
            while length:
                if depth == node.end:
                    node.append(Span(source, start, length))
                    index = len(node.spans)
                    depth += length
                    break
                known = node.spans[index]
                rest = node.ends[index] - depth
                if known.source == source and known.start + known.length - rest == start:
                    same = min(length, rest)
                    index += same == rest
                    depth += same
                    start += same
                    length -= same
                    continue
                if depth > node.start:
                    pieces.append(Piece(node_id, depth))
                node_id = self._child(node_id, depth, source, start)
                node, index = self._nodes[node_id], 0
        if depth > node.start:
            pieces.append(Piece(node_id, depth))
        return pieces

    def _child(self, node_id: int, depth: int, source: Source, position: int) -> int:
        """The node that leaves `node_id` at `depth` with this token; made empty if there is none."""
        name = (node_id, depth, source, position)
        child = self._children.get(name)
        if child is None:
            child = self._children[name] = len(self._nodes)
            self._nodes.append(_Node(depth))
        return child


def block_keys(pieces: Iterable[Piece], block_size: int, most: int) -> list[int]:
    """Keys of the full blocks of a content, first block first, `most` of them at the most."""
    keys: list[int] = []
    for node, end in pieces:
        first = node << _BLOCK_BITS
        keys.extend(range(first + len(keys), first + min(end // block_size, most)))
    return keys
