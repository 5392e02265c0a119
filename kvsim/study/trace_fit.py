"""A generated workload that resembles a trace: its rate, burstiness, lengths and what is shared, and how far off it is.

What can be fitted is what the generators offer: arrivals, prompt and output lengths each by the distribution that lies
closest, and of what prompts share system prompts, templates and sessions. Of all that is tried, the nearest is taken.
"""

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from attrs import frozen

from kvsim.errors import TraceError
from kvsim.study.chains import Chains
from kvsim.study.fit_arrivals import Bursts, Timing, bins_ns, fit_arrivals
from kvsim.study.fit_content import BLOCK_SIZE, LEAST_SHARE, Shape, Wanted, fit_shape
from kvsim.study.fit_lengths import fit_lengths
from kvsim.study.hits import Prompts
from kvsim.study.reuse import Ints
from kvsim.study.structure import table_of
from kvsim.study.toml import toml_text
from kvsim.study.trace_file import TraceFile
from kvsim.study.trace_info import TraceInfo, info_of_rows
from kvsim.units import exact_duration, format_duration
from kvsim.workload.generate import ARRIVALS, DURATIONS, LENGTHS, Arrivals
from kvsim.workload.traces import Row

MOST_GENERATED = 50_000
"""Requests that are generated to be compared."""


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

    workload: Arrivals
    likeness: tuple[Likeness, ...]
    notes: tuple[str, ...]

    def to_toml(self, name: str) -> str:
        """The table [workload] of a scenario, with what is off in comments."""
        lines = [f"# Fitted to {json.dumps(name)}; trace, generated, off:"]
        for one in self.likeness:
            off = "" if one.off is None else f" ({one.off:+.1%})"
            lines.append(f"#   {one.name}: {one.trace:,.5g}, {one.generated:,.5g}{off}")
        lines += [f"# {note}" for note in self.notes]
        lines += ["[workload]", *(f"{key} = {_toml_lines(value)}" for key, value in self.table().items())]
        return "\n".join(lines) + "\n"

    def table(self) -> dict[str, Any]:
        """As it stands in a file, times with their units."""
        return table_of(self.workload, ARRIVALS, LENGTHS, DURATIONS, units={"ns": exact_duration})

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": self.table(),
            "likeness": [{**one._asdict(), "off": one.off} for one in self.likeness],
            "notes": list(self.notes),
        }


def fit(trace: TraceFile, seed: int = 0) -> Fit:
    """Raises TraceError for a file that cannot be read, or that has no times, no outputs or too few requests."""
    prompts = Prompts()
    chains = [Chains(), Chains(with_outputs=False)]
    rows = chains[1].watch(chains[0].watch(trace.rows()))
    info = info_of_rows(trace, rows, (BLOCK_SIZE,), prompts)
    if not info.arrivals.rate_per_s or info.arrivals.gap_cv is None:
        raise TraceError(f"{trace.path}: {_no_rate(info)}, so no rate follows")
    if info.output is None:
        raise TraceError(f"{trace.path}: has no outputs, so nothing says how long they are")
    times = chains[0].times_ns
    output = fit_lengths(np.maximum(info.output_lengths, 1), seed)
    wanted = Wanted(
        prompts=np.maximum(info.prompt_lengths, 1),
        known=prompts.known if info.ideal_hit_tokens else np.zeros(info.rows, dtype=np.int64),
        times_ns=times,
        output=output,
        most=MOST_GENERATED,
    )
    shape = fit_shape(chains, prompts, wanted, seed)
    end = wanted.end(shape)
    timing = Timing(sessions=shape.sessions, end=end)
    process = fit_arrivals(shape.starts_ns, times, timing, seed, MOST_GENERATED)
    workload: Arrivals = process.cls(output=output, **shape.keys(), **end, **process.keys)
    return Fit(workload, _likeness(trace, info, times, workload, seed), _notes(info, shape))


def _no_rate(info: TraceInfo) -> str:
    if "times" in info.missing:
        return "has no times"
    return "has only one request" if info.rows == 1 else f"has {info.rows:,} requests that come all at once"


def _likeness(trace: TraceFile, info: TraceInfo, times: Ints, workload: Arrivals, seed: int) -> tuple[Likeness, ...]:
    requests = list(islice(workload.requests(seed), MOST_GENERATED))
    rows = (Row(one.arrival_ns, one.prompt_tokens, one.output_tokens, one.prompt) for one in requests)
    made = info_of_rows(trace, rows, (BLOCK_SIZE,))
    pairs = [
        (name, getattr(info.arrivals, key), getattr(made.arrivals, key))
        for name, key in (("requests per second", "rate_per_s"), ("CV of gaps", "gap_cv"), ("dispersion (IoD)", "iod"))
    ]
    bins = bins_ns(times)
    made_times = np.array([one.arrival_ns for one in requests], dtype=np.int64)
    there, here = (Bursts.of(of, bins) for of in (times, made_times))
    if there is not None and here is not None:
        names = [f"dispersion in bins of {format_duration(size)}" for size in bins]
        pairs += zip(names, there.iods[1:], here.iods[1:], strict=True)
    for name in ("prompt", "output"):
        for figure in ("mean", "median", "p99"):
            pair = (getattr(getattr(of, name), figure) for of in (info, made))
            pairs.append((f"{name} tokens, {figure}", *pair))
    if info.ideal_hit_tokens:
        pairs.append((f"share of prompt tokens shared at block size {BLOCK_SIZE}", _shared(info), _shared(made)))
    return tuple(Likeness(*pair) for pair in pairs if pair[1] is not None and pair[2] is not None)


def _shared(info: TraceInfo) -> float:
    return (info.ideal_hit_tokens or {}).get(BLOCK_SIZE, 0) / max(1, info.prompt_tokens)


def _notes(info: TraceInfo, shape: Shape) -> tuple[str, ...]:
    if not info.ideal_hit_tokens:
        return ("The trace does not say what prompts share, so nothing is shared.",)
    if _shared(info) < LEAST_SHARE:
        return ("Hardly anything is shared in the trace, so nothing is shared.",)
    if shape.sessions is not None:
        return ("Every turn goes on from prompt and output before it; turns come as long after each other as there.",)
    return ()


def _toml_lines(value: object) -> str:
    """A list of tables with a line for each."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return "[\n" + "".join(f"    {toml_text(inner)},\n" for inner in value) + "]"
    return toml_text(value)
