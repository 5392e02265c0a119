"""What memory would hold without sharing, beside what it holds: the figures of several outputs from one prompt."""

from typing import Protocol

import polars as pl
from attrs import define

from kvsim.engine.step import Sampled, Step


@define
class UnsharedTotals:
    """The blocks of running requests if each output had all its blocks to itself: over time, in bytes x nanoseconds,
    and at most. `num_copies` are blocks that were copied.
    """

    byte_ns: int = 0
    peak_bytes: int = 0
    num_copies: int = 0


class CopyingMemory(Protocol):
    """A memory that counts what its requests would hold, and what it copies."""

    num_copies: int

    @property
    def unshared_bytes(self) -> int: ...


class UnsharedLevel:
    """Follows the level from step to step: it holds while a step lasts, as all levels do."""

    def __init__(self, memory: CopyingMemory) -> None:
        self.totals = UnsharedTotals()
        self._memory = memory
        self._level_bytes = 0
        self._since_ns = 0

    def step_began(self, now: int, _step: Step) -> None:
        """Memory has been given out for a step that begins now."""
        self._hold(now, self._memory.unshared_bytes)

    def step_ended(self, now: int, _sampled: Sampled) -> None:
        """Whatever is still held is so in the step that follows at once; else nobody is left."""
        self._hold(now, 0)

    def _hold(self, now: int, level_bytes: int) -> None:
        totals = self.totals
        totals.byte_ns += self._level_bytes * (now - self._since_ns)
        totals.peak_bytes = max(totals.peak_bytes, level_bytes)
        totals.num_copies = self._memory.num_copies
        self._level_bytes, self._since_ns = level_bytes, now


def unshared_peak_bytes(timeline: pl.DataFrame) -> int:
    """The most of a part of the timeline where blocks are shared through the prefix cache.

    Such blocks are full, so what sharing saves is whole blocks.
    """
    held = timeline["allocated_bytes"] + timeline["shared_saving_bytes"]
    return 0 if held.is_empty() else int(held.max())  # type: ignore[arg-type]  # a whole number
