"""Parts of traces, written and read again."""

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from kvsim.errors import TraceError
from kvsim.study.hits import Prompts
from kvsim.study.trace_convert import Part, convert
from kvsim.study.trace_file import TraceFile
from kvsim.workload.traces import Row, read_rows
from tests.study.makers import AZURE_ROWS


def shared_share(rows: list[Row]) -> float:
    prompts = Prompts()
    for row in rows:
        prompts.add(row.prompt or ())
    return prompts.ideal_hit_tokens(512) / sum(row.prompt_tokens for row in rows)


@pytest.fixture(scope="module")
def thousand(shared: Path) -> TraceFile:
    return TraceFile.of(shared / "traces" / "mooncake" / "mooncake_trace_1000.jsonl")


@pytest.fixture(scope="module")
def conversation(shared: Path) -> TraceFile:
    return TraceFile.of(shared / "traces" / "mooncake" / "conversation_trace.jsonl.gz")


@pytest.mark.parametrize("name", ["again.jsonl", "again.jsonl.gz"])
def test_a_mooncake_trace_written_again_is_the_same_file(thousand: TraceFile, tmp_path: Path, name: str) -> None:
    """Its ids are numbered in the order in which they appear, and every prompt's last block has its own."""
    assert convert(thousand, Part(), "mooncake", tmp_path / name) == (1_000, True, False)
    rows, again = list(thousand.rows()), list(read_rows(tmp_path / name, "mooncake"))
    assert [row[:3] for row in again] == [row._replace(time_ns=row.time_ns - rows[0].time_ns)[:3] for row in rows]
    numbers: dict[object, int] = {}
    for row, other in zip(rows, again, strict=True):
        assert row.prompt is not None
        assert other.prompt is not None
        assert [numbers.setdefault(span.source, len(numbers)) for span in row.prompt] == [
            span.source for span in other.prompt
        ]


def test_parquet_has_times_lengths_and_ids(thousand: TraceFile, tmp_path: Path) -> None:
    convert(thousand, Part(limit=3), "parquet", tmp_path / "trace.parquet", block_tokens=4_096)
    frame = pl.read_parquet(tmp_path / "trace.parquet")
    rows = list(thousand.rows())[:3]
    assert frame.columns == ["arrival_ns", "prompt_tokens", "output_tokens", "hash_ids"]
    assert frame["prompt_tokens"].to_list() == [row.prompt_tokens for row in rows]
    assert [len(ids) for ids in frame["hash_ids"].to_list()] == [-(-row.prompt_tokens // 4_096) for row in rows]


@pytest.fixture
def azure(tmp_path: Path) -> TraceFile:
    """Rows at 0, 0.3194100 and 0.8194101 s."""
    (tmp_path / "trace.csv").write_text(AZURE_ROWS)
    return TraceFile.of(tmp_path / "trace.csv")


def test_blocks_without_known_content_are_not_shared(azure: TraceFile, tmp_path: Path) -> None:
    assert convert(azure, Part(), "mooncake", tmp_path / "a.jsonl") == (3, False, False)
    rows = list(read_rows(tmp_path / "a.jsonl", "mooncake"))
    assert [row[:3] for row in rows] == [(0, 12, 4), (319_000_000, 30, 9), (819_000_000, 7, 1)]
    assert shared_share(rows) == 0
    convert(azure, Part(), "parquet", tmp_path / "a.parquet")
    assert pl.read_parquet(tmp_path / "a.parquet")["hash_ids"].to_list() == [None, None, None]


def test_a_part_is_cut_by_time_then_speeded_up_and_starts_at_its_first_request(azure: TraceFile) -> None:
    part = Part(start_ns=300_000_000, end_ns=819_410_100, speedup=2.0)
    assert [row[:3] for row in part.rows(azure)] == [(0, 30, 9)]
    part = Part(start_ns=1, end_ns=819_410_101, speedup=2.0)
    assert [row[:3] for row in part.rows(azure)] == [(0, 30, 9), (250_000_050, 7, 1)]
    assert [row[:3] for row in Part(limit=1).rows(azure)] == [(0, 12, 4)]


def test_a_sample_keeps_what_is_shared(conversation: TraceFile) -> None:
    everything = list(Part().rows(conversation))
    tenth = list(Part(share=0.1, seed=1).rows(conversation))
    assert len(tenth) == pytest.approx(1_203, rel=0.15)
    assert shared_share(tenth) == pytest.approx(shared_share(everything), rel=0.1)
    by_chance = everything[::10]
    assert shared_share(by_chance) < 0.6 * shared_share(everything), "what a sample of single requests loses"
    assert tenth == list(Part(share=0.1, seed=1).rows(conversation))
    assert tenth != list(Part(share=0.1, seed=2).rows(conversation))


def test_requests_without_content_are_sampled_one_by_one(shared: Path) -> None:
    trace = TraceFile.of(shared / "traces" / "azure2023" / "AzureLLMInferenceTrace_code.csv")
    assert sum(1 for _ in Part(share=0.5).rows(trace)) == pytest.approx(8_819 / 2, rel=0.05)


def test_times_that_go_back_are_refused(azure: TraceFile) -> None:
    lines = AZURE_ROWS.splitlines()
    azure.path.write_text("\n".join([lines[0], lines[2], lines[1]]))
    with pytest.raises(TraceError, match="request 2 comes before the one above; sort the file by time"):
        list(Part().rows(azure))


class Lacking(TraceFile):
    """A trace that says neither when requests came nor how long their outputs were."""

    def rows(self) -> Iterator[Row]:
        yield Row(None, 5, None)


def test_what_a_file_to_be_replayed_needs_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the trace has no times, which a file to be replayed needs"):
        convert(Lacking(tmp_path, "mooncake"), Part(), "mooncake", tmp_path / "out")


def test_what_cannot_be_written_is_refused(azure: TraceFile, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="the format to write must be one of mooncake, parquet, got 'tape'"):
        convert(azure, Part(), "tape", tmp_path / "out")
    with pytest.raises(TraceError, match="block tokens must be between 1 and 1,000,000,000, got 0"):
        convert(azure, Part(), "mooncake", tmp_path / "out", 0)
    with pytest.raises(TraceError, match="has no requests in that part"):
        convert(azure, Part(start_ns=10**12), "mooncake", tmp_path / "out")
    with pytest.raises(ValueError, match="share must be > 0 and at most 1, got 0"):
        Part(share=0)
