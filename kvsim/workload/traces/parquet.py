"""Parquet: rows a batch at a time, and the columns that `kvsim trace convert` writes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kvsim.errors import TraceError
from kvsim.workload.traces.fields import count, name_of_session, time_ns, whole_numbers
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.mooncake import Blocks
from kvsim.workload.traces.options import Options
from kvsim.workload.traces.row import Row

COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "hash_ids", "block_tokens", "session_id")
"""As they are written; session_id may be missing, and what is not known is null."""

NEEDED = COLUMNS[:-1]

BATCH = 16_384
"""Rows that are held at a time, and those of a row group that is written."""

_MAGIC = b"PAR1"


def is_parquet(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def parquet_columns(path: Path) -> list[str]:
    """The names of the columns; raises TraceError for a file that is not sound."""
    import polars as pl

    if not is_parquet(path):
        _refuse_other(path)
    try:
        return pl.scan_parquet(path, glob=False).collect_schema().names()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        _refuse(Lines(path), error)


def parquet_records(lines: Lines, needed: Sequence[str], optional: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Records of these columns, of which the optional ones may be missing; the place of a row is its number."""
    import polars as pl

    found = parquet_columns(lines.path)
    missing = [name for name in needed if name not in found]
    if missing:
        lines.refuse_file(f"column {missing[0]} is missing, found {', '.join(found)}")
    try:
        table = pl.scan_parquet(lines.path, glob=False).select([*needed, *(name for name in optional if name in found)])
        times = [name for name, kind in table.collect_schema().items() if kind == pl.Datetime]
        table = table.with_columns(pl.col(times).dt.strftime("%Y-%m-%d %H:%M:%S%.9f"))
        start = 0
        while (batch := table.slice(start, BATCH).collect()).height:
            start += batch.height
            for record in batch.iter_rows(named=True):
                lines.number += 1
                yield record
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        _refuse(lines, error)


def _refuse_other(path: Path) -> NoReturn:
    """A file that does not begin as Parquet does, or none."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise TraceError(f"{path}: must be a file to be read as Parquet")
    try:
        path.open("rb").close()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None
    raise TraceError(f"{path}: is not Parquet")


def _refuse(lines: Lines, error: BaseException) -> NoReturn:
    """What polars says of a damaged file may be long; its first line tells."""
    lines.refuse_file(f"not Parquet that can be read: {str(error).partition(chr(10))[0][:200]}")


def read_parquet(lines: Lines, _options: Options) -> Iterator[Row]:
    """What `kvsim trace convert` writes: arrival_ns, prompt_tokens, output_tokens, hash_ids as in Mooncake's files or
    null, and how many tokens one stands for in block_tokens, the same in every row; session_id where there are any.
    """
    blocks: list[Blocks] = []

    def convert(record: dict[str, Any]) -> Row:
        prompt_tokens = count(lines, "prompt_tokens", record["prompt_tokens"])
        size = count(lines, "block_tokens", record["block_tokens"])
        if not blocks:
            blocks.append(Blocks(lines, size, size, rest_has_id=True))
        if size != blocks[0].block_tokens:
            lines.refuse(f"block_tokens must be the same in every row, {blocks[0].block_tokens}, got {size}")
        content = None
        if record["hash_ids"] is not None:
            ids = whole_numbers(lines, "hash_ids", record["hash_ids"])
            content = blocks[0].content("hash_ids", ids, prompt_tokens)
        return Row(
            time_ns(lines, "arrival_ns", record["arrival_ns"], "ns"),
            prompt_tokens,
            count(lines, "output_tokens", record["output_tokens"]),
            content,
            session=name_of_session(lines, "session_id", record.get("session_id")),
        )

    yield from lines.each(parquet_records(lines, NEEDED, COLUMNS[len(NEEDED) :]), convert)
