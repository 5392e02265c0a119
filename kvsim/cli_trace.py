"""The commands about traces: each parses, calls the library, prints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsim.cli_options import (
    BadRowOption,
    BlockTokensOption,
    ColumnsOption,
    FormatOption,
    JsonOption,
    TimeUnitOption,
    TokenizerOption,
    TraceArgument,
    need_bounds,
    options_of,
    say_passed_over,
    trace_file,
)
from kvsim.console import need_picture_name, print_json, print_page

if TYPE_CHECKING:
    from kvsim.study.hits import Order
    from kvsim.study.hits_table import TokenSize
    from kvsim.study.trace_file import TraceFile

trace_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Look at trace files and change them.",
)


def mount(app: typer.Typer) -> None:
    """Make the commands those of an application."""
    app.command()(hits)
    app.add_typer(trace_app, name="trace")


def hits(
    trace: TraceArgument,
    block_size: Annotated[list[int] | None, typer.Option(help="Tokens of a block; repeatable.")] = None,
    capacity: Annotated[
        list[str] | None, typer.Option(help="Blocks, inf, or with a model a size such as '40 GiB'; repeatable.")
    ] = None,
    order: Annotated[
        str | None, typer.Option(help="head: LRU of single blocks (default); tail: heads are evicted last.")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Eviction policy to compare in the order tail: lru, fifo, lfu, tail_last_lru, all; repeatable."
        ),
    ] = None,
    format: FormatOption = None,
    block_tokens: BlockTokensOption = None,
    tokenizer: TokenizerOption = None,
    columns: ColumnsOption = None,
    time_unit: TimeUnitOption = None,
    on_bad_row: BadRowOption = "error",
    limit: Annotated[int | None, typer.Option(help="Only so many requests from the start.")] = None,
    model: Annotated[str | None, typer.Option(help="Catalogue name or config.json, to count in bytes.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Number format of the model's cache, else bf16.")] = None,
    tensor_parallel: Annotated[int | None, typer.Option(min=1, help="Ranks that share the model's heads.")] = None,
    pipeline_parallel: Annotated[int | None, typer.Option(min=1, help="Ranks that share its layers.")] = None,
    optimum: Annotated[bool, typer.Option(help="Also the best evictions there could be.")] = True,
    plot: Annotated[Path | None, typer.Option(help="Draw the hit rate over capacity here.")] = None,
    json: JsonOption = False,
) -> None:
    """Say what prefix sharing could give: hits against the capacity of the cache, without a clock.

    For example:

    - `kvsim hits conversation_trace.jsonl --block-size 512 --capacity 1000 --capacity 10000 --capacity inf`
    - `kvsim hits conversation_trace.jsonl --block-size 16 --order tail --model llama-3.1-8b --plot hits.png`
    - `kvsim hits conversation_trace.jsonl --block-size 512 --capacity 10000 --policy all`
    """
    from itertools import islice

    from kvsim.study.hits import HitCurve, Prompts, need_policies
    from kvsim.study.hits_table import hits_json, hits_page, read_capacity, save_hits_plot

    need_picture_name(plot)
    need_bounds(block_size, limit)
    known_order = _known_order(order or ("tail" if policy else "head"))
    policies = _policies(policy)
    need_policies(policies, known_order)
    if model is None:
        of_model = {
            "--kv-dtype": kv_dtype,
            "--tensor-parallel": tensor_parallel,
            "--pipeline-parallel": pipeline_parallel,
        }
        _refuse_without("--model", of_model)
    token = None
    if model is not None:
        token = _token_size(model, kv_dtype or "bf16", tensor_parallel or 1, pipeline_parallel or 1)
    file = trace_file(trace, format, options_of(block_tokens, tokenizer, columns, time_unit), on_bad_row)
    file.need_content()
    prompts = Prompts()
    for row in islice(file.rows(), limit):
        prompts.add(row.prompt or ())
    say_passed_over(file)
    curves = [HitCurve(prompts, size, known_order, policies) for size in block_size or [16]]
    all_hits = []
    for curve in curves:
        capacities = [read_capacity(text, curve.block_size, token) for text in capacity or ()]
        all_hits.append(curve.hits(capacities or curve.usual_capacities(), optimum=optimum))
    if plot is not None:
        from kvsim.study.files import staged_file

        with staged_file(plot) as staging:
            save_hits_plot(curves, token, staging, all_hits)
    if json:
        figures = [hits_json(of_size, token) for of_size in all_hits]
        print_json(figures[0] if len(figures) == 1 else figures)
    else:
        print_page(hits_page(all_hits, token, file.reading.block_tokens))


def _refuse_without(other: str, options: Mapping[str, object]) -> None:
    """Raises TraceError for an option that is given and changes nothing, as another is not."""
    from kvsim.errors import TraceError

    for name, value in options.items():
        if value is not None:
            raise TraceError(f"{name} goes with {other}, which is not given")


def _known_order(order: str) -> "Order":
    from typing import get_args

    from kvsim.errors import TraceError
    from kvsim.study.hits import Order

    for known in get_args(Order):
        if order == known:
            return known  # type: ignore[no-any-return]  # one of its words
    raise TraceError(f"order must be one of {', '.join(get_args(Order))}, got {order!r}")


def _policies(named: Sequence[str] | None) -> Sequence[str]:
    """Each once, in the order in which they were named."""
    from kvsim.memory.eviction import EVICTION

    return tuple(dict.fromkeys(known for name in named or () for known in (EVICTION if name == "all" else [name])))


def _token_size(model: str, kv_dtype: str, tensor_parallel: int, pipeline_parallel: int) -> "TokenSize":
    from kvsim.model.catalogue import load_geometry
    from kvsim.model.formats import known_dtype
    from kvsim.study.hits_table import TokenSize

    geometry = load_geometry(model, Path())
    dtype = known_dtype(kv_dtype)
    stage = geometry.heaviest_stage(dtype, tensor_parallel, pipeline_parallel)
    formula = geometry.formula(dtype, tensor_parallel, pipeline_parallel)
    return TokenSize(stage.bytes_per_token(dtype, tensor_parallel), formula)


@trace_app.command()
def info(
    trace: TraceArgument,
    block_size: Annotated[
        list[int] | None, typer.Option(help="Sizes at which to count what is shared; repeatable.")
    ] = None,
    format: FormatOption = None,
    block_tokens: BlockTokensOption = None,
    tokenizer: TokenizerOption = None,
    columns: ColumnsOption = None,
    time_unit: TimeUnitOption = None,
    plot: Annotated[Path | None, typer.Option(help="Draw lengths, arrivals and sharing here.")] = None,
    json: JsonOption = False,
) -> None:
    """Say what a trace is like: lengths, rate, burstiness, what it lacks, what could be shared.

    For example:

    - `kvsim trace info AzureLLMInferenceTrace_conv.csv`
    - `kvsim trace info conversation_trace.jsonl --block-size 16 --block-size 512 --json`
    """
    import sys

    from kvsim.study.trace_info import BLOCK_SIZES, trace_info
    from kvsim.study.trace_table import info_page, save_info_plot

    need_picture_name(plot)
    need_bounds(block_size)
    requests_only = {
        "--block-size": block_size,
        "--block-tokens": block_tokens,
        "--tokenizer": tokenizer,
        "--columns": columns,
        "--time-unit": time_unit,
        "--plot": plot,
    }
    if format is None and _show_windows(trace, json, requests_only):
        return
    file = trace_file(trace, format, options_of(block_tokens, tokenizer, columns, time_unit))
    if block_size:
        file.need_content()
    found = trace_info(file, block_size or BLOCK_SIZES)
    if plot is not None:
        from kvsim.study.files import staged_file

        with staged_file(plot) as staging:
            save_info_plot(found, staging)
    if found.bad_rows:
        first = "" if found.first_bad_row is None else f"; the first is {found.first_bad_row}"
        of_all = f"{found.bad_rows:,} of {found.rows + found.bad_rows:,}"
        print(f"{of_all} rows could not be read{first}", file=sys.stderr)
    if json:
        print_json(found.to_json())
    else:
        print_page(info_page(found, trace.name, _block_tokens(file)))


def _block_tokens(file: "TraceFile") -> int | None:
    """What an id of the trace stands for; None where it has none."""
    from kvsim.study.trace_file import Reading

    reading = Reading()
    next(file.all_rows(reading), None)
    return reading.block_tokens


def _show_windows(path: Path, json: bool, requests_only: Mapping[str, object]) -> bool:
    """Print what a file of rates or lengths by window says; False where it is another.

    Raises TraceError where it is one, and an option is given that is about requests.
    """
    from kvsim.errors import TraceError
    from kvsim.study.servegen import servegen_windows, to_json
    from kvsim.study.trace_table import windows_page

    windows = servegen_windows(path) if path.is_file() else None
    if windows is None:
        return False
    for name, value in requests_only.items():
        if value is not None:
            raise TraceError(f"{path}: has {windows.format}, not requests, so {name} changes nothing")
    if json:
        print_json(to_json(windows))
    else:
        print_page(windows_page(windows, path.name))
    return True


@trace_app.command()
def convert(
    trace: TraceArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write; .gz packs Mooncake JSONL.")],
    to: Annotated[
        str | None, typer.Option(help="mooncake or parquet; else parquet where the name ends in .parquet.")
    ] = None,
    format: FormatOption = None,
    block_tokens: BlockTokensOption = None,
    tokenizer: TokenizerOption = None,
    columns: ColumnsOption = None,
    time_unit: TimeUnitOption = None,
    on_bad_row: BadRowOption = "error",
    out_block_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens that an id of the written file stands for; as in the trace, else 16, if not given."),
    ] = None,
    start: Annotated[str, typer.Option(help="Leave out what comes earlier after the first request.")] = "0 s",
    end: Annotated[str | None, typer.Option(help="Leave out what comes then or later.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many requests.")] = None,
    sample: Annotated[float | None, typer.Option(help="Share of the conversations to keep, whole; else all.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which of them; else 0.")] = None,
    speedup: Annotated[float, typer.Option(help="Divide times by this.")] = 1.0,
) -> None:
    """Write a trace, or a part of it, as Mooncake JSONL or Parquet.

    For example:

    - `kvsim trace convert AzureLLMInferenceTrace_conv.csv --to parquet -o conv.parquet`
    - `kvsim trace convert conversation_trace.jsonl --start "10 min" --end "20 min" --speedup 2 -o busy.jsonl.gz`
    - `kvsim trace convert conversation_trace.jsonl --sample 0.1 -o tenth.jsonl`
    """
    import sys

    from kvsim.errors import TraceError
    from kvsim.study.files import staged_file
    from kvsim.study.trace_convert import Part
    from kvsim.study.trace_convert import convert as convert_trace

    if sample is None:
        _refuse_without("--sample", {"--seed": seed})
    start_ns, end_ns = _time("--start", start), None if end is None else _time("--end", end)
    if end_ns is not None and end_ns <= start_ns:
        raise TraceError(f"--end must be later than --start = {start}, got {end}")
    try:
        part = Part(
            start_ns=start_ns,
            end_ns=end_ns,
            share=1.0 if sample is None else sample,
            seed=seed or 0,
            limit=limit,
            speedup=speedup,
        )
    except ValueError as error:
        raise TraceError(str(error)) from None
    if to is None:
        to = "parquet" if out.suffix == ".parquet" else "mooncake"
    file = trace_file(trace, format, options_of(block_tokens, tokenizer, columns, time_unit), on_bad_row)
    with staged_file(out) as staging:
        written = convert_trace(file, part, to, staging, out_block_tokens)
    note = "" if written.has_content else "; no content: nothing in it is shared"
    if written.has_content and (file.reading.block_tokens or 1) % written.block_tokens:
        note += f"; shared in ids of {written.block_tokens:,} tokens, where the trace is finer"
    note += "; what was generated is not kept, so later prompts do not find it" if written.had_outputs else ""
    say_passed_over(file)
    print(f"wrote {out}: {written.rows:,} requests{note}", file=sys.stderr)


def _time(option: str, text: str) -> int:
    from kvsim.errors import TraceError
    from kvsim.units import parse_duration_ns

    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise TraceError(f"{option} {error}, got {text!r}") from None


@trace_app.command()
def fit(
    trace: TraceArgument,
    format: FormatOption = None,
    block_tokens: BlockTokensOption = None,
    tokenizer: TokenizerOption = None,
    columns: ColumnsOption = None,
    time_unit: TimeUnitOption = None,
    on_bad_row: BadRowOption = "error",
    seed: Annotated[int, typer.Option(min=0, help="Of the requests that are generated to be compared.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the table; else stdout.")] = None,
    json: JsonOption = False,
) -> None:
    """Write a table [workload] whose generated traffic resembles a trace, and say how far each figure is off.

    For example:

    - `kvsim trace fit AzureLLMInferenceTrace_conv.csv`
    - `kvsim trace fit conversation_trace.jsonl -o workload.toml`
    """
    import sys

    from kvsim.study.files import staged_file
    from kvsim.study.trace_fit import fit as fit_trace

    file = trace_file(trace, format, options_of(block_tokens, tokenizer, columns, time_unit), on_bad_row)
    fitted = fit_trace(file, seed)
    say_passed_over(file)
    text = fitted.to_toml(trace.name)
    if out is not None:
        with staged_file(out) as staging:
            staging.write_text(text, encoding="utf-8")
        print(f"wrote {out}", file=sys.stderr)
    if json:
        print_json(fitted.to_json())
    elif out is None:
        sys.stdout.write(text)
