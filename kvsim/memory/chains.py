"""The paged allocator by chains of blocks instead of block by block: the same decisions at the cost of an event.

Read `paged.py` first: it says what happens, with real block ids, and is the judge of this. Here blocks have no ids.
For one group of full attention counts, contents and order are enough, and of these `chain.py` keeps as much as
matters: a look-up, a hit, a release or an eviction touches chains and runs of blocks, not blocks.

A request that decodes publishes *lazily*: its chains note who writes them, and are brought up to date when somebody
else looks. Nobody can see the difference, as blocks in use are not evicted. Rule numbers are those of
tests/golden/vllm_scheduler/README.md.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial

from kvsim.invariants import hold
from kvsim.memory.allocator import LeastChange, Occupancy, Shortfall
from kvsim.memory.block_map import BlockMap, Piece, block_map
from kvsim.memory.chain import Chain, Holder, Run
from kvsim.memory.chain_map import Running, held_pieces
from kvsim.memory.contested import contest, evict_copy, hit_copies, num_copies_in_use, publish_copies, release_copies
from kvsim.memory.prefix import ContentTree
from kvsim.memory.recount import recount
from kvsim.workload.request import Request

Found = tuple[int, int, Chain | None]
"""How many of a request's first blocks are there, and how many of these others hold; then the chain in which the first
missing one would be, or None where no more may be hit (rule 18)."""


class ChainAllocator:
    """Blocks of `block_size` tokens out of a pool of `num_blocks`, the null block included; one full-attention group.

    `block_bytes` is the size of a block, of which its tokens fill `block_size x token_bytes`. `ticks` counts the steps
    in which requests have decoded.
    """

    moved_bytes = 0

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_sharing: bool,
        *,
        token_bytes: int = 1,
        block_bytes: int | None = None,
    ) -> None:
        assert block_size >= 1, "a block holds at least one token"
        self.num_usable = num_blocks - 1
        self.block_size = block_size
        self.token_bytes = token_bytes
        self.block_bytes = block_bytes or block_size * token_bytes
        self.padding_bytes = self.block_bytes - block_size * token_bytes
        self.num_blank = self.num_usable
        self.num_cached = 0
        self.live_tokens = 0
        self.logical_tokens = 0
        self.ticks = 0
        self.shares = prefix_sharing
        self.eager: dict[Holder, None] = {}
        """Those who publish block by block, as a chain that they write is contested."""
        self._tree: ContentTree[Chain] = ContentTree(partial(Chain, block_size))
        self._cached_order: OrderedDict[Run, None] = OrderedDict()
        self._active: dict[Holder, None] = {}
        self._num_admitted = 0

    # questions

    @property
    def num_free(self) -> int:
        return self.num_blank + self.num_cached

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens take (rule 10)."""
        return -(-num_tokens // self.block_size)

    def fits_empty_pool(self, prompt_tokens: int, num_tokens: int) -> bool:
        return -(-max(prompt_tokens, num_tokens) // self.block_size) <= self.num_usable

    def fits_all_up_to(self, num_tokens: int) -> bool:
        return self.fits_empty_pool(num_tokens, num_tokens)

    def occupancy(self) -> Occupancy:
        cached, blank, token_bytes = self.num_cached, self.num_blank, self.token_bytes
        allocated = self.num_usable - blank - cached
        live, logical = self.live_tokens * token_bytes, self.logical_tokens * token_bytes
        return Occupancy(allocated, cached, blank, live, allocated * self.padding_bytes, logical, 0)

    def find(self, holder: Holder, num_known_tokens: int) -> Found:
        """Rules 17 and 18: whole blocks, the last token never included."""
        most = (num_known_tokens - 1) // self.block_size
        found = in_use = 0
        for chain, end in holder.path:
            stop = end if end < most else most
            if chain.writer is not None:
                self.catch_up(chain.writer)
            resident = chain.resident
            found = resident if resident < stop else stop
            if chain.copies is not None:
                in_use += num_copies_in_use(chain, found)
            else:
                used = chain.used
                in_use += (used if used < found else found) - chain.first
            if resident < stop:
                return found, in_use, chain
            if stop == most:
                break
        return found, in_use, None

    def shortfall(self, need: int, change: LeastChange, num_taken: int = 0, num_written: int = 0) -> Shortfall:
        """What is missing of `need` blocks once so many more have been taken, and tokens written."""
        blank = max(0, self.num_blank - num_taken)
        evictable = self.num_blank + self.num_cached - num_taken - blank
        allocated = self.num_usable - blank - evictable
        slack_bytes = allocated * self.block_bytes - (self.live_tokens + num_written) * self.token_bytes
        return Shortfall(need, blank, evictable, need - blank - evictable, slack_bytes, change)

    # a request's way

    def look_up(self, request: Request, num_tokens: int) -> Holder:
        """A request comes to the head of the queue, with `num_tokens` to be computed in its life at most."""
        if not self.shares:
            return _NOBODY
        size = self.block_size
        most = num_tokens // size
        path = []
        for chain, end in self._tree.path(request.prompt + request.output):
            chain.num_paths += 1
            end //= size
            path.append((chain, end if end < most else most))
        return Holder(path)

    def forget(self, holder: Holder) -> None:
        """A request has left for good; content that nobody can hit any more is forgotten with it."""
        for chain, _end in reversed(holder.path):
            chain.num_paths -= 1
            if not chain.num_paths and chain.resident == chain.first:
                self._forget_idle(chain)

    def _forget_idle(self, chain: Chain) -> None:
        parent: Chain | None = chain
        while parent is not None and parent.is_forgettable:
            chain = parent
            self._tree.forget(chain)
            assert chain.parent is None or isinstance(chain.parent, Chain), "a tree has nodes of one kind"
            parent = chain.parent

    def admit(self, holder: Holder, num_hit_blocks: int) -> None:
        """Touch what was found (rule 14), before anything else is taken."""
        if not self.shares:
            return
        holder.order = self._num_admitted
        self._num_admitted += 1
        self._active[holder] = None
        holder.published = num_hit_blocks
        if num_hit_blocks:
            woken = 0
            for chain, end in holder.path:
                stop = end if end < num_hit_blocks else num_hit_blocks
                if stop > chain.first:
                    woken += self._hit(holder, chain, stop)
                if stop == num_hit_blocks:
                    break
            self.num_cached -= woken
            self.live_tokens += woken * self.block_size
            self.logical_tokens += num_hit_blocks * self.block_size

    def _hit(self, holder: Holder, chain: Chain, stop: int) -> int:
        """Hold a chain up to `stop`; how many blocks left the cached order for it."""
        if chain.copies is not None:
            return hit_copies(holder, chain, stop, self._cached_order)
        woken = stop - chain.used
        if woken > 0:
            runs = chain.runs
            while runs and runs[-1].high <= stop:
                del self._cached_order[runs.pop()]
            if runs and runs[-1].low < stop:
                runs[-1].low = stop
        chain.hold(stop)
        return max(0, woken)

    def extend(self, holder: Holder, num_computed_tokens: int, num_tokens: int) -> None:
        """Take what is missing for `num_tokens` tokens in all, and publish what they fill (rule 21)."""
        size = self.block_size
        missing = -(-num_tokens // size) - -(-num_computed_tokens // size)
        if missing:
            self.take(missing)
        self.live_tokens += num_tokens - num_computed_tokens
        self.logical_tokens += num_tokens - num_computed_tokens
        if self.shares and num_tokens // size > holder.published:
            self._publish(holder, num_tokens // size)

    def begin_decode(self, holder: Holder, num_computed_tokens: int) -> None:
        """From now on it computes a token in every tick."""
        holder.offset = num_computed_tokens - self.ticks
        published = holder.published
        for chain, end in holder.path:
            if end <= published or end <= chain.first:
                continue
            if chain.copies is None:
                if chain.writer is None and chain.resident <= max(chain.first, published):
                    chain.writer = holder
                    continue
                self._contest(chain)
            self.eager[holder] = None

    def decode(self, num_ticks: int, num_seqs: int, num_blocks: int) -> None:
        """So many requests compute a token in each of these ticks, and take so many blocks for it in all."""
        if num_blocks:
            self.take(num_blocks)
        self.ticks += num_ticks
        self.live_tokens += num_ticks * num_seqs
        self.logical_tokens += num_ticks * num_seqs
        if self.eager:
            for holder in sorted(self.eager, key=_by_admission):
                self.catch_up(holder)

    def catch_up(self, holder: Holder) -> None:
        """Publish what a request that decodes has filled by now."""
        assert holder.offset is not None, "it decodes"
        num_full = (holder.offset + self.ticks) // self.block_size
        if num_full > holder.published:
            self._publish(holder, num_full)

    def release(self, holder: Holder, num_computed_tokens: int) -> None:
        """Rule 23: from its last block to its first; a block without a key is blank."""
        self.logical_tokens -= num_computed_tokens
        size = self.block_size
        if not self.shares:
            self.num_blank += -(-num_computed_tokens // size)
            self.live_tokens -= num_computed_tokens
            return
        num_full, tail = divmod(num_computed_tokens, size)
        if holder.offset is not None:
            self._stop_writing(holder, num_full)
        del self._active[holder]
        if tail:
            self.num_blank += 1
            self.live_tokens -= tail
        freed = 0
        for chain, end in reversed(holder.path):
            stop = end if end < num_full else num_full
            if stop > chain.first:
                freed += self._release(holder, chain, stop)
        self.num_cached += freed
        self.live_tokens -= freed * size
        holder.published = 0

    def _stop_writing(self, holder: Holder, num_full: int) -> None:
        if num_full > holder.published:
            self._publish(holder, num_full)
        holder.offset = None
        if self.eager:
            self.eager.pop(holder, None)
        for chain, _end in holder.path:
            if chain.writer is holder:
                chain.writer = None

    def _release(self, holder: Holder, chain: Chain, stop: int) -> int:
        """Let go of a chain; how many blocks came into the cached order."""
        if chain.copies is not None:
            return release_copies(holder, chain, self._cached_order)
        freed = 0
        spare = holder.spare
        if spare is not None and spare.chain is chain:
            holder.spare = spare.owner = None
            self._cached_order[spare] = None
            freed, stop = 1, stop - 1
            if stop == chain.first:
                return freed
        used = chain.used
        if chain.num_holders == 1:
            chain.num_holders = 0
            left = chain.used = chain.first
        else:
            left = chain.let_go(stop)
        if left < used:
            run = Run(chain, left, used)
            chain.runs.append(run)
            self._cached_order[run] = None
            freed += used - left
        return freed

    # the cached order

    def take(self, num_blocks: int) -> None:
        """Blank blocks first, then cached ones from the front of their order, which lose their key now (rule 25)."""
        from_cached = num_blocks - self.num_blank
        if from_cached <= 0:
            self.num_blank -= num_blocks
            return
        self.num_blank = 0
        self.num_cached -= from_cached
        assert self.num_cached >= 0, "the caller asked for free blocks first"
        order = self._cached_order
        while from_cached:
            run = next(iter(order))
            chain = run.chain
            if run.copies is not None or chain.spares is not None:
                from_cached -= 1
                self._evict_one(run)
                continue
            low, high = run.low, run.high
            if high - low > from_cached:
                chain.resident = run.high = high - from_cached
                return
            from_cached -= high - low
            chain.resident = low
            del order[run]
            chain.runs.pop(0)
            if low == chain.first and not chain.num_paths:
                self._forget_idle(chain)

    def _evict_one(self, run: Run) -> None:
        """Take the first block of the run that is first in the order, where keys have copies."""
        chain = run.chain
        if run.copies is not None:
            evict_copy(run)
            is_gone = not run.copies
        elif run.is_spare:
            chain.drop_spare(run)
            is_gone = True
        else:
            run.high -= 1
            chain.resident = run.high
            is_gone = run.high == run.low
            if is_gone:
                chain.runs.pop(0)
            self._promote_spare(chain)
        if is_gone:
            del self._cached_order[run]
        self._forget_idle(chain)

    def _promote_spare(self, chain: Chain) -> None:
        """The block of this key that could be found is gone: the next in order of publication stands in."""
        assert chain.spares is not None, "it has some"
        spare = next((spare for spare in chain.spares if spare.low == chain.resident), None)
        if spare is None:
            return
        chain.drop_spare(spare)
        spare.is_spare = False
        assert chain.used <= spare.low, "who holds a block holds all before it"
        if spare.owner is None:
            chain.runs.insert(0, spare)
            chain.resident = spare.high
        else:
            spare.owner.spare = None
            chain.publish(spare.low, spare.high)

    # publishing

    def _publish(self, holder: Holder, num_full: int) -> None:
        """Give its blocks up to this one their key."""
        published = holder.published
        for chain, end in holder.path:
            if end > published:
                low = published if published > chain.first else chain.first
                high = end if end < num_full else num_full
                if low < high:
                    if chain.copies is None and chain.resident == low and (chain.writer or holder) is holder:
                        if chain.num_holders > 1:
                            chain.publish(low, high)
                        else:
                            chain.num_holders = 1
                            chain.used = chain.resident = high
                    else:
                        self._publish_copies(holder, chain, low, high, end)
                if high == num_full:
                    break
        holder.published = num_full

    def _publish_copies(self, holder: Holder, chain: Chain, low: int, high: int, end: int) -> None:
        """Where somebody else has published the same, or is about to (rule 19)."""
        if chain.writer is not None and chain.writer is not holder:
            self._contest(chain)
        if chain.copies is None and chain.resident > low:
            if high == low + 1 == end:
                # The last full block of a prompt that was cached as a whole, and the path leaves the chain there.
                spare = Run(chain, low, high)
                spare.is_spare = True
                spare.owner = holder
                holder.spare = spare
                chain.spares = [*(chain.spares or ()), spare]
                return
            self._contest(chain)
        publish_copies(holder, chain, low, high)

    def _contest(self, chain: Chain) -> None:
        """Two requests write the same: from now on this chain is kept block by block."""
        writer = chain.writer
        if writer is not None:
            self.catch_up(writer)
            chain.writer = None
            self.eager[writer] = None
        contest(chain, self._active, self._cached_order)

    def block_map(self, time_ns: int, running: Sequence[Running]) -> BlockMap:
        """What each request holds, in order of admission; then what is cached and blank."""
        self._catch_up_all(holder for _id, holder, _computed in running)
        rest: list[Piece] = [
            (self.num_cached, "cached", (), self.num_cached * self.block_size, 0),
            (self.num_blank, "blank", (), 0, 0),
        ]
        pieces = itertools.chain(held_pieces(running, self.block_size, self.token_bytes), rest)
        return block_map(time_ns, self.num_usable, self.block_size, self.block_bytes, pieces, has_block_numbers=False)

    def _catch_up_all(self, holders: Iterable[Holder]) -> None:
        for holder in holders:
            if holder.offset is not None:
                self.catch_up(holder)

    def check(self, running: Sequence[tuple[Holder, int]]) -> None:
        """Recount everything from what each request holds and has computed; raises InvariantError."""
        cached = 0
        if self.shares:
            self._catch_up_all(holder for holder, _computed in running)
            hold(11, {holder for holder, _ in running} == set(self._active), "other requests hold memory than run")
            in_use, cached, written = recount(self._tree, self._cached_order, dict(running), self.block_size)
        else:
            in_use = sum(self.blocks_for(computed) for _holder, computed in running)
            written = sum(computed for _holder, computed in running)
        hold(14, cached == self.num_cached, f"{cached} blocks are cached, counted {self.num_cached}")
        blank = self.num_usable - in_use - cached
        hold(2, blank == self.num_blank, f"{blank} blocks are neither in use nor cached, counted {self.num_blank}")
        hold(9, written == self.live_tokens, f"{written} tokens are written, counted {self.live_tokens}")
        logical = sum(computed for _holder, computed in running)
        hold(10, logical == self.logical_tokens, f"{logical} logical tokens, counted {self.logical_tokens}")


_NOBODY = Holder([])
"""Where nothing is shared, counts are enough."""


def _by_admission(holder: Holder) -> int:
    return holder.order
