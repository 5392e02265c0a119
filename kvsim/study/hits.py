"""What prefix sharing could give: hits against capacity, without a clock, in the order of the trace.

Two figures of the same cache. *Content* counts every shared block, a partial last block as one of its own;
*engine* counts what an engine can use: a contiguous prefix of full blocks, and of P prompt tokens at the most
floor((P - 1) / B) * B, since the last token must be computed.

Two orders. `head` is the plain LRU of single blocks, touched from the head of the prompt on. `tail` looks a prompt
up as a whole and releases it tail first, so that a head is evicted after all that hangs on it and hits are always a
contiguous prefix.

In the order `tail` the eviction policies of `memory/eviction.py` can be set beside that LRU, which is the one called
`lru` there. They go through the same cache: a block is there or not, whatever has become of those before it, and the
engine figures then take the contiguous prefix.

The optimum bounds them all. It knows what will be asked, and after each prompt leaves any blocks of that prompt and of
what was there, as many as there is room for; every policy leaves some such blocks. It is computed twice, for content
hits and for engine hits, as keeping what an engine cannot use helps only the first. It is a bound of this cache without
a clock: in a simulation what is asked next, and what is held, hang on the hits themselves.
"""

from array import array
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from attrs import frozen

from kvsim.errors import TraceError
from kvsim.memory.eviction import EVICTION
from kvsim.memory.prefix import PrefixTree
from kvsim.rules import MAX_TOKENS, shown
from kvsim.study.reuse import NEVER, Bools, Ints, found_under, most_hits, stack_distances, touched_before
from kvsim.workload.request import Span

Order = Literal["head", "tail"]

MOST_TOUCHES_FOR_OPTIMUM = 2_000_000
"""Beyond them the optimum, which takes a pass for each capacity, is left out."""

_BLOCK_BITS = 32


class Prompts:
    """The contents of prompts, interned, from which touches follow at any block size.

    Three numbers a piece and two a prompt are kept, and nothing a token or a block.
    """

    def __init__(self) -> None:
        self._tree = PrefixTree()
        self._nodes, self._starts, self._ends = array("q"), array("q"), array("q")
        self._last_pieces, self._lengths, self._known = array("q"), array("q"), array("q")
        self._reach: list[int] = []

    def add(self, prompt: Iterable[Span]) -> None:
        """One more prompt; one without tokens touches nothing."""
        depth = known = 0
        reach = self._reach
        for node, end in self._tree.intern(prompt):
            self._nodes.append(node)
            self._starts.append(depth)
            self._ends.append(end)
            reach.extend([0] * (node + 1 - len(reach)))
            if known == depth:
                known = max(depth, min(end, reach[node]))
            reach[node] = max(end, reach[node])
            depth = end
        if depth:
            self._last_pieces.append(len(self._nodes) - 1)
            self._lengths.append(depth)
            self._known.append(known)

    def ideal_hit_tokens(self, block_size: int) -> int:
        """Content hit tokens of a cache that never evicts, at a cost that does not grow with the blocks.

        They are the full blocks of what each prompt shares with any before it, and the partial last block of one
        that was asked word for word before. So the sizes that divide all lengths at which prompts part give the
        same tokens, and other sizes lose the shared tokens of the block in which they part.
        """
        _need_block_size(block_size)
        nodes, lengths, known, last_pieces = (
            np.array(column, dtype=np.int64) for column in (self._nodes, self._lengths, self._known, self._last_pieces)
        )
        repeated = touched_before(nodes[last_pieces] << _BLOCK_BITS | lengths) >= 0
        full = known // block_size * block_size
        return int(full.sum() + (lengths % block_size)[repeated].sum())

    @property
    def known(self) -> Ints:
        """For each prompt the tokens that it shares with any one before it."""
        return np.array(self._known, dtype=np.int64)

    def starts(self, least: int, tokens: int) -> Ints:
        """Which first `tokens` tokens each prompt of at least `least` has, equal numbers for equal ones."""
        nodes, starts, ends = (np.array(column, dtype=np.int64) for column in (self._nodes, self._starts, self._ends))
        first_pieces: Ints = np.array([-1, *self._last_pieces], dtype=np.int64)
        lengths = np.repeat(np.array(self._lengths, dtype=np.int64), first_pieces[1:] - first_pieces[:-1])
        return nodes[(starts < tokens) & (tokens <= ends) & (lengths >= least)]

    def touches(self, block_size: int) -> "Touches":
        """The blocks of every prompt, first block first."""
        nodes, starts, ends, last_pieces, lengths = (
            np.array(column, dtype=np.int64)
            for column in (self._nodes, self._starts, self._ends, self._last_pieces, self._lengths)
        )
        counts = ends // block_size - starts // block_size
        partial = lengths % block_size
        with_partial = counts.copy()
        with_partial[last_pieces] += partial > 0
        piece = np.repeat(np.arange(len(nodes)), with_partial)
        begins = np.concatenate(([0], np.cumsum(with_partial)))
        place = np.arange(begins[-1]) - begins[piece]
        index = starts[piece] // block_size + place
        keys = nodes[piece] << _BLOCK_BITS | index
        tokens = np.full(len(keys), block_size, dtype=np.int64)
        last = (begins[last_pieces + 1] - 1)[partial > 0]
        # The key of a block that is not full: its last token, told apart from full blocks by its sign.
        keys[last] = -1 - (nodes[last_pieces] << _BLOCK_BITS | lengths)[partial > 0]
        tokens[last] = partial[partial > 0]
        groups = np.concatenate(([0], begins[last_pieces + 1]))
        return Touches(block_size, keys, tokens, index, groups, lengths)


@frozen(eq=False)
class Touches:
    """The blocks that prompts touch, prompt after prompt, each from its head on."""

    block_size: int
    keys: Ints
    """Equal if and only if the blocks hold the same tokens after the same tokens."""
    tokens: Ints
    """In each block: `block_size`, but for partial last ones."""
    index: Ints
    """Of each block in its prompt."""
    groups: Ints
    """Where the touches of each prompt begin, and where the last one's end."""
    lengths: Ints
    """Tokens of each prompt."""

    @property
    def prompt(self) -> Ints:
        """Which prompt each touch belongs to."""
        return np.repeat(np.arange(len(self.lengths)), np.diff(self.groups))

    def distances(self, order: Order) -> Ints:
        """For each touch the smallest capacity that does not hit it; NEVER where none does."""
        if order == "head":
            return stack_distances(touched_before(self.keys))
        # 0          start       t         end
        # |------------|---------|----------|    turned round, the blocks t + 1 ... end are touched before t,
        #              head             tail     though looked up together with it: they are taken off
        prompt = self.prompt
        start, end = self.groups[prompt], self.groups[prompt + 1]
        here = np.arange(len(self.keys))
        turned = start + end - 1 - here
        distances = stack_distances(touched_before(self.keys[turned]))[turned]
        return np.where(distances == NEVER, NEVER, distances - (end - 1 - here))

    def usable(self, distances: Ints) -> Ints:
        """The same as an engine can use them: all before a block hit too, and the block below the cap."""
        if not len(distances):
            return distances
        # The greatest so far in each prompt; what is added makes every prompt start afresh.
        never = len(distances) + 1
        stride = self.prompt * (never + 1)
        so_far = np.maximum.accumulate(np.minimum(distances, never) + stride) - stride
        return np.where((so_far < never) & self.below_cap(), so_far, NEVER)

    def below_cap(self) -> Bools:
        """Whether an engine may hit a touch at all, which computes the last token of a prompt in any case."""
        below: Bools = self.index < ((self.lengths - 1) // self.block_size)[self.prompt]
        return below


@frozen
class PolicyHits:
    """Hits under one eviction policy."""

    policy: str
    hit_blocks: int
    hit_tokens: int
    engine_hit_blocks: int
    engine_hit_tokens: int


@frozen
class CapacityHits:
    """Hits in a cache of `capacity_blocks` blocks; None is one that never evicts."""

    capacity_blocks: int | None
    hit_blocks: int
    hit_tokens: int
    engine_hit_blocks: int
    engine_hit_tokens: int
    optimum_hit_blocks: int | None
    """Of the best evictions there could be, under the same rules; None where that takes too long."""
    optimum_engine_hit_blocks: int | None
    """The most engine hits, of evictions that care for nothing else; None also for the order `head`."""
    policies: tuple[PolicyHits, ...]


@frozen
class Hits:
    """Hits of one trace at one block size, by capacity."""

    block_size: int
    order: Order
    policies: tuple[str, ...]
    touches: int
    distinct_blocks: int
    prompt_tokens: int
    prompts: int
    smallest_prefix_tokens: int
    """The shortest prefix that can ever be hit in an engine: one full block, with a token after it."""
    prompts_too_short: int
    """Of no more tokens than that: nothing of them can be hit in an engine."""
    results: tuple[CapacityHits, ...]


class _Curve:
    """Hits and the tokens in them, for every capacity."""

    def __init__(self, distances: Ints, tokens: Ints) -> None:
        again = np.flatnonzero(distances != NEVER)
        order = again[np.argsort(distances[again])]
        self._distances = distances[order]
        self._tokens = np.concatenate(([0], np.cumsum(tokens[order])))

    def blocks(self, capacity: int | None) -> int:
        return len(self._distances) if capacity is None else int(np.searchsorted(self._distances, capacity))

    def tokens(self, capacity: int | None) -> int:
        return int(self._tokens[self.blocks(capacity)])


class HitCurve:
    """Hits of one trace at one block size and in one order, for any capacity.

    Made in one pass over the touches; eviction policies other than LRU take one more for each capacity. Raises
    TraceError for a block size below 1, for policies that are not known, and for any with the order `head`.
    """

    def __init__(self, prompts: Prompts, block_size: int, order: Order = "head", policies: Sequence[str] = ()) -> None:
        _need_block_size(block_size)
        need_policies(policies, order)
        touches = prompts.touches(block_size)
        distances = touches.distances(order)
        self.policies = tuple(policies)
        # They take 32 bytes a touch, which policies alone need.
        self._touches = touches if policies else None
        self._may_hit = touches.below_cap() if order == "tail" else None
        self.block_size = block_size
        self.order: Order = order
        self.prompt_tokens = int(touches.lengths.sum())
        self._lengths = touches.lengths
        self._groups: list[int] = touches.groups.tolist()
        self._before = touched_before(touches.keys)
        self._content = _Curve(distances, touches.tokens)
        self._engine = _Curve(touches.usable(distances), touches.tokens)

    @property
    def distinct_blocks(self) -> int:
        return int((self._before < 0).sum())

    def engine_hit_tokens(self, capacity: int | None) -> int:
        """Of LRU, at no cost; `at` has all figures."""
        return self._engine.tokens(capacity)

    def at(self, capacity: int | None, *, optimum: bool = True) -> CapacityHits:
        """Hits in so many blocks, None being infinite; raises TraceError for a capacity below 1."""
        if capacity is not None and capacity < 1:
            raise TraceError(f"capacity must be >= 1, got {capacity}")
        best = best_of_engine = None
        if capacity is None:
            best, best_of_engine = self._content.blocks(None), self._engine.blocks(None)
        elif optimum and len(self._before) <= MOST_TOUCHES_FOR_OPTIMUM:
            best = most_hits(self._before, self._groups, capacity, at_once=self.order == "tail")
            if self._may_hit is not None:
                best_of_engine = most_hits(self._before, self._groups, capacity, at_once=True, counts=self._may_hit)
        hits = (
            self._content.blocks(capacity),
            self._content.tokens(capacity),
            self._engine.blocks(capacity),
            self._engine.tokens(capacity),
        )
        never_full = capacity is None or capacity >= self.distinct_blocks
        policies = tuple(
            # The curve is that of LRU, and of whatever never evicts.
            PolicyHits(policy, *hits) if never_full or policy == "lru" else self._under(policy, capacity or 0)
            for policy in self.policies
        )
        return CapacityHits(capacity, *hits, best, best_of_engine, policies)

    def _under(self, policy: str, capacity: int) -> PolicyHits:
        touches = self._touches
        assert touches is not None, "there are policies"
        found = found_under(EVICTION[policy](), touches.keys, self._groups, capacity)
        usable = touches.usable(np.where(found, 0, NEVER)) != NEVER
        tokens = touches.tokens
        return PolicyHits(
            policy, int(found.sum()), int(tokens[found].sum()), int(usable.sum()), int(tokens[usable].sum())
        )

    def hits(self, capacities: Iterable[int | None], *, optimum: bool = True) -> Hits:
        return Hits(
            block_size=self.block_size,
            order=self.order,
            policies=self.policies,
            touches=len(self._before),
            distinct_blocks=self.distinct_blocks,
            prompt_tokens=self.prompt_tokens,
            prompts=len(self._lengths),
            smallest_prefix_tokens=self.block_size,
            prompts_too_short=int((self._lengths <= self.block_size).sum()),
            results=tuple(self.at(capacity, optimum=optimum) for capacity in capacities),
        )

    def usual_capacities(self) -> list[int | None]:
        """1, 5, 10, 50, ... blocks, the last three powers of ten below what is ever touched, and infinite."""
        distinct = self.distinct_blocks
        top = len(str(distinct)) - 1
        steps = [step * 10**power for power in range(max(0, top - 3), top + 1) for step in (1, 5)]
        return [*(step for step in steps if step < distinct), None]


def count_hits(
    prompts: Prompts,
    block_size: int,
    capacities: Iterable[int | None],
    order: Order = "head",
    *,
    policies: Sequence[str] = (),
    optimum: bool = True,
) -> Hits:
    """Hits for each capacity in blocks, None being infinite. Raises TraceError as `HitCurve` does."""
    return HitCurve(prompts, block_size, order, policies).hits(capacities, optimum=optimum)


def need_policies(policies: Sequence[str], order: Order) -> None:
    """Raises TraceError for policies that are not known, and for any with the order `head`."""
    for policy in policies:
        if policy not in EVICTION:
            raise TraceError(f"policy must be one of {', '.join(EVICTION)}, got {shown(policy)}")
    if policies and order != "tail":
        raise TraceError(f"policies are compared in the order tail, in which requests come whole, got order {order}")


def _need_block_size(block_size: int) -> None:
    if not 1 <= block_size <= MAX_TOKENS:
        raise TraceError(f"block size must be between 1 and {MAX_TOKENS:,}, got {shown(block_size)}")
