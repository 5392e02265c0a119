"""Several outputs from one prompt, by the rules of the PagedAttention paper (Kwon et al. 2023, section 4.4).

A request is a group of sequences that share the blocks of their prompt. Who writes into a last block that others hold
too gets a copy of it first (copy-on-write); the last who holds it writes in place. Beams fork, which shares all blocks
of the parent, and are dropped, which lets go of theirs. Block 2 below is partly filled by the prompt:

    prompt        1 - 2            the tables of both samples end with 2
    first write   1 - 3            the first sample has copied 2 to 3
                   \\- 2            the second writes into 2

Tables are linked from their last block to their first, so that those who share a beginning share its links and a fork
costs one reference. A block is referenced by the tables that end with it and by the links behind it. The paper counts
the sequences that hold it: for a last block, the only one that is written to, these are the same, and both reach zero
together for any other.
"""

from collections import Counter
from collections.abc import Iterator

from attrs import define

from kvsim.invariants import hold
from kvsim.memory.allocator import Hit, LeastChange, Occupancy, Shortfall
from kvsim.memory.beams import Beams
from kvsim.memory.block_map import BlockMap
from kvsim.memory.on_device import StaysOnDevice
from kvsim.memory.pool import BlockPool
from kvsim.memory.pool_map import Held, map_of_pool
from kvsim.workload.request import Request


def most_blocks_of_group(prompt_tokens: int, num_tokens: int, block_size: int, num_seqs: int, *, sharing: bool) -> int:
    """Blocks of `num_seqs` sequences of `num_tokens` tokens that share full blocks of their prompt and nothing else.

    0        full                prompt                 num_tokens
    |--------|-------------------|----------------------|
      shared   copied on write     each its own

    Samples hold exactly so many, beams at most.
    """
    blocks = -(-num_tokens // block_size)
    if not sharing:
        return num_seqs * blocks
    if num_tokens <= prompt_tokens:
        return blocks
    full = prompt_tokens // block_size
    return full + num_seqs * (blocks - full)


@define(eq=False)
class Link:
    """A block of one or several tables, and the link of the block before it."""

    block: int
    before: "Link | None"


@define(eq=False)
class Group:
    """What a request holds: every sequence has room for `num_tokens` tokens. `ends` has the last link of each table.

    Where blocks are shared there is one table until the prompt is complete.
    """

    prompt_tokens: int
    ends: list[Link | None]
    num_tokens: int = 0


class SampleAllocator(StaysOnDevice):
    """Every request has `num_seqs` sequences of equal length, which are admitted and freed together.

    Numbers of tokens are those of each sequence. Without `sharing` each has all blocks of its own from the start, into
    which the computed prompt is copied. `beams` says which sequences go on; without it they are parallel samples.
    Nothing is found again once it is freed, as in the paper.
    """

    moved_bytes = 0

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_seqs: int,
        *,
        sharing: bool = True,
        beams: Beams | None = None,
        token_bytes: int = 1,
        block_bytes: int | None = None,
    ) -> None:
        assert beams is None or beams.width == num_seqs, "each sequence is a beam"
        self.block_size = block_size
        self.num_seqs = num_seqs
        self.pool = BlockPool(num_blocks)
        self.groups: dict[int, Group] = {}
        self.token_bytes = token_bytes
        self.block_bytes = block_bytes or block_size * token_bytes
        self.padding_bytes = self.block_bytes - block_size * token_bytes
        self.num_copies = 0
        """Blocks copied so far: on a write, or without sharing because outputs have a prompt or a parent in common."""
        self.num_unshared = 0
        """Blocks that would be allocated now if no sequence shared any."""
        self._sharing = sharing
        self._beams = beams
        self._live_tokens = 0
        self._logical_tokens = 0

    # questions

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of the table of one sequence."""
        return -(-num_tokens // self.block_size)

    @property
    def num_allocated(self) -> int:
        return self.pool.num_blocks - 1 - self.pool.num_blank

    @property
    def unshared_bytes(self) -> int:
        return self.num_unshared * self.block_bytes

    def tables(self, request: Request) -> list[list[int]]:
        """The blocks of every sequence; one table while all have the prompt alone."""
        return [[link.block for link in _links(end)] for end in self.groups[request.id].ends]

    def fits_empty_pool(self, prompt_tokens: int, num_tokens: int) -> bool:
        """Beams may need less, as more of their blocks may be shared than those of the prompt."""
        return self._most_blocks(prompt_tokens, num_tokens) <= self.pool.num_blocks - 1

    def fits_all_up_to(self, num_tokens: int) -> bool:
        """Also where little of it is the prompt, which is what outputs share."""
        return all(self.fits_empty_pool(part, num_tokens) for part in (1, num_tokens))

    def _most_blocks(self, prompt_tokens: int, num_tokens: int) -> int:
        num_copies = self.num_seqs
        return most_blocks_of_group(prompt_tokens, num_tokens, self.block_size, num_copies, sharing=self._sharing)

    def find_hit(self, request: Request, num_known_tokens: int) -> Hit:
        """There is no prefix cache."""
        return Hit(0, ([],))

    def occupancy(self) -> Occupancy:
        """`live_bytes` has a slot once that several sequences hold, `logical_bytes` once for each of them."""
        allocated = self.num_allocated
        return Occupancy(
            allocated,
            0,
            self.pool.num_blank,
            self._live_tokens * self.token_bytes,
            allocated * self.padding_bytes,
            self._logical_tokens * self.token_bytes,
            0,
        )

    def held_tokens(self) -> dict[int, int]:
        return {id: group.num_tokens for id, group in self.groups.items()}

    # actions

    def admit(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> bool:
        assert request.id not in self.groups, "a request is admitted with nothing in its hands"
        need = self._admission_need(request, num_tokens, must_fit_tokens)
        if need + spare_blocks > self.pool.num_free:
            return False
        num_tables = 1 if self._sharing else self.num_seqs
        group = self.groups[request.id] = Group(request.prompt_tokens, [None] * num_tables)
        self._extend(group, num_tokens)
        return True

    def grow(self, request: Request, num_tokens: int) -> bool:
        group = self.groups[request.id]
        if self._growth_need(group, num_tokens) > self.pool.num_free:
            return False
        self._extend(group, num_tokens)
        return True

    def choose_beams(self, request: Request) -> None:
        """Every sequence of a request has sampled a token: say which of them go on.

        The first tokens are all sampled from the prompt, behind which the tables have forked already.
        """
        group = self.groups[request.id]
        step = group.num_tokens - group.prompt_tokens - 1
        if self._beams is None or step < 0:
            return
        parents = self._beams.parents(request.id, step)
        if not self._sharing:
            moved = sum(parent != place for place, parent in enumerate(parents))
            self.num_copies += moved * self.blocks_for(group.num_tokens)
            return
        before, group.ends = group.ends, [group.ends[parent] for parent in parents]
        self.pool.touch([end.block for end in group.ends if end is not None])
        for end in before:
            self._drop(end, group.num_tokens)

    def free(self, request: Request) -> None:
        """Sequence after sequence, each from its last block to its first."""
        group = self.groups.pop(request.id)
        for end in group.ends:
            self._drop(end, group.num_tokens)
        self._logical_tokens -= self.num_seqs * group.num_tokens
        self.num_unshared -= self.num_seqs * self.blocks_for(group.num_tokens)
        if self._beams is not None:
            self._beams.forget(request.id)

    def why_not_admitted(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> Shortfall:
        free = self.pool.num_free
        need = self._admission_need(request, num_tokens, must_fit_tokens)
        change: LeastChange = "blocks"
        if need <= free:
            change = "watermark"
        elif self._admission_need(request, num_tokens, None) + spare_blocks <= free:
            change = "gate"
        return self._shortfall(need + spare_blocks, change)

    def why_not_grown(self, request: Request, num_tokens: int) -> Shortfall:
        return self._shortfall(self._growth_need(self.groups[request.id], num_tokens), "blocks")

    def _shortfall(self, need: int, change: LeastChange) -> Shortfall:
        blank = self.pool.num_blank
        slack_bytes = self.num_allocated * self.block_bytes - self._live_tokens * self.token_bytes
        return Shortfall(need, blank, 0, need - blank, slack_bytes, change)

    def _admission_need(self, request: Request, num_tokens: int, must_fit_tokens: int | None) -> int:
        return self._most_blocks(request.prompt_tokens, max(num_tokens, must_fit_tokens or 0))

    def _growth_need(self, group: Group, num_tokens: int) -> int:
        """Exactly the blocks that `_extend` takes. vLLM V0 asked for one a sequence, whether it took them or not."""
        if group.num_tokens < group.prompt_tokens or not self._sharing:
            wanted = self._most_blocks(group.prompt_tokens, num_tokens)
            return wanted - self._most_blocks(group.prompt_tokens, group.num_tokens)
        added = self.num_seqs * (self.blocks_for(num_tokens) - self.blocks_for(group.num_tokens))
        writes_into_last = group.num_tokens % self.block_size and num_tokens > group.num_tokens
        return added + (self.num_seqs - len(set(map(id, group.ends))) if writes_into_last else 0)

    def _extend(self, group: Group, num_tokens: int) -> None:
        """Write on behind what there is; the prompt is written once, and then its table forks."""
        held = group.num_tokens
        self._logical_tokens += self.num_seqs * (num_tokens - held)
        self.num_unshared += self.num_seqs * (self.blocks_for(num_tokens) - self.blocks_for(held))
        group.num_tokens = num_tokens
        if held < group.prompt_tokens:
            stop = min(num_tokens, group.prompt_tokens)
            group.ends = [self._write(end, held, stop) for end in group.ends]
            held = stop
            if stop == group.prompt_tokens:
                self._fork_prompt(group)
        group.ends = [self._write(end, held, num_tokens) for end in group.ends]

    def _fork_prompt(self, group: Group) -> None:
        if not self._sharing:
            self.num_copies += (self.num_seqs - 1) * self.blocks_for(group.prompt_tokens)
            return
        (end,) = group.ends
        assert end is not None, "a prompt has a token"
        self.pool.touch([end.block] * (self.num_seqs - 1))
        group.ends = [end] * self.num_seqs

    def _write(self, end: Link | None, start: int, stop: int) -> Link | None:
        """The end of a table of `start` tokens after tokens up to `stop` have been written to it."""
        if start == stop:
            return end
        filled = start % self.block_size
        if filled and end is not None and self.pool.ref_count(end.block) > 1:
            end = self._copied(end, filled)
        if missing := self.blocks_for(stop) - self.blocks_for(start):
            for block in self.pool.take(missing):
                end = Link(block, end)
        self._live_tokens += stop - start
        return end

    def _copied(self, end: Link, filled: int) -> Link:
        (block,) = self.pool.take(1)
        self.pool.release([end.block])
        if end.before is not None:
            self.pool.touch([end.before.block])
        self.num_copies += 1
        self._live_tokens += filled
        return Link(block, end.before)

    def _drop(self, end: Link | None, num_tokens: int) -> None:
        """Let go of a table of so many tokens: of its end, and of all before it that nobody else goes on from."""
        table = []
        while end is not None:
            table.append(end.block)
            if self.pool.ref_count(end.block) > 1:
                break
            end = end.before
        freed = self.pool.release(table[::-1])
        if freed:
            self._live_tokens -= (num_tokens - 1) % self.block_size + 1 + (freed - 1) * self.block_size

    def block_map(self, time_ns: int) -> BlockMap:
        return map_of_pool(time_ns, self.pool, self.block_size, self._held_blocks())

    def _held_blocks(self) -> Iterator[Held]:
        """A block that several sequences of a request share is named once."""
        for id, group in self.groups.items():
            slots: dict[int, int] = {}
            for end in group.ends:
                for index, link in enumerate(_links(end)):
                    slots[link.block] = min(self.block_size, group.num_tokens - index * self.block_size)
            yield from ((id, block, written) for block, written in slots.items())

    # recount

    def check(self) -> None:
        """Recount invariants 1 to 10 from the tables."""
        self.pool.check()
        links: dict[int, Link] = {}
        owner: dict[int, int] = {}
        written: dict[int, int] = {}
        counts: Counter[int] = Counter()
        for request_id, group in self.groups.items():
            where = f"request {request_id}"
            is_forked = not self._sharing or group.num_tokens >= group.prompt_tokens
            hold(7, len(group.ends) == (self.num_seqs if is_forked else 1), f"{where} has too many or too few tables")
            for end in group.ends:
                table = _links(end)
                hold(7, len(table) == self.blocks_for(group.num_tokens), f"{where} has too many or too few blocks")
                counts.update(link.block for link in table[-1:])
                for index, link in enumerate(table):
                    hold(7, links.setdefault(link.block, link) is link, f"block {link.block} is in two places")
                    hold(7, owner.setdefault(link.block, request_id) == request_id, f"{where} holds blocks of another")
                    written[link.block] = min(self.block_size, group.num_tokens - index * self.block_size)
        counts.update(link.before.block for link in links.values() if link.before is not None)
        recounted = all(self.pool.ref_count(block) == counts[block] for block in range(self.pool.num_blocks))
        hold(6, recounted, "reference counts do not agree with the tables")
        live, lengths = sum(written.values()), [group.num_tokens for group in self.groups.values()]
        hold(9, live == self._live_tokens, f"{live} slots are written, counted {self._live_tokens}")
        logical = self.num_seqs * sum(lengths)
        hold(10, logical == self._logical_tokens, f"{logical} logical tokens, counted {self._logical_tokens}")
        unshared = self.num_seqs * sum(map(self.blocks_for, lengths))
        hold(10, unshared == self.num_unshared, f"{unshared} blocks without sharing, counted {self.num_unshared}")


def _links(end: Link | None) -> list[Link]:
    """The links of a table, first block first."""
    links = []
    while end is not None:
        links.append(end)
        end = end.before
    return links[::-1]
