"""Requests that belong together: sessions of turns, agents that branch.

Both are a tree of turns: one comes by itself, and each of the others once the turn above it has ended. What is asked
in a turn follows the prompt and the output of the turn above.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from attrs import field, frozen

from kvsim.rules import Consistent, between
from kvsim.workload.generate.durations import Duration
from kvsim.workload.generate.lengths import Length
from kvsim.workload.request import Content

MOST_TURNS = 10_000
"""In one session, or one tree of an agent: all of them are drawn when it begins."""


class Turn(NamedTuple):
    """What one request adds to the one above it: `context`, then `prompt` tokens of its own."""

    context: Content
    prompt: int
    output: int
    priority: int
    think_ns: int
    children: "tuple[Turn, ...]" = ()


Draw = Callable[[bool], Turn]
"""The next turn, without children; of a turn that comes by itself or of one that follows another."""


@frozen(kw_only=True)
class Sessions(Consistent):
    """Users who take `turns`: each turn's prompt is all that was said before and a newly drawn one.

    A user thinks before every turn but the first, from the `end` of the one before, and gives up if that was not
    answered in full; or else turns follow from `arrival` to arrival, whatever becomes of them.
    """

    turns: Length
    think: Duration | None = None
    think_from: Literal["end", "arrival"] = "end"

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        most = getattr(values["turns"], "most", None)
        if most is not None and most > MOST_TURNS:
            return [f"turns must be at most {MOST_TURNS:,}, got up to {most:,}: set its max"]
        return []

    def tree(self, draw: Draw, count: Callable[[], int]) -> Turn:
        """All turns of the next session."""
        turns = [draw(index == 0) for index in range(count())]
        below: tuple[Turn, ...] = ()
        for turn in reversed(turns):
            below = (turn._replace(children=below),)
        return below[0]


@frozen(kw_only=True)
class Agents(Consistent):
    """Agents that try several ways at once: every answer is continued by `branches` requests, `depth` times over.

    `think` is how long a tool runs before each of these.
    """

    branches: Length
    depth: int = field(default=1, validator=between(1, 100))
    think: Duration | None = None
    think_from: Literal["end", "arrival"] = "end"

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        most, depth = getattr(values["branches"], "most", None), values["depth"]
        if most is None or not isinstance(depth, int) or not 1 <= depth <= 100:
            return []
        if most > MOST_TURNS or sum(most**level for level in range(depth + 1)) > MOST_TURNS:
            return [f"branches must be so few that depth = {depth} makes at most {MOST_TURNS:,} requests, got {most:,}"]
        return []

    def tree(self, draw: Draw, count: Callable[[], int]) -> Turn:
        """All requests of the next agent."""
        return self._below(draw(True), draw, count, self.depth)

    def _below(self, turn: Turn, draw: Draw, count: Callable[[], int], depth: int) -> Turn:
        if depth == 0:
            return turn
        children = [draw(False) for _ in range(count())]
        return turn._replace(children=tuple(self._below(child, draw, count, depth - 1) for child in children))
