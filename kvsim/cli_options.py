"""What commands share: the options that say what is run, or how a trace is read, and what is made of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvsim.study.trace_file import TraceFile
    from kvsim.workload.traces import Columns, Options

ScenarioArgument = Annotated[Path, typer.Argument(help="Scenario file (TOML).")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override a key; an empty value removes it. Repeatable."),
]
JobsOption = Annotated[int | None, typer.Option(help="Processes; else one a processor.")]

TraceArgument = Annotated[Path, typer.Argument(help="Trace file: plain, gzip, zstd or Parquet.")]
FormatOption = Annotated[str | None, typer.Option(help="Format of the trace; recognised if not given.")]

BlockTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Tokens that an id of the trace stands for; seen from the file if not given.")
]
TokenizerOption = Annotated[Path | None, typer.Option(help="The tokenizer.json for a trace of texts.")]
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        metavar="prompt=NAME,...",
        help="Columns of a plain table: prompt, and any of output, time, hash_ids, as in prompt=in,time=at.",
    ),
]
TimeUnitOption = Annotated[str | None, typer.Option(help="What times count, where the format leaves it open.")]
BadRowOption = Annotated[
    str, typer.Option(help="error: a row that cannot be used ends it; skip: such rows are passed over and counted.")
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print the figures as JSON, and nothing else.")]


def options_of(
    block_tokens: int | None, tokenizer: Path | None, columns: str | None, time_unit: str | None
) -> "Options":
    """What is said about the file; raises TraceError for what cannot be said."""
    from typing import get_args

    from kvsim.errors import TraceError
    from kvsim.workload.traces import Options
    from kvsim.workload.traces.options import TimeUnit

    unit = next((unit for unit in get_args(TimeUnit) if unit == time_unit), None)
    if unit is None and time_unit is not None:
        raise TraceError(f"--time-unit must be one of {', '.join(get_args(TimeUnit))}, got {time_unit!r}")
    return Options(block_tokens=block_tokens, tokenizer=tokenizer, columns=_columns(columns), time_unit=unit)


def _columns(text: str | None) -> "Columns | None":
    """What is said in prompt=NAME,time=NAME."""
    from kvsim.errors import TraceError
    from kvsim.workload.traces import Columns
    from kvsim.workload.traces.options import KEYS

    if text is None:
        return None
    named: dict[str, str] = {}
    for part in text.split(","):
        key, equals, name = part.partition("=")
        if not equals or key.strip() not in KEYS or key.strip() in named:
            raise TraceError(f"--columns must say each of {', '.join(KEYS)} once at most, as prompt=NAME, got {text!r}")
        named[key.strip()] = name
    if "prompt" not in named:
        raise TraceError(f"--columns must say which column is the prompt's tokens, as prompt=NAME, got {text!r}")
    try:
        return Columns(**named)
    except ValueError as error:
        raise TraceError(f"--columns: {error}") from None


def trace_file(path: Path, format: str | None, options: "Options", on_bad_row: str = "error") -> "TraceFile":
    """The file that the options describe; raises TraceError where it cannot be read that way."""
    from kvsim.errors import TraceError
    from kvsim.study.trace_file import TraceFile

    if on_bad_row not in ("error", "skip"):
        raise TraceError(f"--on-bad-row must be error or skip, got {on_bad_row!r}")
    return TraceFile.of(path, format, options, skip_bad_rows=on_bad_row == "skip")


def need_bounds(block_sizes: Sequence[int] | None, limit: int | None = None) -> None:
    """Raises TraceError before a file is read."""
    from kvsim.errors import TraceError
    from kvsim.rules import MAX_TOKENS, shown
    from kvsim.study.trace_convert import MAX_ROWS

    for size in block_sizes or ():
        if not 1 <= size <= MAX_TOKENS:
            raise TraceError(f"--block-size must be between 1 and {MAX_TOKENS:,}, got {shown(size)}")
    if limit is not None and not 1 <= limit <= MAX_ROWS:
        raise TraceError(f"--limit must be between 1 and {MAX_ROWS:,}, got {shown(limit)}")


def say_passed_over(file: "TraceFile") -> None:
    import sys

    if file.reading.bad_rows:
        print(f"passed over {file.reading.bad_rows:,} bad rows of {file.path}", file=sys.stderr)


def need_all(failures: Sequence[str], num_runs: int) -> None:
    """Raises KvsimError that names the runs that failed."""
    from kvsim.errors import KvsimError

    if failures:
        listed = "".join(f"\n  {failure}" for failure in failures)
        raise KvsimError(f"{len(failures):,} of {num_runs:,} runs failed{listed}")
