"""The decode clock: requests that decode all advance by one token a tick, so nothing of them need be touched.

A request joins with an `offset`, so that offset + tick is what it has computed. It needs a block in the ticks at which
that is a multiple of the block size, that is in ticks of one residue class; members of a class stand in the order in
which they joined, which is the running order.
"""

from heapq import heappop, heappush

from kvsim.engine.state import RequestState


class DecodeClock:
    """Who decodes, when each needs a block and when it ends. Ticks are counted by whoever holds the clock.

    `counts` has the members of each residue class twice in a row, so that a slice of up to a block size never wraps.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.counts = [0] * (2 * block_size)
        self.num_seqs = 0
        self.sum_offsets = 0
        self._members: dict[int, dict[RequestState, None]] = {}
        self._ends: dict[int, dict[RequestState, None]] = {}
        self._end_ticks: list[int] = []

    def join(self, state: RequestState, tick: int) -> None:
        """All known tokens of a request but the one just sampled are computed."""
        offset = state.offset = state.num_tokens - 1 - tick
        size = self.block_size
        residue = -offset % size
        self.counts[residue] += 1
        self.counts[residue + size] += 1
        self.num_seqs += 1
        self.sum_offsets += offset
        members = self._members.get(residue)
        if members is None:
            members = self._members[residue] = {}
        members[state] = None
        end = state.stop_tokens - 1 - offset
        ending = self._ends.get(end)
        if ending is None:
            ending = self._ends[end] = {}
            heappush(self._end_ticks, end)
        ending[state] = None

    def leave(self, state: RequestState) -> None:
        """Before its end."""
        end = state.stop_tokens - 1 - state.offset
        ending = self._ends[end]
        del ending[state]
        if not ending:
            del self._ends[end]
        self._forget(state)

    def _forget(self, state: RequestState) -> None:
        size = self.block_size
        residue = -state.offset % size
        self.counts[residue] -= 1
        self.counts[residue + size] -= 1
        self.num_seqs -= 1
        self.sum_offsets -= state.offset
        del self._members[residue][state]

    def take_ended(self, tick: int) -> list[RequestState]:
        """Those that end with this tick, in running order; they leave."""
        if tick not in self._ends:
            return []
        ended = list(self._ends.pop(tick))
        for state in ended:
            self._forget(state)
        return ended

    def next_end(self) -> int:
        """The first tick with which somebody ends."""
        ticks = self._end_ticks
        while ticks[0] not in self._ends:
            heappop(ticks)
        return ticks[0]

    def in_need(self, tick: int) -> list[RequestState]:
        """Those that need a block in the tick after this one, in running order."""
        return list(self._members.get(tick % self.block_size, ()))

    def num_blocks(self, tick: int, num_ticks: int) -> int:
        """Blocks that are needed in so many ticks after this one."""
        rounds, rest = divmod(num_ticks, self.block_size)
        first = tick % self.block_size
        return rounds * self.num_seqs + sum(self.counts[first : first + rest])

    def blocks_taken(self, tick: int, num_ticks: int) -> list[int]:
        """Blocks that each of so many ticks after this one needs; of more than a block size, only the first of them."""
        first = tick % self.block_size
        return self.counts[first : first + min(num_ticks, self.block_size)]

    def ticks_with(self, tick: int, num_blocks: int, most: int) -> int:
        """How many ticks after this one can be served with so many blocks, up to `most`."""
        if self.num_blocks(tick, most) <= num_blocks:
            return most
        rounds, left = divmod(num_blocks, self.num_seqs)
        ticks = rounds * self.block_size
        first = tick % self.block_size
        for count in self.counts[first : first + self.block_size]:
            if count > left:
                break
            left -= count
            ticks += 1
        return min(ticks, most)
