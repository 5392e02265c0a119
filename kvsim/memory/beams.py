"""Which beams go on: the model of beam search, of which only its forks and drops matter to memory.

What a real search keeps depends on the scores of its candidates. Here the next beams pick their parents at random,
from a stream of the request's own that knows neither time nor memory:

    beams after one token     0   1   2   3
                              |   |\\  |   |
    after the next            0   1  2    3       3 goes on, 1 has forked, 2 is dropped: parents 0, 1, 1, 3
"""

from attrs import define, field

from kvsim.workload.generate.streams import random_stream

_STEPS_AT_ONCE = 64
"""Parents are drawn for so many steps together; unlike the size of a chunk it decides what is drawn."""


@define
class Beams:
    """`width` beams, each of which picks its parent anew with probability `concentration`, else goes on from its own.

    A parent is picked among all beams of the step before, each with equal chance. With 0 no beam ever forks: these
    are parallel samples. With 1 every beam picks every time, so that all soon descend from one, as those of a
    population do that neither grows nor selects (Wright and Fisher's model).
    """

    width: int
    concentration: float
    seed: int
    _known: dict[int, tuple[int, list[list[int]]]] = field(factory=dict, init=False)

    def parents(self, request_id: int, step: int) -> list[int]:
        """The parent of every beam after the choice of a step, 0 the first; the same whenever it is asked."""
        chunk, place = divmod(step, _STEPS_AT_ONCE)
        known = self._known.get(request_id)
        if known is None or known[0] != chunk:
            known = self._known[request_id] = chunk, self._drawn(request_id, chunk)
        return known[1][place]

    def forget(self, request_id: int) -> None:
        """It may ask again, and is told the same."""
        self._known.pop(request_id, None)

    def _drawn(self, request_id: int, chunk: int) -> list[list[int]]:
        rng = random_stream(self.seed, f"beams:{request_id}:{chunk}")
        shape = _STEPS_AT_ONCE, self.width
        picks, picked = rng.random(shape) < self.concentration, rng.integers(0, self.width, shape)
        parents: list[list[int]] = (picked * picks + range(self.width) * ~picks).tolist()
        return parents
