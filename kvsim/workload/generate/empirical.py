"""Lengths as they were counted: values with weights, in the scenario or in a histogram file."""

import ast
import gzip
import json
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve, field, frozen, validators

from kvsim.errors import TraceError
from kvsim.rules import MAX_TOKENS, Consistent, between, each, more_than_zero, not_blank, shown, token_count
from kvsim.workload.generate.choice import choose, cumulated_weights
from kvsim.workload.generate.packed import open_unpacked

_MOST_BYTES = 2**28


@frozen(kw_only=True)
class Empirical(Consistent):
    """`values` chosen by `weights` (equally often if left out), or those of a JSON file at `path`.

    The file holds {"length": weight}, or, where `column` is given, {"start of a window": {column: {"length": weight}}},
    the inner table possibly as a string, as in ServeGen: all windows together, or the one named `window`.
    """

    values: tuple[int, ...] | None = field(default=None, validator=validators.optional(each(token_count)))
    weights: tuple[float, ...] | None = field(default=None, validator=validators.optional(each(more_than_zero(10**9))))
    path: str | None = field(default=None, validator=validators.optional(not_blank))
    column: str | None = field(default=None, validator=validators.optional(not_blank))
    window: int | None = field(default=None, validator=validators.optional(between(0, 10**12)))

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        sentences = []
        if (values["values"] is None) == (values["path"] is None):
            sentences.append("one of values and path must be given, and not both")
        sentences += weights_contradict(values)
        sentences += [
            f"{name} goes with {other}, which is not given"
            for name, other in (("column", "path"), ("window", "column"))
            if values[name] is not None and values[other] is None
        ]
        return sentences

    @property
    def most(self) -> int | None:
        """None while it is still in its file."""
        return None if self.values is None else max(self.values)

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array(self.values, dtype=np.int64)

    @cached_property
    def _cumulated(self) -> np.ndarray:
        return cumulated_weights(self.weights, len(self._lengths))

    def sample(self, rng: np.random.Generator, count: int) -> np.ndarray:
        assert self.values is not None, "its file has been read"
        return np.asarray(self._lengths[choose(self._cumulated, rng, count)])

    def loaded(self, base: Path) -> "Empirical":
        """With the values of its file; raises TraceError for a file that cannot be used."""
        if self.path is None:
            return self
        histogram = _read_histogram(base / self.path, self.column, self.window)
        return evolve(
            self, values=tuple(histogram), weights=tuple(histogram.values()), path=None, column=None, window=None
        )


def weights_contradict(values: Mapping[str, Any]) -> list[str]:
    """Sentences on `values` and `weights` that do not go together."""
    sentences = []
    items, weights = values["values"], values["weights"]
    if isinstance(items, tuple) and not items:
        sentences.append("values must not be empty")
    if weights is not None and items is None:
        sentences.append("weights goes with values, which is not given")
    if isinstance(items, tuple) and isinstance(weights, tuple) and len(items) != len(weights):
        sentences.append(f"weights must have one for each of the {len(items):,} values, got {len(weights):,}")
    return sentences


def _read_histogram(path: Path, column: str | None, window: int | None) -> dict[int, float]:
    tables = _read_json(path)
    if not isinstance(tables, dict):
        raise TraceError(f"{path}: must be a JSON object, got {shown(tables)}")
    if column is None:
        return _checked(path, [tables])
    if window is not None:
        if str(window) not in tables:
            raise TraceError(f"{path}: has no window {window}, only {shown(', '.join(tables))}")
        tables = {str(window): tables[str(window)]}
    histograms = []
    for start, columns in tables.items():
        if not isinstance(columns, dict) or column not in columns:
            raise TraceError(f"{path}: window {shown(start)} has no column {column}")
        histograms.append(_parsed(path, columns[column]))
    return _checked(path, histograms)


def _read_json(path: Path) -> Any:
    try:
        if not path.is_file():
            raise TraceError(f"{path}: is not a file")
        with open_unpacked(path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise TraceError(f"{path}: must be at most {_MOST_BYTES:,} bytes")
        return json.loads(content.decode("utf-8-sig"))
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise TraceError(f"{path}: not a sound gzip stream") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise TraceError(f"{path}: not JSON") from None


def _parsed(path: Path, histogram: Any) -> Any:
    if not isinstance(histogram, str):
        return histogram
    try:
        return ast.literal_eval(histogram)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise TraceError(f"{path}: must hold tables of lengths, got {shown(histogram)}") from None


def _checked(path: Path, histograms: list[Any]) -> dict[int, float]:
    """The sum of the histograms, by length."""
    total: dict[int, float] = {}
    for histogram in histograms:
        if not isinstance(histogram, dict):
            raise TraceError(f"{path}: must hold tables of lengths, got {shown(histogram)}")
        for text, weight in histogram.items():
            digits = str(text)
            if not digits.isdecimal() or len(digits) > 10 or not 1 <= int(digits) <= MAX_TOKENS:
                raise TraceError(f"{path}: lengths must be between 1 and {MAX_TOKENS:,}, got {shown(text)}")
            if type(weight) not in (int, float) or not 0 < weight <= 10**9:
                raise TraceError(f"{path}: the weight of length {digits} must be > 0, got {shown(weight)}")
            total[int(digits)] = total.get(int(digits), 0.0) + weight
    if not total:
        raise TraceError(f"{path}: has no lengths")
    return dict(sorted(total.items()))
