"""The command that says what allocators waste of a trace: it parses, calls the library, prints."""

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
from kvsim.console import need_picture_name, print_json, print_page, progress_bar

if TYPE_CHECKING:
    from kvsim.study.waste import Bounds


def mount(app: typer.Typer) -> None:
    """Make the command one of an application."""
    app.command()(waste)


def waste(
    trace: TraceArgument,
    allocators: Annotated[
        str,
        typer.Option(
            metavar="NAME,...", help="Any of paged:B, max, max:LEN, pow2, pow2:LEN, oracle, predicted:ERROR; see above."
        ),
    ] = "paged:16,max,pow2,oracle",
    min_prompt: Annotated[int, typer.Option(help="Leave out requests with fewer prompt tokens.")] = 4,
    max_prompt: Annotated[int, typer.Option(help="Leave out requests with more prompt tokens.")] = 1024,
    min_output: Annotated[int, typer.Option(help="Leave out requests with fewer output tokens.")] = 4,
    max_total: Annotated[int, typer.Option(help="Leave out requests with more tokens, prompt and output.")] = 2048,
    first_turns: Annotated[
        bool | None,
        typer.Option(
            "--first-turns/--all-turns",
            help="Of each session only the first request; else all, but for turn_lengths, whose later prompts lack "
            "what was said before.",
        ),
    ] = None,
    format: FormatOption = None,
    block_tokens: BlockTokensOption = None,
    tokenizer: TokenizerOption = None,
    columns: ColumnsOption = None,
    time_unit: TimeUnitOption = None,
    on_bad_row: BadRowOption = "error",
    limit: Annotated[int | None, typer.Option(help="Only so many rows from the start.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the shares as stacked bars here.")] = None,
    json: JsonOption = False,
) -> None:
    """Say how much of what paged and reserving allocators set aside for a trace is ever written, in closed form.

    Each request is alone, has its whole prompt from its first step on and lives for as many steps as it has output
    tokens. There is no clock, no queue and no sharing, so the shares are of the lengths alone.

    What an allocator sets aside for a request:

    - `paged:B`: blocks of B tokens, taken as they are written (PagedAttention)
    - `max`, `max:LEN`: LEN slots, from the first step to the last; --max-total if LEN is not given
    - `pow2`, `pow2:LEN`: prompt + next power of two >= output, not cut at LEN
    - `oracle`: prompt + output, as if the output were known
    - `predicted:ERROR`: prompt + output guessed too long by ERROR, such as 0.25 of it

    LEN is the longest request that an allocator is to hold: a longer one that is kept is an error.

    For example:

    - `kvsim waste AzureLLMInferenceTrace_conv.csv`
    - `kvsim waste AzureLLMInferenceTrace_conv.csv --allocators paged:16,paged:128,max:2048,pow2:2048,oracle --json`
    - `kvsim waste conversation_trace.jsonl --max-prompt 131072 --max-total 131072 --plot waste.png`
    """
    from kvsim.study.allocators import parse_allocators
    from kvsim.study.waste import count_waste
    from kvsim.study.waste_table import save_waste_plot, waste_page

    need_picture_name(plot)
    need_bounds(None, limit)
    specs = parse_allocators(allocators)
    bounds = _bounds(min_prompt, max_prompt, min_output, max_total)
    file = trace_file(trace, format, options_of(block_tokens, tokenizer, columns, time_unit), on_bad_row)
    with progress_bar("reading requests") as on_progress:
        wasted = count_waste(file, specs, bounds, first_turns=first_turns, limit=limit, on_progress=on_progress)
    say_passed_over(file)
    if plot is not None:
        from kvsim.study.files import staged_file

        with staged_file(plot) as staging:
            save_waste_plot(wasted, trace.name, staging)
    if json:
        print_json(wasted.to_json())
    else:
        print_page(waste_page(wasted, trace.name))


def _bounds(min_prompt: int, max_prompt: int, min_output: int, max_total: int) -> "Bounds":
    from kvsim.errors import TraceError
    from kvsim.study.waste import Bounds

    try:
        return Bounds(min_prompt=min_prompt, max_prompt=max_prompt, min_output=min_output, max_total=max_total)
    except ValueError as error:
        # As they are typed: --min-prompt for min_prompt.
        said = str(error)
        for name in ("min_prompt", "max_prompt", "min_output", "max_total"):
            said = said.replace(name, f"--{name.replace('_', '-')}")
        raise TraceError(said) from None
