"""The naive judge: what the rules say, with plain lists, one token at a time.

Written from the rules of tests/golden/vllm_scheduler/README.md alone; it shares no code with kvsim. Slow and plain on
purpose: every request is a list of token ids, the free queue is one list, keys are whole prefixes, and everything is
found by looking through a list. Block 0 in a table is the null block.

Beyond those rules a config may have `admission`, a policy by its name with `max_output_tokens`, or with
`expected_output_tokens` and `admission_margin`; and `preemption` = "swap" with `host_blocks`: a victim's written blocks
go to the host where all of them have room there, and come back when it is admitted again, less what it hits. Of windows
all comes back.
"""

from typing import Any

World = dict[str, Any]
"""`config` and `requests` of a recorded case."""


class OracleRequest:
    def __init__(self, row: World, order: int, num_groups: int) -> None:
        self.id: int = row["id"]
        self.order = order
        self.priority: int = row.get("priority", 0)
        self.arrival_step: int = row["arrival_step"]
        self.abort_step: int | None = row.get("abort_step")
        self.prompt: list[int] = []
        for first, count in row["prompt_runs"]:
            self.prompt += range(first, first + count)
        self.output: list[int] = list(range(row["output_base"], row["output_base"] + row["output_len"]))
        self.known: list[int] = list(self.prompt)
        self.computed = 0
        self.tables: list[list[int]] = [[] for _ in range(num_groups)]
        self.boundaries: list[int] = []  # rule 32, in blocks
        self.on_host: list[list[int]] | None = None  # of each group, the places in its table of blocks on the host
        self.host_tokens = 0
        # What the log says in the end.
        self.cached: int | None = None
        self.first_token_step: int | None = None
        self.finish_step: int | None = None
        self.preemptions = 0
        self.output_len = 0
        self.reason: str | None = None


class OracleHit:
    def __init__(self, num_tokens: int, tables: list[list[int]], boundary_tokens: int | None) -> None:
        self.num_tokens = num_tokens
        self.tables = tables
        self.boundary_tokens = boundary_tokens  # rule 32: where a longer hit of one kind ended


class Oracle:
    def __init__(self, world: World) -> None:
        self.config = world["config"]
        self.block_size: int = self.config["block_size"]
        self.groups: list[World] = self.config["groups"]
        # Rule 30: equal groups hit together, and full attention is asked first.
        self.kinds: list[World] = []
        for group in sorted(self.groups, key=lambda group: group["type"] != "full"):
            if group not in self.kinds:
                self.kinds.append(group)
        num_blocks: int = self.config["num_gpu_blocks"]
        # Rule 13, and rule 22: block 0 is the null block.
        self.watermark = int(self.config["watermark"] * num_blocks)
        self.free_queue = list(range(1, num_blocks))
        self.references = [0] * num_blocks
        self.eviction: str = self.config.get("eviction", "lru")
        self.hits = [0] * num_blocks  # since the block got its key
        # (block, number of its group, all tokens up to its end), oldest first
        self.published: list[tuple[int, int, list[int]]] = []
        in_order = sorted(world["requests"], key=lambda row: row["arrival_step"])
        self.requests = [OracleRequest(row, order, len(self.groups)) for order, row in enumerate(in_order)]
        self.rejected = [r for r in self.requests if len(r.prompt) >= self.config["max_model_len"]]
        self.running: list[OracleRequest] = []
        self.waiting: list[OracleRequest] = []
        self.log: list[World] = []
        self.swaps: World = {}

    def run(self, max_steps: int) -> World:
        """The log of a case; `truncated` if the engine goes on after `max_steps` steps."""
        requests = [r for r in self.requests if r not in self.rejected]
        stalled = truncated = False
        step = 0
        while True:
            record: World = {"step": step}
            for request in requests:
                if request.arrival_step == step:
                    self.submit(request)
            aborted = [r for r in requests if r.abort_step == step and (r in self.running or r in self.waiting)]
            for request in aborted:
                self.abort(request, step)
            record["aborted"] = [r.id for r in aborted]
            something_to_come = any(
                r.arrival_step > step or (r.abort_step or 0) > step for r in requests if r.finish_step is None
            )
            if self.running or self.waiting:
                if len(self.log) == max_steps:
                    truncated = True
                    break
                scheduled = self.schedule(record)
                self.outputs(scheduled, record)
                self.log.append(record)
                if not something_to_come and not record["sched"] and not record["preempted"]:
                    stalled = True
                    break
            elif not something_to_come:
                break
            step += 1
        # A log that is cut says nothing of requests that come after its last step.
        here = [r for r in self.requests if not truncated or r.arrival_step <= self.log[-1]["step"] + 1]
        return {
            "steps": self.log,
            "outcome": [
                {
                    "id": r.id,
                    "cached": r.cached,
                    "first_token_step": r.first_token_step,
                    "finish_step": r.finish_step,
                    "preemptions": r.preemptions,
                    "output_len": r.output_len,
                    "reason": r.reason,
                }
                for r in here
                if r not in self.rejected
            ],
            "stalled": stalled,
            "truncated": truncated,
            "rejected_by_front_end": [r.id for r in here if r in self.rejected],
            "final_free_queue": list(self.free_queue),
        }

    # requests come and go

    def submit(self, request: OracleRequest) -> None:
        """Rule 4."""
        self.waiting.append(request)
        self.sort_by_priority()

    def sort_by_priority(self) -> None:
        if self.config["policy"] == "priority":
            self.waiting.sort(key=lambda r: (r.priority, r.order))

    def abort(self, request: OracleRequest, step: int) -> None:
        self.end(request, step, "abort")
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)

    def end(self, request: OracleRequest, step: int, reason: str) -> None:
        request.finish_step = step
        request.reason = reason
        request.output_len = len(request.known) - len(request.prompt)
        request.on_host = None
        self.free(request)

    # one step

    def schedule(self, record: World) -> list[list[Any]]:
        """Rules 5 to 9; the list of [request, tokens]."""
        config = self.config
        budget: int = config["max_num_batched_tokens"]
        threshold: int = config["long_prefill_token_threshold"]
        alone = len(self.running) + len(self.waiting) <= 1
        cap = threshold if threshold and not alone else 10**9
        scheduled: list[list[Any]] = []
        preempted: list[OracleRequest] = []
        new: list[list[int]] = []
        resumed: list[list[int]] = []
        lengths_before = {r.id: len(r.tables[0]) for r in self.running}
        self.swaps = {"swapped_out": [], "swapped_in": []}

        for request in list(self.running):
            if request not in self.running:
                continue  # a victim of one that stands before it
            if budget == 0:
                break
            tokens = min(len(request.known) - request.computed, cap, budget)
            self.drop_passed(request)
            while self.missing_blocks(request, request.computed + tokens) > len(self.free_queue):
                victim = self.running[-1]
                if config["policy"] == "priority":
                    victim = max(self.running, key=lambda r: (r.priority, r.order))
                for entry in list(scheduled):
                    if entry[0] is victim:
                        scheduled.remove(entry)
                        budget += entry[1]
                self.preempt(victim)
                preempted.append(victim)
                if victim is request:
                    break
            if request not in self.running:
                break
            self.allocate(request, request.computed + tokens)
            scheduled.append([request, tokens])
            budget -= tokens

        most_running = config["max_num_active_seqs"] or config["max_num_seqs"]
        while not preempted and self.waiting and budget > 0 and len(self.running) < most_running:
            request = self.waiting[0]
            hit = self.find_hit(request)
            start = hit.num_tokens
            if request.on_host is not None:
                if self.groups != [{"type": "full"}]:
                    # Nothing but the places that windows had passed.
                    passed = [min(places, default=self.blocks_of(request.host_tokens)) for places in request.on_host]
                    hit = OracleHit(0, [[0] * n for n in passed], None)
                start = max(hit.num_tokens, request.host_tokens)
            tokens = min(len(request.known) - start, cap)
            if not config["enable_chunked_prefill"] and tokens > budget:
                break
            tokens = min(tokens, budget)
            if not self.may_admit(request, hit, start + tokens) or self.breaks_promises(request, hit):
                break
            if request.on_host is not None:
                places = [i for group in request.on_host for i in group if i * self.block_size >= hit.num_tokens]
                self.swaps["swapped_in"].append([request.id, len(places)])
                request.on_host = None
            self.take_hit(request, hit)
            self.allocate(request, start + tokens)
            request.computed = start
            self.waiting.pop(0)
            self.running.append(request)
            scheduled.append([request, tokens])
            budget -= tokens
            lengths_before[request.id] = 0
            if request.cached is None:
                request.cached = hit.num_tokens
                new.append([request.id, hit.num_tokens])
            else:
                resumed.append([request.id, hit.num_tokens])

        for request, tokens in scheduled:
            request.computed += tokens
        record["sched"] = [[r.id, tokens] for r, tokens in scheduled]
        record["new"] = new
        record["resumed"] = resumed
        record["preempted"] = [r.id for r in preempted]
        record["running"] = [r.id for r in self.running]
        record["waiting"] = [r.id for r in self.waiting]
        record["free"] = len(self.free_queue)
        if "preemption" in config:
            record.update(self.swaps, host=self.host_used())
        if self.groups == [{"type": "full"}]:
            record["nblocks"] = [len(r.tables[0]) for r in self.running]
            record["alloc"] = [
                [r.id, r.tables[0][lengths_before[r.id] :]]
                for r, _tokens in scheduled
                if len(r.tables[0]) > lengths_before[r.id]
            ]
        elif len(self.groups) == 1:
            record["nblocks"] = [len(r.tables[0]) for r in self.running]
            record["tables"] = [list(r.tables[0]) for r in self.running]
        else:
            record["nblocks"] = [[len(table) for table in r.tables] for r in self.running]
            record["tables"] = [[list(table) for table in r.tables] for r in self.running]
        if config["enable_prefix_caching"]:
            different: list[tuple[int, list[int]]] = []
            for _block, number, tokens_so_far in self.published:
                if (number, tokens_so_far) not in different:
                    different.append((number, tokens_so_far))
            record["keys"] = len(different)
        return scheduled

    def preempt(self, victim: OracleRequest) -> None:
        """Rule 8, but for what goes to the host."""
        self.swap_out(victim)
        self.free(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        self.sort_by_priority()

    def swap_out(self, victim: OracleRequest) -> None:
        """All that is written and still there, if the host has room for it."""
        if self.config.get("preemption") != "swap":
            return
        places = []
        for group, table in zip(self.groups, victim.tables, strict=True):
            written = table[: self.blocks_of(victim.computed)]
            passed = self.passed_blocks(group, victim.computed)
            places.append([i for i, block in enumerate(written) if block != 0 and i >= passed])
        num_blocks = sum(len(group) for group in places)
        if self.host_used() + num_blocks <= self.config["host_blocks"]:
            victim.on_host = places
            victim.host_tokens = victim.computed
            self.swaps["swapped_out"].append([victim.id, num_blocks])

    def host_used(self) -> int:
        return sum(len(group) for request in self.requests for group in request.on_host or [])

    def outputs(self, scheduled: list[list[Any]], record: World) -> None:
        """Rules 2 and 3."""
        finished = []
        for request, _tokens in scheduled:
            if request.computed < len(request.known):
                continue
            generated = len(request.known) - len(request.prompt)
            request.known.append(request.output[generated])
            if generated == 0:
                request.first_token_step = record["step"]
            complete = generated + 1 == len(request.output)
            if complete or len(request.known) >= self.config["max_model_len"]:
                finished.append(request)
                self.running.remove(request)
                self.end(request, record["step"], "length")
        record["finished"] = [r.id for r in finished]
        record["free_end"] = len(self.free_queue)
        record["free_queue"] = list(self.free_queue)

    # blocks

    def blocks_of(self, num_tokens: int) -> int:
        return (num_tokens + self.block_size - 1) // self.block_size

    def missing_blocks(self, request: OracleRequest, num_tokens: int) -> int:
        """Rules 10 and 26: the needs of all groups are added up."""
        return sum(self.blocks_of(num_tokens) - len(table) for table in request.tables)

    def most_blocks(self, group: World) -> int:
        """Rule 28: the cap of a group in the gate."""
        budget, longest = self.config["max_num_batched_tokens"], self.config["max_model_len"]
        if group["type"] == "sliding_window":
            return self.blocks_of(min(group["window"] - 1 + budget, longest)) + 1
        if group["type"] == "chunked_local":
            return self.blocks_of(min(group["chunk"] + budget, longest))
        return 10**9

    def may_admit(self, request: OracleRequest, hit: OracleHit, num_tokens: int) -> bool:
        """Rules 11 to 14, 28 and 31."""
        watermark = self.watermark if self.running else 0
        idle_hits = [
            block
            for group, table in zip(self.groups, hit.tables, strict=True)
            for block in table[self.passed_blocks(group, hit.num_tokens) :]
            if block in self.free_queue
        ]
        in_step = gate = len(idle_hits)
        all_known = min(len(request.known), self.config["max_model_len"])
        for group, table in zip(self.groups, hit.tables, strict=True):
            in_step += self.blocks_of(num_tokens) - len(table)
            gate += max(0, min(self.blocks_of(all_known), self.most_blocks(group)) - len(table))
        has_gate = self.config["scheduler_reserve_full_isl"]
        if self.config.get("admission") is not None:
            has_gate = self.config["admission"] != "first_chunk"
        if has_gate and gate + watermark > len(self.free_queue):
            return False
        return in_step + watermark <= len(self.free_queue)

    def promised_tokens(self, request: OracleRequest) -> int:
        """The most tokens that a request may come to hold by the policy of admission; the last is never computed."""
        config = self.config
        longest = config["max_model_len"]
        if config["max_output_tokens"] is not None:
            declared = max(config["max_output_tokens"], len(request.output))
            longest = min(longest, len(request.prompt) + declared)
        if config["admission"] == "worst_case":
            return longest - 1
        expected = round(config["expected_output_tokens"] * (1 + config["admission_margin"]))
        return max(len(request.known), min(longest, len(request.prompt) + expected) - 1)

    def breaks_promises(self, request: OracleRequest, hit: OracleHit) -> bool:
        """Whether all that run and this request could not all get what they are promised; alone it may do as it likes.

        Of windows everybody counts with the most that it can hold, whoever else holds it.
        """
        if self.config.get("admission") not in ("worst_case", "expected") or not self.running:
            return False
        wanted = 0
        for number, group in enumerate(self.groups):
            if group["type"] == "full":
                held = set(hit.tables[number])
                new = self.blocks_of(self.promised_tokens(request)) - len(hit.tables[number])
                for other in self.running:
                    held |= set(other.tables[number])
                    new += max(0, self.blocks_of(self.promised_tokens(other)) - len(other.tables[number]))
                wanted += len(held) + new
            else:
                most = self.most_blocks(group) + (group["type"] == "chunked_local")
                for other in [*self.running, request]:
                    wanted += min(self.blocks_of(self.promised_tokens(other)), most)
        return wanted + self.watermark > self.config["num_gpu_blocks"] - 1

    def take_hit(self, request: OracleRequest, hit: OracleHit) -> None:
        """Rules 20, 31 and 32."""
        for number, group in enumerate(self.groups):
            passed = self.passed_blocks(group, hit.num_tokens)
            for index, block in enumerate(hit.tables[number]):
                if index < passed or block == 0:
                    request.tables[number].append(0)
                    continue
                if block in self.free_queue:
                    self.free_queue.remove(block)
                self.references[block] += 1
                self.hits[block] += 1
                request.tables[number].append(block)
        request.boundaries = [(len(request.prompt) - 1) // self.block_size]
        if hit.boundary_tokens is not None:
            request.boundaries.append(hit.boundary_tokens // self.block_size)

    def allocate(self, request: OracleRequest, num_tokens: int) -> None:
        """Rules 14, 21, 25 and 26: take from the front, group by group, then publish what is full now."""
        for table in request.tables:
            for _ in range(self.blocks_of(num_tokens) - len(table)):
                block = self.free_queue.pop(0)
                self.published = [entry for entry in self.published if entry[0] != block]
                self.references[block] = 1
                table.append(block)
        if not self.config["enable_prefix_caching"]:
            return
        for number, table in enumerate(request.tables):
            for index, block in enumerate(table):
                end = (index + 1) * self.block_size
                if end > min(num_tokens, len(request.known)) or block == 0 or self.has_key(block):
                    continue
                if self.is_kept(self.groups[number], index, request.boundaries):
                    self.published.append((block, number, request.known[:end]))
                    self.hits[block] = 0

    def has_key(self, block: int) -> bool:
        return any(entry[0] == block for entry in self.published)

    # windows

    def passed_blocks(self, group: World, computed: int) -> int:
        """Rule 27: whole blocks that are no longer read."""
        tokens = 0
        if group["type"] == "sliding_window":
            tokens = max(0, computed - group["window"] + 1)
        elif group["type"] == "chunked_local":
            tokens = computed // group["chunk"] * group["chunk"]
        return tokens // self.block_size

    def drop_passed(self, request: OracleRequest) -> None:
        """Rule 27: free what is no longer read; the null block stands for it."""
        for group, table in zip(self.groups, request.tables, strict=True):
            passed = self.passed_blocks(group, request.computed)
            self.free_blocks(table[:passed])
            table[:passed] = [0] * len(table[:passed])

    def window_blocks(self, group: World) -> int:
        """Rule 29: blocks in a row that a sliding window needs."""
        return self.blocks_of(group["window"] - 1)

    def is_kept(self, group: World, index: int, boundaries: list[int]) -> bool:
        """Rule 32: whether a full block of a group gets a key.

        A positive interval keeps the last n blocks of each of its segments as well.
        """
        interval = self.config["prefix_cache_retention_interval"]
        if group["type"] != "sliding_window" or interval is None:
            return True
        n = self.window_blocks(group)
        if any(boundary - n <= index < boundary for boundary in boundaries):
            return True
        segment = interval // self.block_size
        return segment > 0 and index % segment >= segment - n

    # hits

    def first_block(self, request: OracleRequest, number: int, index: int) -> int | None:
        """Rules 16, 19 and 30: of the blocks of a group with this key, the one published first."""
        prefix = request.known[: (index + 1) * self.block_size]
        found = [block for block, owner, tokens in self.published if owner == number and tokens == prefix]
        return found[0] if found else None

    def is_cached(self, request: OracleRequest, kind: World, index: int) -> bool:
        """Rule 30: in all groups of this kind."""
        return all(
            self.first_block(request, number, index) is not None
            for number, group in enumerate(self.groups)
            if group == kind
        )

    def hit_of(self, request: OracleRequest, kind: World, allowed: int) -> tuple[int, int]:
        """Of blocks `first ... end - 1` all are hit and those before count as hit, within `allowed` tokens.

        The hit of chunks is not in the rules: what lies before the current chunk is not needed, then come the blocks
        that are there, one after the other.
        """
        longest = allowed // self.block_size
        if kind["type"] == "sliding_window":
            n = max(1, self.window_blocks(kind))
            for end in range(longest, n - 1, -1):
                if all(self.is_cached(request, kind, index) for index in range(end - n, end)):
                    return end - n, end
        first = 0
        if kind["type"] == "chunked_local":
            first = allowed // kind["chunk"] * kind["chunk"] // self.block_size
        end = first
        while end < longest and self.is_cached(request, kind, end):
            end += 1
        return first, end

    def find_hit(self, request: OracleRequest) -> OracleHit:
        """Rules 16 to 19, 29 and 30.

        All kinds must agree: the hit is the longest that each of them confirms when asked for no more than it. Where
        there is only full attention and one other kind, the other one's hit within the full one's is taken as it is.
        """
        if not self.config["enable_prefix_caching"]:
            return OracleHit(0, [[] for _ in self.groups], None)
        allowed = len(request.known) - 1
        _first, longest = self.hit_of(request, self.kinds[0], allowed)
        if len(self.kinds) > 1:
            allowed = longest * self.block_size
        end = longest
        if len(self.kinds) == 2 and self.kinds[0]["type"] == "full":
            _first, end = self.hit_of(request, self.kinds[1], allowed)
        elif len(self.kinds) > 1:
            while any(self.hit_of(request, kind, allowed)[1] < end for kind in self.kinds):
                end -= 1
                allowed = end * self.block_size
        tables = []
        for number, group in enumerate(self.groups):
            first, _end = self.hit_of(request, group, allowed)
            table = [0] * first
            for index in range(first, end):
                block = self.first_block(request, number, index)
                assert block is not None, "all groups of a kind have what the kind has hit"
                table.append(block)
            tables.append(table)
        return OracleHit(end * self.block_size, tables, longest * self.block_size if longest > end else None)

    # back to the queue

    def free(self, request: OracleRequest) -> None:
        """Rule 26."""
        for table in request.tables:
            self.free_blocks(table)
        request.tables = [[] for _ in self.groups]

    def free_blocks(self, blocks: list[int]) -> None:
        """Rule 23."""
        to_end = []
        to_front = []
        for block in reversed(blocks):
            if block == 0:
                continue
            self.references[block] -= 1
            if self.references[block] == 0:
                (to_end if self.has_key(block) else to_front).append(block)
        if self.eviction == "tail_last_lru":
            to_end.reverse()
        self.free_queue = self.in_order_of_eviction(to_front + self.free_queue + to_end)

    def in_order_of_eviction(self, queue: list[int]) -> list[int]:
        """Blocks without a key as they stand, then those with one: as they stand for LRU, else as the policy says."""
        with_key = [block for block in queue if self.has_key(block)]
        if self.eviction == "fifo":
            in_order_of_publication = [entry[0] for entry in self.published]
            with_key.sort(key=in_order_of_publication.index)
        if self.eviction == "lfu":
            with_key.sort(key=lambda block: self.hits[block])  # equal ones stay in order of release
        return [block for block in queue if not self.has_key(block)] + with_key
