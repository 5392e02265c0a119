"""A chain of blocks: how far it is resident and in use, and what releases have left of it in the cached order.

    block   first          used                      resident        last of the node
            |--------------|------------|------------|...............|
             in use         cached: run  cached: run  not there
                            (released    (released
                            last)        first, evicted first, from its end)

Residents are closed under prefixes, as a request releases its last block first and eviction goes by release, and
whoever holds a block holds all before it. So three numbers and the runs say all there is to say, but for blocks that
have the same key (rule 19): a *spare*, and the copies of a *contested* chain, see `contested.py`.
"""

from collections import OrderedDict

from kvsim.memory.prefix import Name, Node


class Copy:
    """One of the blocks that carry a key, in a contested chain."""

    __slots__ = ("index", "ref_count", "run")

    def __init__(self, index: int, ref_count: int = 0) -> None:
        self.index = index
        self.ref_count = ref_count
        self.run: Run | None = None


class Run:
    """Blocks `low ... high - 1` of a chain that one release has left in the cached order, to be evicted from the end.

    A spare is one block beside its chain, in the cached order or, while it has an owner, in use. In a contested chain
    the blocks stand one by one in `copies`, next to be evicted first.
    """

    __slots__ = ("chain", "copies", "high", "is_spare", "low", "owner")

    def __init__(self, chain: "Chain", low: int, high: int) -> None:
        self.chain = chain
        self.low = low
        self.high = high
        self.is_spare = False
        self.owner: Holder | None = None
        self.copies: OrderedDict[Copy, None] | None = None


class Chain(Node):
    """The blocks that end in one node: `first` up to, as content comes, the node's end."""

    __slots__ = (
        "copies",
        "end_counts",
        "first",
        "num_holders",
        "num_paths",
        "resident",
        "runs",
        "spares",
        "used",
        "writer",
    )

    def __init__(self, block_size: int, id: int, start: int, parent: "Chain | None", name: Name | None) -> None:
        Node.__init__(self, id, start, parent, name)
        self.first = self.used = self.resident = start // block_size
        self.runs: list[Run] = []
        """They cover `used ... resident`, the deepest first."""
        self.num_holders = 0
        self.end_counts: dict[int, int] | None = None
        """Of each end up to which a holder holds blocks, how many do; None while all is up to `used`."""
        self.num_paths = 0
        """Requests that run, or have been looked up, whose content goes through here."""
        self.writer: Holder | None = None
        self.spares: list[Run] | None = None
        """In order of publication."""
        self.copies: dict[int, list[Copy]] | None = None
        """Of a contested chain: by block the copies in order of publication."""

    def hold(self, end: int) -> None:
        """One more request holds the blocks up to `end`."""
        if end != self.used:
            if self.num_holders and self.end_counts is None:
                self.end_counts = {self.used: self.num_holders}
            self.used = max(self.used, end)
        if self.end_counts is not None:
            self.end_counts[end] = self.end_counts.get(end, 0) + 1
        self.num_holders += 1

    def let_go(self, end: int) -> int:
        """One of several that held up to `end` does not any more; `used` falls to the furthest end that is left."""
        self.num_holders -= 1
        if self.end_counts is not None:
            self._uncount(end)
            self.used = max(self.end_counts)
            if len(self.end_counts) == 1:
                self.end_counts = None
        return self.used

    def publish(self, end: int, new_end: int) -> None:
        """A request that held all of the chain, up to `end`, holds it up to `new_end`; it was not there so far."""
        if end == self.first:
            self.num_holders += 1
        if self.num_holders > 1:
            if self.end_counts is None:
                self.end_counts = {self.used: self.num_holders}
            self._uncount(end)
            self.end_counts[new_end] = 1
        self.used = self.resident = new_end

    def drop_spare(self, spare: Run) -> None:
        assert self.spares is not None, "it is one of them"
        self.spares.remove(spare)
        self.spares = self.spares or None

    def _uncount(self, end: int) -> None:
        assert self.end_counts is not None, "ends are counted one by one"
        self.end_counts[end] -= 1
        if not self.end_counts[end]:
            del self.end_counts[end]

    @property
    def has_copies(self) -> bool:
        """A key may be carried by several blocks."""
        return self.copies is not None or self.spares is not None

    @property
    def is_forgettable(self) -> bool:
        """Nobody can tell whether it was ever there."""
        return not (
            self.num_paths
            or self.num_children
            or self.resident > self.first
            or self.spares is not None
            or self.parent is None
        )


class Holder:
    """What a request holds: the first `published` blocks of its path have a key, and the rest none.

    `path` has its chains in order, each with the index after the last block that is the request's in it. While it
    decodes `offset` + the ticks of the clock are its computed tokens.
    """

    __slots__ = ("copies", "offset", "order", "path", "published", "spare")

    def __init__(self, path: list[tuple[Chain, int]]) -> None:
        self.path = path
        self.published = 0
        self.offset: int | None = None
        self.order = 0
        """Of admission."""
        self.spare: Run | None = None
        self.copies: dict[Chain, list[Copy]] | None = None
        """Of contested chains, the copies that it holds."""
