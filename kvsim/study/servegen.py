"""ServeGen's client files: rates and lengths by window, not requests; known by their looks and shown as that.

`...-trace.csv` has no header: start of a window (s), requests per second, CV of gaps, distribution of gaps (empty
where the rate is 0) and its two parameters. `...-dataset.json` holds, by the start of a window, {length: probability}
for input and output tokens, each table as text.
"""

import ast
import csv
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
from attrs import asdict, frozen

from kvsim.study.reuse import Ints
from kvsim.workload.generate.packed import open_unpacked

_COLUMNS = 6
_LENGTHS = ("input_tokens", "output_tokens")
_MOST_CHARACTERS = 2**28


@frozen
class RateWindows:
    """How often one client asks, window after window."""

    windows: int
    idle_windows: int
    window_s: float
    duration_s: float
    requests: float
    """To be expected in all windows together."""
    rate_per_s: float
    most_per_s: float
    gap_cv: float | None
    """Mean of the windows, weighted by their rates."""
    gaps: dict[str, int]
    """How many windows have which distribution of gaps."""

    format: str = "servegen rates"

    how_to_draw: ClassVar[str] = 'kind = "windows", path = "FILE"'


@frozen
class LengthSpread:
    """Of the windows that have lengths, each counting the same."""

    mean: float
    median: int
    p99: int
    min: int
    max: int


@frozen
class LengthWindows:
    """How long one client's prompts and outputs are."""

    windows: int
    idle_windows: int
    window_s: float
    prompt: LengthSpread | None
    output: LengthSpread | None

    format: str = "servegen lengths"

    how_to_draw: ClassVar[str] = (
        'prompt = { kind = "empirical", path = "FILE", column = "input_tokens" }, and output by "output_tokens"'
    )


def servegen_windows(path: Path) -> RateWindows | LengthWindows | None:
    """What the file says of a client; None where it is not one of ServeGen's."""
    try:
        with TextIOWrapper(open_unpacked(path), encoding="utf-8") as file:
            head = file.readline()
            if head.startswith("{"):
                return _lengths(_one_document(head, file))
            return _rates(csv.reader(chain([head], file)))
    except (OSError, EOFError, zlib.error, ValueError, SyntaxError, RecursionError, MemoryError, csv.Error):
        return None


def to_json(found: RateWindows | LengthWindows) -> dict[str, Any]:
    return {**asdict(found), "rows": 0, "missing": ["requests"]}


def _one_document(head: str, file: IO[str]) -> object:
    """The JSON of a whole file; of many a line, only the first is looked at. Raises ValueError for other text."""
    try:
        document = json.loads(head)
    except ValueError:
        return json.loads(head + file.read(_MOST_CHARACTERS))
    return None if file.readline().strip() else document


def _rates(rows: Iterator[list[str]]) -> RateWindows | None:
    starts, rates, cvs = [], [], []
    gaps: Counter[str] = Counter()
    for row in rows:
        if len(row) != _COLUMNS:
            return None
        start, rate, cv = map(float, row[:3])
        if row[3] not in ("Gamma", "Weibull", "") or not (rate >= 0 and cv >= 0):
            return None
        starts.append(start)
        rates.append(rate)
        cvs.append(cv)
        gaps[row[3]] += bool(row[3])
    if len(starts) < 2:
        return None
    window_s = starts[1] - starts[0]
    total = sum(rates)
    return RateWindows(
        windows=len(starts),
        idle_windows=rates.count(0),
        window_s=window_s,
        duration_s=len(starts) * window_s,
        requests=total * window_s,
        rate_per_s=total / len(rates),
        most_per_s=max(rates),
        gap_cv=float(np.average(cvs, weights=rates)) if total else None,
        gaps={name: count for name, count in sorted(gaps.items()) if name},
    )


def _lengths(tables: object) -> LengthWindows | None:
    if not isinstance(tables, dict) or len(tables) < 2:
        return None
    merged: dict[str, Counter[int]] = {name: Counter() for name in _LENGTHS}
    idle = 0
    for columns in tables.values():
        if not isinstance(columns, dict) or not all(isinstance(columns.get(name), str) for name in _LENGTHS):
            return None
        idle += columns["input_tokens"] == "{}"
        for name, counts in merged.items():
            for length, weight in dict(ast.literal_eval(columns[name])).items():
                counts[int(length)] += weight
    starts = [float(start) for start in tables]
    return LengthWindows(
        windows=len(tables),
        idle_windows=idle,
        window_s=starts[1] - starts[0],
        prompt=_spread(merged["input_tokens"]),
        output=_spread(merged["output_tokens"]),
    )


def _spread(counts: Counter[int]) -> LengthSpread | None:
    if not counts:
        return None
    lengths: Ints = np.array(sorted(counts), dtype=np.int64)
    weights = np.array([counts[length] for length in lengths.tolist()], dtype=np.float64)
    upto = np.cumsum(weights) / weights.sum()
    median, p99 = (int(lengths[np.searchsorted(upto, share - 1e-12)]) for share in (0.5, 0.99))
    return LengthSpread(float(np.average(lengths, weights=weights)), median, p99, int(lengths[0]), int(lengths[-1]))
