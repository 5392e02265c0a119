"""What the benchmarks are given: the public traces, a page for what does not fit in a table of times, slow ones."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

_PAGE = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvsim")
    group.addoption("--run-slow", action="store_true", help="Run also what takes minutes.")
    group.addoption(
        "--block-size-table",
        metavar="FILE",
        help="Write what block sizes do as CSV or Markdown (.csv, .md), or print it (-).",
    )


def pytest_configure(config: pytest.Config) -> None:
    table = config.getoption("--block-size-table")
    if table not in (None, "-") and Path(table).suffix not in (".csv", ".md"):
        raise pytest.UsageError(f"--block-size-table must end with .csv or .md, or be -, got {table}")
    config.stash[_PAGE] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="takes minutes: --run-slow"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash[_PAGE]:
        terminalreporter.section("measured beside the times")
        for line in config.stash[_PAGE]:
            terminalreporter.write_line(line)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Write a line, or several, on the page that is printed at the end."""
    return request.config.stash[_PAGE].append


@pytest.fixture(scope="module")
def block_size_table(request: pytest.FixtureRequest) -> Iterator[list[pl.DataFrame]]:
    """Rows of a shape each; in the end they go where --block-size-table says."""
    parts: list[pl.DataFrame] = []
    yield parts
    target = request.config.getoption("--block-size-table")
    if target is None or not parts:
        return
    table = pl.concat(parts)
    if target == "-":
        request.config.stash[_PAGE].append(_markdown(table))
    else:
        path = Path(target)
        path.write_text(table.write_csv() if path.suffix == ".csv" else _markdown(table) + "\n", encoding="utf-8")


def _markdown(table: pl.DataFrame) -> str:
    rows = [table.columns, ["---"] * table.width]
    rows += [[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row] for row in table.rows()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _trace(*parts: str) -> Path:
    folder = os.environ.get("KVSIM_SHARED")
    if folder is None:
        pytest.skip("KVSIM_SHARED does not say in which folder the public traces are")
    path = Path(folder, "traces", *parts)
    if not path.is_file():
        pytest.skip(f"there is no {Path(*parts)} among the traces of KVSIM_SHARED")
    return path


@pytest.fixture(scope="session")
def azure_conversation() -> Path:
    return _trace("azure2023", "AzureLLMInferenceTrace_conv.csv")


@pytest.fixture(scope="session")
def mooncake_conversation() -> Path:
    return _trace("mooncake", "conversation_trace.jsonl.gz")
