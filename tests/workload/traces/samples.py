"""A small invented file of every format, what it says, and ways to damage it."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from kvsim.workload.request import Span
from kvsim.workload.traces import Options, Row

COUNT = "must be a whole number from 1 to 1,000,000,000, got"


class Sample(NamedTuple):
    """`text` is what a file of the format holds, `rows` what is read from it; `damaged` has text and rule of bad files.

    `beside` are files that must stand in the same folder. The damage is in the line or row of `place`. Of a format
    in Parquet the files are bytes.
    """

    text: str | bytes
    rows: list[Row]
    damaged: Sequence[tuple[str | bytes, str]]
    place: str
    options: Options = Options()
    beside: dict[str, str] = {}  # noqa: RUF012  # nothing changes it


def jsonl(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def changed(record: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The record with one key set, or without it where the value is None."""
    key, _, rest = path.partition(".")
    copy = dict(record)
    if rest:
        copy[key] = changed(record[key], rest, value)
    elif value is None:
        del copy[key]
    else:
        copy[key] = value
    return copy


def damaged_records(record: dict[str, Any], counts: list[str], time: str | None) -> Iterator[tuple[Any, str]]:
    """A record with each count and the time spoiled in turn, and the rule it breaks."""
    yield [1, 2], "must be a JSON object"
    for name in counts:
        label = name.removesuffix(".value")
        for value in (-1, 0, 2.5, "7", True, 10**9 + 1, 10**200):
            yield changed(record, name, value), f"{label} {COUNT} "
    if time is not None:
        for value in (-1, "soon", 10**30, True):
            yield changed(record, time, value), f"{time} must be "


def damaged_lines(
    record: dict[str, Any],
    counts: list[str],
    time: str | None,
    required: tuple[str, ...],
    more: tuple[tuple[dict[str, Any], str], ...] = (),
) -> list[tuple[str, str]]:
    """Files of JSON lines, the first of them sound and the second bad."""
    bad = list(damaged_records(record, counts, time))
    bad += [(changed(record, name, None), f"{name} is missing") for name in required]
    good = jsonl(record)
    texts = [(good + jsonl(spoiled), rule) for spoiled, rule in (*bad, *more)]
    return [
        *texts,
        (good + good[: len(good) // 2] + "\n", "not JSON: "),
        (good + '{"a": ' + "9" * 5000 + "}\n", "not JSON that can be read: a number too long or nested too deep"),
    ]


def damaged_csv(header: str, row: dict[str, str], counts: list[str], time: str | None) -> list[tuple[str, str]]:
    """CSV files, the first row of them sound and the second bad."""

    def text(**spoiled: str) -> str:
        bad = {**row, **spoiled}
        return f"{header}\n{','.join(row.values())}\n{','.join(bad.values())}\n"

    bad = [
        (text(**{name: value}), f"{name} {COUNT} ")
        for name in counts
        for value in ("-1", "0", "2.5", "x", "", "1000000001", "9" * 5000)
    ]
    if time is not None:
        bad += [(text(**{time: value}), f"{time} must ") for value in ("-1", "soon", "", "nan")]
    return [
        *bad,
        (text()[:-1] + ",1\n", f"must have {len(row)} columns, got {len(row) + 1}"),
        (f"{header}\n{','.join(row.values())}\n1\n", f"must have {len(row)} columns, got 1"),
    ]


SAMPLES: dict[str, Callable[[], Sample]] = {}


def sample(make: Callable[[], Sample]) -> Callable[[], Sample]:
    SAMPLES[make.__name__] = make
    return make


@sample
def azure() -> Sample:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    row = dict(zip(header.split(","), ("2024-05-10 00:00:01.009930+00:00", "374", "44"), strict=True))
    return Sample(
        f"{header}\n2024-05-10 01:00:00.5+01:00,12,3\n2024-05-10 00:00:01.009930+00:00,374,44\n",
        [Row(1_715_299_200_500_000_000, 12, 3), Row(1_715_299_201_009_930_000, 374, 44)],
        damaged_csv(header, row, ["ContextTokens", "GeneratedTokens"], "TIMESTAMP"),
        ":3: ",
    )


@sample
def burstgpt() -> Sample:
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    values = ("5.25", "a-1", "43", "GPT-4", "472", "18", "490", "API log")
    return Sample(
        f"{header}\n{','.join(values)}\n6,a-1,,ChatGPT,7,9,16,API log\n",
        [Row(5_250_000_000, 472, 18, session="a-1"), Row(6_000_000_000, 7, 9, session="a-1")],
        damaged_csv(
            header,
            dict(zip(header.split(","), values, strict=True)),
            ["Request tokens", "Response tokens"],
            "Timestamp",
        ),
        ":3: ",
    )


@sample
def vidur() -> Sample:
    header = "arrived_at,num_prefill_tokens,num_decode_tokens"
    row = dict(zip(header.split(","), ("0.125", "547", "248"), strict=True))
    return Sample(
        f"{header}\n0.0,591,140\n0.125,547,248\n",
        [Row(0, 591, 140), Row(125_000_000, 547, 248)],
        damaged_csv(header, row, ["num_prefill_tokens", "num_decode_tokens"], "arrived_at"),
        ":3: ",
    )


@sample
def turn_lengths() -> Sample:
    header = "conversation,turn,human_tokens,gpt_tokens"
    row = dict(zip(header.split(","), ("0", "1", "5", "6"), strict=True))
    return Sample(
        f"{header}\n0,0,36,276\n0,1,5,6\n",
        [Row(None, 36, 276, session="0"), Row(None, 5, 6, session="0")],
        damaged_csv(header, row, ["human_tokens", "gpt_tokens"], None),
        ":3: ",
    )


@sample
def splitwisesim() -> Sample:
    header = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size"
    row = dict(zip(header.split(","), ("1", "2", "0", "0.5", "1", "5", "6"), strict=True))
    return Sample(
        f"{header}\n0,2,0,0.1,1,3,4\n1,2,0,0.5,1,5,6\n",
        [Row(100_000_000, 3, 4), Row(500_000_000, 5, 6)],
        damaged_csv(header, row, ["prompt_size", "token_size"], "arrival_timestamp"),
        ":3: ",
    )


def blocks_of(names: tuple[str, str, str], time: Any, *, time_ns: int, size: int, floor: bool = True) -> Sample:
    """A dialect of Mooncake: two blocks and a bit, whose bit has an id of its own in the first row."""
    when, prompt, output = names
    tokens = 2 * size + 3
    first = {when: time, prompt: tokens, output: 4, "hash_ids": [7, 2**63, 9]}
    second = {**first, "hash_ids": [7, 8]} if floor else first
    blocks = (Span(7, 0, size), Span(2**63, 0, size))
    rest = (Span(7, 0, size), Span(8, 0, size), Span("rest:2", 0, 3)) if floor else (*blocks, Span(9, 0, 3))
    bad_ids = (
        (changed(first, "hash_ids", [7]), f"hash_ids must have one id per {size} tokens, 3 for input_length {tokens}"),
        (changed(first, "hash_ids", [7, 8, "9"]), "hash_ids must be a list of whole numbers"),
        (changed(first, "hash_ids", {"a": 1}), "hash_ids must be a list of whole numbers"),
    )
    return Sample(
        jsonl(first, second),
        [Row(time_ns, tokens, 4, (*blocks, Span(9, 0, 3))), Row(time_ns, tokens, 4, rest)],
        damaged_lines(first, [prompt, output], when, () if floor else (when, prompt, output, "hash_ids"), bad_ids),
        ":2: ",
    )


@sample
def mooncake() -> Sample:
    return blocks_of(("timestamp", "input_length", "output_length"), 3, time_ns=3_000_000, size=512, floor=False)


@sample
def aiperf() -> Sample:
    return blocks_of(("timestamp", "input_length", "output_length"), 3.5, time_ns=3_500_000, size=512)


@sample
def dynamo() -> Sample:
    return blocks_of(("created_time", "input_tokens", "output_tokens"), 3, time_ns=3_000_000, size=512)


@sample
def timed_trace() -> Sample:
    return blocks_of(("timestamp", "input_length", "output_length"), 0.05, time_ns=50_000_000, size=16)


@sample
def guidellm() -> Sample:
    return blocks_of(("timestamp", "input_length", "output_length"), 2, time_ns=2_000_000_000, size=512)
