"""A trace file as the workload of a scenario."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NoReturn

from attrs import define, field, frozen, validators

from kvsim.errors import TraceError
from kvsim.rules import between, more_than_zero, not_blank, one_of, token_count
from kvsim.workload.outputs import SeveralOutputs, outputs_contradict
from kvsim.workload.request import Request, Span
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.options import Columns, Options, TimeUnit
from kvsim.workload.traces.readers import READERS, Reader, known_format, reader_of, rows_of, unheeded
from kvsim.workload.traces.row import Row

_NEEDED = {
    "tokenizer": "the path of a tokenizer.json",
    "columns": 'such as { prompt = "tokens in", output = "tokens out", time = "at" }',
}


@define
class SkippedRows:
    """How many bad rows a replay has passed over so far."""

    count: int = 0


@frozen(kw_only=True)
class Trace(SeveralOutputs):
    """A replay of a trace file at its own times divided by `speedup`, of all its rows or the first `limit`.

    The format is recognised from the columns or keys of the file if it is not named. A bad row is an error, or
    passed over and counted.
    """

    path: str = field(validator=not_blank)
    format: str | None = field(default=None, validator=validators.optional(one_of(READERS)))
    speedup: float = field(default=1.0, validator=more_than_zero(1_000_000))
    limit: int | None = field(default=None, validator=validators.optional(between(1, 10**12)))
    on_bad_row: Literal["error", "skip"] = "error"
    block_tokens: int | None = field(default=None, validator=validators.optional(token_count))
    time_unit: TimeUnit | None = None
    tokenizer: str | None = field(default=None, validator=validators.optional(not_blank))
    columns: Columns | None = None

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        sentences = outputs_contradict(values)
        reader = READERS.get(values["format"]) if isinstance(values["format"], str) else None
        if reader is not None and reader.needs is not None and values[reader.needs] is None:
            sentences.append(f"the format {values['format']} needs {reader.needs}, {_NEEDED[reader.needs]}")
        format = "columns" if values["format"] is None and values["columns"] is not None else values["format"]
        return sentences + (unheeded(format, values) if isinstance(format, str) and format in READERS else [])

    def reader(self, base: Path) -> Reader:
        """How the file is read; `base` is what paths start from. Raises TraceError if the format is not known."""
        return reader_of(self.format_of(base), self.options(base))

    def format_of(self, base: Path) -> str:
        return known_format(base / self.path, self.format, self.options(base))

    def options(self, base: Path) -> Options:
        return Options(
            block_tokens=self.block_tokens,
            time_unit=self.time_unit,
            tokenizer=None if self.tokenizer is None else base / self.tokenizer,
            columns=self.columns,
        )

    def requests(self, base: Path, skipped: SkippedRows | None = None) -> Iterator[Request]:
        """The requests in the order of the file, whose times must not go back, or by time where the format has none.

        `skipped` is kept up to date with the number of bad rows passed over. Raises TraceError for a file or line
        that cannot be used, a file without requests, or one that lacks times or outputs.
        """
        lines = Lines(base / self.path, skip_bad_rows=self.on_bad_row == "skip")
        rows = rows_of(self.reader(base), lines, self.options(base))
        speedup = Fraction(str(self.speedup))  # 0.1 is a tenth, as it was written
        first_ns: int | None = None
        last_ns = 0
        for request_id, row in enumerate(islice(rows, self.limit)):
            if skipped is not None:
                skipped.count = lines.skipped
            if row.time_ns is None:
                self._refuse_replay(base, "times")
            if first_ns is None:
                first_ns = last_ns = row.time_ns
            if row.time_ns < last_ns:
                raise TraceError(
                    f"{lines.path}:{lines.number}: its time lies before that of the row above; sort the file by time"
                )
            last_ns = row.time_ns
            arrival_ns = (row.time_ns - first_ns) * speedup.denominator // speedup.numerator
            if row.output_tokens is None:
                self._refuse_replay(base, "outputs")
            yield _request(request_id, arrival_ns, row, row.output_tokens)
        if skipped is not None:
            skipped.count = lines.skipped
        if first_ns is None:
            raise TraceError(f"{lines.path}: has no requests" + (" but bad ones" if lines.skipped else ""))

    def _refuse_replay(self, base: Path, lacking: str) -> NoReturn:
        raise TraceError(
            f"{base / self.path}: has no {lacking}, which a replay needs; its lengths can still feed a generator"
        )


def _request(request_id: int, arrival_ns: int, row: Row, output_tokens: int) -> Request:
    prompt = row.prompt or (Span(f"user:{request_id}", 0, row.prompt_tokens),)
    output = row.output or (Span(f"out:{request_id}", 0, output_tokens),)
    return Request(request_id, arrival_ns, prompt, output)
