"""What a trace is like: lengths, arrivals, sessions, what is missing, what could be shared.

Percentiles are linearly interpolated. Gaps are those between consecutive arrivals in time order, their CV the
population standard deviation over the mean; the index of dispersion (IoD) is the variance over the mean of the
arrivals in bins of one second from the first arrival on.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import asdict, evolve, frozen

from kvsim.errors import TraceError, TraceRowError
from kvsim.study.hits import Prompts
from kvsim.study.reuse import NEVER, Ints
from kvsim.study.trace_file import Reading, TraceFile
from kvsim.workload.traces import Row
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.readers import reader_of, rows_of

BLOCK_SIZES = (16, 64, 256, 512)


@frozen
class Spread:
    """Mean, percentiles and extremes of one figure."""

    mean: float
    median: float
    p99: float
    min: int
    max: int

    @classmethod
    def of(cls, values: Sequence[int] | Ints) -> "Spread | None":
        """None for no values."""
        if not len(values):
            return None
        numbers = np.array(values, dtype=np.int64)
        median, p99 = np.percentile(numbers, (50, 99)).tolist()
        return cls(float(numbers.mean()), median, p99, int(numbers.min()), int(numbers.max()))


@frozen
class Arrivals:
    """When requests come; None where there are too few, or all at once."""

    duration_s: float | None = None
    rate_per_s: float | None = None
    gap_cv: float | None = None
    iod: float | None = None

    @classmethod
    def of(cls, times_ns: Sequence[int]) -> "Arrivals":
        if not len(times_ns):
            return cls()
        times = np.sort(np.array(times_ns, dtype=np.int64))
        since = times - times[0]
        duration_ns = int(since[-1])
        if not duration_ns:
            return cls(duration_s=0.0)
        gaps = np.diff(times).astype(np.float64)
        return cls(duration_ns / 1e9, len(gaps) * 1e9 / duration_ns, float(gaps.std() / gaps.mean()), dispersion(since))


def dispersion(since_ns: Ints, bin_ns: int = 10**9) -> float:
    """Variance over mean of the arrivals in each bin, of a second; bins without any count, and take no memory."""
    bins = since_ns // bin_ns
    num_bins = int(bins[-1]) + 1
    counts: list[int] = np.unique(bins, return_counts=True)[1].tolist()
    squares = sum(count * count for count in counts)
    return (squares * num_bins - len(bins) ** 2) / (num_bins * len(bins))


@frozen(eq=False)
class TraceInfo:
    """All that `kvsim trace info` says."""

    format: str
    rows: int
    prompt: Spread | None
    output: Spread | None
    arrivals: Arrivals
    sessions: int | None
    missing: tuple[str, ...]
    odd_rows: dict[str, int]
    """How many rows have what a replay may not take, by what it is; only what occurs."""
    prompt_tokens: int
    ideal_hit_tokens: dict[int, int] | None
    """Prompt tokens that a cache which never evicts would hit, by block size, partial last blocks included."""
    reuse_block_size: int
    reuse_distance: Spread | None
    """Different blocks of `reuse_block_size` tokens touched between two uses of one, heads first."""
    prompt_lengths: Ints
    output_lengths: Ints
    arrival_times_s: npt.NDArray[np.float64]
    """Since the first arrival, in time order."""
    bad_rows: int = 0
    """Rows that were passed over, as they break a rule of the format; they are not among `rows`."""
    first_bad_row: str | None = None
    """Which line that is, and the rule."""

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "rows": self.rows,
            "prompt": _json(self.prompt),
            "output": _json(self.output),
            **asdict(self.arrivals),
            "sessions": self.sessions,
            "missing": list(self.missing),
            "odd_rows": self.odd_rows,
            "bad_rows": self.bad_rows,
            "first_bad_row": self.first_bad_row,
            "prompt_tokens": self.prompt_tokens,
            "ideal_hit_tokens": self.ideal_hit_tokens and {str(k): v for k, v in self.ideal_hit_tokens.items()},
            "reuse_block_size": self.reuse_block_size,
            "reuse_distance": _json(self.reuse_distance),
        }


def trace_info(trace: TraceFile, block_sizes: Sequence[int] = BLOCK_SIZES) -> TraceInfo:
    """Statistics of a whole file, read once, and again up to its first broken row; what is kept grows with requests,
    not with tokens.

    Raises TraceError for a file that cannot be read, or one without requests.
    """
    reading = Reading()
    try:
        info = info_of_rows(trace, trace.all_rows(reading), block_sizes)
    except _NoRequestsError as error:
        if first := _first_bad_row(trace, reading):
            raise TraceError(f"{error} that can be read, of {reading.bad_rows:,} rows; the first is {first}") from None
        raise
    if not reading.bad_rows:
        return info
    return evolve(
        info,
        odd_rows=info.odd_rows | {"a broken rule": reading.bad_rows},
        bad_rows=reading.bad_rows,
        first_bad_row=_first_bad_row(trace, reading),
    )


class _NoRequestsError(TraceError):
    """A file without requests, or with none that can be read."""


def _first_bad_row(trace: TraceFile, reading: Reading) -> str | None:
    """Line and rule of the first row that was passed over; None where there is none, or the file, such as a pipe,
    cannot be read again.
    """
    if not reading.bad_rows or not trace.path.is_file():
        return None
    lines = Lines(trace.path, least_tokens=0)
    try:
        for _row in rows_of(reader_of(trace.format, trace.options), lines, trace.options):
            pass
    except TraceRowError as error:
        return " ".join(str(error).split())
    return None


def info_of_rows(
    trace: TraceFile, rows: Iterable[Row], block_sizes: Sequence[int], contents: Prompts | None = None
) -> TraceInfo:
    """The same of any rows, as if they stood in that file; their contents go into `contents`."""
    seen = _Seen(Prompts() if contents is None else contents)
    try:
        seen.add(rows)
    except OverflowError:
        raise TraceError(f"{trace.path}: its times must be below 2^63 ns, 292 years: is their unit another?") from None
    if not seen.prompts:
        raise _NoRequestsError(f"{trace.path}: has no requests")
    reuse_block_size = max(block_sizes)
    distances = None
    if seen.has_content:
        touched = seen.contents.touches(reuse_block_size).distances("head")
        distances = Spread.of(touched[touched != NEVER])
    missing = {
        "times": not seen.times,
        "content": not seen.has_content,
        "sessions": not seen.sessions,
        "outputs": not seen.outputs,
    }
    return TraceInfo(
        format=trace.format,
        rows=len(seen.prompts),
        prompt=Spread.of(seen.prompts),
        output=Spread.of(seen.outputs),
        arrivals=Arrivals.of(seen.times),
        sessions=len(seen.sessions) or None,
        missing=tuple(word for word, lacks in missing.items() if lacks),
        odd_rows=dict(seen.odd),
        prompt_tokens=sum(seen.prompts),
        ideal_hit_tokens={size: seen.contents.ideal_hit_tokens(size) for size in block_sizes}
        if seen.has_content
        else None,
        reuse_block_size=reuse_block_size,
        reuse_distance=distances,
        prompt_lengths=np.array(seen.prompts, dtype=np.int64),
        output_lengths=np.array(seen.outputs, dtype=np.int64),
        arrival_times_s=_seconds(seen.times),
    )


def _seconds(times_ns: Sequence[int]) -> npt.NDArray[np.float64]:
    times = np.sort(np.array(times_ns, dtype=np.int64))
    return (times - times[:1]) / 1e9


class _Seen:
    """What is kept of the rows: their numbers, and their contents interned."""

    def __init__(self, contents: Prompts) -> None:
        self.prompts, self.outputs, self.times = array("q"), array("q"), array("q")
        self.contents = contents
        self.has_content = False
        self.sessions: set[str] = set()
        self.odd: Counter[str] = Counter()

    def add(self, rows: Iterable[Row]) -> None:
        last_ns = None
        for row in rows:
            self.prompts.append(row.prompt_tokens)
            self._count_odd("empty prompt", row.prompt_tokens == 0)
            if row.output_tokens is not None:
                self.outputs.append(row.output_tokens)
                self._count_odd("empty output", row.output_tokens == 0)
            if row.time_ns is not None:
                self.times.append(row.time_ns)
                self._count_odd("time before that of the row above", last_ns is not None and row.time_ns < last_ns)
                last_ns = row.time_ns
            if row.prompt is not None:
                self.has_content = True
                self.contents.add(row.prompt)
            if row.session is not None:
                self.sessions.add(row.session)

    def _count_odd(self, what: str, is_so: bool) -> None:
        if is_so:
            self.odd[what] += 1


def _json(spread: Spread | None) -> dict[str, float] | None:
    return None if spread is None else asdict(spread)
