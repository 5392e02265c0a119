"""What one run of a comparison came to: figures, exact sums over time of all parts of its pool, and who asked what."""

import hashlib
from typing import Any

from attrs import field, frozen

from kvsim.engine.tables import NoTables
from kvsim.engine.totals import Totals
from kvsim.study.run import simulate
from kvsim.study.scenario import Scenario
from kvsim.study.sweep_record import Packed, Record, attempted, kept_of, replaying
from kvsim.workload.request import Request

ALLOCATED_PARTS = ("live", "tail", "reserved", "unused", "padding")
"""What is written, and the kinds of slack."""

POOL_PARTS = (*ALLOCATED_PARTS, "external", "cached", "blank")
"""All that a pool consists of. `external` is what is free and of no use to the head of the queue, `blank` what is free
beside that: the other blank bytes."""


@frozen(kw_only=True)
class Measured(Record):
    """`byte_ns` are bytes x nanoseconds of each of POOL_PARTS, from the beginning to the last change, which add up to
    those of the pool. `digests` are those of TrafficDigest.
    """

    byte_ns: dict[str, int] = field(factory=dict)
    digests: dict[str, str] = field(factory=dict)


class TrafficDigest:
    """SHA-256 over all requests in the order of their making, apart for three things: `arrivals` is when each comes,
    how urgent it is and when it hangs up, `lengths` its prompt and output tokens, `content` its spans.
    """

    def __init__(self) -> None:
        self._arrivals, self._lengths, self._content = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()

    def add(self, request: Request) -> None:
        self._arrivals.update(b"%d %d %s;" % (request.arrival_ns, request.priority, str(request.abort_ns).encode()))
        self._lengths.update(b"%d %d;" % (request.prompt_tokens, request.output_tokens))
        self._content.update(repr([tuple(map(tuple, part)) for part in (request.prompt, request.output)]).encode())

    def hexdigests(self) -> dict[str, str]:
        return {
            "arrivals": self._arrivals.hexdigest(),
            "lengths": self._lengths.hexdigest(),
            "content": self._content.hexdigest(),
        }


def measure(scenario: Scenario, packed: Packed = None) -> Record:
    """Run a scenario; a Measured, or the record of a failure."""

    def run() -> Record:
        digest = TrafficDigest()
        results = simulate(replaying(scenario, packed), tables=NoTables(), on_request=digest.add)
        kept: dict[str, Any] = kept_of(results)
        return Measured(**kept, byte_ns=byte_ns_of(results.totals), digests=digest.hexdigests())

    return attempted(run)


def byte_ns_of(totals: Totals) -> dict[str, int]:
    """Bytes x nanoseconds of each of POOL_PARTS."""
    sums = totals.integrals
    parts = {part: sums[f"{part}_bytes"] for part in POOL_PARTS if part != "blank"}
    parts["blank"] = totals.shape.pool_bytes * totals.duration_ns - sum(parts.values())
    assert sum(parts[part] for part in ALLOCATED_PARTS) == sums["allocated_bytes"], "slack is split without rest"
    assert parts["blank"] >= 0, "what is free and of no use is free"
    return parts
