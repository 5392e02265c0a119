"""Which requests of a trace go on from an earlier one, and with what they begin if not: seen from their contents.

    first turn    |------------ prompt ------------|
    next turn     |------------ prompt ------------|--- output ---|--- new ---|
    another       |-- opening --|------- own -------|

A request continues another if its prompt goes on where that ended and has room for its output, and if nobody else
has come as far. What a request shares with any other before it is its opening, as of a template.
"""

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from kvsim.memory.prefix import PrefixTree
from kvsim.study.reuse import Ints
from kvsim.workload.traces import Row

_SLACK_TOKENS = 512
"""Partial last blocks have ids of their own, so that a prompt is found again only up to its last full block."""

_SLACK_SHARE = 20
"""Or the last twentieth of it, where a trace counts what an engine's cache had."""


class _Touch(NamedTuple):
    """Who came as far as a depth: the last request, and of which chain, None for several."""

    request: int
    chain: int | None


class Chains:
    """Requests as chains of turns, each of them the one that goes on from the one before."""

    def __init__(self, *, with_outputs: bool = True) -> None:
        """`with_outputs` takes a repeated prompt for what it is, and not for a turn whose output has been left out."""
        self._least_room = 0 if with_outputs else _SLACK_TOKENS
        self._tree = PrefixTree()
        self._touched: dict[int, dict[int, _Touch]] = {}
        self._chain, self._parent, self._latest = array("q"), array("q"), array("q")
        self._prompts, self._outputs, self._times = array("q"), array("q"), array("q")
        self._known, self._openings = array("q"), array("q")
        self._names: dict[tuple[int, int], int] = {}

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows, each of which is added when it passes."""
        for row in rows:
            self.add(row)
            yield row

    def add(self, row: Row) -> None:
        number = len(self._chain)
        pieces = self._tree.intern(row.prompt or ())
        known, node, touch = 0, 0, None
        for place, end in pieces:
            here = self._touched.setdefault(place, {})
            reached = min(end, max(here, default=0))
            if reached <= known:
                break
            known, node = reached, place
            touch = _last([of for depth, of in here.items() if depth >= known])
            if known < end:
                break
        parent = -1 if touch is None or touch.chain is None else touch.request
        if parent >= 0 and not self._continues(parent, known, row.prompt_tokens):
            parent = -1
        chain = self._chain[parent] if parent >= 0 else len(self._latest)
        if parent < 0:
            self._latest.append(number)
        self._latest[chain] = number
        for column, value in (
            (self._chain, chain),
            (self._parent, parent),
            (self._prompts, row.prompt_tokens),
            (self._outputs, row.output_tokens or 1),
            (self._times, row.time_ns or 0),
            (self._known, known),
            (self._openings, self._names.setdefault((node, known), len(self._names)) if known else -1),
        ):
            column.append(value)
        for place, end in pieces:
            here = self._touched.setdefault(place, {})
            before = here.get(end)
            here[end] = _Touch(number, chain if before is None or before.chain == chain else None)

    def _continues(self, parent: int, known: int, prompt_tokens: int) -> bool:
        before = self._prompts[parent]
        slack = max(min(_SLACK_TOKENS, before // 2), before // _SLACK_SHARE)
        return (
            self._latest[self._chain[parent]] == parent
            and known >= before - slack
            and prompt_tokens >= before + self._outputs[parent] - self._least_room
        )

    @property
    def starts(self) -> Ints:
        """The requests that begin a chain."""
        return np.flatnonzero(_ints(self._parent) < 0)

    @property
    def turns(self) -> Ints:
        """Requests of each chain."""
        counts: Ints = np.unique(_ints(self._chain), return_counts=True)[1]
        return counts

    @property
    def prompts(self) -> Ints:
        """Tokens of each prompt."""
        return _ints(self._prompts)

    @property
    def times_ns(self) -> Ints:
        """When each request came."""
        return _ints(self._times)

    @property
    def known(self) -> Ints:
        """Tokens of each prompt that came before in any other."""
        return _ints(self._known)

    @property
    def openings(self) -> Ints:
        """Which known tokens each prompt begins with, equal numbers for equal ones; -1 for none."""
        return _ints(self._openings)

    @property
    def added(self) -> Ints:
        """New tokens of each request that goes on, after prompt and output of the one before; at least one.

        Where less than that was left of prompt and output, the others add less, so that the sum is right.
        """
        on = np.flatnonzero(_ints(self._parent) >= 0)
        before = _ints(self._parent)[on]
        more = self.prompts[on] - self.prompts[before] - _ints(self._outputs)[before] - 1
        part = max(0, int(more.sum())) / max(1, int(np.maximum(more, 0).sum()))
        added: Ints = 1 + np.floor(np.maximum(more, 0) * part).astype(np.int64)
        return added

    @property
    def pauses_ns(self) -> Ints:
        """From the arrival before to that of each request that goes on."""
        on = np.flatnonzero(_ints(self._parent) >= 0)
        return self.times_ns[on] - self.times_ns[_ints(self._parent)[on]]


def _last(touches: list[_Touch]) -> _Touch | None:
    """The last of several, whose chain is that of all of them or None."""
    if not touches:
        return None
    chains = {touch.chain for touch in touches}
    return _Touch(max(touch.request for touch in touches), chains.pop() if len(chains) == 1 else None)


def _ints(column: "array[int]") -> Ints:
    return np.array(column, dtype=np.int64)
