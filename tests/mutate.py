"""Does the suite notice when a rule is broken? `python -m tests.mutate > tests/MUTATIONS.md`; with rules: `... 7 13`.

Each mutation breaks one rule of `golden/vllm_scheduler/README.md`, or what chains and windows are to have in common with
blocks and steps (rule 0), in a copy of the package in a temporary folder, where the recorded decisions are replayed and
then the tests of the parts that decide, until one fails. Prints what is in MUTATIONS.md; ends with 1 if a mutation
survives, does not run, or does not end.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

TESTS = (
    "tests/engine/test_golden.py",
    "tests/engine/test_queue.py",
    "tests/engine/test_scheduler.py",
    "tests/engine/test_simulation.py",
    "tests/memory/test_pool.py",
    "tests/memory/test_prefix.py",
    "tests/memory/test_groups.py",
    "tests/model/test_attention.py",
    "tests/memory/test_paged.py",
    "tests/engine/test_against_oracle.py",
    "tests/memory/test_chain.py",
    "tests/memory/test_chains.py",
    "tests/engine/test_clock.py",
    "tests/engine/test_timeline.py",
    "tests/engine/test_clocked.py",
)
"""What is run on each mutation, in this order, up to the first that fails."""

TIMEOUT_S = 300


class Mutation(NamedTuple):
    """`old`, which stands once in `file` of kvsim, becomes `new`; `what` says which violation that is."""

    rule: int
    file: str
    what: str
    old: str
    new: str


SCHEDULER, STATE, QUEUE, SIMULATION = (
    "engine/scheduler.py",
    "engine/state.py",
    "engine/queue.py",
    "engine/simulation.py",
)
PAGED, POOL, PREFIX, GROUPS = "memory/paged.py", "memory/pool.py", "memory/prefix.py", "memory/groups.py"
ATTENTION = "model/attention.py"
CHAIN, CHAINS, CONTESTED = "memory/chain.py", "memory/chains.py", "memory/contested.py"
CLOCK, CLOCKED, TIMELINE = "engine/clock.py", "engine/clocked.py", "engine/timeline.py"

NO_RULE = 0
"""Chains of blocks and windows of steps have no rules of their own: they leave what blocks and steps leave."""

MUTATIONS = (
    Mutation(
        1,
        SCHEDULER,
        "a chunk counts as the whole prompt",
        "state.num_computed_tokens = stop",
        "state.num_computed_tokens = state.num_tokens",
    ),
    Mutation(
        1,
        SCHEDULER,
        "a decode is given two tokens where one is lacking",
        "lacking = min(state.num_tokens - computed, cap)",
        "lacking = min(max(2, state.num_tokens - computed), cap)",
    ),
    Mutation(
        2,
        SCHEDULER,
        "a token is sampled when all but one are computed",
        "if state.num_computed_tokens != state.num_tokens:",
        "if state.num_computed_tokens < state.num_tokens - 1:",
    ),
    Mutation(
        3,
        SCHEDULER,
        "one token more than was asked for",
        "if state.num_tokens >= state.stop_tokens:",
        "if state.num_tokens > state.stop_tokens:",
    ),
    Mutation(
        3,
        STATE,
        "max_model_len does not end a request",
        "self.stop_tokens = longest if longest < max_model_len else max_model_len",
        "self.stop_tokens = request.prompt_tokens + request.output_tokens",
    ),
    Mutation(
        3,
        SCHEDULER,
        "outputs are processed from the last request to the first",
        "for state in step.scheduled:",
        "for state in reversed(step.scheduled):",
    ),
    Mutation(
        4,
        QUEUE,
        "fcfs: last come, first served",
        "submit = deque.append\n",
        "submit = deque.appendleft\n",
    ),
    Mutation(
        4,
        QUEUE,
        "priority: of equals the last submitted comes first",
        "return -priority, -order",
        "return -priority, order",
    ),
    Mutation(
        5,
        SCHEDULER,
        "a request alone is capped as well",
        "len(self.running) + len(self.waiting) > 1",
        "len(self.running) + len(self.waiting) > 0",
    ),
    Mutation(
        5,
        SCHEDULER,
        "who waits is no company",
        "len(self.running) + len(self.waiting) > 1",
        "len(self.running) > 1",
    ),
    Mutation(
        5,
        SCHEDULER,
        "no cap for who is admitted",
        "num_new = min(state.num_tokens - computed, cap)",
        "num_new = state.num_tokens - computed",
    ),
    Mutation(
        6,
        SCHEDULER,
        "a prefill under way may exceed the budget",
        "num_new = sequences.affordable(state.request, computed, lacking, budget)",
        "num_new = lacking",
    ),
    Mutation(
        6,
        SCHEDULER,
        "the running list is gone through from its end",
        "state = running[index]",
        "state = running[-1 - index]",
    ),
    Mutation(
        7,
        SCHEDULER,
        "fcfs: the victim is the first of the running list",
        "return self.running[-1]",
        "return self.running[0]",
    ),
    Mutation(
        7,
        SCHEDULER,
        "priority: the victim is the most urgent",
        "return max(self.running, key=urgency)",
        "return min(self.running, key=urgency)",
    ),
    Mutation(
        7,
        SCHEDULER,
        "the tokens of a victim do not go back to the budget",
        "budget += sequences.num_tokens(victim.request, victim.num_computed_tokens, stop)",
        "budget += 0",
    ),
    Mutation(
        7,
        SCHEDULER,
        "after a victim that stood before it the next one is passed over",
        "index -= 1",
        "index -= 0",
    ),
    Mutation(
        7,
        SCHEDULER,
        "the pass goes on after a request has preempted itself",
        """                    return budget
            step.scheduled[state] = num_new
            budget -= sequences.num_tokens(state.request, computed, computed + num_new)
            index += 1""",
        """                    break
            else:
                step.scheduled[state] = num_new
                budget -= sequences.num_tokens(state.request, computed, computed + num_new)
                index += 1""",
    ),
    Mutation(
        8,
        SCHEDULER,
        "a victim loses what it has generated",
        "victim.num_computed_tokens = 0",
        "victim.num_computed_tokens, victim.num_tokens = 0, victim.request.prompt_tokens",
    ),
    Mutation(
        8,
        QUEUE,
        "fcfs: a victim goes to the end of the queue",
        "put_back = deque.appendleft",
        "put_back = deque.append",
    ),
    Mutation(
        9,
        SCHEDULER,
        "a step that preempts admits others",
        "if step.preempted:",
        "if step.preempted and budget <= 0:",
    ),
    Mutation(
        9,
        SCHEDULER,
        "one more runs than is allowed",
        "if len(self.running) >= self._max_running:",
        "if len(self.running) > self._max_running:",
    ),
    Mutation(
        9,
        SCHEDULER,
        "max_num_active_seqs is ignored",
        "self._max_running = (config.max_num_active_seqs or config.max_num_seqs)",
        "self._max_running = config.max_num_seqs",
    ),
    Mutation(
        9,
        SCHEDULER,
        "chunked prefill off: a prompt may be cut all the same",
        "if not config.enable_chunked_prefill and num_new > budget:",
        "if not config.enable_chunked_prefill and num_new > 2 * budget:",
    ),
    Mutation(
        9,
        SCHEDULER,
        "chunked prefill off: a prompt that fits the budget exactly waits",
        "if not config.enable_chunked_prefill and num_new > budget:",
        "if not config.enable_chunked_prefill and num_new >= budget:",
    ),
    Mutation(
        9,
        SCHEDULER,
        "those behind a refused head are tried",
        """state, shortfall
                return""",
        """state, shortfall
                self.waiting.pop(), self._admit_waiting(step, budget, cap), self.waiting.put_back(state)
                return""",
    ),
    Mutation(
        9,
        SCHEDULER,
        "who is admitted joins the front of the running list",
        "self.running.append(state)",
        "self.running.insert(0, state)",
    ),
    Mutation(
        9,
        SCHEDULER,
        "a resumed request computes its prompt only",
        "num_new = min(state.num_tokens - computed, cap)",
        "num_new = min(max(1, state.request.prompt_tokens - computed), cap)",
    ),
    Mutation(
        10,
        PAGED,
        "one slot of lookahead",
        "return -(-num_tokens // self.block_size)",
        "return -(-(num_tokens + 1) // self.block_size)",
    ),
    Mutation(
        11,
        PAGED,
        "hits in the free queue cost nothing",
        "now = whole = idle",
        "now = whole = 0 * idle",
    ),
    Mutation(
        11,
        POOL,
        "hits in use cost a free block",
        "return sum(not counts[block] for block in blocks if block)",
        "return sum(counts[block] >= 0 for block in blocks if block)",
    ),
    Mutation(
        12,
        SCHEDULER,
        "the gate is always open",
        "demand.must_fit_tokens, spare",
        "None, spare",
    ),
    Mutation(
        12,
        SCHEDULER,
        "the gate is there although it is off",
        "demand.must_fit_tokens, spare",
        "state.num_tokens, spare",
    ),
    Mutation(
        12,
        SCHEDULER,
        "the gate does not count what was generated",
        "demand.must_fit_tokens, spare",
        "demand.must_fit_tokens and state.request.prompt_tokens, spare",
    ),
    Mutation(
        12,
        SCHEDULER,
        "the gate counts output still to come",
        "demand.must_fit_tokens, spare",
        "demand.must_fit_tokens and state.stop_tokens, spare",
    ),
    Mutation(
        13,
        SCHEDULER,
        "the watermark is asked for when nothing runs",
        "spare = self.watermark_blocks if self.running else 0",
        "spare = self.watermark_blocks",
    ),
    Mutation(
        13,
        SCHEDULER,
        "no watermark for preempted requests",
        "spare = self.watermark_blocks if self.running else 0",
        "spare = self.watermark_blocks if self.running and not state.was_admitted else 0",
    ),
    Mutation(
        13,
        SCHEDULER,
        "who was admitted in this step does not count as running",
        "spare = self.watermark_blocks if self.running else 0",
        "spare = self.watermark_blocks if len(self.running) > len(step.admitted) else 0",
    ),
    Mutation(
        13,
        PAGED,
        "running requests must leave a block over",
        "if need > self.pool.num_free:",
        "if need and need >= self.pool.num_free:",
    ),
    Mutation(
        14,
        PAGED,
        "an admission may not take the last block",
        "num_tokens, must_fit_tokens) + spare_blocks > self.pool.num_free:",
        "num_tokens, must_fit_tokens) + spare_blocks >= self.pool.num_free:",
    ),
    Mutation(
        14,
        POOL,
        "blocks are taken out of order",
        "blocks.reverse()",
        "blocks.sort()",
    ),
    Mutation(
        15,
        SIMULATION,
        "what can never fit is turned away although it must not be",
        "if config.reject_unservable and not self.memory.fits_empty_pool(",
        "if not self.memory.fits_empty_pool(",
    ),
    Mutation(
        15,
        SIMULATION,
        "who has outgrown the pool once is given up at once",
        "if step.is_empty or self._futile >= self._futile_cycles:",
        "if step.is_empty or self._futile >= 1:",
    ),
    Mutation(
        16,
        PREFIX,
        "a key forgets what came before",
        "node = self._child(node, depth, source, start)",
        "node = self._child(self._root, depth, source, start)",
    ),
    Mutation(
        16,
        PREFIX,
        "a block that is not full has a key",
        "keys.extend(range(first + len(keys), first + min(end // block_size, most)))",
        "keys.extend(range(first + len(keys), first + min(-(-end // block_size), most)))",
    ),
    Mutation(
        16,
        PAGED,
        "generated tokens have no content",
        "self._tree.intern(request.prompt + request.output)",
        'self._tree.intern((*request.prompt, request.output[0]._replace(source=f"out {request.id}")))',
    ),
    Mutation(
        17,
        SCHEDULER,
        "no lookup at a resumption",
        "find_hit(state.request, state.num_tokens)",
        "find_hit(state.request, 1 if state.was_admitted else state.num_tokens)",
    ),
    Mutation(
        17,
        POOL,
        "the lookup goes on behind a gap",
        """            if block is None:
                break""",
        """            if block is None:
                continue""",
    ),
    Mutation(
        18,
        PAGED,
        "all known tokens may be hit",
        "most = num_known_tokens - 1",
        "most = num_known_tokens",
    ),
    Mutation(
        18,
        PAGED,
        "a fully cached prompt loses two blocks",
        "most = num_known_tokens - 1",
        "most = num_known_tokens - 1 - self.block_size * (num_known_tokens % self.block_size == 0)",
    ),
    Mutation(
        19,
        POOL,
        "of equal keys the last published takes over",
        "self._first_block[key] = later.pop(0)",
        "self._first_block[key] = later.pop()",
    ),
    Mutation(
        19,
        POOL,
        "of equal keys the last published is hit",
        "self._later_blocks.setdefault(key, []).append(block)",
        "self._later_blocks.setdefault(key, []).append(self._first_block[key]); self._first_block[key] = block",
    ),
    Mutation(
        20,
        POOL,
        "a hit in use is not counted as a reference",
        "counts[block] += 1",
        "counts[block] = 1",
    ),
    Mutation(
        20,
        PAGED,
        "hits with caching off",
        "self._tree = PrefixTree() if prefix_sharing else None",
        "self._tree = PrefixTree()",
    ),
    Mutation(
        21,
        PAGED,
        "a block is published one token late",
        "num_full = num_tokens // self.block_size",
        "num_full = (num_tokens - 1) // self.block_size",
    ),
    Mutation(
        21,
        PAGED,
        "a block is published only when its request asks again",
        "num_full = num_tokens // self.block_size",
        "num_full = (num_tokens - added) // self.block_size",
    ),
    Mutation(
        22,
        POOL,
        "the null block is handed out",
        "list(range(num_blocks - 1, NULL_BLOCK, -1))",
        "list(range(num_blocks - 1, NULL_BLOCK - 1, -1))",
    ),
    Mutation(
        22,
        POOL,
        "the queue starts with the highest block",
        "list(range(num_blocks - 1, NULL_BLOCK, -1))",
        "list(range(1, num_blocks))",
    ),
    Mutation(
        23,
        POOL,
        "a table is freed from its first block to its last",
        "for block in reversed(table):",
        "for block in table:",
    ),
    Mutation(
        23,
        POOL,
        "blocks without a key go behind the other blank ones",
        "self._blank.extend(to_front)",
        "self._blank[:0] = to_front",
    ),
    Mutation(
        23,
        POOL,
        "blocks with a key go to the front of the cached ones",
        "self._cached.add(cached)",
        "older = self._cached.pop(len(self._cached)); self._cached.add(cached); self._cached.add(older)",
    ),
    Mutation(
        24,
        POOL,
        "the block released last is evicted first",
        "evicted = self._cached.pop(num_blocks - from_blank)",
        "evicted = list(self._cached)[::-1][: num_blocks - from_blank]; self._cached.remove(evicted)",
    ),
    Mutation(
        25,
        POOL,
        "a block loses its key when it is freed",
        "if keys[block] is None:",
        "if keys[block] is None or self._forget_key(block) is None:",
    ),
    Mutation(
        26,
        PAGED,
        "the last group takes its blocks first",
        """for number, table in enumerate(holding.tables):
            missing = wanted""",
        """for number, table in reversed(list(enumerate(holding.tables))):
            missing = wanted""",
    ),
    Mutation(
        26,
        PAGED,
        "the last group is freed first",
        """for number, table in enumerate(holding.tables):
            freed = self""",
        """for number, table in reversed(list(enumerate(holding.tables))):
            freed = self""",
    ),
    Mutation(
        26,
        PAGED,
        "only the need of the last group counts",
        "need += wanted - len(table.blocks)",
        "need = wanted - len(table.blocks)",
    ),
    Mutation(
        27,
        ATTENTION,
        "a window is one token longer",
        "return max(0, num_tokens - self.window)",
        "return max(0, num_tokens - self.window - 1)",
    ),
    Mutation(
        27,
        ATTENTION,
        "a chunk is left with its last token",
        "return (num_tokens - 1) // self.window * self.window",
        "return num_tokens // self.window * self.window",
    ),
    Mutation(
        27,
        PAGED,
        "passed blocks are freed from the lowest index upwards",
        "self.pool.release(table.blocks[table.num_dropped : passed])",
        "self.pool.release(table.blocks[table.num_dropped : passed][::-1])",
    ),
    Mutation(
        27,
        PAGED,
        "blocks are given back one step early",
        "self._drop_passed(number, table, holding.num_tokens)",
        "self._drop_passed(number, table, num_tokens)",
    ),
    Mutation(
        28,
        PAGED,
        "no cap for windows in the gate",
        "return min(self.blocks_for(num_tokens), most)",
        "return self.blocks_for(num_tokens)",
    ),
    Mutation(
        28,
        ATTENTION,
        "a sliding window has no block more for where it starts",
        "num_tokens) // block_size) + 1",
        "num_tokens) // block_size)",
    ),
    Mutation(
        28,
        ATTENTION,
        "chunks do not count the tokens of the step",
        "min(self.window + max_in_flight_tokens, num_tokens)",
        "min(self.window, num_tokens)",
    ),
    Mutation(
        28,
        PAGED,
        "the check of the step has the cap of the gate",
        "now += max(0, wanted - held)",
        "now += max(0, self._capped_blocks(self.groups[number].attention, num_tokens) - held)",
    ),
    Mutation(
        29,
        GROUPS,
        "a window needs blocks for all its tokens",
        "return -(-(attention.window - 1) // block_size)",
        "return -(-attention.window // block_size)",
    ),
    Mutation(
        29,
        GROUPS,
        "a run one block shorter than a window does",
        "if length >= needed:",
        "if length >= needed - 1:",
    ),
    Mutation(
        29,
        GROUPS,
        "a short run from block 0 does not count",
        "return HitRun(0, length)",
        "return HitRun(0, 0)",
    ),
    Mutation(
        29,
        GROUPS,
        "of several runs the leftmost is taken",
        "for index in range(num_tokens // block_size - 1, -1, -1):",
        "for index in [*range(needed - 1, -1, -1), *range(num_tokens // block_size - 1, needed - 1, -1)]:",
    ),
    Mutation(
        30,
        PAGED,
        "full attention is looked up last",
        'key=lambda pair: pair[1].attention.kind != "full"',
        'key=lambda pair: pair[1].attention.kind == "full"',
    ),
    Mutation(
        30,
        GROUPS,
        "the hit of full attention is no limit",
        "runs[attention] = _LONGEST_HIT[attention.kind](attention, length, block_size, cached)",
        "runs[attention] = _LONGEST_HIT[attention.kind](attention, agreed, block_size, cached)",
    ),
    Mutation(
        30,
        PAGED,
        "one group of a kind is enough for a hit",
        "return all(pool.has(_group_key(keys[index], number)) for number in self._kinds[attention])",
        "return any(pool.has(_group_key(keys[index], number)) for number in self._kinds[attention])",
    ),
    Mutation(
        30,
        PAGED,
        "a key is the same for all groups",
        "return key | number << _GROUP_SHIFT",
        "return key",
    ),
    Mutation(
        31,
        PAGED,
        "hits that the window has passed cost a free block",
        "idle = sum(self.pool.num_idle(blocks[dropped[number] :])",
        "idle = sum(self.pool.num_idle(blocks)",
    ),
    Mutation(
        31,
        PAGED,
        "hits that the window has passed are held",
        "kept = [block for block in blocks[dropped[number] :] if block]",
        "kept = [block for block in blocks if block]",
    ),
    Mutation(
        32,
        PAGED,
        "0 keeps all blocks of a window",
        'attention.kind == "sliding_window" and self.retention_interval is not None:',
        'attention.kind == "sliding_window" and self.retention_interval:',
    ),
    Mutation(
        32,
        PAGED,
        "null keeps as few as 0 does",
        'attention.kind == "sliding_window" and self.retention_interval is not None:',
        'attention.kind == "sliding_window":',
    ),
    Mutation(
        32,
        PAGED,
        "the boundary is that of the whole prompt",
        "boundaries = (request.prompt_tokens - 1, hit.boundary_tokens)",
        "boundaries = (request.prompt_tokens, hit.boundary_tokens)",
    ),
    Mutation(
        32,
        PAGED,
        "the longer hit of full attention is forgotten",
        "boundaries = (request.prompt_tokens - 1, hit.boundary_tokens)",
        "boundaries = (request.prompt_tokens - 1, 0)",
    ),
    Mutation(
        32,
        PAGED,
        "one block less before a boundary",
        "stop - needed <= index < stop",
        "stop - needed < index < stop",
    ),
    Mutation(
        32,
        PAGED,
        "one block less before each multiple of the interval",
        "index % segment >= segment - needed",
        "index % segment > segment - needed",
    ),
    Mutation(
        NO_RULE,
        CHAIN,
        "who lets go leaves a chain in use as far as before",
        "self.used = max(self.end_counts)",
        "self.used = self.used",
    ),
    Mutation(
        NO_RULE,
        CHAIN,
        "who goes on in a chain takes the others with it",
        "if self.num_holders > 1:",
        "if self.num_holders > 99:",
    ),
    Mutation(
        NO_RULE,
        CHAIN,
        "a chain is forgotten before those that hang on it",
        """or self.num_children
""",
        "",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "a look-up does not see what is published lazily",
        """            if chain.writer is not None:
                self.catch_up(chain.writer)
            resident""",
        "            resident",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "all hits count as in use",
        "(used if used < found else found)",
        "found",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "a path is one block longer than what is ever computed",
        """most = num_tokens // size
""",
        """most = num_tokens // size + 1
""",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "a parent stays known when its last child is forgotten",
        """            parent = chain.parent
""",
        """            parent = None
""",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "a hit takes only whole runs out of the cached order",
        """                runs[-1].low = stop
""",
        """                pass
""",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "who decodes does not see that what it writes is there already",
        "if chain.writer is None and chain.resident <= max(chain.first, published):",
        "if chain.writer is None:",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "writers of one chain publish in the order in which it came to that",
        "sorted(self.eager, key=_by_admission)",
        "list(self.eager)",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "what was not published when a request leaves has no key",
        """        if num_full > holder.published:
            self._publish(holder, num_full)
        holder.offset = None""",
        "        holder.offset = None",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "who has left still writes its chains",
        """            if chain.writer is holder:
                chain.writer = None""",
        "            pass",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "content stays known when its last block is evicted",
        "if low == chain.first and not chain.num_paths:",
        "if False:",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "the youngest spare stands in",
        "spare = next((spare for spare in chain.spares if spare.low == chain.resident), None)",
        "spare = next((spare for spare in reversed(chain.spares) if spare.low == chain.resident), None)",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "an overtaken writer is not noticed",
        "and (chain.writer or holder) is holder:",
        ":",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "a second block of a key that is not the last of its path is a spare",
        "if high == low + 1 == end:",
        "if high == low + 1:",
    ),
    Mutation(
        NO_RULE,
        CHAINS,
        "a contest begins before its writer is caught up with",
        """            self.catch_up(writer)
            chain.writer = None""",
        "            chain.writer = None",
    ),
    Mutation(
        NO_RULE,
        CONTESTED,
        "in a contest the owner of a spare holds the other block",
        """        copies[-1] = owned[holder.spare]
""",
        """        pass
""",
    ),
    Mutation(
        NO_RULE,
        CONTESTED,
        "the youngest copy is hit",
        "chain.copies.setdefault(index, []).append(copy)",
        "chain.copies.setdefault(index, []).insert(0, copy)",
    ),
    Mutation(
        NO_RULE,
        CONTESTED,
        "a run of copies is evicted from its other end",
        "run.copies.popitem(last=False)",
        "run.copies.popitem()",
    ),
    Mutation(
        NO_RULE,
        CLOCK,
        "the ticks of a residue class run backwards",
        """residue = -offset % size
""",
        """residue = offset % size
""",
    ),
    Mutation(
        NO_RULE,
        CLOCK,
        "an end at which nobody is left stays in the calendar",
        """        if not ending:
            del self._ends[end]
""",
        "",
    ),
    Mutation(
        NO_RULE,
        CLOCK,
        "a tick that takes all that is free is not served",
        """            if count > left:
""",
        """            if count >= left:
""",
    ),
    Mutation(
        NO_RULE,
        CLOCKED,
        "a window goes on beyond a finish",
        """max_ticks = clock.next_end() - tick
""",
        """max_ticks = clock.next_end() - tick + 1
""",
    ),
    Mutation(
        NO_RULE,
        CLOCKED,
        "a window goes on beyond a block that two publish",
        "max_ticks = min(max_ticks, self._ticks_to_publish(holder) - (refused is not None))",
        "pass",
    ),
    Mutation(
        NO_RULE,
        CLOCKED,
        "a window has the tick in which what the head lacks is published",
        "self._ticks_to_publish(missing.writer) - 1)",
        "self._ticks_to_publish(missing.writer))",
    ),
    Mutation(
        NO_RULE,
        CLOCKED,
        "a window goes on when what the head has found is evicted",
        "is_shortened = num_found > num_in_use and known - num_in_use * size > budget",
        "is_shortened = False",
    ),
    Mutation(
        NO_RULE,
        CLOCKED,
        "a window goes on when the first of two copies is evicted",
        "if is_shortened or any(chain.has_copies for chain, _end in self._holder(state).path):",
        "if is_shortened:",
    ),
    Mutation(
        NO_RULE,
        CLOCKED,
        "the tick goes on after a request has preempted itself",
        """                    return 0, True
""",
        """                    break
""",
    ),
    Mutation(
        NO_RULE,
        CLOCKED,
        "a token of a step that has not ended is sampled",
        "state.num_tokens = state.num_computed_tokens + (not self._is_stepping)",
        "state.num_tokens = state.num_computed_tokens + 1",
    ),
    Mutation(
        NO_RULE,
        CLOCKED,
        "the content of a running request that is aborted stays known",
        """            self._release(state)
            self._forget(state)
            return True""",
        """            self._release(state)
            return True""",
    ),
    Mutation(
        NO_RULE,
        TIMELINE,
        "only the first step of a window refuses",
        '"running", "refused")}',
        '"running")} | {"refused": np.where(tick == 0, stretches["refused"][of], 0)}',
    ),
    Mutation(
        NO_RULE,
        TIMELINE,
        "a window takes cached blocks before blank ones",
        "np.maximum(0, blocks - blank)",
        "blocks",
    ),
    Mutation(
        NO_RULE,
        TIMELINE,
        "blocks taken do not repeat after a block size of ticks",
        'tick[some] % stretches["taken_every"][of][some]',
        'np.minimum(tick[some], stretches["taken_every"][of][some] - 1)',
    ),
    Mutation(
        NO_RULE,
        SIMULATION,
        "who comes inside a window does not end it by its time-out",
        "event_ns = min(event_ns, min(first, arrival_ns) + self.config.timeout)",
        "event_ns = min(event_ns, first + self.config.timeout)",
    ),
    Mutation(
        NO_RULE,
        SIMULATION,
        "a window ends before the arrival that ends it",
        "low = high = max(1, min(most, -(-delay_ns // tick_ns)))",
        "low = high = max(1, min(most, delay_ns // tick_ns))",
    ),
)


class Verdict(NamedTuple):
    """`caught_by` is the test that failed, or None with the reason in `why_not`."""

    caught_by: str | None
    why_not: str


def copy_to(folder: Path) -> None:
    """All that the tests need to run."""
    ignore = shutil.ignore_patterns("__pycache__", ".*")
    for name in ("kvsim", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_tests(folder: Path) -> Verdict:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        *TESTS,
    ]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Verdict(None, f"does not end within {TIMEOUT_S} s")
    failed = re.search(r"^FAILED tests/(\S+)", done.stdout, re.MULTILINE)
    if done.returncode == 1 and failed:
        return Verdict(failed[1], "")
    return Verdict(None, "survives" if done.returncode == 0 else f"does not run: {done.stdout[-2000:]}{done.stderr}")


def try_out(mutation: Mutation | None) -> Verdict:
    """What the tests say of a mutation, or of the package as it is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_to(folder)
        if mutation is not None:
            path = folder / "kvsim" / mutation.file
            text = path.read_text(encoding="utf-8")
            assert text.count(mutation.old) == 1, f"{mutation.old!r} stands once in {mutation.file}"
            path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
        return run_tests(folder)


INTRODUCTION = """# Broken rules, and the tests that notice

Each row is a deliberate violation of one of the rules 1-32 of [golden/vllm_scheduler](golden/vllm_scheduler/README.md)
in one place of kvsim, or of what chains of blocks and windows of steps have in common with blocks and steps (rule 0);
and the first test that fails on it, where the recorded decisions are replayed before the tests of the parts. `mutate.py`
has the replacements word by word.

    python -m tests.mutate > tests/MUTATIONS.md      all of them, a few minutes on two cores
    python -m tests.mutate 7 13                      those of some rules (0: of chains and windows)

It ends with 1 if a mutation survives. Then the suite lacks a test; where nothing that can be seen would differ, the
mutation is no violation, and another one has to be found.

| rule | where | violation | caught by |
| ---: | --- | --- | --- |"""


def table_row(mutation: Mutation, caught_by: str) -> str:
    return f"| {mutation.rule} | `{mutation.file}` | {mutation.what} | {caught_by} |"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("rules", type=int, nargs="*", help="only these rules (default: all)")
    rules = parser.parse_args(arguments).rules
    chosen = [mutation for mutation in MUTATIONS if not rules or mutation.rule in rules]
    as_it_is = try_out(None)
    if as_it_is != Verdict(None, "survives"):
        print(f"without a mutation: {as_it_is}", file=sys.stderr)
        return 1
    print(INTRODUCTION)
    caught = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutation, verdict in zip(chosen, pool.map(try_out, chosen), strict=True):
            caught += verdict.caught_by is not None
            print(table_row(mutation, f"`{verdict.caught_by}`" if verdict.caught_by else "nothing"), flush=True)
            if verdict.caught_by is None:
                print(f"rule {mutation.rule}, {mutation.what}: {verdict.why_not}", file=sys.stderr)
    print(f"\n{caught} of {len(chosen)} are caught.")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
