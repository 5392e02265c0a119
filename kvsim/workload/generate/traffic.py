"""The requests of one run: those that come by themselves, and those that come because others have ended."""

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import repeat
from typing import TYPE_CHECKING, Any

from kvsim.workload.generate.sessions import Sessions, Turn
from kvsim.workload.generate.streams import Sample, drawn, random_stream
from kvsim.workload.request import Content, Request, Span, make_request, merged

if TYPE_CHECKING:
    from kvsim.workload.generate.generated import Generated


class Traffic:
    """Iterate over it for the requests that come by themselves, in order of arrival; tell `follow_ups` of every end.

    What a session or a client asks does not depend on when it comes to that. Kept are the turns to come of those that
    have a request in the engine.
    """

    def __init__(self, workload: "Generated", seed: int) -> None:
        self._workload = workload
        self._times = workload.arrival_times(seed)
        self._pauses = workload.pauses(seed)
        self._waits_for_nobody = workload.group is not None and workload.group.think_from == "arrival"
        self._turns = _Turns(workload, seed)
        self._below: dict[int, tuple[Turn, ...]] = {}
        self._num_made = 0

    def __iter__(self) -> Iterator[Request]:
        if self._waits_for_nobody:
            return in_order(self._starts(), lambda request: self._turns_below(request.arrival_ns, request))
        return self._starts()

    def follow_ups(self, now_ns: int, ended: Request, complete: bool) -> list[Request]:
        """The requests that come, now or later, because one has ended with or without its whole output."""
        if self._waits_for_nobody:
            return []
        if not complete:
            self._below.pop(ended.id, None)
        below = self._turns_below(now_ns, ended)
        if below or self._pauses is None:
            return below
        return self._made([self._turns.next_tree()], now_ns + next(self._pauses))

    def without_engine(self) -> Iterator[Request]:
        """All requests in order of arrival, as if every one ended in full when it arrives."""
        return in_order(iter(self), lambda request: self.follow_ups(request.arrival_ns, request, True))

    def _starts(self) -> Iterator[Request]:
        for arrival_ns in self._times:
            made = self._made([self._turns.next_tree()], arrival_ns)
            if not made:
                return
            yield from made

    def _turns_below(self, now_ns: int, above: Request) -> list[Request]:
        return self._made(self._below.pop(above.id, ()), now_ns, above.prompt + above.output)

    def _made(self, turns: Iterable[Turn], now_ns: int, history: Content = ()) -> list[Request]:
        """Requests of these turns, as long as number and duration last."""
        workload = self._workload
        made = []
        for turn in turns:
            arrival_ns = now_ns + turn.think_ns
            if workload.num_requests is not None and self._num_made >= workload.num_requests:
                break
            if workload.duration is not None and arrival_ns > workload.duration:
                continue
            request_id = self._num_made
            self._num_made += 1
            if turn.children:
                self._below[request_id] = turn.children
            content = merged((*history, *turn.context, Span(f"user:{request_id}", 0, turn.prompt)))
            made.append(make_request(request_id, arrival_ns, content, turn.output, turn.priority))
        return made


class _Turns:
    """Draws turn after turn, every purpose from its own stream."""

    def __init__(self, workload: "Generated", seed: int) -> None:
        def values(sample: Sample | None, purpose: str) -> Iterator[Any]:
            return repeat(0) if sample is None else drawn(sample, random_stream(seed, purpose))

        group = workload.group
        self._group = group
        self._lengths = workload.lengths(seed)
        self._priorities = values(None if workload.priority is None else workload.priority.sample, "priorities")
        self._openings = [part.contents(seed) for part in (workload.prefixes, workload.templates) if part is not None]
        self._documents = repeat(()) if workload.documents is None else workload.documents.contents(seed)
        self._thinks = values(None if group is None or group.think is None else group.think.sample, "thinks")
        self._counts: Iterator[int] = repeat(1)
        if group is not None:
            counts, purpose = (group.turns, "turns") if isinstance(group, Sessions) else (group.branches, "branches")
            self._counts = values(counts.sample, purpose)

    def next_tree(self) -> Turn:
        """The next request, with those that are to follow it."""
        if self._group is None:
            return self._next_turn(True)
        return self._group.tree(self._next_turn, self._counts.__next__)

    def _next_turn(self, opens: bool) -> Turn:
        prompt, output = next(self._lengths)
        context: Content = ()
        if opens:
            for opening in self._openings:
                context += next(opening)
        return Turn(
            context + next(self._documents), prompt, output, next(self._priorities), 0 if opens else next(self._thinks)
        )


def in_order(starts: Iterator[Request], follow: Callable[[Request], Iterable[Request]]) -> Iterator[Request]:
    """Requests and those that follow them, merged by time of arrival; equal times in the order of their making."""
    later: list[tuple[int, int, Request]] = []
    start = next(starts, None)
    while start is not None or later:
        if start is not None and (not later or (start.arrival_ns, start.id) < later[0][:2]):
            request = start
        else:
            request = heappop(later)[2]
        yield request
        for following in follow(request):
            heappush(later, (following.arrival_ns, following.id, following))
        if request is start:
            start = next(starts, None)
