"""A trace that many runs replay is parsed once: its requests are packed into a file that workers stream.

The file is of one sweep on one machine, or sent over its cluster, and is gone when the sweep ends.
"""

import pickle
from collections.abc import Iterator
from fractions import Fraction
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from attrs import evolve, field, fields, frozen

from kvsim.workload.request import Request
from kvsim.workload.traces import SkippedRows, Trace

_REQUESTS_AT_ONCE = 500


def parsed_alike(trace: Trace) -> Trace:
    """What must be equal for two traces to be packed into the same file: all but the speed of the replay, and how many
    outputs each request has."""
    return evolve(trace, speedup=1.0, samples=None, beam_width=None, beam_concentration=None)


def pack_trace(trace: Trace, base: Path, path: Path) -> None:
    """Raises TraceError for a trace that cannot be replayed."""
    skipped = SkippedRows()
    requests = parsed_alike(trace).requests(base, skipped)
    with path.open("wb") as file:
        while some := list(islice(requests, _REQUESTS_AT_ONCE)):
            pickle.dump([request.values() for request in some], file, pickle.HIGHEST_PROTOCOL)
        pickle.dump(skipped.count, file, pickle.HIGHEST_PROTOCOL)


@frozen(kw_only=True)
class PackedTrace(Trace):
    """The same replay out of a packed file, or its content."""

    packed: Path | bytes = field(repr=False, metadata={"in_file": False})

    @classmethod
    def of(cls, trace: Trace, packed: Path | bytes) -> "PackedTrace":
        return cls(**{a.name: getattr(trace, a.name) for a in fields(Trace)}, packed=packed)

    def requests(self, base: Path, skipped: SkippedRows | None = None) -> Iterator[Request]:
        speedup = Fraction(str(self.speedup))
        with self._open() as file:
            while not isinstance(some := pickle.load(file), int):
                for values in some:
                    request = Request(*values)
                    arrival_ns = request.arrival_ns * speedup.denominator // speedup.numerator
                    yield request if speedup == 1 else request.but(arrival_ns=arrival_ns)
        if skipped is not None:
            skipped.count = some

    def _open(self) -> BinaryIO:
        return self.packed.open("rb") if isinstance(self.packed, Path) else BytesIO(self.packed)
