"""The paged allocator, block by block, with real block ids: the judge of every faster form.

One group of full-attention layers. Rule numbers are those of tests/golden/vllm_scheduler/README.md.

    0            hit               computed        num_tokens      block end
    |-------------|-----------------|---------------|...............|
      shared        already there     this step       tail slack
"""

from attrs import define, field

from kvsim.memory.allocator import NO_HIT, Hit, Occupancy
from kvsim.memory.pool import BlockPool
from kvsim.memory.prefix import PrefixTree, block_keys
from kvsim.workload.request import Request


@define
class BlockTable:
    """The blocks of one request, and how many of its tokens they hold once the current step has run."""

    blocks: list[int]
    num_tokens: int
    num_published: int = 0
    keys: list[int] = field(factory=list)


class PagedAllocator:
    """Blocks of `block_size` tokens out of a pool of `num_blocks`, the null block included."""

    def __init__(self, num_blocks: int, block_size: int, prefix_sharing: bool) -> None:
        assert block_size >= 1, "a block holds at least one token"
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.tables: dict[int, BlockTable] = {}
        self._tree = PrefixTree() if prefix_sharing else None
        self._head_keys: tuple[int, list[int]] | None = None
        self._live_tokens = 0
        self._logical_tokens = 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens take (rule 10)."""
        return -(-num_tokens // self.block_size)

    def fits_empty_pool(self, num_tokens: int) -> bool:
        return self.blocks_for(num_tokens) <= self.pool.num_blocks - 1

    def find_hit(self, request: Request, num_known_tokens: int) -> Hit:
        """Rules 17 and 18: whole blocks up to the first key not found, never the last token."""
        if self._tree is None:
            return NO_HIT
        keys = self._request_keys(request)
        blocks = self.pool.find(keys[: (num_known_tokens - 1) // self.block_size])
        return Hit(len(blocks) * self.block_size, blocks)

    def admit(self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int, spare_blocks: int) -> bool:
        """Rules 11-14: hits that lie in the free queue cost a free block each, hits in use cost nothing."""
        assert request.id not in self.tables, "a request is admitted with nothing in its hands"
        assert num_tokens <= must_fit_tokens, "what is allocated now is part of what must fit"
        need = self.blocks_for(must_fit_tokens) - len(hit.blocks) + self.pool.num_idle(hit.blocks)
        if need + spare_blocks > self.pool.num_free:
            return False
        woken = self.pool.touch(hit.blocks)
        new = self.pool.take(self.blocks_for(num_tokens) - len(hit.blocks))
        table = BlockTable(hit.blocks + new, num_tokens, num_published=len(hit.blocks))
        if self._tree is not None:
            table.keys = self._request_keys(request)
        self.tables[request.id] = table
        self._live_tokens += woken * self.block_size + num_tokens - hit.num_tokens
        self._logical_tokens += num_tokens
        self._publish(table)
        return True

    def grow(self, request: Request, num_tokens: int) -> bool:
        table = self.tables[request.id]
        added = num_tokens - table.num_tokens
        missing = self.blocks_for(num_tokens) - len(table.blocks)
        if missing:
            if missing > self.pool.num_free:
                return False
            table.blocks += self.pool.take(missing)
        table.num_tokens = num_tokens
        self._live_tokens += added
        self._logical_tokens += added
        self._publish(table)
        return True

    def free(self, request: Request) -> None:
        table = self.tables.pop(request.id)
        freed = self.pool.release(table.blocks)
        # The unwritten slots of the table are all in its last block, which nobody shares.
        tail = len(table.blocks) * self.block_size - table.num_tokens
        self._live_tokens -= freed * self.block_size - tail
        self._logical_tokens -= table.num_tokens

    def occupancy(self) -> Occupancy:
        pool = self.pool
        cached, blank = pool.num_cached, pool.num_blank
        allocated = pool.num_blocks - 1 - cached - blank
        return Occupancy(allocated, cached, blank, self._live_tokens, self._logical_tokens)

    def _request_keys(self, request: Request) -> list[int]:
        """Keys of all full blocks that the request can ever hold, its output included.

        Remembered for one request: the head of the queue is looked up again in every step it is refused.
        """
        assert self._tree is not None, "only asked for with prefix sharing on"
        if self._head_keys is None or self._head_keys[0] != request.id:
            pieces = self._tree.intern(request.prompt + request.output)
            self._head_keys = request.id, block_keys(pieces, self.block_size, self.pool.num_blocks)
        return self._head_keys[1]

    def _publish(self, table: BlockTable) -> None:
        """Rule 21: blocks get their key in the allocation that fills them, before the step runs."""
        if self._tree is None:
            return
        num_full = table.num_tokens // self.block_size
        if num_full > table.num_published:
            full = slice(table.num_published, num_full)
            self.pool.publish(table.blocks[full], table.keys[full])
            table.num_published = num_full

    def check(self) -> None:
        """Recount reference counts, live and logical tokens from the tables."""
        self.pool.check()
        counts = [0] * self.pool.num_blocks
        written: dict[int, int] = {}
        for table in self.tables.values():
            assert len(table.blocks) == self.blocks_for(table.num_tokens), "a table has no block too many"
            for index, block in enumerate(table.blocks):
                counts[block] += 1
                written[block] = min(self.block_size, table.num_tokens - index * self.block_size)
        recounted = [self.pool.ref_count(block) for block in range(self.pool.num_blocks)]
        assert counts == recounted, "reference counts agree with the tables"
        assert sum(written.values()) == self._live_tokens, "live tokens agree with the tables"
        logical = sum(table.num_tokens for table in self.tables.values())
        assert logical == self._logical_tokens, "logical tokens agree with the tables"
