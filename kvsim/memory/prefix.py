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

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from kvsim.workload.request import Source, Span

_BLOCK_BITS = 32

Name = tuple[int, int, Source, int]
"""What a node is filed under: its parent, the depth at which it leaves that, and the token it begins with."""


class Node:
    """A run of tokens that begins at depth `start`; `spans[j]` ends at depth `ends[j]`. The root has no parent."""

    __slots__ = ("end", "ends", "id", "name", "num_children", "parent", "spans", "start")

    def __init__(self, id: int, start: int, parent: "Node | None", name: Name | None) -> None:
        self.id = id
        self.start = start
        self.end = start
        self.parent = parent
        self.name = name
        self.num_children = 0
        self.spans: list[Span] = []
        self.ends: list[int] = []

    def append(self, span: Span) -> None:
        self.end += span.length
        self.spans.append(span)
        self.ends.append(self.end)


AnyNode = TypeVar("AnyNode", bound=Node)


class ContentTree(Generic[AnyNode]):
    """Finds the nodes of token sequences; equal sequences have equal nodes, whatever spans they came in."""

    def __init__(self, make_node: Callable[[int, int, AnyNode | None, Name | None], AnyNode]) -> None:
        self._make_node = make_node
        self._root = make_node(0, 0, None, None)
        self._num_made = 1
        self._children: dict[Name, AnyNode] = {}

    def path(self, spans: Iterable[Span]) -> list[tuple[AnyNode, int]]:
        """The nodes of a content, in order of depth, each with the depth up to which it owns it.

        What is not there yet is added. The cost grows with the number of spans, not of tokens.
        """
        path: list[tuple[AnyNode, int]] = []
        depth, index = 0, 0
        node = self._root
        for span in spans:
            source, start, length = span
            while length:
                if depth == node.end:
                    node.append(span)
                    index = len(node.spans)
                    depth += length
                    break
                known = node.spans[index]
                rest = node.ends[index] - depth
                if known[0] == source and known[1] + known[2] - rest == start:
                    same = length if length < rest else rest
                    index += same == rest
                    depth += same
                    if same == length:
                        break
                    start += same
                    length -= same
                    span = Span(source, start, length)
                else:
                    if depth > node.start:
                        path.append((node, depth))
                    node = self._child(node, depth, source, start)
                    index = 0
        if depth > node.start:
            path.append((node, depth))
        return path

    def _child(self, parent: AnyNode, depth: int, source: Source, position: int) -> AnyNode:
        """The node that leaves its parent at `depth` with this token; made empty if there is none."""
        name = (parent.id, depth, source, position)
        child = self._children.get(name)
        if child is None:
            child = self._children[name] = self._make_node(self._num_made, depth, parent, name)
            self._num_made += 1
            parent.num_children += 1
        return child

    def forget(self, node: AnyNode) -> None:
        """Take out a node without children. Its content gets another name when it comes again."""
        assert node.parent is not None, "the root stays"
        assert node.name is not None, "only the root has no name"
        assert node.num_children == 0, "what hangs on a node goes first"
        del self._children[node.name]
        node.parent.num_children -= 1

    def __iter__(self) -> Iterator[AnyNode]:
        """All nodes that are known."""
        yield self._root
        yield from self._children.values()


class Piece(NamedTuple):
    """The tokens of a content from the end of the piece before it up to depth `end` are owned by `node`."""

    node: int
    end: int


class PrefixTree(ContentTree[Node]):
    """Names token sequences by the numbers of their nodes."""

    def __init__(self) -> None:
        super().__init__(Node)

    def intern(self, spans: Iterable[Span]) -> list[Piece]:
        """The pieces of a content, in order of depth."""
        return [Piece(node.id, end) for node, end in self.path(spans)]


def block_keys(pieces: Iterable[Piece], block_size: int, most: int) -> list[int]:
    """Keys of the full blocks of a content, first block first, `most` of them at the most."""
    keys: list[int] = []
    for node, end in pieces:
        first = node << _BLOCK_BITS
        keys.extend(range(first + len(keys), first + min(end // block_size, most)))
    return keys
