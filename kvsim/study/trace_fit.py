"""A generated workload that resembles a trace: its rate, burstiness, lengths and shared starts, and how far off it is.

What can be fitted is what the generators offer: gaps by their mean and CV, prompt and output lengths each by the
distribution that lies closest, and prompts that begin with one of some starts of equal length (system prompts).
"""

import json
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from attrs import frozen

from kvsim.errors import TraceError
from kvsim.rules import MAX_TOKENS
from kvsim.study.hits import Prompts
from kvsim.study.reuse import Ints
from kvsim.study.structure import table_of
from kvsim.study.toml import toml_text
from kvsim.study.trace_file import TraceFile
from kvsim.study.trace_info import TraceInfo, info_of_rows
from kvsim.workload.generate import (
    ARRIVALS,
    LENGTHS,
    Constant,
    Empirical,
    Fixed,
    Gamma,
    Length,
    Lognormal,
    Poisson,
    SharedPrefixes,
    Uniform,
    random_stream,
)
from kvsim.workload.traces import Row

BLOCK_SIZE = 16
"""At which shared tokens are compared."""

MOST_GENERATED = 50_000
"""Requests that are generated to be compared."""

_DRAWS = 20_000
_STARTS_TRIED = 64
_LEAST_SHARE = 0.001
_CLOSE = 0.05
"""A distribution further off than this gives way to the lengths as they were counted."""

_MOST_COUNTED = 200


class Likeness(NamedTuple):
    """One figure of the trace beside that of what is generated."""

    name: str
    trace: float
    generated: float

    @property
    def off(self) -> float | None:
        """By how much of the trace's figure the generated one is off; None where that is 0."""
        return None if not self.trace else self.generated / self.trace - 1


@frozen
class Fit:
    """The workload, and how like the trace it is."""

    workload: Poisson | Gamma | Constant
    likeness: tuple[Likeness, ...]
    notes: tuple[str, ...]

    def to_toml(self, name: str) -> str:
        """The table [workload] of a scenario, with what is off in comments."""
        lines = [f"# Fitted to {json.dumps(name)}; trace, generated, off:"]
        for one in self.likeness:
            off = "" if one.off is None else f" ({one.off:+.1%})"
            lines.append(f"#   {one.name}: {one.trace:,.5g}, {one.generated:,.5g}{off}")
        lines += [f"# {note}" for note in self.notes]
        lines += ["[workload]", *(f"{key} = {toml_text(value)}" for key, value in self.table().items())]
        return "\n".join(lines) + "\n"

    def table(self) -> dict[str, Any]:
        return table_of(self.workload, ARRIVALS, LENGTHS)

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": self.table(),
            "likeness": [{**one._asdict(), "off": one.off} for one in self.likeness],
            "notes": list(self.notes),
        }


def fit(trace: TraceFile, seed: int = 0) -> Fit:
    """Raises TraceError for a file that cannot be read, or that has no times, no outputs or too few requests."""
    prompts = Prompts()
    info = info_of_rows(trace, trace.rows(), (BLOCK_SIZE,), prompts)
    arrivals = info.arrivals
    if not arrivals.rate_per_s or arrivals.gap_cv is None:
        raise TraceError(f"{trace.path}: has no times from which a rate follows")
    if info.output is None:
        raise TraceError(f"{trace.path}: has no outputs, so nothing says how long they are")
    lengths = np.maximum(info.prompt_lengths, 1)
    prefixes = _fit_prefixes(prompts, lengths) if info.ideal_hit_tokens else None
    drawn = lengths if prefixes is None else np.maximum(lengths - prefixes.tokens, 1)
    common: dict[str, Any] = {
        "prompt": _fit_lengths(drawn, seed),
        "output": _fit_lengths(np.maximum(info.output_lengths, 1), seed),
        "prefixes": prefixes,
        "num_requests": info.rows,
        "rate": _rounded(min(arrivals.rate_per_s, 1_000_000)),
    }
    cv = min(arrivals.gap_cv, 100.0)
    workload: Poisson | Gamma | Constant
    if cv < 0.001:
        workload = Constant(**common)
    elif abs(cv - 1) < 0.02:
        workload = Poisson(**common)
    else:
        workload = Gamma(cv=_rounded(cv), **common)
    return Fit(workload, _likeness(trace, info, workload, seed), _notes(info, prefixes))


def _likeness(
    trace: TraceFile, info: TraceInfo, workload: Poisson | Gamma | Constant, seed: int
) -> tuple[Likeness, ...]:
    requests = islice(workload.requests(seed), MOST_GENERATED)
    rows = (Row(one.arrival_ns, one.prompt_tokens, one.output_tokens, one.prompt) for one in requests)
    made = info_of_rows(trace, rows, (BLOCK_SIZE,))
    pairs = [
        (name, getattr(info.arrivals, key), getattr(made.arrivals, key))
        for name, key in (("requests per second", "rate_per_s"), ("CV of gaps", "gap_cv"), ("dispersion (IoD)", "iod"))
    ]
    for name in ("prompt", "output"):
        for figure in ("mean", "median", "p99"):
            pair = (getattr(getattr(of, name), figure) for of in (info, made))
            pairs.append((f"{name} tokens, {figure}", *pair))
    if info.ideal_hit_tokens:
        pairs.append((f"share of prompt tokens shared at block size {BLOCK_SIZE}", _shared(info), _shared(made)))
    return tuple(Likeness(*pair) for pair in pairs if pair[1] is not None and pair[2] is not None)


def _shared(info: TraceInfo) -> float:
    return (info.ideal_hit_tokens or {}).get(BLOCK_SIZE, 0) / max(1, info.prompt_tokens)


def _notes(info: TraceInfo, prefixes: SharedPrefixes | None) -> tuple[str, ...]:
    if not info.ideal_hit_tokens:
        return ("The trace does not say what prompts share, so nothing is shared.",)
    if prefixes is None:
        return ("Hardly anything is shared in the trace, so nothing is shared.",)
    return ("Shared starts are of one length; what a conversation shares beyond them is not generated.",)


def _fit_lengths(values: Ints, seed: int) -> Length:
    """The distribution that lies closest: by the share of values at most so long, and by the mean."""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return Fixed(low)
    bounds = {"min": low, "max": min(high, MAX_TOKENS)}
    mean, median = float(values.mean()), float(np.median(values))
    sigma = float(np.log(values).std())
    candidates: list[Length] = [Uniform(**bounds)]
    if mean > median:
        candidates.append(Lognormal(mean=_rounded(mean), p50=_rounded(median), **bounds))
    if 0 < sigma <= 10:
        candidates.append(Lognormal(p50=_rounded(median), sigma=_rounded(sigma), **bounds))
        candidates.append(Lognormal(mean=_rounded(mean), sigma=_rounded(sigma), **bounds))

    def distance(length: Length) -> float:
        drawn = length.sample(random_stream(seed, "fit"), _DRAWS)
        return _widest_gap(values, drawn) + abs(float(drawn.mean()) / mean - 1)

    closest = min(candidates, key=distance)
    return closest if distance(closest) < _CLOSE else _counted(values)


def _counted(values: Ints) -> Empirical:
    """The lengths themselves with their counts, or where they are many so many quantiles of them."""
    lengths, counts = np.unique(values, return_counts=True)
    if len(lengths) > _MOST_COUNTED:
        middles = (np.arange(_MOST_COUNTED) + 0.5) / _MOST_COUNTED
        lengths, counts = np.unique(np.quantile(values, middles, method="nearest"), return_counts=True)
    return Empirical(values=tuple(lengths.tolist()), weights=tuple(map(float, counts.tolist())))


def _widest_gap(values: Ints, others: Ints) -> float:
    """The largest difference between the shares of two samples that are at most x, over all x (Kolmogorov's)."""
    first, second = np.sort(values), np.sort(others)
    at = np.concatenate((first, second))
    shares = [np.searchsorted(one, at, side="right") / len(one) for one in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def _fit_prefixes(prompts: Prompts, lengths: Ints) -> SharedPrefixes | None:
    """Starts of the length that comes closest to what the trace shares while few prompts are shorter."""
    total = int(lengths.sum())
    share = prompts.ideal_hit_tokens(1) / total
    if share < _LEAST_SHARE:
        return None
    known = np.unique(prompts.known[prompts.known > 0])
    tried = np.unique(np.quantile(known, np.linspace(0, 1, _STARTS_TRIED), method="nearest")).tolist()

    def misses(tokens: int) -> float:
        longer = int((lengths > tokens).sum())
        again = longer - len(np.unique(prompts.starts(tokens + 1, tokens)))
        generated = tokens * again / max(1, longer) * len(lengths) / int(np.maximum(lengths, tokens + 1).sum())
        return abs(generated - share) + 1 - longer / len(lengths)

    tokens = min(tried, key=misses)
    counts = np.sort(np.unique(prompts.starts(tokens + 1, tokens), return_counts=True)[1])[::-1]
    if not len(counts):
        return None
    return SharedPrefixes(count=min(len(counts), 1_000_000), tokens=tokens, popularity=_zipf_exponent(counts))


def _zipf_exponent(counts: Ints) -> float:
    """The exponent under which so many uses of the most popular, the second, ... are the most likely."""
    logs = np.log(np.arange(1, len(counts) + 1))
    weighted, uses = float((counts * logs).sum()), int(counts.sum())

    def unlikeliness(exponent: float) -> float:
        return exponent * weighted + uses * float(np.log(np.exp(-exponent * logs).sum()))

    # It has one lowest point: a coarse look, then a fine one beside it.
    coarse = min(range(0, 510, 10), key=lambda step: unlikeliness(step / 100))
    return min(range(max(0, coarse - 10), coarse + 11), key=lambda step: unlikeliness(step / 100)) / 100


def _rounded(value: float) -> float:
    """Five digits: what a fit is worth."""
    return float(f"{value:.5g}")
