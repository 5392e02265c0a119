"""Samples of the formats that name tokens, of measured runs, and of plain tables."""

import io
import json
from pathlib import Path
from typing import Any

import polars as pl

from kvsim.workload.request import Span
from kvsim.workload.traces import Columns, Options, Row
from tests.workload.traces.samples import COUNT, Sample, changed, damaged_csv, damaged_lines, jsonl, sample


def documents(text: object) -> str:
    """JSON written over many lines."""
    return json.dumps(text, indent=1) + "\n"


@sample
def llmservingsim() -> Sample:
    first = {
        "input_toks": 4,
        "output_toks": 2,
        "arrival_time_ns": 46_926_808,
        "input_tok_ids": [10, 11, 7, 10],
        "output_tok_ids": [5, 6],
    }
    spoiled = (
        (changed(first, "input_tok_ids", [1, 2]), "input_tok_ids must be 4 ids that are not negative, got 2 ids"),
        (changed(first, "output_tok_ids", [1, -2]), "output_tok_ids must be 2 ids that are not negative"),
        (changed(first, "input_tok_ids", ["1"] * 4), "input_tok_ids must be a list of whole numbers"),
        ({"session_id": 1, "sub_requests": []}, "sub_requests are timed by the run itself"),
    )
    return Sample(
        jsonl(first, {**changed(first, "input_tok_ids", None), "session_id": 3}),
        [
            Row(
                46_926_808,
                4,
                2,
                (Span("token", 10, 2), Span("token", 7, 1), Span("token", 10, 1)),
                (Span("token", 5, 2),),
            ),
            Row(46_926_808, 4, 2, None, (Span("token", 5, 2),), "3"),
        ],
        damaged_lines(
            first,
            ["input_toks", "output_toks"],
            "arrival_time_ns",
            ("input_toks", "output_toks", "arrival_time_ns"),
            spoiled,
        ),
        ":2: ",
    )


@sample
def sharegpt() -> Sample:
    """The stub of the library makes a token of each character."""

    def conversation(*turns: object) -> dict[str, object]:
        return {"id": "x_0", "conversations": list(turns)}

    question = {"from": "human", "value": "ab"}
    answer = {"from": "gpt", "value": "Z"}
    rule = "conversations[1]: must have from, and value, a text"
    spoiled = [None, 1, [], {}, {"from": "gpt"}, {"value": "a"}, {"from": "gpt", "value": 3}, {"from": 1, "value": "a"}]
    damaged = [(json.dumps([conversation(question, turn)]), rule) for turn in spoiled]
    damaged.append(
        (
            json.dumps([conversation(question, {**answer, "value": ""})]),
            f"conversations[1]: the answer's tokens {COUNT} 0",
        )
    )
    damaged.append(
        (
            json.dumps([conversation({**question, "value": ""}, answer)]),
            f"conversations[1]: the prompt's tokens {COUNT} 0",
        )
    )
    good = json.dumps([conversation(question, answer)])[:-1]
    return Sample(
        documents([conversation(question, answer, question, answer), conversation(answer, question)]),
        [
            Row(None, 2, 1, (Span("token", 97, 2),), (Span("token", 90, 1),), "x_0"),
            Row(
                None,
                5,
                1,
                (Span("token", 97, 2), Span("token", 90, 1), Span("token", 97, 2)),
                (Span("token", 90, 1),),
                "x_0",
            ),
        ],
        [(f"{good},\n{text[1:]}\n", rule) for text, rule in damaged],
        ":2: ",
        Options(tokenizer=Path("tokenizer.json")),
    )


@sample
def vllm_custom() -> Sample:
    first = {"prompt": "ab", "output_tokens": 9}
    spoiled = (
        (changed(first, "prompt", 3), "prompt must be a text"),
        (changed(first, "prompt", ""), f"the prompt's tokens {COUNT} 0"),
    )
    return Sample(
        jsonl(first, {"prompt": "b"}),
        [Row(None, 2, 9, (Span("token", 97, 2),)), Row(None, 1, None, (Span("token", 98, 1),))],
        damaged_lines(first, ["output_tokens"], None, ("prompt",), spoiled),
        ":2: ",
        Options(tokenizer=Path("tokenizer.json")),
    )


SPOILED_COUNTS = (-1, 0, 2.5, "7", True, 10**9 + 1, 10**200, None, [])


@sample
def vllm_bench() -> Sample:
    def run(inputs: list[object], outputs: list[object], times: list[object]) -> str:
        return json.dumps({"duration": 3.0, "input_lens": inputs, "output_lens": outputs, "start_times": times}) + "\n"

    damaged = [(run([3, bad], [1, 1], [0.5, 0.6]), f"input_lens {COUNT} ") for bad in SPOILED_COUNTS]
    damaged += [(run([3, 3], [1, bad], [0.5, 0.6]), f"output_lens {COUNT} ") for bad in SPOILED_COUNTS]
    damaged += [(run([3, 3], [1, 1], [0.5, bad]), "start_times must be a number of s") for bad in (-1, "now", None, [])]
    return Sample(
        run([3, 4], [5, 6], [81.5, 81.25]),
        [Row(81_250_000_000, 4, 6), Row(81_500_000_000, 3, 5)],
        damaged,
        ":1: requests[1]: ",
    )


@sample
def sglang_bench() -> Sample:
    def run(inputs: list[object], outputs: list[object]) -> str:
        return json.dumps({"backend": "sglang", "input_lens": inputs, "output_lens": outputs, "ttfts": []}) + "\n"

    damaged = [(run([3, bad], [1, 1]), f"input_lens {COUNT} ") for bad in SPOILED_COUNTS]
    damaged += [(run([3, 3], [1, bad]), f"output_lens {COUNT} ") for bad in SPOILED_COUNTS]
    return Sample(run([3, 4], [5, 6]), [Row(None, 3, 5), Row(None, 4, 6)], damaged, ":1: requests[1]: ")


@sample
def aiperf_bench() -> Sample:
    first = {
        "metadata": {"request_start_ns": 5, "conversation_id": "c", "benchmark_phase": "profiling"},
        "metrics": {
            "input_sequence_length": {"value": 550.0, "unit": "tokens"},
            "output_sequence_length": {"value": 9, "unit": "tokens"},
        },
    }
    warm = changed(first, "metadata.benchmark_phase", "warmup")
    counts = ["metrics.input_sequence_length.value", "metrics.output_sequence_length.value"]
    return Sample(
        jsonl(first, warm, changed(first, "metadata.request_start_ns", 4)),
        [Row(4, 550, 9, session="c"), Row(5, 550, 9, session="c")],
        damaged_lines(first, counts, "metadata.request_start_ns", (*counts, "metadata", "metrics")[:2]),
        ":2: ",
    )


@sample
def guidellm_bench() -> Sample:
    first = {"request_start_time": 1_700_000_000.25, "prompt_tokens": 256, "output_tokens": 128}

    def report(*requests: object) -> str:
        return json.dumps({"benchmarks": [{"requests": {"successful": list(requests), "errored": []}}]}) + "\n"

    damaged = [
        (report(first, {**first, name: bad}), f"{name} {COUNT} ")
        for name in ("prompt_tokens", "output_tokens")
        for bad in SPOILED_COUNTS
    ]
    damaged += [(report(first, {**first, "request_start_time": "x"}), "request_start_time must be a number of s")]
    damaged += [(report(first, 3), "must be a JSON object")]
    damaged += [(report(first, changed(first, "prompt_tokens", None)), "prompt_tokens is missing")]
    return Sample(
        report(first, {"start_time": 1_700_000_000, "prompt_tokens": 3, "output_tokens": 4}),
        [Row(1_700_000_000_000_000_000, 3, 4), Row(1_700_000_000_250_000_000, 256, 128)],
        damaged,
        ":1: requests[1]: ",
    )


@sample
def inference_perf() -> Sample:
    first = {
        "start_time": 12.5,
        "end_time": 13.0,
        "request": '{"prompt": "a [b] {c \\" "}',
        "info": {"input_tokens": 7, "output_tokens": 8, "output_token_times": [1.0]},
        "error": None,
    }

    def two(bad: object) -> str:
        return f"[{json.dumps(first)},\n{json.dumps(bad)}]\n"

    damaged = [
        (two(changed(first, name, bad)), f"{name} {COUNT} ")
        for name in ("info.input_tokens", "info.output_tokens")
        for bad in SPOILED_COUNTS
        if bad is not None
    ]
    damaged += [(two(changed(first, "start_time", bad)), "start_time must be a number of s") for bad in ("x", -1, True)]
    damaged += [
        (two(changed(first, name, None)), f"{rule} is missing")
        for name, rule in (("start_time", "start_time"), ("info", "info.input_tokens"))
    ]
    return Sample(
        documents([first, {**first, "start_time": 12}]),
        [Row(12_000_000_000, 7, 8), Row(12_500_000_000, 7, 8)],
        damaged,
        ":2: ",
    )


def in_parquet(frame: pl.DataFrame, **options: Any) -> bytes:
    file = io.BytesIO()
    frame.write_parquet(file, **options)
    return file.getvalue()


@sample
def parquet() -> Sample:
    first = {
        "arrival_ns": 5,
        "prompt_tokens": 11,
        "output_tokens": 3,
        "hash_ids": [7, 8, 9],
        "block_tokens": 4,
        "session_id": "a",
    }

    def table(**spoiled: object) -> pl.DataFrame:
        rows = [first, {**first, **spoiled}]
        return pl.DataFrame({name: pl.Series([row[name] for row in rows], strict=False) for name in first})

    counts = ("prompt_tokens", "output_tokens", "block_tokens")
    bad: list[tuple[pl.DataFrame, str]] = [
        (table(**{name: value}), f"{name} {COUNT} {value}") for name in counts for value in (None, 0, -1, 10**9 + 1)
    ]
    bad += [(table(arrival_ns=value), "arrival_ns must be a number of ns that is not negative") for value in (None, -1)]
    bad += [
        (table(block_tokens=8), "block_tokens must be the same in every row, 4, got 8"),
        (table(hash_ids=[7]), "hash_ids must have one id per 4 tokens, 3 for input_length 11, got 1"),
        (table(hash_ids=[7, None, 9]), "hash_ids must be a list of whole numbers"),
    ]
    return Sample(
        in_parquet(table(arrival_ns=6, output_tokens=1, hash_ids=None, session_id=None)),
        [
            Row(5, 11, 3, (Span(7, 0, 4), Span(8, 0, 4), Span(9, 0, 3)), session="a"),
            Row(6, 11, 1),
        ],
        [(in_parquet(frame), rule) for frame, rule in bad],
        ":2: ",
    )


@sample
def columns() -> Sample:
    row = {"when": "12.5", "in tokens": "7", "out": "8"}
    return Sample(
        'out,when,other,in tokens\n8,12.5,"a, b",7\n9,13,,3\n',
        [Row(12_500_000, 7, 8), Row(13_000_000, 3, 9)],
        damaged_csv("when,in tokens,out", row, ["in tokens", "out"], "when"),
        ":3: ",
        Options(columns=Columns(prompt="in tokens", output="out", time="when"), time_unit="ms"),
    )
