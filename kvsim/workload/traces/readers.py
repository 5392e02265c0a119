"""The formats that can be read, and how a file says which one it is."""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from kvsim.errors import TraceError
from kvsim.workload.traces.agentic import read_dynamo_requests, read_tracelab, read_weka
from kvsim.workload.traces.benchmarks import (
    read_aiperf_bench,
    read_guidellm_bench,
    read_inference_perf,
    read_sglang_bench,
    read_vllm_bench,
)
from kvsim.workload.traces.conversations import read_bailian, read_ragpulse
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.mooncake import (
    read_aiperf,
    read_dynamo,
    read_guidellm,
    read_mooncake,
    read_timed_trace,
)
from kvsim.workload.traces.options import Columns, Lack, Options, Said
from kvsim.workload.traces.parquet import NEEDED, is_parquet, parquet_columns, read_parquet
from kvsim.workload.traces.plain import read_columns
from kvsim.workload.traces.row import Row
from kvsim.workload.traces.tables import read_azure, read_burstgpt, read_splitwisesim, read_turn_lengths, read_vidur
from kvsim.workload.traces.text import read_llmservingsim, read_sharegpt, read_vllm_custom

_HEAD_PIECES = 4
_KEY = re.compile(r'"([^"\\\n]{1,64})"\s*:')
_NO_OPTIONS = Options()


class Reader(NamedTuple):
    """How a format is read, what it never says, and the columns or keys that tell it from the formats below it.

    A format without marks must be named. In some formats rows come in the order in which requests ended or
    session by session: they are `unsorted`, so all rows of a file, though not its text, are held to sort them.
    `needs` is what a user must say about every file of the format, `heeds` what may be said. `parquet` is a format in
    Parquet, the others are text. Where `turns_apart`, the prompt of a later turn lacks what was said before it.
    """

    read: Callable[[Lines, Options], Iterator[Row]]
    lacks: tuple[Lack, ...] = ()
    marks: tuple[str, ...] = ()
    unsorted: bool = False
    needs: Literal["tokenizer", "columns"] | None = None
    heeds: tuple[Said, ...] = ()
    parquet: bool = False
    turns_apart: bool = False

    @property
    def has_content(self) -> bool:
        return "content" not in self.lacks


_MEASURED: tuple[Lack, ...] = ("content", "sessions")

READERS: dict[str, Reader] = {
    "azure": Reader(read_azure, ("content", "sessions"), ("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
    "burstgpt": Reader(read_burstgpt, ("content",), ("Timestamp", "Request tokens", "Response tokens")),
    "vidur": Reader(read_vidur, ("content", "sessions"), ("num_prefill_tokens", "num_decode_tokens")),
    "splitwisesim": Reader(
        read_splitwisesim, ("content", "sessions"), ("arrival_timestamp", "prompt_size", "token_size")
    ),
    "turn_lengths": Reader(
        read_turn_lengths, ("times", "content"), ("conversation", "human_tokens", "gpt_tokens"), turns_apart=True
    ),
    "bailian": Reader(read_bailian, (), ("chat_id", "parent_chat_id", "hash_ids"), heeds=("block_tokens", "time_unit")),
    "ragpulse": Reader(read_ragpulse, (), ("hash_ids", "sys_prompt", "passages_ids", "user_input")),
    "weka": Reader(
        read_weka, (), ("id", "requests", "t", "in", "out", "hash_ids"), unsorted=True, heeds=("block_tokens",)
    ),
    "tracelab": Reader(read_tracelab, (), ("session_id", "prefix_tokens", "newly_append_tokens"), unsorted=True),
    "dynamo_requests": Reader(
        read_dynamo_requests, (), ("event", "event_type", "request_received_ms"), unsorted=True, heeds=("block_tokens",)
    ),
    "llmservingsim": Reader(read_llmservingsim, (), ("input_toks", "output_toks", "arrival_time_ns")),
    "sharegpt": Reader(
        read_sharegpt, ("times",), ("conversations", "from", "value"), needs="tokenizer", heeds=("tokenizer",)
    ),
    "vllm_bench": Reader(read_vllm_bench, _MEASURED, ("input_lens", "output_lens", "start_times"), unsorted=True),
    "sglang_bench": Reader(read_sglang_bench, ("times", *_MEASURED), ("input_lens", "output_lens")),
    "aiperf_bench": Reader(read_aiperf_bench, ("content",), ("metadata", "request_start_ns", "metrics"), unsorted=True),
    "guidellm_bench": Reader(read_guidellm_bench, _MEASURED, ("benchmarks", "successful"), unsorted=True),
    "inference_perf": Reader(read_inference_perf, _MEASURED, ("start_time", "info", "input_tokens"), unsorted=True),
    "mooncake": Reader(
        read_mooncake, (), ("timestamp", "input_length", "output_length", "hash_ids"), heeds=("block_tokens",)
    ),
    "vllm_custom": Reader(
        read_vllm_custom, ("times", "sessions"), ("prompt", "output_tokens"), needs="tokenizer", heeds=("tokenizer",)
    ),
    "aiperf": Reader(read_aiperf, heeds=("block_tokens", "time_unit")),
    "dynamo": Reader(read_dynamo, heeds=("block_tokens", "time_unit")),
    "timed_trace": Reader(read_timed_trace, heeds=("block_tokens", "time_unit")),
    "guidellm": Reader(read_guidellm, heeds=("block_tokens", "time_unit")),
    "parquet": Reader(read_parquet, (), NEEDED, parquet=True),
    "columns": Reader(read_columns, ("sessions",), needs="columns", heeds=("columns", "block_tokens", "time_unit")),
}


def recognise(path: Path) -> str:
    """The format of a file by its columns or keys; raises TraceError if it is none of those that have marks."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise TraceError(f"{path}: must be a file for its format to be recognised; name the format")
    in_parquet = is_parquet(path)
    found = set(parquet_columns(path)) if in_parquet else _names(path)
    for name, reader in READERS.items():
        if reader.parquet == in_parquet and reader.marks and found.issuperset(reader.marks):
            return name
    if in_parquet:
        raise TraceError(f"{path}: is Parquet, whose columns must be named, found {', '.join(sorted(found)) or 'none'}")
    raise TraceError(f"{path}: its format is not recognised; name one of {', '.join(READERS)}")


def _names(path: Path) -> set[str]:
    """Columns or keys at the top of a text file."""
    head = _head(path)
    if not head.strip():
        raise TraceError(f"{path}: is empty")
    return set(_KEY.findall(head)) if head.lstrip()[:1] in ("{", "[") else _columns(head)


def reader_of(format: str, options: Options) -> Reader:
    """How a file is read, and what it does not say under these options."""
    reader = READERS[format]
    if reader.needs != "columns" or options.columns is None:
        return reader
    return reader._replace(lacks=options.columns.lacks)


def unheeded(format: str, said: Mapping[str, Any]) -> list[str]:
    """A sentence for each option that changes nothing in a format; `said` has all of them, None for one not given."""
    sentences = []
    for name in get_args(Said):
        if said[name] is None or name in READERS[format].heeds:
            continue
        those = [other for other, reader in READERS.items() if name in reader.heeds]
        sentences.append(f"{name} is for the format{'s' * (len(those) > 1)} {', '.join(those)}, not for {format}")
    columns = said["columns"]
    if format == "columns" and isinstance(columns, Columns):
        sentences += [
            f"{name} goes with columns.{column}, which is not given"
            for name, column in (("time_unit", "time"), ("block_tokens", "hash_ids"))
            if said[name] is not None and getattr(columns, column) is None
        ]
    return sentences


def known_format(path: Path, format: str | None, options: Options = _NO_OPTIONS) -> str:
    """The format that is named, or that of the file.

    Raises TraceError if it is none that can be read, or if one of the options changes nothing in it.
    """
    if format is None:
        format = recognise(path) if options.columns is None else "columns"
    elif format not in READERS:
        raise TraceError(f"the format of a trace must be one of {', '.join(READERS)}, got {format!r}")
    for sentence in unheeded(format, {name: getattr(options, name) for name in get_args(Said)}):
        raise TraceError(f"{path}: {sentence}")
    return format


def _head(path: Path) -> str:
    try:
        return "".join(islice(Lines(path).pieces(), _HEAD_PIECES))
    except TraceError:
        for _line in Lines(path):
            pass  # the same again, which now says in what line
        raise


def _columns(head: str) -> set[str]:
    header = head.partition("\n")[0]
    return {name.strip().strip('"') for name in header.split(",")}


def read_rows(
    path: Path,
    format: str | None = None,
    options: Options = _NO_OPTIONS,
    *,
    least_tokens: int = 1,
) -> Iterator[Row]:
    """The rows of a trace file, recognised if no format is named; with `least_tokens` 0, empty prompts and outputs too.

    Raises TraceError for an unknown format, or a file or line that cannot be used.
    """
    reader = reader_of(known_format(path, format, options), options)
    return rows_of(reader, Lines(path, least_tokens=least_tokens), options)


def rows_of(reader: Reader, lines: Lines, options: Options) -> Iterator[Row]:
    """The rows in the order of the file, or by time where that order means nothing; ties keep the file's order."""
    rows = reader.read(lines, options)
    if not reader.unsorted:
        return rows
    return iter(sorted(rows, key=lambda row: -1 if row.time_ns is None else row.time_ns))
