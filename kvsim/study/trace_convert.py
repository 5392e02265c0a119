"""Parts of a trace, and the files they are written to.

A part is cut by time, thinned out and speeded up, in this order; its times start at its first request.
"""

import gzip
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import polars as pl
from attrs import field, frozen, validators

from kvsim.errors import TraceError
from kvsim.memory.prefix import PrefixTree, block_keys
from kvsim.rules import at_least, between, more_than_zero
from kvsim.study.trace_file import TraceFile
from kvsim.workload.generate import random_stream
from kvsim.workload.traces import Row
from kvsim.workload.traces.parquet import BATCH, COLUMNS

ALONE_BLOCK_TOKENS = 512
SHARED_BLOCK_TOKENS = 16
"""What an id stands for where the trace has no ids: Mooncake's size where nothing is shared, else an engine's."""

MAX_ROWS = 10**12
"""As [workload] limit."""

_LATEST_NS = 2**63 - 1
_MOST_BLOCK_TOKENS = 1_000_000_000

_FEW = 100
"""A start that more than one request in so many shares is a system prompt, not a conversation."""


@frozen(kw_only=True)
class Part:
    """Which requests of a trace, and how fast: from `start_ns` to before `end_ns` after the first request of the
    file, of them a `share`, of these the first `limit`.

    Requests that share a conversation, or anything else that few others share, are taken or left together, so that
    what prompts share is kept.
    """

    start_ns: int = field(default=0, validator=at_least(0))
    end_ns: int | None = field(default=None, validator=validators.optional(at_least(1)))
    share: float = field(default=1.0, validator=more_than_zero(1))
    seed: int = field(default=0, validator=at_least(0))
    limit: int | None = field(default=None, validator=validators.optional(between(1, MAX_ROWS)))
    speedup: float = field(default=1.0, validator=more_than_zero(1_000_000))

    def rows(self, trace: TraceFile) -> Iterator[Row]:
        """Raises TraceError for a file that cannot be read, that has no times, or whose times go back."""
        speedup = Fraction(str(self.speedup))  # 0.1 is a tenth, as it was written
        first_ns = None
        for row in islice(self._sampled(trace), self.limit):
            time_ns = _known(row.time_ns, "times")
            if first_ns is None:
                first_ns = time_ns
            since_ns = (time_ns - first_ns) * speedup.denominator // speedup.numerator
            if since_ns > _LATEST_NS:
                raise TraceError(f"{trace.path}: at a speedup of {self.speedup} its times do not fit in 64 bits")
            yield row._replace(time_ns=since_ns)

    def _sampled(self, trace: TraceFile) -> Iterator[Row]:
        if self.share == 1:
            yield from self._cut(trace)
            return
        families = _families(self._cut(trace))
        chosen = random_stream(self.seed, "sample").random(max(families, default=-1) + 1) < self.share
        for row, family in zip(self._cut(trace), families, strict=True):
            if chosen[family]:
                yield row

    def _cut(self, trace: TraceFile) -> Iterator[Row]:
        first_ns = last_ns = None
        for number, row in enumerate(trace.rows(), start=1):
            time_ns = _known(row.time_ns, "times")
            first_ns = time_ns if first_ns is None else first_ns
            if last_ns is not None and time_ns < last_ns:
                raise TraceError(f"{trace.path}: request {number:,} comes before the one above; sort the file by time")
            last_ns = time_ns
            since = time_ns - first_ns
            if self.end_ns is not None and since >= self.end_ns:
                return
            if since >= self.start_ns:
                yield row


def _families(rows: Iterator[Row]) -> "array[int]":
    """For each row the number of its family: its session, or the rows with the first stretch that few others have.

    A request without content is a family of its own.
    """
    tree = PrefixTree()
    users: Counter[int] = Counter()
    paths: list[tuple[int, ...] | str] = []
    for row in rows:
        if row.session is not None:
            paths.append(row.session)
            continue
        nodes = tuple(piece.node for piece in tree.intern(row.prompt or ()))
        users.update(nodes)
        paths.append(nodes)
    few = max(2, len(paths) // _FEW)
    numbers: dict[object, int] = {}
    families = array("q")
    for index, path in enumerate(paths):
        family: object = path
        if not path:
            family = ("row", index)
        elif isinstance(path, tuple):
            family = next((node for node in path if users[node] <= few), path[-1])
        families.append(numbers.setdefault(family, len(numbers)))
    return families


class Written(NamedTuple):
    """What was written: how many requests, whether any content was known, whether that of outputs was left out, and
    the tokens that an id stands for."""

    rows: int
    has_content: bool
    had_outputs: bool
    block_tokens: int


class _PrefixIds:
    """Numbers the blocks of prompts in the order in which they first appear.

    A partial last block has the id of the full one that another prompt makes of it, as far as they agree:

        one prompt    |--- id 0 ---|-- id 1 --|
        another       |--- id 0 ---|----- id 1 -----|-- id 2 --|
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._tree = PrefixTree()
        self._ids: dict[object, int] = {}

    def of(self, row: Row) -> list[int]:
        num_blocks = -(-row.prompt_tokens // self._block_tokens)
        ids = self._ids
        if row.prompt is None:
            return [ids.setdefault(("alone", len(ids)), len(ids)) for _ in range(num_blocks)]
        *pieces, last = self._tree.intern(row.prompt)
        whole = last._replace(end=num_blocks * self._block_tokens)
        keys = block_keys((*pieces, whole), self._block_tokens, num_blocks)
        return [ids.setdefault(key, len(ids)) for key in keys]


def write_mooncake(rows: Iterator[Row], path: Path, block_tokens: int) -> Written:
    """Mooncake JSONL, in whole milliseconds, packed where the name ends in .gz. Equal rows give equal bytes.

    Where the content is not known, every block has an id of its own.
    """
    ids = _PrefixIds(block_tokens)
    count, has_content, had_outputs = 0, False, False
    with path.open("wb") as file:
        packed = gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if path.suffix == ".gz" else None
        out = packed or file
        for row in rows:
            line = {
                "timestamp": _known(row.time_ns, "times") // 10**6,
                "input_length": row.prompt_tokens,
                "output_length": _known(row.output_tokens, "outputs"),
                "hash_ids": ids.of(row),
                **({} if row.session is None else {"session_id": row.session}),
            }
            out.write(json.dumps(line).encode() + b"\n")
            count += 1
            has_content |= row.prompt is not None
            had_outputs |= row.output is not None
        if packed is not None:
            packed.close()
    return Written(count, has_content, had_outputs, block_tokens)


def write_parquet(rows: Iterator[Row], path: Path, block_tokens: int) -> Written:
    """Parquet as the format `parquet` reads it: times to the nanosecond, and null for what is not known."""
    ids = _PrefixIds(block_tokens)
    had_outputs = False
    parts = [pl.DataFrame(schema=_SCHEMA)]
    while batch := list(islice(rows, BATCH)):
        had_outputs |= any(row.output is not None for row in batch)
        records = [
            (
                row.time_ns,
                row.prompt_tokens,
                _known(row.output_tokens, "outputs"),
                None if row.prompt is None else ids.of(row),
                block_tokens,
                row.session,
            )
            for row in batch
        ]
        parts.append(pl.DataFrame(records, schema=_SCHEMA, orient="row"))
    frame = pl.concat(parts)
    frame.write_parquet(path, row_group_size=BATCH)
    return Written(len(frame), bool(frame["hash_ids"].is_not_null().any()), had_outputs, block_tokens)


_SCHEMA = dict(
    zip(
        COLUMNS,
        (pl.Int64(), pl.Int64(), pl.Int64(), pl.List(pl.Int64()), pl.Int64(), pl.String()),
        strict=True,
    )
)


def _known(value: int | None, what: str) -> int:
    """The value, or a refusal with that word."""
    if value is None:
        raise TraceError(f"the trace has no {what}, which a file to be replayed needs")
    return value


WRITERS: dict[str, Callable[[Iterator[Row], Path, int], Written]] = {
    "mooncake": write_mooncake,
    "parquet": write_parquet,
}


def convert(trace: TraceFile, part: Part, to: str, path: Path, block_tokens: int | None = None) -> Written:
    """Write a part of a trace to a file, with ids of as many tokens as those of the trace if it is not said.

    Raises TraceError for an unknown format, or where nothing is left.
    """
    if to not in WRITERS:
        raise TraceError(f"the format to write must be one of {', '.join(WRITERS)}, got {to!r}")
    if block_tokens is not None and not 1 <= block_tokens <= _MOST_BLOCK_TOKENS:
        raise TraceError(f"block tokens must be between 1 and {_MOST_BLOCK_TOKENS:,}, got {block_tokens}")
    rows = part.rows(trace)
    first = next(rows, None)  # with which the tokens of an id are known
    if first is None:
        raise TraceError(f"{trace.path}: has no requests in that part")
    usual = SHARED_BLOCK_TOKENS if trace.has_content else ALONE_BLOCK_TOKENS
    return WRITERS[to](chain([first], rows), path, block_tokens or trace.reading.block_tokens or usual)
