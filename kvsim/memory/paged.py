"""The paged allocator, block by block, with real block ids: the judge of every faster form.

Rule numbers are those of tests/golden/vllm_scheduler/README.md. The table of one request in one group:

    0        dropped     hit              computed       num_tokens     block end
    |........|-----------|----------------|--------------|..............|
      null     shared      already there    this step      tail slack
"""

from collections.abc import Iterator, Mapping

from attrs import define, field

from kvsim.invariants import hold
from kvsim.memory.allocator import Hit, LeastChange, Occupancy, Shortfall, SwappedIn
from kvsim.memory.block_map import BlockMap
from kvsim.memory.groups import LayerGroup, blocks_of_window, longest_common_hit
from kvsim.memory.host_pool import HostPool, SwappedOut
from kvsim.memory.pool import NULL_BLOCK, BlockPool
from kvsim.memory.pool_map import Held, map_of_pool
from kvsim.memory.prefix import PrefixTree, block_keys
from kvsim.model.attention import Attention
from kvsim.workload.request import Request

_GROUP_SHIFT = 96
"""Keys are per group: the number of the group stands above the bits of a block key."""


@define
class BlockTable:
    """The blocks of one request in one group: 0 where a window has passed, the first `num_published` with a key."""

    blocks: list[int]
    num_published: int
    num_dropped: int = 0


@define
class Holding:
    """All that one request holds; `num_tokens` are in its blocks once the current step has run."""

    num_tokens: int
    tables: list[BlockTable]
    keys: list[int]
    boundaries: tuple[int, ...]
    """Positions that a later request with the same prompt can resume at (rule 32)."""
    num_full: int = field(default=0)


class PagedAllocator:
    """Blocks of `block_size` tokens out of a pool of `num_blocks`, the null block included.

    `block_bytes` is the size of a block, of which each group fills `block_size x token_bytes`. The gate counts
    windows up to `max_num_batched_tokens` and `max_model_len` (rule 28). `retention_interval` is vLLM's
    `prefix_cache_retention_interval`: which blocks of sliding windows get a key (rule 32). `eviction` is a policy of
    `eviction.py`. Requests can be swapped out to `host_blocks` blocks on the host.
    """

    moved_bytes = 0

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        prefix_sharing: bool,
        *,
        groups: tuple[LayerGroup, ...] = (LayerGroup(),),
        block_bytes: int | None = None,
        max_num_batched_tokens: int = 8192,
        max_model_len: int = 2**40,
        retention_interval: int | None = 0,
        eviction: str = "lru",
        host_blocks: int = 0,
    ) -> None:
        assert block_size >= 1, "a block holds at least one token"
        self.block_size = block_size
        self.groups = groups
        self.pool = BlockPool(num_blocks, eviction)
        self.host = HostPool(host_blocks)
        self.holdings: dict[int, Holding] = {}
        self.block_bytes = block_bytes or block_size * max(group.token_bytes for group in groups)
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.retention_interval = retention_interval
        self._tree = PrefixTree() if prefix_sharing else None
        self._head_keys: tuple[int, list[int]] | None = None
        self._padding_bytes = [self.block_bytes - block_size * group.token_bytes for group in groups]
        kept = any(group.attention.kind == "full" for group in groups)
        self._longest_table = min(num_blocks, max_model_len // block_size) if kept else max_model_len // block_size
        self.padding_bytes = self._padding_bytes[0]
        self.token_bytes = sum(group.token_bytes for group in groups)
        self._kinds: dict[Attention, list[int]] = {}
        for number, group in sorted(enumerate(groups), key=lambda pair: pair[1].attention.kind != "full"):
            self._kinds.setdefault(group.attention, []).append(number)
        self._is_plain = [group.attention.kind for group in groups] == ["full"]
        self._in_use = [0] * len(groups)
        self._live_bytes = 0
        self._padding_held = 0
        self._logical_bytes = 0
        self._window_saving_bytes = 0

    # questions

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens take in one group (rule 10)."""
        return -(-num_tokens // self.block_size)

    def fits_empty_pool(self, prompt_tokens: int, num_tokens: int) -> bool:
        usable = self.pool.num_blocks - 1
        in_decode = sum(group.attention.max_blocks_in_decode(num_tokens, self.block_size) for group in self.groups)
        return in_decode <= usable and self._gate_blocks(prompt_tokens) <= usable

    def fits_all_up_to(self, num_tokens: int) -> bool:
        return self.fits_empty_pool(num_tokens, num_tokens)

    def _gate_blocks(self, num_tokens: int) -> int:
        return sum(self._capped_blocks(group.attention, num_tokens) for group in self.groups)

    def _capped_blocks(self, attention: Attention, num_tokens: int) -> int:
        """Rule 28: what the gate asks for; windows give blocks back while a prompt is computed."""
        most = attention.max_blocks(self.max_model_len, self.max_num_batched_tokens, self.block_size)
        return min(self.blocks_for(num_tokens), most)

    def find_hit(self, request: Request, num_known_tokens: int) -> Hit:
        """Rules 17, 18, 29 and 30: whole blocks, the last token never included.

        With windows, all of a request that was swapped out comes from the host: hits end where a later prompt can be
        resumed, and not where a request stopped.
        """
        swapped = None if self._is_plain else self.host.get(request.id)
        if swapped is not None:
            return Hit(0, tuple([NULL_BLOCK] * first for first in swapped.first_blocks))
        if self._tree is None:
            return Hit(0, tuple([] for _ in self.groups))
        keys, pool = self._request_keys(request), self.pool
        most = num_known_tokens - 1
        if self._is_plain:
            # The usual case, and looked up again in every step that the head of the queue is refused.
            blocks = pool.find(keys[: most // self.block_size])
            return Hit(len(blocks) * self.block_size, (blocks,))

        def is_cached(attention: Attention, index: int) -> bool:
            if index >= len(keys):
                return False
            return all(pool.has(_group_key(keys[index], number)) for number in self._kinds[attention])

        common = longest_common_hit(tuple(self._kinds), most, self.block_size, is_cached)
        end = common.num_tokens // self.block_size
        tables = []
        for number, group in enumerate(self.groups):
            first = common.runs[group.attention].first
            found = [pool.first_block(_group_key(key, number)) for key in keys[first:end]]
            tables.append([NULL_BLOCK] * first + found)
        return Hit(common.num_tokens, tuple(tables), common.longest if common.longest > common.num_tokens else 0)

    def occupancy(self) -> Occupancy:
        pool = self.pool
        cached, blank = pool.num_cached, pool.num_blank
        return Occupancy(
            pool.num_blocks - 1 - cached - blank,
            cached,
            blank,
            self._live_bytes,
            self._padding_held,
            self._logical_bytes,
            self._window_saving_bytes,
            host_blocks=self.host.num_used,
        )

    def held_tokens(self) -> dict[int, int]:
        return {id: holding.num_tokens for id, holding in self.holdings.items()}

    def swapped_tokens(self) -> dict[int, int]:
        return self.host.held_tokens()

    # actions

    def admit(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> bool:
        """Rules 11-14, 28 and 31: a hit in the free queue costs a free block, one in use costs nothing."""
        assert request.id not in self.holdings, "a request is admitted with nothing in its hands"
        dropped = [self._num_passed_blocks(group.attention, hit.num_tokens) for group in self.groups]
        if self._admission_need(hit, dropped, num_tokens, must_fit_tokens) + spare_blocks > self.pool.num_free:
            return False
        tables = []
        for number, blocks in enumerate(hit.tables):
            kept = [block for block in blocks[dropped[number] :] if block]
            # A chunk that begins inside a block may leave more null than the next token has passed.
            num_null = max(dropped[number], len(blocks) - len(kept))
            self._count_allocated(number, self.pool.touch(kept), self.block_size)
            tables.append(BlockTable([NULL_BLOCK] * num_null + kept, num_null + len(kept), num_null))
            self._window_saving_bytes += num_null * self.block_size * self.groups[number].token_bytes
        boundaries = (request.prompt_tokens - 1, hit.boundary_tokens)
        keys = [] if self._tree is None else self._request_keys(request)
        holding = self.holdings[request.id] = Holding(hit.num_tokens, tables, keys, boundaries)
        self._logical_bytes += hit.num_tokens * self.token_bytes
        self._extend(holding, num_tokens)
        return True

    def grow(self, request: Request, num_tokens: int) -> bool:
        holding = self.holdings[request.id]
        need = 0
        wanted = self.blocks_for(num_tokens)
        for number, table in enumerate(holding.tables):
            if self.groups[number].attention.window is not None:
                self._drop_passed(number, table, holding.num_tokens)
            need += wanted - len(table.blocks)
        if need > self.pool.num_free:
            return False
        self._extend(holding, num_tokens)
        return True

    def free(self, request: Request) -> None:
        """Rules 23 and 26: group by group, each from its last block to its first."""
        holding = self.holdings.pop(request.id)
        for number, table in enumerate(holding.tables):
            freed = self.pool.release(table.blocks[table.num_dropped :])
            # The unwritten slots of a table are all in its last block, which nobody shares.
            tail = len(table.blocks) * self.block_size - holding.num_tokens
            token_bytes = self.groups[number].token_bytes
            self._live_bytes += tail * token_bytes
            self._count_allocated(number, -freed, self.block_size)
            self._window_saving_bytes -= table.num_dropped * self.block_size * token_bytes
        self._logical_bytes -= holding.num_tokens * self.token_bytes

    def swap_out(self, request: Request, num_computed_tokens: int) -> int | None:
        """All blocks with written tokens move, shared ones too, as others may have given them back before it returns.

        On the device they are freed like any others, so those that have a key can still be found.
        """
        end = self.blocks_for(num_computed_tokens)
        firsts = tuple(
            max(table.num_dropped, self._num_passed_blocks(group.attention, num_computed_tokens))
            for group, table in zip(self.groups, self.holdings[request.id].tables, strict=True)
        )
        num_blocks = sum(max(0, end - first) for first in firsts)
        if not self.host.put(request.id, SwappedOut(num_computed_tokens, firsts, num_blocks)):
            return None
        self.free(request)
        return num_blocks * self.block_bytes

    def swap_in(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> SwappedIn | None:
        swapped = self.host.get(request.id)
        assert swapped is not None, "it was swapped out"
        if not self.admit(request, hit, num_tokens, must_fit_tokens, spare_blocks):
            return None
        num_moved = swapped.num_blocks
        if self._is_plain:
            num_moved = max(0, num_moved - len(hit.tables[0]))
        else:
            # Counted as if written from the first token on, which windows had passed.
            for group, table in zip(self.groups, self.holdings[request.id].tables, strict=True):
                self._live_bytes -= table.num_dropped * self.block_size * group.token_bytes
        num_dropped = self.host.give_back(request.id, num_moved)
        return SwappedIn(num_moved * self.block_bytes, num_dropped * self.block_bytes)

    def drop_swapped(self, request: Request) -> int:
        return self.host.give_back(request.id, 0) * self.block_bytes

    def promised_blocks(self, promised_tokens: Mapping[int, int], request: Request, hit: Hit, num_tokens: int) -> int:
        """Exact with full attention: what each is promised beyond what it holds, and a block that is shared is held.

        Windows give blocks back, but not those that others hold as well: of them each request counts with the most
        that it can hold at a time, less what all hold together.
        """
        need = 0
        for number, (group, blocks) in enumerate(zip(self.groups, hit.tables, strict=True)):
            attention = group.attention
            if attention.kind == "full":
                need += self.pool.num_idle(blocks) + self.blocks_for(num_tokens) - len(blocks)
                for id, promised in promised_tokens.items():
                    need += max(0, self.blocks_for(promised) - len(self.holdings[id].tables[number].blocks))
            else:
                # A chunk that begins inside a block takes one more than rule 28 says.
                most = attention.max_blocks(self.max_model_len, self.max_num_batched_tokens, self.block_size)
                most += attention.kind == "chunked_local"
                each = (num_tokens, *promised_tokens.values())
                need += sum(min(self.blocks_for(tokens), most) for tokens in each) - self._in_use[number]
        return need

    def why_not_admitted(
        self, request: Request, hit: Hit, num_tokens: int, must_fit_tokens: int | None, spare_blocks: int
    ) -> Shortfall:
        free = self.pool.num_free
        dropped = [self._num_passed_blocks(group.attention, hit.num_tokens) for group in self.groups]
        need = self._admission_need(hit, dropped, num_tokens, must_fit_tokens)
        first_chunk = self._admission_need(hit, dropped, num_tokens, None)
        change: LeastChange = "blocks"
        if need <= free:
            change = "watermark"
        elif first_chunk + spare_blocks <= free:
            change = "gate"
        return self._shortfall(need + spare_blocks, change)

    def why_not_grown(self, request: Request, num_tokens: int) -> Shortfall:
        tables = self.holdings[request.id].tables
        return self._shortfall(sum(self.blocks_for(num_tokens) - len(table.blocks) for table in tables), "blocks")

    def _shortfall(self, need: int, change: LeastChange) -> Shortfall:
        allocated, cached, blank, live_bytes, *_ = self.occupancy()
        slack_bytes = allocated * self.block_bytes - live_bytes
        return Shortfall(need, blank, cached, need - blank - cached, slack_bytes, change)

    def _admission_need(self, hit: Hit, dropped: list[int], num_tokens: int, must_fit_tokens: int | None) -> int:
        """Rules 11, 12 and 28: the larger of what is taken now and what the gate asks for, over all groups."""
        idle = sum(self.pool.num_idle(blocks[dropped[number] :]) for number, blocks in enumerate(hit.tables))
        now = whole = idle
        wanted = self.blocks_for(num_tokens)
        for number, blocks in enumerate(hit.tables):
            held = max(dropped[number], len(blocks))
            now += max(0, wanted - held)
            if must_fit_tokens is not None:
                whole += max(0, self._capped_blocks(self.groups[number].attention, must_fit_tokens) - held)
        return max(now, whole)

    def _num_passed_blocks(self, attention: Attention, num_computed_tokens: int) -> int:
        """Rule 27: whole blocks that the token after the computed ones no longer reads."""
        return attention.first_needed_token(num_computed_tokens + 1) // self.block_size

    def _drop_passed(self, number: int, table: BlockTable, num_computed_tokens: int) -> None:
        """Rule 27: give back the blocks that the window has passed, highest index first."""
        passed = min(self._num_passed_blocks(self.groups[number].attention, num_computed_tokens), len(table.blocks))
        if passed <= table.num_dropped:
            return
        freed = self.pool.release(table.blocks[table.num_dropped : passed])
        self._count_allocated(number, -freed, self.block_size)
        dropped = passed - table.num_dropped
        self._window_saving_bytes += dropped * self.block_size * self.groups[number].token_bytes
        table.blocks[table.num_dropped : passed] = [NULL_BLOCK] * dropped
        table.num_dropped = passed

    def _extend(self, holding: Holding, num_tokens: int) -> None:
        """Take what is missing for `num_tokens` tokens, group by group, then publish what they fill."""
        wanted = self.blocks_for(num_tokens)
        added = num_tokens - holding.num_tokens
        for number, table in enumerate(holding.tables):
            missing = wanted - len(table.blocks)
            if missing > 0:
                table.blocks += self.pool.take(missing)
                self._count_allocated(number, missing, 0)
            self._live_bytes += added * self.groups[number].token_bytes
        holding.num_tokens = num_tokens
        self._logical_bytes += added * self.token_bytes
        num_full = num_tokens // self.block_size
        if self._tree is not None and num_full > holding.num_full:
            holding.num_full = num_full
            for number, table in enumerate(holding.tables):
                self._publish(number, table, holding, num_full)

    def _count_allocated(self, number: int, num_blocks: int, written_slots: int) -> None:
        """Blocks of a group that came (or went, if negative), each with so many written slots."""
        self._live_bytes += num_blocks * written_slots * self.groups[number].token_bytes
        self._padding_held += num_blocks * self._padding_bytes[number]
        self._in_use[number] += num_blocks

    # keys

    def _request_keys(self, request: Request) -> list[int]:
        """Keys of all full blocks that the request can ever hold, its output included.

        Remembered for one request: the head of the queue is looked up again in every step it is refused.
        """
        assert self._tree is not None, "only asked for with prefix sharing on"
        if self._head_keys is None or self._head_keys[0] != request.id:
            pieces = self._tree.intern(request.prompt + request.output)
            self._head_keys = request.id, block_keys(pieces, self.block_size, self._longest_table)
        return self._head_keys[1]

    def _publish(self, number: int, table: BlockTable, holding: Holding, num_full: int) -> None:
        """Rules 21 and 32: blocks get their key in the allocation that fills them, before the step runs."""
        if num_full <= table.num_published:
            return
        attention = self.groups[number].attention
        first, table.num_published = table.num_published, num_full
        if attention.kind == "sliding_window" and self.retention_interval is not None:
            blocks, keys = [], []
            for index in self._retained(attention, holding, first, num_full):
                if table.blocks[index]:
                    blocks.append(table.blocks[index])
                    keys.append(holding.keys[index])
        else:
            first = max(first, table.num_dropped)
            blocks, keys = table.blocks[first:num_full], holding.keys[first:num_full]
        self.pool.publish(blocks, [_group_key(key, number) for key in keys] if number else keys)

    def _retained(self, attention: Attention, holding: Holding, first: int, end: int) -> Iterator[int]:
        """Rule 32: the blocks of a window before each boundary, and before each multiple of the interval."""
        needed = blocks_of_window(attention, self.block_size)
        ends = {boundary // self.block_size for boundary in holding.boundaries}
        segment = (self.retention_interval or 0) // self.block_size
        for index in range(first, end):
            in_tail = any(stop - needed <= index < stop for stop in ends)
            if in_tail or (segment and index % segment >= segment - needed):
                yield index

    def block_map(self, time_ns: int) -> BlockMap:
        return map_of_pool(time_ns, self.pool, self.block_size, self.block_bytes, self._held_blocks())

    def _held_blocks(self) -> Iterator[Held]:
        for id, holding in self.holdings.items():
            for group, table in zip(self.groups, holding.tables, strict=True):
                for index, block in enumerate(table.blocks[table.num_dropped :], table.num_dropped):
                    written = min(self.block_size, holding.num_tokens - index * self.block_size)
                    yield id, block, written, group.token_bytes

    def check(self) -> None:
        """Recount invariants 1 to 10 and 22 from the tables and the contents."""
        self.pool.check()
        self.host.check()
        counts = [0] * self.pool.num_blocks
        owner: dict[int, int] = {}
        written: dict[int, int] = {}
        saved = 0
        for id, holding in self.holdings.items():
            for number, table in enumerate(holding.tables):
                self._check_table(id, number, table, holding)
                saved += table.num_dropped * self.block_size * self.groups[number].token_bytes
                for index, block in enumerate(table.blocks[table.num_dropped :], table.num_dropped):
                    hold(7, owner.setdefault(block, number) == number, f"block {block} is in two groups")
                    counts[block] += 1
                    written[block] = min(self.block_size, holding.num_tokens - index * self.block_size)
        recounted = [self.pool.ref_count(block) for block in range(self.pool.num_blocks)]
        hold(6, counts == recounted, "reference counts do not agree with the tables")
        live = sum(slots * self.groups[owner[block]].token_bytes for block, slots in written.items())
        hold(9, live == self._live_bytes, f"{live} bytes are written, counted {self._live_bytes}")
        in_use = [list(owner.values()).count(number) for number in range(len(self.groups))]
        hold(9, in_use == self._in_use, f"{in_use} blocks of each group are in use, counted {self._in_use}")
        padding = sum(self._padding_bytes[number] for number in owner.values())
        hold(9, padding == self._padding_held, f"{padding} bytes are padding, counted {self._padding_held}")
        logical = sum(holding.num_tokens for holding in self.holdings.values()) * self.token_bytes
        hold(10, logical == self._logical_bytes, f"{logical} logical bytes, counted {self._logical_bytes}")
        hold(10, saved == self._window_saving_bytes, f"windows saved {saved}, counted {self._window_saving_bytes}")

    def _check_table(self, id: int, number: int, table: BlockTable, holding: Holding) -> None:
        where = f"table of request {id} in group {number}"
        hold(7, len(table.blocks) == self.blocks_for(holding.num_tokens), f"{where} has too many or too few blocks")
        hold(7, not any(table.blocks[: table.num_dropped]), f"{where} has a block that its window has passed")
        hold(7, all(table.blocks[table.num_dropped :]), f"{where} has a null block inside its window")
        for index, block in enumerate(table.blocks):
            key = self.pool.key(block) if block else None
            if key is not None:
                hold(8, key == _group_key(holding.keys[index], number), f"{where} has block {block} of other content")
            elif block and self._tree is not None and self.groups[number].attention.kind != "sliding_window":
                hold(8, index >= table.num_published, f"{where}: block {block} is in use and has lost its key")


def _group_key(key: int, number: int) -> int:
    return key | number << _GROUP_SHIFT
