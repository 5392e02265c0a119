"""Parts of traces, written and read again."""

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from kvsim.errors import TraceError
from kvsim.study.hits import Prompts, count_hits
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.study.trace_convert import Part, convert, write_parquet
from kvsim.study.trace_file import TraceFile
from kvsim.workload.request import Content, Span
from kvsim.workload.traces import Options, Row, read_rows
from kvsim.workload.traces.parquet import BATCH, NEEDED
from tests.study.makers import AZURE_ROWS, TINY_TRACE, write_scenario


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
    assert convert(thousand, Part(), "mooncake", tmp_path / name) == (1_000, True, False, 512)
    rows, again = list(thousand.rows()), list(read_rows(tmp_path / name, "mooncake"))
    assert [row[:3] for row in again] == [row._replace(time_ns=row.time_ns - rows[0].time_ns)[:3] for row in rows]
    numbers: dict[object, int] = {}
    for row, other in zip(rows, again, strict=True):
        assert row.prompt is not None
        assert other.prompt is not None
        assert [numbers.setdefault(span.source, len(numbers)) for span in row.prompt] == [
            span.source for span in other.prompt
        ]


@pytest.mark.parametrize(
    ("text", "options", "tokens"),
    [
        ('{"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1, 2, 3]}', {}, 16),
        ('{"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1]}', {}, 512),
        ('{"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [1, 2]}', {"block_tokens": 20}, 20),
        ('{"input_toks": 3, "output_toks": 1, "arrival_time_ns": 0, "input_tok_ids": [5, 6, 7]}', {}, 16),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,12,4\n", {}, 512),
        (
            '{"id": "a", "block_size": 48, "requests": [{"t": 0, "in": 50, "out": 1, "hash_ids": [1]}]}\n'
            '{"id": "b", "block_size": 32, "requests": [{"t": 1, "in": 50, "out": 1, "hash_ids": [1]}]}',
            {},
            16,
        ),
    ],
)
def test_ids_stand_for_as_many_tokens_as_those_of_the_source(
    text: str, options: dict[str, int], tokens: int, tmp_path: Path
) -> None:
    (tmp_path / "source").write_text(text)
    trace = TraceFile.of(tmp_path / "source", options=Options(block_tokens=options.get("block_tokens")))
    assert convert(trace, Part(), "parquet", tmp_path / "t").block_tokens == tokens
    assert set(pl.read_parquet(tmp_path / "t")["block_tokens"]) == {tokens}
    assert convert(trace, Part(), "parquet", tmp_path / "t", 8).block_tokens == 8


def test_parquet_has_times_lengths_and_ids(thousand: TraceFile, tmp_path: Path) -> None:
    convert(thousand, Part(limit=3), "parquet", tmp_path / "trace.parquet", block_tokens=4_096)
    frame = pl.read_parquet(tmp_path / "trace.parquet")
    rows = list(thousand.rows())[:3]
    assert frame.columns == [*NEEDED, "session_id"]
    assert frame["block_tokens"].to_list() == [4_096] * 3
    assert frame["prompt_tokens"].to_list() == [row.prompt_tokens for row in rows]
    assert [len(ids) for ids in frame["hash_ids"].to_list()] == [-(-row.prompt_tokens // 4_096) for row in rows]


@pytest.mark.parametrize("name", ["again.parquet", "again.jsonl"])
def test_hits_and_a_replay_of_what_was_written_are_those_of_the_source(
    conversation: TraceFile, tmp_path: Path, name: str
) -> None:
    """Once the first request's time, 0 there, is taken off; the ids of partial blocks are the source's."""
    part = Part(limit=500)
    convert(conversation, part, name.partition(".")[2].replace("jsonl", "mooncake"), tmp_path / name)
    source, again = Prompts(), Prompts()
    for row, other in zip(part.rows(conversation), TraceFile.of(tmp_path / name).rows(), strict=True):
        source.add(row.prompt or ())
        again.add(other.prompt or ())
    for size in (16, 512):
        hits = count_hits(again, size, [1_000, None])
        assert hits == count_hits(source, size, [1_000, None])
    assert hits.prompt_tokens == 7_124_855

    path = write_scenario(tmp_path, TINY_TRACE)
    run = ("engine.max_model_len=131072", "memory.block_size=512", "memory.num_blocks=2000", "workload.format=")
    replays = [
        simulate(load_scenario(path, (*run, f"workload.path={json.dumps(str(trace))}", "workload.limit=500")))
        for trace in (conversation.path, tmp_path / name)
    ]
    assert replays[0].requests.equals(replays[1].requests)
    assert replays[0].timeline.equals(replays[1].timeline)
    assert replays[0].metrics["hit_tokens"] == replays[1].metrics["hit_tokens"] > 0


def test_a_partial_block_has_the_id_of_the_full_one_that_others_make_of_it(tmp_path: Path) -> None:
    prompts: list[Content] = [
        (Span("a", 0, 6),),
        (Span("a", 0, 9), Span("b", 0, 1)),
        (Span("a", 0, 7), Span("c", 0, 1)),
        (Span("a", 0, 7),),
    ]
    rows = [Row(0, sum(span.length for span in prompt), 1, prompt) for prompt in prompts]
    write_parquet(iter(rows), tmp_path / "t.parquet", 4)
    assert pl.read_parquet(tmp_path / "t.parquet")["hash_ids"].to_list() == [[0, 1], [0, 1, 2], [0, 3], [0, 1]]
    assert next(read_rows(tmp_path / "t.parquet")).prompt == (Span(0, 0, 4), Span(1, 0, 2))


def test_parquet_of_more_rows_than_are_held_is_written_and_read(tmp_path: Path) -> None:
    rows = [Row(n, 5, 1, (Span(n % 7, 0, 5),), session=str(n % 3)) for n in range(2 * BATCH + 1)]
    assert write_parquet(iter(rows), tmp_path / "t.parquet", 4) == (len(rows), True, False, 4)
    again = list(read_rows(tmp_path / "t.parquet"))
    assert [row[:3] for row in again] == [row[:3] for row in rows]
    assert [row.session for row in again] == [row.session for row in rows]
    assert pl.read_parquet_schema(tmp_path / "t.parquet")["hash_ids"] == pl.List(pl.Int64)


@pytest.fixture
def azure(tmp_path: Path) -> TraceFile:
    """Rows at 0, 0.3194100 and 0.8194101 s."""
    (tmp_path / "trace.csv").write_text(AZURE_ROWS)
    return TraceFile.of(tmp_path / "trace.csv")


def test_blocks_without_known_content_are_not_shared(azure: TraceFile, tmp_path: Path) -> None:
    assert convert(azure, Part(), "mooncake", tmp_path / "a.jsonl") == (3, False, False, 512)
    rows = list(read_rows(tmp_path / "a.jsonl", "mooncake"))
    assert [row[:3] for row in rows] == [(0, 12, 4), (319_000_000, 30, 9), (819_000_000, 7, 1)]
    assert shared_share(rows) == 0
    convert(azure, Part(), "parquet", tmp_path / "a.parquet")
    assert pl.read_parquet(tmp_path / "a.parquet")["hash_ids"].to_list() == [None, None, None]
    again = list(read_rows(tmp_path / "a.parquet"))
    assert again == [Row(0, 12, 4), Row(319_410_000, 30, 9), Row(819_410_100, 7, 1)]


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
