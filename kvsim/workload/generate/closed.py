"""Closed loop: a fixed number of clients, each of which waits for its answer before it asks again."""

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

from attrs import field, frozen

from kvsim.rules import between
from kvsim.workload.generate.durations import Duration
from kvsim.workload.generate.generated import Generated
from kvsim.workload.generate.streams import drawn, random_stream

_MOST_ASKED = 100_000_000
"""More requests than this take hours, even if every one is rejected."""


@frozen(kw_only=True)
class Closed(Generated):
    """`clients` that think, ask, wait until that has ended in whatever way, and begin again; so at most that many
    requests are in flight. Where there are sessions a client goes through one after the other."""

    clients: int = field(validator=between(1, 1_000_000))
    think: Duration | None = None

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        sentences = Generated.contradictions(values)
        if values["think"] is None and values["num_requests"] is None:
            sentences.append("num_requests or think must be given: a client that is turned away asks again at once")
        sentences += _asks_without_end(values)
        if values["agents"] is not None:
            sentences.append("agents do not go with closed: each has several requests in flight")
        if getattr(values["sessions"], "think_from", "end") == "arrival":
            sentences.append("sessions.think_from = arrival does not go with closed: clients wait for the end")
        return sentences

    def arrival_times(self, seed: int) -> Iterator[int]:
        """The first request of every client."""
        if self.think is None:
            return repeat(0, self.clients)
        return iter(sorted(self.think.sample(random_stream(seed, "arrivals"), self.clients).tolist()))

    def pauses(self, seed: int) -> Iterator[int]:
        if self.think is None:
            return repeat(0)
        return drawn(self.think.sample, random_stream(seed, "client thinks"))


def _asks_without_end(values: Mapping[str, Any]) -> list[str]:
    """A sentence where clients that are turned away would ask so often within the duration that it never ends."""
    clients, duration, think = values["clients"], values["duration"], values["think"]
    if values["num_requests"] is not None or not isinstance(think, Duration):
        return []
    if type(clients) is not int or type(duration) is not int:
        return []
    most = clients * duration / max(1.0, think.mean_ns)
    if most <= _MOST_ASKED:
        return []
    return [
        f"think must be longer, or num_requests be given: clients that are turned away ask again after it, up to "
        f"{most:,.0f} times in the duration, which must be at most {_MOST_ASKED:,}"
    ]
