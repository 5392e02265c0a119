"""What stands before a user's own text: system prompts, templates, documents. Each gives the spans of one request
after the other; how many tokens they have comes on top of the drawn prompt."""

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from attrs import field, frozen

from kvsim.rules import Consistent, between, token_count
from kvsim.workload.generate.choice import choose, zipf_weights
from kvsim.workload.generate.lengths import Length
from kvsim.workload.generate.streams import drawn, random_stream
from kvsim.workload.request import Content, Span

_popularity = between(0, 10)


@frozen
class SharedPrefixes:
    """System prompts: `count` different ones of `tokens` tokens, put before the drawn prompt.

    The k-th most popular is chosen with a probability proportional to k ** -popularity (Zipf); 0 makes them
    equally popular.
    """

    count: int = field(validator=between(1, 1_000_000))
    tokens: int = field(validator=token_count)
    popularity: float = field(default=0.0, validator=_popularity)

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Indices of the chosen prompts, 0 the most popular."""
        return choose(np.cumsum(zipf_weights(self.count, self.popularity)), rng, count)

    def contents(self, seed: int) -> Iterator[Content]:
        for index in drawn(self.sample, random_stream(seed, "prefixes")):
            yield (Span(f"sys:{index}", 0, self.tokens),)


@frozen
class Templates:
    """`count` templates, each of a length of its own, before the drawn prompt, which is their variable tail."""

    count: int = field(validator=between(1, 1_000_000))
    tokens: Length
    popularity: float = field(default=0.0, validator=_popularity)

    def contents(self, seed: int) -> Iterator[Content]:
        lengths = self.tokens.sample(random_stream(seed, "template lengths"), self.count)
        cumulated = np.cumsum(zipf_weights(self.count, self.popularity))
        for index in drawn(lambda rng, count: choose(cumulated, rng, count), random_stream(seed, "templates")):
            yield (Span(f"template:{index}", 0, int(lengths[index])),)


@frozen
class Documents(Consistent):
    """Retrieval: `per_request` different ones of `count` documents before each question.

    In `order` "drawn" they come as they were found, the popular ones mostly first; "shuffled" in any order; "sorted"
    always in the same one, so that more is shared.
    """

    count: int = field(validator=between(1, 1_000_000))
    tokens: Length
    per_request: Length
    popularity: float = field(default=0.0, validator=_popularity)
    order: Literal["drawn", "shuffled", "sorted"] = "drawn"

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        count, most = values["count"], getattr(values["per_request"], "most", None)
        if isinstance(count, int) and most is not None and most > min(count, MOST_DOCUMENTS):
            return [f"per_request must be at most {min(count, MOST_DOCUMENTS):,}, got up to {most:,}"]
        return []

    def contents(self, seed: int) -> Iterator[Content]:
        lengths = self.tokens.sample(random_stream(seed, "document lengths"), self.count)
        cumulated = np.cumsum(zipf_weights(self.count, self.popularity))
        choices, orders = random_stream(seed, "documents"), random_stream(seed, "document order")
        for number in drawn(self.per_request.sample, random_stream(seed, "documents per request")):
            indices = choose_different(cumulated, choices, number)
            if self.order == "sorted":
                indices.sort()
            elif self.order == "shuffled":
                indices = [indices[place] for place in orders.permutation(number)]
            yield tuple(Span(f"doc:{index}", 0, int(lengths[index])) for index in indices)


MOST_DOCUMENTS = 1_000
"""In one request."""


def choose_different(cumulated: np.ndarray, rng: np.random.Generator, number: int) -> list[int]:
    """`number` different indices, one after the other, each by the weights of those that are left.

    One draw each: it falls on the weight that is left, and those chosen before are stepped over. Where weights are so
    small that their sums cannot tell them apart, the first of those that are left stands in.
    """
    chosen: list[int] = []
    in_order: list[int] = []
    left = float(cumulated[-1])
    for drawn_share in rng.random(number).tolist():
        at = drawn_share * left
        for index in in_order:
            before = float(cumulated[index - 1]) if index else 0.0
            if at < before:
                break
            at += float(cumulated[index]) - before
        found = int(np.searchsorted(cumulated, at, side="right"))
        if found >= len(cumulated) or _holds(in_order, found):
            found = next(index for index in range(len(cumulated)) if not _holds(in_order, index))
        chosen.append(found)
        insort(in_order, found)
        left -= float(cumulated[found]) - (float(cumulated[found - 1]) if found else 0.0)
    return chosen


def _holds(in_order: list[int], index: int) -> bool:
    place = bisect_right(in_order, index)
    return place > 0 and in_order[place - 1] == index
