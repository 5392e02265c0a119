"""The waiting queue, in the order of a scheduling policy (rules 4 and 8)."""

from bisect import insort
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from kvsim.engine.state import RequestState


class WaitingQueue(Protocol):
    """Requests that wait to be admitted; iteration is in the order in which they would be popped."""

    def submit(self, state: RequestState) -> None: ...
    def put_back(self, state: RequestState) -> None:
        """Take in a request that was preempted."""
        ...

    def head(self) -> RequestState: ...
    def pop(self) -> RequestState: ...
    def remove(self, state: RequestState) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[RequestState]: ...


class FirstComeFirstServed(deque[RequestState]):
    """Submission appends; a preempted request goes to the very front."""

    submit = deque.append
    put_back = deque.appendleft

    def head(self) -> RequestState:
        return self[0]

    def pop(self) -> RequestState:  # type: ignore[override]  # a queue has one end to take from
        return self.popleft()


class MostUrgentFirst:
    """By (priority, order of submission), smallest first, whether submitted or put back."""

    def __init__(self) -> None:
        self._states: list[RequestState] = []

    def submit(self, state: RequestState) -> None:
        insort(self._states, state, key=_least_urgent_first)

    put_back = submit

    def head(self) -> RequestState:
        return self._states[-1]

    def pop(self) -> RequestState:
        return self._states.pop()

    def remove(self, state: RequestState) -> None:
        self._states.remove(state)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        return reversed(self._states)


def urgency(state: RequestState) -> tuple[int, int]:
    """Smaller is more urgent."""
    return state.request.priority, state.order


def _least_urgent_first(state: RequestState) -> tuple[int, int]:
    priority, order = urgency(state)
    return -priority, -order


WAITING_QUEUES: dict[str, type[FirstComeFirstServed] | type[MostUrgentFirst]] = {
    "fcfs": FirstComeFirstServed,
    "priority": MostUrgentFirst,
}
