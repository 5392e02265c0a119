"""The command that sets a run beside what a real server measured: it parses, calls the library, prints."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvsim.cli_options import JsonOption
from kvsim.console import need_picture_name, print_json, print_page

if TYPE_CHECKING:
    from kvsim.study.measured.read import Measured


def mount(app: typer.Typer) -> None:
    """Make the command one of an application."""
    app.command("compare-measured")(compare_measured)


def compare_measured(
    directory: Annotated[Path, typer.Argument(help="Folder that kvsim run wrote to.")],
    metrics: Annotated[
        list[Path],
        typer.Option(help="What the server logged, plain or gzip; see above. Repeatable."),
    ],
    format: Annotated[
        str | None,
        typer.Option(help="prometheus, api, csv, parquet or log, for all files; recognised if not given."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of several engines the one with this label. Repeatable."),
    ] = None,
    offset: Annotated[
        str | None,
        typer.Option(
            help="Where the first scrape lies in the run, such as '12 s' or '-500 ms'; best, if not given: where both "
            "differ least; first: the first scrape that saw something run is the run's first request."
        ),
    ] = None,
    began: Annotated[
        str | None,
        typer.Option(
            help="When the run's time 0 was on the server's clock, such as 2026-11-30T00:53:20Z or unix seconds; "
            "instead of --offset."
        ),
    ] = None,
    scrape_interval: Annotated[
        str | None, typer.Option(help="Time between scrapes that do not say when they were made, such as '5 s'.")
    ] = None,
    fact: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="What no file says: model, model_revision, engine, engine_version, gpu, allocator, kv_dtype, "
            "block_size, num_blocks or peak_memory. Repeatable.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Where the picture goes; measured.png in the folder if not given.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Set a run beside what a real server measured: draw both, and say by how much they differ.

    Files are recognised by what is in them:

    - Prometheus' text of vLLM's /metrics, one scrape or many one after another; a comment `# scraped at TIME` before
      each says when, else --scrape-interval
    - the JSON of Prometheus' query_range
    - CSV or Parquet of a scrape: a column of times, and columns named as vLLM's series or metric and value
    - vLLM's log: its periodic lines, and what it printed when it started

    The first scrape that saw something run says that it began since the scrape before: of the moments in between the
    clocks are set to the one at which both sides differ least, and what the ends would give is said; --offset sets them
    otherwise. measured.json is written into the folder, or with --json printed.

    For example:

    - `kvsim compare-measured out/quick_start --metrics scrapes.prom --metrics server.log`
    - `kvsim compare-measured out/quick_start --metrics range.json --label engine=0 --fact gpu="H100 80GB"`
    - `kvsim compare-measured out/quick_start --metrics scrape.csv --offset "12 s" --json`
    """
    from contextlib import ExitStack
    from json import dumps

    from kvsim.study.files import MEASURED, read_results, staged_file
    from kvsim.study.measured.compare import compare_measured as compare
    from kvsim.study.measured.plot import panels_of, save_measured_plot
    from kvsim.study.measured.read import read_measured
    from kvsim.study.measured.sizes import CONDITIONS
    from kvsim.study.measured.table import measured_json, measured_page

    need_picture_name(plot)
    chosen = _offset(offset)
    measured = read_measured(
        metrics,
        kind=format,
        labels=_pairs("--label", label),
        scrape_interval_ns=_interval(scrape_interval),
        facts=_pairs("--fact", fact, tuple(name for name in CONDITIONS if name != "kv_peak")),
    )
    if began is not None:
        chosen = _since(began, offset, measured)
    comparison = compare(read_results(directory), measured, offset=chosen)
    found = measured_json(comparison)
    picture = (plot or directory / MEASURED["plot"]) if panels_of(comparison) else None
    text = None if json else directory / MEASURED["json"]
    written = [path for path in (picture, text) if path is not None]
    with ExitStack() as stack:  # all of it is there before any of it appears
        for path in written:
            staging = stack.enter_context(staged_file(path))
            if path == picture:
                save_measured_plot(comparison, staging)
            else:
                told = dumps(found, indent=2, ensure_ascii=False, allow_nan=False)
                staging.write_text(told + "\n", encoding="utf-8")
    ours = [directory / name for name in MEASURED.values()]
    if any(path in ours for path in written):
        for path in ours:  # of another comparison
            if path not in written:
                path.unlink(missing_ok=True)
    for path in written:
        print(f"wrote {path}", file=sys.stderr)
    if json:
        print_json(found)
    else:
        print_page(measured_page(comparison))


def _offset(text: str | None) -> int | Literal["best", "first"]:
    if text in (None, "best"):
        return "best"
    if text == "first":
        return "first"
    nanoseconds = _duration("--offset", text)
    assert nanoseconds is not None, "there is a text"
    return nanoseconds


def _since(began: str, offset: str | None, measured: "Measured") -> int:
    """Where the first scrape lies in a run that began then."""
    from kvsim.errors import MeasuredError
    from kvsim.rules import shown
    from kvsim.study.measured.text import parse_time_ns

    if offset is not None:
        raise MeasuredError("--began and --offset say the same in two ways: give one of them")
    began_ns = parse_time_ns(began)
    if began_ns is None:
        raise MeasuredError(f"--began must be a time as date -Is writes it, or unix time, got {shown(began)}")
    if measured.source == "log":
        raise MeasuredError("--began needs scrapes: a log's times have no year and no zone; use --offset")
    return min((int(each.times[0]) for each in measured.series.values()), default=began_ns) - began_ns


def _duration(option: str, text: str | None) -> int | None:
    """Nanoseconds, which a sign may make negative."""
    from kvsim.errors import MeasuredError
    from kvsim.rules import shown
    from kvsim.units import parse_duration_ns

    if text is None:
        return None
    bare = text.strip()
    try:
        nanoseconds = parse_duration_ns(bare.removeprefix("+" if bare.startswith("+") else "-"))
    except ValueError as error:
        raise MeasuredError(f"{option} {error}, got {shown(text)}") from None
    if nanoseconds >= 2**62:
        raise MeasuredError(f"{option} must be below 146 years, got {shown(text)}")
    return -nanoseconds if bare.startswith("-") else nanoseconds


def _interval(text: str | None) -> int | None:
    from kvsim.errors import MeasuredError
    from kvsim.rules import shown

    nanoseconds = _duration("--scrape-interval", text)
    if nanoseconds is not None and not 0 < nanoseconds <= 10**9 * 86_400:
        raise MeasuredError(f"--scrape-interval must be more than 0 and at most a day, got {shown(text)}")
    return nanoseconds


def _pairs(option: str, texts: list[str] | None, known: tuple[str, ...] | None = None) -> dict[str, str]:
    """What NAME=VALUE says; a name that is not one of the known is an error."""
    from kvsim.errors import MeasuredError
    from kvsim.rules import shown

    pairs: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value or name in pairs:
            raise MeasuredError(f"{option} must be NAME=VALUE, each name once, got {shown(text)}")
        if known is not None and name not in known:
            raise MeasuredError(f"{option} must name one of {', '.join(known)}, got {shown(name)}")
        pairs[name] = value
    return pairs
