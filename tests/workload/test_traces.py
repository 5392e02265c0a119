import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import TraceError
from kvsim.workload.request import Request, Span
from kvsim.workload.traces import READERS, Columns, Trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
AZURE = (
    HEADER + "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:46.6805901,396,109\r\n"
    "2023-11-16 18:15:50.0000000,879,55"
)


def mooncake_line(**changes: Any) -> str:
    """A request of 600 tokens, which has a full block and a partial one; None leaves a key out."""
    row = {"timestamp": 0, "input_length": 600, "output_length": 20, "hash_ids": [0, 1], **changes}
    return json.dumps({name: value for name, value in row.items() if value is not None}) + "\n"


MOONCAKE = mooncake_line() + mooncake_line(timestamp=3000, hash_ids=[0, 2], output_length=1)


def read(folder: Path, text: str | bytes, format: str, **options: Any) -> list[Request]:
    data = text if isinstance(text, bytes) else text.encode()
    (folder / "trace").write_bytes(data)
    return list(Trace(path="trace", format=format, **options).requests(folder))


def refusal(folder: Path, text: str | bytes, format: str, **options: Any) -> str:
    """What the error says, without the folder."""
    with pytest.raises(TraceError) as caught:
        read(folder, text, format, **options)
    message = str(caught.value)
    assert message.startswith(str(folder))
    return message.removeprefix(f"{folder}{os.sep}")


# values


def test_azure_rows_become_requests_that_share_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, AZURE, "azure") == [
        Request(0, 0, (Span("user:0", 0, 374),), (Span("out:0", 0, 44),)),
        Request(1, 100, (Span("user:1", 0, 396),), (Span("out:1", 0, 109),)),
        Request(2, 3_319_410_000, (Span("user:2", 0, 879),), (Span("out:2", 0, 55),)),
    ]
    assert not READERS["azure"].has_content


def test_mooncake_rows_become_requests_whose_content_is_their_blocks(tmp_path: Path) -> None:
    assert read(tmp_path, MOONCAKE, "mooncake") == [
        Request(0, 0, (Span(0, 0, 512), Span(1, 0, 88)), (Span("out:0", 0, 20),)),
        Request(1, 3 * 10**9, (Span(0, 0, 512), Span(2, 0, 88)), (Span("out:1", 0, 1),)),
    ]
    assert READERS["mooncake"].has_content


@pytest.mark.parametrize(("tokens", "ids", "last"), [(1, [7], 1), (512, [7], 512), (513, [7, 8], 1)])
def test_the_last_mooncake_block_holds_what_is_left(tokens: int, ids: list[int], last: int, tmp_path: Path) -> None:
    request = read(tmp_path, mooncake_line(input_length=tokens, hash_ids=ids), "mooncake")[0]
    assert request.prompt[-1] == Span(ids[-1], 0, last)
    assert request.prompt_tokens == tokens


def test_block_ids_of_64_bits_are_kept_apart(tmp_path: Path) -> None:
    """Beyond 53 bits, floats would merge neighbours."""
    ids = [2**63, 2**63 + 1]
    assert [span.source for span in read(tmp_path, mooncake_line(hash_ids=ids), "mooncake")[0].prompt] == ids


@pytest.mark.parametrize(
    ("time", "nanoseconds"),
    [
        ("2023-11-16 18:15:47", 1_000_000_000),
        ("2023-11-16 18:15:46.5", 500_000_000),
        ("2023-11-16 18:15:46.0000001", 100),
        ("2023-11-16 18:15:46.000000001", 1),
        ("2023-11-16 18:15:46.999999999", 999_999_999),
        ("2023-11-17 18:15:46", 86_400_000_000_000),
    ],
)
def test_azure_times_are_exact_to_the_nanosecond(time: str, nanoseconds: int, tmp_path: Path) -> None:
    requests = read(tmp_path, f"{HEADER}2023-11-16 18:15:46,1,1\n{time},1,1\n", "azure")
    assert [request.arrival_ns for request in requests] == [0, nanoseconds]


def test_times_start_at_the_first_request_and_ties_keep_the_order_of_the_file(tmp_path: Path) -> None:
    lines = [mooncake_line(timestamp=5, output_length=n) for n in (3, 1, 2)] + [mooncake_line(timestamp=6)]
    requests = read(tmp_path, "".join(lines), "mooncake")
    assert [(r.id, r.arrival_ns, r.output_tokens) for r in requests] == [
        (0, 0, 3),
        (1, 0, 1),
        (2, 0, 2),
        (3, 1_000_000, 20),
    ]


def test_azure_columns_are_found_by_name(tmp_path: Path) -> None:
    text = "GeneratedTokens,Model,TIMESTAMP,ContextTokens\n44,x,2023-11-16 18:15:46,374\n"
    assert read(tmp_path, text, "azure")[0].prompt_tokens == 374
    assert read(tmp_path, text, "azure")[0].output_tokens == 44


@pytest.mark.parametrize(
    "variant",
    [
        lambda text: text.replace("\r\n", "\n"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip(),
        lambda text: text.rstrip() + "\n",
        lambda text: text + "\n\n",
        lambda text: "\ufeff" + text,
        lambda text: gzip.compress(text.encode()),
        lambda text: gzip.compress(("\ufeff" + text).encode()),
        lambda text: gzip.compress(text[:90].encode()) + gzip.compress(text[90:].encode()),
    ],
    ids=[
        "LF",
        "CRLF",
        "no final newline",
        "one final newline",
        "blank lines at the end",
        "byte order mark",
        "gzip",
        "gzip with byte order mark",
        "two gzip members",
    ],
)
@pytest.mark.parametrize(("format", "text"), [("azure", AZURE.replace("\r", "")), ("mooncake", MOONCAKE)])
def test_files_that_differ_only_in_their_writing_give_the_same(
    format: str, text: str, variant: Callable[[str], str | bytes], tmp_path: Path
) -> None:
    assert read(tmp_path, variant(text), format) == read(tmp_path, text, format)


@pytest.mark.parametrize(
    ("speedup", "arrivals"),
    [
        (1.0, [0, 1_000_000, 3_000_000]),
        (2.0, [0, 500_000, 1_500_000]),
        (0.1, [0, 10_000_000, 30_000_000]),
        (3.0, [0, 333_333, 1_000_000]),
        (1_000_000, [0, 1, 3]),
    ],
)
def test_speedup_divides_times_exactly(speedup: float, arrivals: list[int], tmp_path: Path) -> None:
    text = "".join(mooncake_line(timestamp=7 + ms) for ms in (0, 1, 3))
    assert [r.arrival_ns for r in read(tmp_path, text, "mooncake", speedup=speedup)] == arrivals


@pytest.mark.parametrize(("limit", "rows"), [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_limit_takes_the_first_rows(limit: int, rows: int, tmp_path: Path) -> None:
    requests = read(tmp_path, AZURE, "azure", limit=limit)
    assert requests == read(tmp_path, AZURE, "azure")[:rows]


def test_what_lies_behind_the_limit_is_not_read(tmp_path: Path) -> None:
    assert len(read(tmp_path, mooncake_line() + "not JSON\n", "mooncake", limit=1)) == 1


def test_requests_stream(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(mooncake_line() + "not JSON\n")
    requests = Trace(path="trace", format="mooncake").requests(tmp_path)
    assert next(requests).id == 0
    with pytest.raises(TraceError, match="trace:2: not JSON"):
        next(requests)


# refusals


def azure_rows(*rows: str) -> str:
    return HEADER + "".join(f"{row}\r\n" for row in rows)


GOOD = "2023-11-16 18:15:46.6805900,374,44"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,3\n",
            "trace:1: column GeneratedTokens is missing, found TIMESTAMP, ContextTokens",
        ),
        (GOOD, "trace:1: column TIMESTAMP is missing, found 2023-11-16 18:15:46.6805900, 374, 44"),
        ("\n" + AZURE, "trace:1: column TIMESTAMP is missing, found none"),
        (azure_rows(GOOD, f"{GOOD},1"), "trace:3: must have 3 columns, got 4"),
        (azure_rows("2023-11-16 18:15:46,3"), "trace:2: must have 3 columns, got 2"),
        (
            azure_rows("2023-11-16 18:15:46,x,1"),
            "trace:2: ContextTokens must be a whole number from 1 to 1,000,000,000, got 'x'",
        ),
        (
            azure_rows(GOOD, "2023-11-16 18:15:47,1,2.5"),
            "trace:3: GeneratedTokens must be a whole number from 1 to 1,000,000,000, got '2.5'",
        ),
        (
            azure_rows("2023-11-16 18:15:47,-3,2"),
            "trace:2: ContextTokens must be a whole number from 1 to 1,000,000,000, got '-3'",
        ),
        (
            azure_rows("2023-11-16 18:15:47,,2"),
            "trace:2: ContextTokens must be a whole number from 1 to 1,000,000,000, got ''",
        ),
        (
            azure_rows("2023-11-16 18:15:47,0,2"),
            "trace:2: ContextTokens must be a whole number from 1 to 1,000,000,000, got 0",
        ),
        (
            azure_rows("2023-11-16 18:15:47,2,0"),
            "trace:2: GeneratedTokens must be a whole number from 1 to 1,000,000,000, got 0",
        ),
        (
            azure_rows("2023-11-16 18:15:47,1000000001,2"),
            "trace:2: ContextTokens must be a whole number from 1 to 1,000,000,000, got 1000000001",
        ),
        (
            azure_rows(f"2023-11-16 18:15:47,{'9' * 5000},2"),
            f"trace:2: ContextTokens must be a whole number from 1 to 1,000,000,000, got '{'9' * 79}...",
        ),
        (
            azure_rows("16.11.2023 18:15,1,2"),
            "trace:2: TIMESTAMP must look like 2023-11-16 18:15:46.6805900, with at most nine digits after the point, got '16.11.2023 18:15'",
        ),
        (
            azure_rows("2023-11-16 18:15:46.-5,1,2"),
            "trace:2: TIMESTAMP must look like 2023-11-16 18:15:46.6805900, with at most nine digits after the point, got '2023-11-16 18:15:46.-5'",
        ),
        (
            azure_rows("2023-11-31 18:15:46,1,2"),
            "trace:2: TIMESTAMP must look like 2023-11-16 18:15:46.6805900, with at most nine digits after the point, got '2023-11-31 18:15:46'",
        ),
        (
            azure_rows("2023-11-16 18:15:46.0000000001,1,2"),
            "trace:2: TIMESTAMP must look like 2023-11-16 18:15:46.6805900, with at most nine digits after the point, got '2023-11-16 18:15:46.0000000001'",
        ),
        (
            azure_rows(GOOD, "2023-11-16 18:15:46.6805899,1,2"),
            "trace:3: its time lies before that of the row above; sort the file by time",
        ),
        (
            azure_rows(f"2023-11-16 18:15:46,{'9' * 200_000},2"),
            "trace:2: not CSV: field larger than field limit (131072)",
        ),
    ],
)
def test_a_bad_azure_line_is_named_with_the_rule_it_breaks(text: str, message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, text, "azure") == message


COUNT_RULE = "must be a whole number from 1 to 1,000,000,000, got"


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("not JSON\n", "not JSON: Expecting value"),
        ('{"timestamp": 0, "input_length"\n', "not JSON: Expecting ':' delimiter"),
        ("[1, 2]\n", "must be a JSON object"),
        ("[" * 100_000 + "\n", "not JSON that can be read: a number too long or nested too deep"),
        (f'{{"timestamp": {"9" * 5000}}}\n', "not JSON that can be read: a number too long or nested too deep"),
        (mooncake_line(timestamp=None), "timestamp is missing"),
        (mooncake_line(input_length=None), "input_length is missing"),
        (mooncake_line(output_length=None), "output_length is missing"),
        (mooncake_line(hash_ids=None), "hash_ids is missing"),
        (mooncake_line(input_length=0, hash_ids=[]), f"input_length {COUNT_RULE} 0"),
        (mooncake_line(output_length=0), f"output_length {COUNT_RULE} 0"),
        (mooncake_line(output_length=-1), f"output_length {COUNT_RULE} -1"),
        (mooncake_line(output_length="20"), f"output_length {COUNT_RULE} '20'"),
        (mooncake_line(output_length=20.0), f"output_length {COUNT_RULE} 20.0"),
        (mooncake_line(output_length=True), f"output_length {COUNT_RULE} True"),
        (mooncake_line(output_length=10**200), f"output_length {COUNT_RULE} a number of over 30 digits"),
        (mooncake_line(timestamp=-1), "timestamp must be a whole number of milliseconds from 0 to 10^12, got -1"),
        (mooncake_line(timestamp=0.5), "timestamp must be a whole number of milliseconds from 0 to 10^12, got 0.5"),
        (mooncake_line(timestamp="0"), "timestamp must be a whole number of milliseconds from 0 to 10^12, got '0'"),
        (
            mooncake_line(timestamp=float("nan")),
            "timestamp must be a whole number of milliseconds from 0 to 10^12, got nan",
        ),
        (
            mooncake_line(hash_ids=[0]),
            "hash_ids must have one id per 512 tokens, 2 for input_length 600, got 1",
        ),
        (
            mooncake_line(hash_ids=[0, 1, 2]),
            "hash_ids must have one id per 512 tokens, 2 for input_length 600, got 3",
        ),
        (mooncake_line(hash_ids=[0, "1"]), "hash_ids must be a list of whole numbers"),
        (mooncake_line(hash_ids=[0, True]), "hash_ids must be a list of whole numbers"),
        (mooncake_line(hash_ids="01"), "hash_ids must be a list of whole numbers"),
    ],
    ids=range(25),
)
def test_a_bad_mooncake_line_is_named_with_the_rule_it_breaks(line: str, rule: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, mooncake_line() + "\n" + line, "mooncake") == f"trace:3: {rule}"


def test_times_of_mooncake_must_not_go_back_either(tmp_path: Path) -> None:
    text = mooncake_line(timestamp=2) + mooncake_line(timestamp=2) + mooncake_line(timestamp=1)
    assert refusal(tmp_path, text, "mooncake").startswith("trace:3: its time lies before that of the row above")


ZIPPED = gzip.compress(mooncake_line().encode() * 600, mtime=0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (ZIPPED[:-20], r"trace: the gzip stream is cut off after line \d+"),
        (ZIPPED[:2], r"trace: the gzip stream is cut off after line 0"),
        (ZIPPED[:-8] + bytes(8), r"trace: not a sound gzip stream \(CRC check failed .*\) after line 600"),
        (ZIPPED[:30] + b"xxxxx" + ZIPPED[35:], r"trace: not a sound gzip stream \(.*\) after line 0"),
        (ZIPPED + b"junk", r"trace: not a sound gzip stream \(Not a gzipped file .*\) after line 600"),
        (MOONCAKE.encode("utf-16"), "trace:1: not UTF-8 text"),
        (MOONCAKE.encode() + b'{"timestamp": "\xff"}\n', "trace:3: not UTF-8 text"),
        (gzip.compress(b"\xff\xff"), "trace:1: not UTF-8 text"),
        (b"", "trace: has no requests"),
        (b"\n \n", "trace: has no requests"),
        (gzip.compress(b""), "trace: has no requests"),
    ],
    ids=range(11),
)
def test_a_damaged_file_is_refused_with_what_is_wrong(data: bytes, message: str, tmp_path: Path) -> None:
    assert re.fullmatch(message, refusal(tmp_path, data, "mooncake"))


@pytest.mark.parametrize("text", ["", HEADER, HEADER.rstrip(), HEADER + "\n\n"])
def test_an_azure_file_without_rows_has_no_requests(text: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, text, "azure") == "trace: has no requests"


def needed(format: str) -> dict[str, Any]:
    """What must be said of a format."""
    options = {"tokenizer": "tokenizer.json", "columns": Columns(prompt="in", output="out", time="at")}
    needs = READERS[format].needs
    return {} if needs is None else {needs: options[needs]}


@pytest.mark.parametrize("format", READERS)
def test_a_missing_file_is_refused(format: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nowhere: cannot be read: No such file or directory"):
        list(Trace(path="nowhere", format=format, **needed(format)).requests(tmp_path))


@pytest.mark.parametrize("format", READERS)
def test_a_folder_is_refused(format: str, tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    with pytest.raises(TraceError, match=r"trace: cannot be read: Is a directory"):
        list(Trace(path="trace", format=format, **needed(format)).requests(tmp_path))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"format": "columns"}, "the format columns needs columns, such as"),
        ({"format": "sharegpt"}, "the format sharegpt needs tokenizer, the path of a tokenizer.json"),
        ({"format": "azure", "columns": Columns(prompt="in")}, "columns is for the format columns, not for azure"),
        ({"format": "azure", "time_unit": "s"}, "time_unit is for the formats bailian, aiperf, .*, not for azure"),
        ({"format": "parquet", "block_tokens": 16}, "block_tokens is for the formats bailian, .*, not for parquet"),
        ({"format": "azure", "tokenizer": "t"}, "tokenizer is for the formats sharegpt, vllm_custom, not for azure"),
        (
            {"columns": Columns(prompt="in"), "time_unit": "s"},
            r"time_unit goes with columns\.time, which is not given",
        ),
        (
            {"columns": Columns(prompt="in", time="at"), "block_tokens": 16},
            r"block_tokens goes with columns\.hash_ids, which is not given",
        ),
    ],
)
def test_what_is_said_of_a_file_must_fit_its_format(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        Trace(path="trace", **options)


def test_what_is_said_must_fit_the_format_that_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text(AZURE)
    with pytest.raises(TraceError, match=r"trace: block_tokens is for the formats bailian, .*, not for azure"):
        list(Trace(path="trace", block_tokens=16).requests(tmp_path))


def test_columns_must_be_different() -> None:
    with pytest.raises(ValueError, match="prompt, output, time and hash_ids must be different columns"):
        Columns(prompt="in", output="in")


def test_an_unknown_format_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"format must be one of azure, .*mooncake, .*got 'papyrus'"):
        Trace(path="trace", format="papyrus")


# the public files


def test_the_azure_conversation_trace_is_read_whole(shared: Path) -> None:
    trace = Trace(path="traces/azure2023/AzureLLMInferenceTrace_conv.csv", format="azure")
    requests = list(trace.requests(shared))
    assert len(requests) == 19_366
    assert round(sum(r.prompt_tokens for r in requests) / 19_366, 1) == 1154.7
    assert round(sum(r.output_tokens for r in requests) / 19_366, 1) == 211.1
    assert {r.prompt_tokens for r in requests} >= {2, 14_050}
    assert {r.output_tokens for r in requests} >= {7, 1000}
    assert round(requests[-1].arrival_ns / 10**9, 1) == 3501.7


def test_the_mooncake_conversation_trace_is_read_whole(shared: Path) -> None:
    trace = Trace(path="traces/mooncake/conversation_trace.jsonl.gz", format="mooncake")
    requests = list(trace.requests(shared))
    assert len(requests) == 12_031
    assert round(sum(r.prompt_tokens for r in requests) / 12_031, 1) == 12_035.1
    assert round(sum(r.output_tokens for r in requests) / 12_031, 1) == 342.6
    assert requests[-1].arrival_ns == 3_536_999 * 10**6
    references = [span.source for r in requests for span in r.prompt]
    assert (len(references), len(set(references))) == (288_500, 182_790)
    assert {r.prompt[0].source for r in requests} == {0}
