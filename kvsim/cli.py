"""The command line: each command parses, calls the library, prints. Every one can be done from Python too."""

import os
import signal
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from kvsim import __version__
from kvsim.cli_app import mount as mount_app
from kvsim.cli_compare import mount as mount_compare
from kvsim.cli_diff import mount as mount_diff
from kvsim.cli_measured import mount as mount_measured
from kvsim.cli_report import mount as mount_report
from kvsim.cli_sweep import mount as mount_sweep
from kvsim.cli_trace import mount as mount_trace
from kvsim.cli_waste import mount as mount_waste
from kvsim.console import need_picture_name, progress_bar
from kvsim.console import print_json as _print_json
from kvsim.console import print_page as _print
from kvsim.errors import InvariantError, KvsimError
from kvsim.rules import printable

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
mount_app(app)
mount_compare(app)
mount_diff(app)
mount_report(app)
mount_measured(app)
mount_sweep(app)
mount_trace(app)
mount_waste(app)


def main() -> None:
    """Entry point: what kvsim refuses is one message on stderr and exit code 2; a failed recount exits with 1.

    A command that was told what may not be, and found it so, exits with 3.
    """
    os.environ["MPLBACKEND"] = "agg"  # pictures go to files; a backend set for notebooks may not be there
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="kvsim")
    except (KvsimError, OSError) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except InvariantError as error:
        print(f"defect: {error}", file=sys.stderr)
        sys.exit(1)


def is_compiled() -> bool:
    """Whether kvsim was compiled while it was installed (hatch_build.py)."""
    clock = find_spec("kvsim.engine.clock")
    assert clock is not None, "it is a part of kvsim"
    return not str(clock.origin).endswith(".py")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kvsim {__version__}{' (compiled)' if is_compiled() else ''}")
        raise typer.Exit


@app.callback()
def kvsim(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How much KV-cache memory your model and traffic need, and how much of it is waste.

    kvsim replays requests through a PagedAttention-style block manager and scheduler that decide as vLLM's do, and
    says what was allocated, written, shared, refused and preempted. It is a sizing model, not an out-of-memory
    predictor and not a throughput benchmark.
    """


@app.command()
def run(
    scenario: Annotated[Path, typer.Argument(help="Scenario file (TOML).")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for summary.json, memory.png, and timeline, requests, pressure and blocks as .parquet."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Override a key; an empty value removes it. Repeatable."),
    ] = None,
    step: Annotated[
        bool, typer.Option("--step", help="Take step after step instead of windows of them; slower, to the same end.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Recount all of memory after every step; slow.")] = False,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="'FIGURE > NUMBER'",
            help="Exit with 3 if a figure of the summary is so; < <= > >= == !=, and units as in '4 GiB', '200 ms', "
            "'4%'. Repeatable.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON on stdout, and nothing else.")
    ] = False,
) -> None:
    """Simulate a scenario and say what became of memory and requests.

    With `--fail-if` the run is a gate of a pipeline: all is written and printed as ever, and then each limit that broke
    is named on stderr, with how far it is off, and the exit code is 3. A figure that has no value in the run, as when
    nothing was admitted, breaks its limit too.

    For example:

    - `kvsim run scenarios/quick_start.toml --out out/quick_start`
    - `kvsim run scenarios/quick_start.toml --set memory.block_size=128 --set workload.rate=8`
    - `kvsim run scenarios/quick_start.toml --json`
    - `kvsim run scenarios/quick_start.toml --fail-if "slack_share > 4%" --fail-if "waited_p99_ns > 200 ms"`
    """
    from kvsim.engine.tables import NoTables
    from kvsim.study.block_maps import BlockMaps
    from kvsim.study.files import TablesInFiles, remove_other_results, staged, summary_json, tables_of, write_results
    from kvsim.study.gate import broken_limits, parse_limits
    from kvsim.study.run import simulate
    from kvsim.study.scenario import load_scenario

    overrides = (*(set_ or ()), *(["engine.fast_forward=false"] if step else []))
    loaded = load_scenario(scenario, overrides)
    limits = parse_limits(fail_if or (), has_samples=loaded.sample_sharing is not None)
    with staged(out) if out else nullcontext() as folder:
        tables = TablesInFiles(folder, tables_of(loaded.study.write)) if folder is not None else NoTables()
        maps = BlockMaps() if folder is not None and "blocks" in loaded.study.write else None
        with progress_bar("simulating requests") as on_progress:
            results = simulate(
                loaded,
                tables=tables,
                check=check,
                on_progress=on_progress,
                moments=() if maps is None else maps.moments(),
                on_moment=None if maps is None else maps.add,
            )
        if folder is not None:
            write_results(results, folder, loaded.study.write, maps)
    if out is not None:
        remove_other_results(out, loaded.study.write)
        print(f"wrote {out}", file=sys.stderr)
    if json:
        sys.stdout.write(summary_json(results))
    else:
        from kvsim.study.results_table import results_table

        _print(results_table(results))
    if broken := broken_limits(limits, results.metrics):
        for sentence in broken:
            print(f"limit broken: {sentence}", file=sys.stderr)
        raise typer.Exit(3)


@app.command()
def plot(
    directory: Annotated[Path, typer.Argument(help="Folder that kvsim run wrote to.")],
    out: Annotated[
        Path | None, typer.Option(help="Where the picture goes; memory.png in the folder if not given.")
    ] = None,
) -> None:
    """Draw memory over time again from the files of a run."""
    from kvsim.study.files import FILES, read_results, staged_file
    from kvsim.study.plots import save_memory_plot

    target = out or directory / FILES["plot"]
    results = read_results(directory)
    with staged_file(target) as staging:
        save_memory_plot(results, staging)
    print(f"wrote {target}", file=sys.stderr)


@app.command()
def model(
    config: Annotated[
        str | None, typer.Argument(help="Catalogue name, config.json, or hf:org/model; none lists the catalogue.")
    ] = None,
    kv_dtype: Annotated[str, typer.Option(help="Number format of the cache.")] = "bf16",
    tensor_parallel: Annotated[int, typer.Option(help="Ranks that share the heads.")] = 1,
    pipeline_parallel: Annotated[int, typer.Option(help="Ranks that share the layers.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON, and nothing else.")] = False,
) -> None:
    """Show what a model keeps of each token, by kind of layer, or list the models known by name.

    For example:

    - `kvsim model`
    - `kvsim model gemma-3-27b`
    - `kvsim model path/to/config.json --kv-dtype fp8 --tensor-parallel 4 --json`
    """
    from kvsim.model.catalogue import catalogue, load_geometry
    from kvsim.model.describe import describe
    from kvsim.model.formats import known_dtype

    if config is None:
        if json:
            _print_json(sorted(catalogue()))
        else:
            from rich.columns import Columns

            _print(Columns(sorted(catalogue()), column_first=True, padding=(0, 3)))
        return
    geometry = load_geometry(config, Path())
    dtype = known_dtype(kv_dtype)
    if json:
        _print_json(describe(geometry, dtype, tensor_parallel, pipeline_parallel))
    else:
        from kvsim.study.geometry_table import model_page

        _print(model_page(geometry, dtype, tensor_parallel, pipeline_parallel))


@app.command()
def size(
    config: Annotated[str, typer.Argument(help="Catalogue name, config.json, or hf:org/model.")],
    budget: Annotated[str | None, typer.Option(help="KV bytes on each rank, such as '30 GiB'.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU of the table, such as h100.")] = None,
    memory: Annotated[str | None, typer.Option(help="A device's memory as programs see it.")] = None,
    weights: Annotated[str | None, typer.Option(help="Bytes of weights on each rank.")] = None,
    parameters: Annotated[str | None, typer.Option(help="Parameters of the model, such as 8.03B.")] = None,
    weight_dtype: Annotated[str, typer.Option(help="Number format of the weights.")] = "bf16",
    activations: Annotated[str | None, typer.Option(help="Activation peak on each rank.")] = None,
    overhead: Annotated[str | None, typer.Option(help="Device context, buffers, captured graphs.")] = None,
    fraction: Annotated[
        float | None,
        typer.Option(
            "--gpu-memory-utilization",
            "--mem-fraction-static",
            "--free-gpu-memory-fraction",
            "--cache-max-entry-count",
            help="Share of memory that the engine takes, by its own rule.",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="vllm, vllm-0.19, vllm-v0, sglang, tensorrt-llm or lmdeploy.")] = "vllm",
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest request; else the model's own, else --tokens.")
    ] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens of a block; else the engine's own.")] = None,
    kv_dtype: Annotated[str, typer.Option(help="Number format of the cache.")] = "bf16",
    tensor_parallel: Annotated[int, typer.Option(help="Ranks that share the heads.")] = 1,
    pipeline_parallel: Annotated[int, typer.Option(help="Ranks that share the layers.")] = 1,
    data_parallel_attention: Annotated[int, typer.Option(help="Replicas of attention among the ranks.")] = 1,
    decode_context_parallel: Annotated[int, typer.Option(help="Ranks that tokens are dealt out over.")] = 1,
    max_num_batched_tokens: Annotated[int | None, typer.Option(help="Tokens of one step.")] = None,
    source_tokens: Annotated[int | None, typer.Option(help="Image or encoder tokens of a request.")] = None,
    sequences: Annotated[int, typer.Option(help="How many sequences to lay out.")] = 1,
    tokens: Annotated[int | None, typer.Option(help="Tokens of each; else max_model_len.")] = None,
    target: Annotated[int | None, typer.Option(help="Concurrency to find the budget for.")] = None,
    mean_tokens: Annotated[int | None, typer.Option(help="Mean length of a mix of requests.")] = None,
    percentiles: Annotated[str | None, typer.Option(help="Lengths of a mix: 50=800,90=3000,99=8000.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Trace whose lengths are the mix: plain, gzip, zstd or Parquet.")
    ] = None,
    trace_format: Annotated[str | None, typer.Option(help="Format of the trace, if it is not recognised.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw bytes against context length here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON, and nothing else.")] = False,
) -> None:
    """Say how many tokens and requests fit, ideally and as the engine lays them out.

    For example:

    - `kvsim size qwen2.5-32b --budget "30 GiB" --max-model-len 8192`
    - `kvsim size gemma-3-27b --gpu h100 --parameters 27.4B --tensor-parallel 2 --plot scaling.png`
    - `kvsim size llama-3.1-8b --budget "16 GiB" --sequences 16 --tokens 8192 --json`
    """
    from kvsim.model.budget import read_budget
    from kvsim.model.catalogue import load_geometry
    from kvsim.model.deployment import Deployment
    from kvsim.model.formats import known_dtype
    from kvsim.model.mix import read_mix
    from kvsim.model.sizing import size as size_model

    need_picture_name(plot)
    geometry = load_geometry(config, Path())
    deployment = Deployment(
        kv_dtype=known_dtype(kv_dtype),
        engine=engine,
        block_size=block_size,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel_attention=data_parallel_attention,
        decode_context_parallel=decode_context_parallel,
        max_num_batched_tokens=max_num_batched_tokens,
        source_tokens=source_tokens,
    )
    kv = read_budget(
        budget=budget,
        gpu=gpu,
        memory=memory,
        engine=engine,
        fraction=fraction,
        weights=weights,
        parameters=parameters,
        weight_dtype=weight_dtype,
        activations=activations,
        overhead=overhead,
        num_ranks=deployment.num_ranks,
    )
    sizing = size_model(
        geometry,
        kv.kv_bytes,
        deployment,
        max_model_len=max_model_len,
        num_sequences=sequences,
        num_tokens=tokens,
        target_concurrency=target,
        mix=read_mix(mean_tokens, percentiles, _trace_lengths(trace, trace_format)),
        assumptions=kv.assumptions,
    )
    if plot is not None:
        from kvsim.model.scaling import save_scaling_plot, scaling
        from kvsim.study.files import staged_file

        lines = scaling(geometry, kv.kv_bytes, deployment, max_model_len=sizing.max_model_len)
        with staged_file(plot) as staging:
            save_scaling_plot(lines, staging)
        print(f"wrote {plot}", file=sys.stderr)
    if json:
        _print_json(sizing.to_json() | {"budget": kv.to_json()})
    else:
        from kvsim.study.sizing_table import sizing_table

        _print(sizing_table(sizing, kv))


def _trace_lengths(path: Path | None, trace_format: str | None) -> list[int] | None:
    """Prompt and output tokens of each request of a trace."""
    if path is None:
        return None
    from kvsim.workload.traces import read_rows

    return [row.prompt_tokens + (row.output_tokens or 0) for row in read_rows(path, trace_format)]
