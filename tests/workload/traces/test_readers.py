"""What every format keeps, and what the real files say."""

import gzip
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from kvsim.errors import TraceError
from kvsim.workload.request import Span
from kvsim.workload.traces import READERS, Options, Row, Trace, read_rows, recognise
from kvsim.workload.traces.documents import json_documents
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.readers import rows_of
from tests.workload.traces import samples_of_runs, samples_of_sessions
from tests.workload.traces.samples import SAMPLES, Sample
from tests.workload.traces.samples_of_runs import in_parquet

assert samples_of_runs, "which adds to SAMPLES when it is imported, as the next does"
assert samples_of_sessions

PARQUET = [name for name in SAMPLES if READERS[name].parquet]
TEXT = [name for name in SAMPLES if name not in PARQUET]
UNMARKED = {name for name, reader in READERS.items() if not reader.marks}


class StubTokenizer:
    """A token is a character."""

    @staticmethod
    def from_file(path: str) -> "StubTokenizer":
        if not path.endswith("tokenizer.json"):
            raise ValueError("another file")
        return StubTokenizer()

    def encode(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        assert not add_special_tokens
        return SimpleNamespace(ids=[ord(character) for character in text])


@pytest.fixture(autouse=True)
def tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library, which need not be installed."""
    monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=StubTokenizer))


def as_bytes(data: str | bytes) -> bytes:
    return data if isinstance(data, bytes) else data.encode()


def as_text(format: str) -> str:
    """The sample of a format that is text."""
    text = SAMPLES[format]().text
    assert isinstance(text, str)
    return text


def write(folder: Path, sample: Sample, data: str | bytes) -> Path:
    for name, text in sample.beside.items():
        (folder / name).write_text(text, encoding="utf-8")
    path = folder / "trace"
    path.write_bytes(as_bytes(data))
    return path


def rows(path: Path, format: str, options: Options) -> list[Row]:
    return list(read_rows(path, format, options))


def test_every_format_has_a_sample() -> None:
    assert set(SAMPLES) == set(READERS)


@pytest.mark.parametrize("format", SAMPLES)
def test_a_file_of_the_format_is_read(format: str, tmp_path: Path) -> None:
    sample = SAMPLES[format]()
    assert rows(write(tmp_path, sample, sample.text), format, sample.options) == sample.rows


@pytest.mark.parametrize("format", [name for name in SAMPLES if name not in UNMARKED])
def test_the_format_is_recognised_from_its_columns_or_keys(format: str, tmp_path: Path) -> None:
    sample = SAMPLES[format]()
    text = sample.text
    packed = text if isinstance(text, bytes) else gzip.compress(("\ufeff" + text).encode())
    path = write(tmp_path, sample, packed)
    assert recognise(path) == format
    assert list(read_rows(path, options=sample.options)) == sample.rows


@pytest.mark.parametrize("format", SAMPLES)
def test_at_least_eight_damaged_files_are_refused_with_place_and_rule(format: str, tmp_path: Path) -> None:
    sample = SAMPLES[format]()
    assert len({rule for _, rule in sample.damaged}) >= 2
    assert len({text for text, _ in sample.damaged}) >= 8
    for text, rule in sample.damaged:
        path = write(tmp_path, sample, text)
        with pytest.raises(TraceError) as caught:
            rows(path, format, sample.options)
        assert str(caught.value).startswith(f"{path}{sample.place}{rule}"), text[:500]


@pytest.mark.parametrize("format", SAMPLES)
def test_bad_rows_are_counted_where_they_are_passed_over(format: str, tmp_path: Path) -> None:
    sample = SAMPLES[format]()
    for text, _ in sample.damaged:
        lines = Lines(write(tmp_path, sample, text), skip_bad_rows=True)
        found = list(rows_of(READERS[format], lines, sample.options))
        assert (len(found), lines.skipped) == (1, 1), text[:500]


@pytest.mark.parametrize("format", TEXT)
@pytest.mark.parametrize(
    "variant",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip(),
        lambda text: text + "\n\n",
        lambda text: "\ufeff" + text,
        lambda text: gzip.compress(text.encode()),
    ],
    ids=["CRLF", "no final newline", "blank lines at the end", "byte order mark", "gzip"],
)
def test_how_a_file_is_written_changes_nothing(
    format: str, variant: Callable[[str], str | bytes], tmp_path: Path
) -> None:
    sample = SAMPLES[format]()
    assert rows(write(tmp_path, sample, variant(as_text(format))), format, sample.options) == sample.rows


@pytest.mark.parametrize("format", PARQUET)
@pytest.mark.parametrize(
    "variant",
    [
        lambda frame: in_parquet(frame, row_group_size=1),
        lambda frame: in_parquet(frame, compression="uncompressed", statistics=False),
        lambda frame: in_parquet(frame, compression="gzip"),
        lambda frame: in_parquet(frame.select(reversed(frame.columns))),
        lambda frame: in_parquet(frame.with_columns(mine=pl.lit("x"))),
        lambda frame: in_parquet(frame.cast({pl.Int64: pl.Int32, pl.List: pl.List(pl.UInt64)})),
    ],
    ids=[
        "row groups of one",
        "not packed",
        "gzip inside",
        "columns in another order",
        "more columns",
        "other integers",
    ],
)
def test_how_a_parquet_file_is_written_changes_nothing(
    format: str, variant: Callable[[pl.DataFrame], bytes], tmp_path: Path
) -> None:
    sample = SAMPLES[format]()
    path = write(tmp_path, sample, variant(pl.read_parquet(as_bytes(sample.text))))
    assert recognise(path) == format
    assert rows(path, format, sample.options) == sample.rows


@pytest.mark.parametrize("format", PARQUET)
def test_a_parquet_file_that_is_damaged_anywhere_is_read_or_refused(format: str, tmp_path: Path) -> None:
    sample = SAMPLES[format]()
    sound = as_bytes(sample.text)
    broken = [sound[:-9], sound[:4], sound[: len(sound) // 2], sound[:-4] + b"XXXX", sound[4:]]
    broken += [sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :] for at in range(4, len(sound), 13)]
    for data in broken:
        path = write(tmp_path, sample, data)
        with suppress(TraceError):
            rows(path, format, sample.options)
    with pytest.raises(TraceError, match="trace: not Parquet that can be read: "):
        rows(write(tmp_path, sample, sound[:-9]), format, sample.options)
    with pytest.raises(TraceError, match=r"trace: is not Parquet$"):
        rows(write(tmp_path, sample, "a,b\n"), format, sample.options)
    frame = pl.read_parquet(sound).drop("block_tokens")
    with pytest.raises(TraceError, match="trace: column block_tokens is missing, found arrival_ns, prompt_tokens"):
        rows(write(tmp_path, sample, in_parquet(frame)), format, sample.options)
    with pytest.raises(TraceError, match="trace: is Parquet, whose columns must be named, found arrival_ns, hash_ids"):
        recognise(tmp_path / "trace")


@pytest.mark.parametrize("format", SAMPLES)
def test_what_a_format_lacks_is_not_in_its_rows(format: str) -> None:
    lacks = READERS[format].lacks
    for row in SAMPLES[format]().rows:
        assert ("times" in lacks) <= (row.time_ns is None)
        assert ("content" in lacks) <= (row.prompt is None)
        assert ("sessions" in lacks) <= (row.session is None)
        assert ("outputs" in lacks) <= (row.output_tokens is None)


@pytest.mark.parametrize("format", SAMPLES)
def test_the_content_of_a_row_is_as_long_as_it_says(format: str) -> None:
    for row in SAMPLES[format]().rows:
        assert row.prompt is None or sum(span.length for span in row.prompt) == row.prompt_tokens
        assert row.output is None or sum(span.length for span in row.output) == row.output_tokens


def spoiled(value: Any) -> Iterator[Any]:
    """The value with every part of it, in turn, of another kind or missing."""
    yield from (None, [], {}, "x", -1, 0.5, True, 1e400, [None], {"a": 1})
    if isinstance(value, dict):
        for key in value:
            yield {name: part for name, part in value.items() if name != key}
            for part in spoiled(value[key]):
                yield {**value, key: part}
    if isinstance(value, list):
        for index, item in enumerate(value):
            for part in spoiled(item):
                yield [*value[:index], part, *value[index + 1 :]]


@pytest.mark.parametrize("format", [name for name in TEXT if as_text(name).lstrip().startswith(("{", "["))])
def test_whatever_a_file_holds_is_read_or_refused(format: str, tmp_path: Path) -> None:
    sample = SAMPLES[format]()
    path = write(tmp_path, sample, sample.text)
    for document in list(json_documents(Lines(path))):
        for other in spoiled(document):
            path.write_text(json.dumps(other))
            with suppress(TraceError):
                rows(path, format, sample.options)


def test_a_table_of_anything_is_read_or_refused(tmp_path: Path) -> None:
    for format in TEXT:
        make = SAMPLES[format]
        header = as_text(format).partition("\n")[0]
        for cell in ("", "1", "x", '"', '"a""b"', "1e5", "٣", "-0", "\x00", "[1]", '"[1, 2"'):
            path = write(tmp_path, make(), f"{header}\n{','.join([cell] * header.count(',') + [cell])}\n")
            with suppress(TraceError):
                rows(path, format, make().options)


# treatments


def test_a_file_without_times_is_not_replayed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("num_prefill_tokens,num_decode_tokens\n3,4\n")
    with pytest.raises(TraceError, match=r"t\.csv: has no times, which a replay needs; its lengths can still feed"):
        list(Trace(path="t.csv").requests(tmp_path))
    assert list(read_rows(tmp_path / "t.csv")) == [Row(None, 3, 4)]


def test_a_file_without_outputs_is_not_replayed(tmp_path: Path) -> None:
    (tmp_path / "t").write_text('{"timestamp": 1, "input_length": 3}\n')
    with pytest.raises(TraceError, match="t: has no outputs, which a replay needs"):
        list(Trace(path="t", format="aiperf").requests(tmp_path))


def test_empty_prompts_are_read_where_odd_rows_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("Timestamp,Request tokens,Response tokens\n1,0,0\n2,3,4\n")
    assert list(read_rows(tmp_path / "t", least_tokens=0)) == [Row(10**9, 0, 0), Row(2 * 10**9, 3, 4)]
    with pytest.raises(TraceError, match=r"t:2: Request tokens must be a whole number from 1 to"):
        list(read_rows(tmp_path / "t"))


def test_a_file_of_no_known_format_is_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a,b\n1,2\n")
    with pytest.raises(TraceError, match="t: its format is not recognised; name one of azure, burstgpt"):
        list(Trace(path="t").requests(tmp_path))


def test_tokens_of_a_block_are_shown_by_the_first_row_and_hold_for_the_others(tmp_path: Path) -> None:
    line = '{"timestamp": 1, "input_length": %d, "output_length": 1, "hash_ids": %s}\n'
    (tmp_path / "t").write_text(line % (70, [1, 2]) + line % (600, [1, 2]))
    with pytest.raises(
        TraceError, match=r"t:2: hash_ids must have one id per 64 tokens, 10 for input_length 600, got 2"
    ):
        list(read_rows(tmp_path / "t"))
    assert len(list(Trace(path="t", block_tokens=64, on_bad_row="skip").requests(tmp_path))) == 1


def test_text_needs_a_tokenizer_and_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_text('{"prompt": "ab", "output_tokens": 1}\n')
    with pytest.raises(TraceError, match=r"t: is text, which needs a tokenizer: name a tokenizer\.json"):
        list(read_rows(tmp_path / "t"))
    with pytest.raises(TraceError, match=r"other: not a tokenizer\.json that can be read: another file"):
        list(read_rows(tmp_path / "t", options=Options(tokenizer=Path("other"))))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TraceError, match=r"needs the tokenizers library: pip install 'kvsim\[tokenizers\]'"):
        list(read_rows(tmp_path / "t", options=Options(tokenizer=Path("tokenizer.json"))))


def test_an_id_that_comes_twice_in_a_row_is_twice_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "t").write_text('{"timestamp": 0, "input_length": 40, "output_length": 1, "hash_ids": [5, 5, 5]}\n')
    (row,) = read_rows(tmp_path / "t", options=Options(block_tokens=16))
    assert row.prompt == (Span(5, 0, 16), Span(5, 0, 16), Span(5, 0, 8))


def test_a_chat_id_that_comes_again_stands_for_the_later_chat(tmp_path: Path) -> None:
    line = '{"chat_id": %d, "parent_chat_id": %d, "timestamp": 0, "input_length": %d, "output_length": 16, "hash_ids": %s}\n'
    chats = [(1, -1, 16, [1]), (1, -1, 16, [2]), (2, 1, 48, [2, 3, 4])]
    (tmp_path / "t").write_text("".join(line % chat for chat in chats))
    assert list(read_rows(tmp_path / "t"))[2].prompt == (Span(2, 0, 16), Span("answer:2", 0, 16), Span(4, 0, 16))


def test_rows_stream(tmp_path: Path) -> None:
    """What is held does not grow with the file."""

    def peak(count: int) -> int:
        row = "2023-11-16 18:15:46,12,4\n"
        (tmp_path / "t").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + row * count)
        tracemalloc.start()
        assert sum(1 for _ in Trace(path="t").requests(tmp_path)) == count
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(100)
    assert peak(20_000) < peak(10_000) + 100_000


# the real files


@pytest.mark.parametrize(
    ("path", "count", "prompt_mean", "output_mean"),
    [
        ("mooncake/conversation_trace.jsonl.gz", 12_031, 12_035.1, 342.6),
        ("mooncake/mooncake_trace_1000.jsonl", 1_000, 9_792.0, 199.1),
        ("azure2023/AzureLLMInferenceTrace_conv.csv", 19_366, 1_154.7, 211.1),
        ("azure2023/AzureLLMInferenceTrace_code.csv", 8_819, 2_047.8, 27.9),
        ("burstgpt/BurstGPT_1_first400.csv", 400, 520.5, 276.5),
        ("arxiv_summarization/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv", 28_257, 2_588.1, 291.4),
        ("sharegpt/sharegpt_v3_part_turn_lengths.csv.gz", 61_239, 100.6, 328.5),
        ("sharegpt/sharegpt_llama31_300req_blk16.jsonl.gz", 300, 857.5, 652.5),
        ("agentic/agent_magagent_blk16.jsonl.gz", 693, 2_505.5, 771.7),
        ("agentic/agent_miniswe_sessions0to9_blk16.jsonl.gz", 238, 5_428.3, 145.2),
        ("agentic/dynamo_pi_request_trace.jsonl.gz", 17, 3_912.9, 476.1),
        ("agentic/tracelab_example_round_trace.jsonl", 19, 27_053.3, 596.6),
        ("ragpulse/0_trace_rows0_3799.jsonl.gz", 3_800, 3_020.8, 255.9),
    ],
)
def test_the_public_traces_are_recognised_and_read_whole(
    shared: Path, path: str, count: int, prompt_mean: float, output_mean: float
) -> None:
    found = list(read_rows(shared / "traces" / path, least_tokens=0))
    assert len(found) == count
    assert round(sum(row.prompt_tokens for row in found) / count, 1) == prompt_mean
    assert round(sum(row.output_tokens or 0 for row in found) / count, 1) == output_mean
