"""What requests of a trace share, as the generators can say it: system prompts, templates, sessions.

Which of them, and how they are combined, is not read off the trace but tried out: all combinations are generated, and
the one nearest to the trace is taken, by the share of its prompt tokens that came before and by the prompts' lengths.
"""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from attrs import asdict, evolve, field, frozen

from kvsim.rules import MAX_TOKENS
from kvsim.study.chains import Chains
from kvsim.study.fit_lengths import apart, counted, fit_lengths, rounded, widest_gap
from kvsim.study.hits import Prompts
from kvsim.study.reuse import Ints
from kvsim.workload.generate import (
    Duration,
    ExponentialTime,
    Fixed,
    FixedTime,
    Length,
    LognormalTime,
    Poisson,
    Sessions,
    SharedPrefixes,
    Templates,
    UniformTime,
    random_stream,
)
from kvsim.workload.generate.choice import zipf_weights
from kvsim.workload.generate.sessions import MOST_TURNS

LEAST_SHARE = 0.001
"""Less is as good as nothing."""

BLOCK_SIZE = 16
"""At which shared tokens are compared."""

_STARTS_TRIED = 64
_MOST_TEMPLATES = 1_000_000
_SPREADS = (1.2, 4, 20)
"""For one template that is used, so many that might be."""

_SEEDS = 2
_FINALISTS = 3
_FEW, _MANY = 3_000, 12_000
"""Requests at the head of the trace on which all shapes are tried, and then the nearest of them."""

_FURTHEST = 10.0
_CLOSE = 0.06
"""What is no further off is not made any better."""

_ROUNDS = 3
_COST_OF_A_PART = 0.01
"""What is simpler is taken before what is no better than that."""

_SHORTEST_NS, _LONGEST_NS = 10**6, 10**18


@frozen(kw_only=True)
class Shape:
    """What is asked, as in a workload, and when the requests of the trace came that nothing else brings about."""

    starts_ns: Ints = field(eq=False)
    prompt: Length
    prefixes: SharedPrefixes | None = None
    templates: Templates | None = None
    sessions: Sessions | None = None

    def keys(self) -> dict[str, Any]:
        return asdict(self, recurse=False, filter=lambda attribute, _: attribute.name != "starts_ns")

    @property
    def num_parts(self) -> int:
        return sum(part is not None for part in (self.prefixes, self.templates, self.sessions))


@frozen(eq=False)
class Wanted:
    """What the trace has."""

    prompts: Ints
    """Tokens of each."""
    known: Ints
    """How many of them came before."""
    times_ns: Ints
    output: Length
    most: int
    """Requests that are generated to be compared."""

    def distance(self, shape: Shape, seed: int) -> float:
        """How far generated requests are off."""
        starts = int((shape.starts_ns <= self.times_ns.max()).sum())
        rate = min(max(starts, 1) * 1e9 / self.duration_ns, 1e6)
        workload = Poisson(rate=rate, output=self.output, **self.end(shape), **shape.keys())
        made, lengths = Prompts(), []
        for request in islice(workload.requests(seed), self.most):
            made.add(request.prompt)
            lengths.append(request.prompt_tokens)
        if not lengths:
            return _FURTHEST
        prompts = np.array(lengths, dtype=np.int64)
        means = apart(float(prompts.mean()), float(self.prompts.mean()))
        shares = abs(_share(made.known, prompts) - self.share)
        return 3 * shares + 1.5 * widest_gap(prompts, self.prompts) + means

    @property
    def share(self) -> float:
        return _share(self.known, self.prompts)

    def head(self, number: int) -> "Wanted":
        """Only so many requests."""
        cut = slice(number)
        return evolve(self, prompts=self.prompts[cut], known=self.known[cut], times_ns=self.times_ns[cut])

    @property
    def duration_ns(self) -> int:
        return max(1, int(self.times_ns.max() - self.times_ns.min()))

    def end(self, shape: Shape) -> dict[str, Any]:
        """As many requests; or where sessions would go on after the last of them, as long a time."""
        return {"num_requests": len(self.prompts)} if shape.sessions is None else {"duration": self.duration_ns}


def _share(known: Ints, prompts: Ints) -> float:
    """Of all tokens, those in full blocks that came before."""
    return int((known // BLOCK_SIZE * BLOCK_SIZE).sum()) / max(1, int(prompts.sum()))


def fit_shape(chains: list[Chains], prompts: Prompts, wanted: Wanted, seed: int) -> Shape:
    """The nearest of all shapes; `chains` are ways to see the trace as turns, `prompts` its contents."""
    shapes = [Shape(starts_ns=wanted.times_ns, prompt=fit_lengths(wanted.prompts, seed))]
    if wanted.share >= LEAST_SHARE:
        alone = fit_prefixes(prompts, wanted.prompts)
        for way in chains:
            shapes += _shapes(way, alone, seed)

    few, many = wanted.head(_FEW), wanted.head(_MANY)

    @cache
    def far(shape: Shape, number: int) -> float:
        return many.distance(shape, seed + number)

    def rank(shape: Shape) -> float:
        return sum(far(shape, number) for number in range(_SEEDS)) / _SEEDS + _COST_OF_A_PART * shape.num_parts

    nearest = sorted(dict.fromkeys(shapes), key=lambda shape: few.distance(shape, seed))[: 3 * _FINALISTS]
    nearest = sorted(nearest, key=lambda shape: far(shape, 0))[:_FINALISTS]
    best = min(nearest, key=rank)
    for _ in range(_ROUNDS):
        before = best
        best = min((best, *_beside(best)), key=rank) if rank(best) > _CLOSE else best
        if best == before:
            break
    return best


def _beside(shape: Shape) -> Iterator[Shape]:
    """The same with templates, or else system prompts, that are somewhat more, fewer, more or less popular."""
    name = "prefixes" if shape.templates is None else "templates"
    part = getattr(shape, name)
    if part is None:
        return
    for factor in (0.7, 1.4):
        count = min(max(1, round(part.count * factor)), _MOST_TEMPLATES)
        yield evolve(shape, **{name: evolve(part, count=count)})
    for more in (-0.15, 0.15):
        popularity = round(min(max(0.0, part.popularity + more), 10.0), 3)
        yield evolve(shape, **{name: evolve(part, popularity=popularity)})


def _shapes(chains: Chains, prefixes: SharedPrefixes | None, seed: int) -> Iterator[Shape]:
    """Requests that stand alone, with and without a system prompt and templates; then the same as sessions."""
    times = chains.times_ns
    alone = _Openings(chains, np.arange(len(chains.prompts)), seed)
    for common in dict.fromkeys((prefixes, None)):
        for templates, own in alone.templates(common):
            prompt = fit_lengths(own, seed)
            if common is None and templates is not None and isinstance(templates.tokens, Fixed):
                same = SharedPrefixes(templates.count, templates.tokens.value, templates.popularity)
                yield Shape(starts_ns=times, prompt=prompt, prefixes=same)
            else:
                yield Shape(starts_ns=times, prompt=prompt, prefixes=common, templates=templates)
    if not len(chains.added):
        return
    sessions = Sessions(
        turns=counted(np.minimum(chains.turns, MOST_TURNS)), think=_fit_pause(chains.pauses_ns), think_from="arrival"
    )
    starts = times[chains.starts]
    first = _Openings(chains, chains.starts, seed)
    added = fit_lengths(chains.added, seed)
    typical = int(chains.added.mean())
    for common in dict.fromkeys((prefixes, None)):
        own = np.concatenate((first.after(common), chains.added))
        yield Shape(starts_ns=starts, prompt=fit_lengths(own, seed), prefixes=common, sessions=sessions)
        for templates in first.whole(common, typical):
            yield Shape(starts_ns=starts, prompt=added, prefixes=common, templates=templates, sessions=sessions)


class _Openings:
    """What some requests of a trace begin with."""

    def __init__(self, chains: Chains, requests: Ints, seed: int) -> None:
        self._prompts = chains.prompts[requests]
        self._known = np.minimum(chains.known[requests], self._prompts)
        self._openings = chains.openings[requests]
        self._seed = seed

    def after(self, prefixes: SharedPrefixes | None) -> Ints:
        """Tokens of each prompt after its system prompt."""
        return np.maximum(self._prompts - _tokens(prefixes), 1)

    def templates(self, prefixes: SharedPrefixes | None) -> Iterator[tuple[Templates | None, Ints]]:
        """Templates as long as what comes again, and what is left of each prompt; first of all, none."""
        rest = self.after(prefixes)
        yield None, rest
        known = np.minimum(self._known - _tokens(prefixes), rest - 1)
        again = known > 0
        if not again.any():
            return
        lengths = known[again]
        # A prompt of which nothing came before has its template too, of a length like the others'.
        some = random_stream(self._seed, "openings").choice(lengths, len(rest))
        own = np.maximum(rest - np.where(again, known, np.minimum(some, rest - 1)), 1)
        used = len(rest) - int(again.sum())
        uses = np.sort(np.unique(self._openings[again], return_counts=True)[1])[::-1]
        for count, popularity in (*_popularities(len(rest), used), (len(uses), zipf_exponent(uses))):
            yield Templates(count=count, tokens=fit_lengths(lengths, self._seed), popularity=popularity), own

    def whole(self, prefixes: SharedPrefixes | None, less: int) -> Iterator[Templates]:
        """Templates that are all of a first prompt but `less` tokens, as often the same as tokens come again."""
        lengths = np.maximum(self.after(prefixes) - less, 1)
        tokens = fit_lengths(lengths, self._seed)
        yield Templates(count=_MOST_TEMPLATES, tokens=tokens)
        known = np.maximum(self._known - _tokens(prefixes), 0)
        used = len(lengths) * (1 - float(known.sum()) / max(1, int(lengths.sum())))
        if used < len(lengths) - 1:
            for count, popularity in _popularities(len(lengths), max(1, round(used))):
                yield Templates(count=count, tokens=tokens, popularity=popularity)


def _tokens(prefixes: SharedPrefixes | None) -> int:
    return 0 if prefixes is None else prefixes.tokens


def _popularities(requests: int, used: int) -> Iterator[tuple[int, float]]:
    """Counts of templates, and the Zipf exponents under which so many different ones are to be expected."""
    low_count, high_count = used, _MOST_TEMPLATES
    while low_count < high_count:
        middle_count = (low_count + high_count) // 2
        different = -middle_count * np.expm1(requests * np.log1p(-1 / max(2, middle_count)))
        low_count, high_count = (middle_count + 1, high_count) if different < used else (low_count, middle_count)
    yield max(1, low_count), 0.0
    for spread in _SPREADS:
        count = min(max(1, round(used * spread)), _MOST_TEMPLATES)
        low, high = 0.0, 5.0
        for _ in range(20):
            middle = (low + high) / 2
            weights = zipf_weights(count, middle)
            different = -np.expm1(requests * np.log1p(-np.minimum(weights / weights.sum(), 1 - 1e-12))).sum()
            low, high = (middle, high) if different > used else (low, middle)
        yield count, round(low, 3)


def _fit_pause(pauses_ns: Ints) -> Duration:
    """The distribution that lies closest, to the millisecond."""
    pauses = np.clip(pauses_ns, _SHORTEST_NS, _LONGEST_NS)
    low, high = _whole_ms(pauses.min()), _whole_ms(pauses.max())
    if low == high:
        return FixedTime(low)
    candidates: list[Duration] = [UniformTime(low, high), ExponentialTime(_whole_ms(pauses.mean()))]
    sigma = float(np.log(pauses).std())
    candidates.append(LognormalTime(_whole_ms(np.median(pauses)), rounded(min(sigma, 10.0))))

    def distance(duration: Duration) -> float:
        drawn = duration.sample(random_stream(0, "pauses"), 10_000)
        return widest_gap(pauses, drawn) + apart(float(drawn.mean()), float(pauses.mean()))

    return min(candidates, key=distance)


def _whole_ms(nanoseconds: Any) -> int:
    return max(_SHORTEST_NS, round(float(nanoseconds) / _SHORTEST_NS) * _SHORTEST_NS)


def fit_prefixes(prompts: Prompts, lengths: Ints) -> SharedPrefixes | None:
    """Starts of the length that comes closest to what the trace shares while few prompts are shorter."""
    total = int(lengths.sum())
    share = prompts.ideal_hit_tokens(1) / total
    if share < LEAST_SHARE:
        return None
    known = np.unique(prompts.known[prompts.known > 0])
    tried = np.unique(np.quantile(known, np.linspace(0, 1, _STARTS_TRIED), method="nearest")).tolist()

    def misses(tokens: int) -> float:
        longer = int((lengths > tokens).sum())
        again = longer - len(np.unique(prompts.starts(tokens + 1, tokens)))
        generated = tokens * again / max(1, longer) * len(lengths) / int(np.maximum(lengths, tokens + 1).sum())
        return abs(generated - share) + 1 - longer / len(lengths)

    tokens = min(min(tried, key=misses), MAX_TOKENS)
    counts = np.sort(np.unique(prompts.starts(tokens + 1, tokens), return_counts=True)[1])[::-1]
    if not len(counts):
        return None
    return SharedPrefixes(count=min(len(counts), 1_000_000), tokens=tokens, popularity=zipf_exponent(counts))


def zipf_exponent(counts: Ints) -> float:
    """The exponent under which so many uses of the most popular, the second, ... are the most likely."""
    logs = np.log(np.arange(1, len(counts) + 1))
    weighted, uses = float((counts * logs).sum()), int(counts.sum())

    def unlikeliness(exponent: float) -> float:
        return exponent * weighted + uses * float(np.log(np.exp(-exponent * logs).sum()))

    # It has one lowest point: a coarse look, then a fine one beside it.
    coarse = min(range(0, 510, 10), key=lambda step: unlikeliness(step / 100))
    return min(range(max(0, coarse - 10), coarse + 11), key=lambda step: unlikeliness(step / 100)) / 100
