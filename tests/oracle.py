"""The naive judge: what the rules say, with plain lists, one token at a time.

Written from rules 1 to 25 of tests/golden/vllm_scheduler/README.md alone; it shares no code with kvsim. Slow and
plain on purpose: every request is a list of token ids, the free queue is one list, keys are whole prefixes, and
everything is found by looking through a list.
"""

from typing import Any

World = dict[str, Any]
"""`config` and `requests` of a recorded case."""


class OracleRequest:
    def __init__(self, row: World, order: int) -> None:
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
        self.table: list[int] = []
        # What the log says in the end.
        self.cached: int | None = None
        self.first_token_step: int | None = None
        self.finish_step: int | None = None
        self.preemptions = 0
        self.output_len = 0
        self.reason: str | None = None


class Oracle:
    def __init__(self, world: World) -> None:
        self.config = world["config"]
        self.block_size: int = self.config["block_size"]
        num_blocks: int = self.config["num_gpu_blocks"]
        # Rule 13, and rule 22: block 0 is the null block.
        self.watermark = int(self.config["watermark"] * num_blocks)
        self.free_queue = list(range(1, num_blocks))
        self.references = [0] * num_blocks
        self.published: list[tuple[int, list[int]]] = []  # (block, all tokens up to its end), oldest first
        in_order = sorted(world["requests"], key=lambda row: row["arrival_step"])
        self.requests = [OracleRequest(row, order) for order, row in enumerate(in_order)]
        self.rejected = [r for r in self.requests if len(r.prompt) >= self.config["max_model_len"]]
        self.running: list[OracleRequest] = []
        self.waiting: list[OracleRequest] = []
        self.log: list[World] = []

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
        lengths_before = {r.id: len(r.table) for r in self.running}

        for request in list(self.running):
            if request not in self.running:
                continue  # a victim of one that stands before it
            if budget == 0:
                break
            tokens = min(len(request.known) - request.computed, cap, budget)
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
            hit_tokens = len(hit) * self.block_size
            tokens = min(len(request.known) - hit_tokens, cap)
            if not config["enable_chunked_prefill"] and tokens > budget:
                break
            tokens = min(tokens, budget)
            if not self.may_admit(request, hit, hit_tokens + tokens):
                break
            for block in hit:
                self.touch(block)
            request.table = list(hit)
            self.allocate(request, hit_tokens + tokens)
            request.computed = hit_tokens
            self.waiting.pop(0)
            self.running.append(request)
            scheduled.append([request, tokens])
            budget -= tokens
            lengths_before[request.id] = 0
            if request.cached is None:
                request.cached = hit_tokens
                new.append([request.id, hit_tokens])
            else:
                resumed.append([request.id, hit_tokens])

        for request, tokens in scheduled:
            request.computed += tokens
        record["sched"] = [[r.id, tokens] for r, tokens in scheduled]
        record["new"] = new
        record["resumed"] = resumed
        record["preempted"] = [r.id for r in preempted]
        record["running"] = [r.id for r in self.running]
        record["waiting"] = [r.id for r in self.waiting]
        record["free"] = len(self.free_queue)
        record["nblocks"] = [len(r.table) for r in self.running]
        record["alloc"] = [
            [r.id, r.table[lengths_before[r.id] :]] for r, _tokens in scheduled if len(r.table) > lengths_before[r.id]
        ]
        if config["enable_prefix_caching"]:
            different: list[list[int]] = []
            for _block, tokens_so_far in self.published:
                if tokens_so_far not in different:
                    different.append(tokens_so_far)
            record["keys"] = len(different)
        return scheduled

    def preempt(self, victim: OracleRequest) -> None:
        """Rule 8."""
        self.free(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        self.sort_by_priority()

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
        """Rule 10."""
        return self.blocks_of(num_tokens) - len(request.table)

    def may_admit(self, request: OracleRequest, hit: list[int], num_tokens: int) -> bool:
        """Rules 11 to 14."""
        watermark = self.watermark if self.running else 0
        idle_hits = [block for block in hit if block in self.free_queue]
        asked_for = [num_tokens]
        if self.config["scheduler_reserve_full_isl"]:
            asked_for.append(min(len(request.known), self.config["max_model_len"]))
        for total in asked_for:
            need = self.blocks_of(total) - len(hit) + len(idle_hits)
            if need + watermark > len(self.free_queue):
                return False
        return True

    def touch(self, block: int) -> None:
        """Rule 20."""
        if block in self.free_queue:
            self.free_queue.remove(block)
        self.references[block] += 1

    def allocate(self, request: OracleRequest, num_tokens: int) -> None:
        """Rules 14, 21 and 25: take from the front, then publish what is full now."""
        for _ in range(self.missing_blocks(request, num_tokens)):
            block = self.free_queue.pop(0)
            self.published = [entry for entry in self.published if entry[0] != block]
            self.references[block] = 1
            request.table.append(block)
        if not self.config["enable_prefix_caching"]:
            return
        for index, block in enumerate(request.table):
            end = (index + 1) * self.block_size
            if end <= min(num_tokens, len(request.known)) and not self.has_key(block):
                self.published.append((block, request.known[:end]))

    def has_key(self, block: int) -> bool:
        return any(entry[0] == block for entry in self.published)

    def find_hit(self, request: OracleRequest) -> list[int]:
        """Rules 16 to 19."""
        hit: list[int] = []
        if not self.config["enable_prefix_caching"]:
            return hit
        for index in range((len(request.known) - 1) // self.block_size):
            prefix = request.known[: (index + 1) * self.block_size]
            with_this_key = [block for block, tokens in self.published if tokens == prefix]
            if not with_this_key:
                break
            hit.append(with_this_key[0])
        return hit

    def free(self, request: OracleRequest) -> None:
        """Rule 23."""
        to_end = []
        to_front = []
        for block in reversed(request.table):
            self.references[block] -= 1
            if self.references[block] == 0:
                (to_end if self.has_key(block) else to_front).append(block)
        self.free_queue = to_front + self.free_queue + to_end
        request.table = []
