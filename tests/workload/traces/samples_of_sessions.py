"""Samples of the formats that say what a session resends."""

import json

from kvsim.workload.request import Span
from kvsim.workload.traces import Row
from tests.workload.traces.samples import Sample, changed, damaged_lines, damaged_records, jsonl, sample


@sample
def bailian() -> Sample:
    first = {
        "chat_id": 159,
        "parent_chat_id": -1,
        "timestamp": 61.114,
        "input_length": 20,
        "output_length": 10,
        "type": "text",
        "turn": 1,
        "hash_ids": [1089, 1090],
    }
    second = {
        **first,
        "chat_id": 160,
        "parent_chat_id": 159,
        "timestamp": 70,
        "input_length": 40,
        "output_length": 2,
        "hash_ids": [1089, 1091, 1092],
    }
    spoiled = (
        (changed(first, "hash_ids", [1, 2, 3]), "hash_ids must have one id per 16 tokens, 2 for input_length 20"),
        (changed(first, "hash_ids", "1089"), "hash_ids must be a list of whole numbers"),
        (changed(first, "chat_id", [1]), "chat_id must be a string or a whole number"),
        (changed(first, "parent_chat_id", {}), "parent_chat_id must be a string or a whole number"),
    )
    need = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids")
    return Sample(
        jsonl(first, second),
        [
            Row(61_114_000_000, 20, 10, (Span(1089, 0, 16), Span(1090, 0, 4)), (Span("answer:1", 0, 10),), "159"),
            Row(
                70_000_000_000,
                40,
                2,
                # Block 1091 holds the last 4 tokens of the prompt before and all 10 of its output.
                (
                    Span(1089, 0, 16),
                    Span(1090, 0, 4),
                    Span("answer:1", 0, 10),
                    Span(1091, 14, 2),
                    Span(1092, 0, 8),
                ),
                (Span("answer:2", 0, 2),),
                "159",
            ),
        ],
        damaged_lines(first, ["input_length", "output_length"], "timestamp", need, spoiled),
        ":2: ",
    )


@sample
def ragpulse() -> Sample:
    ids = {"sys_prompt": [2**60], "passages_ids": [3, 1], "history": [], "web_search": [9], "user_input": [5]}
    first = {"timestamp": "82", "input_length": 120, "output_length": 7, "hash_ids": ids, "session_id": "a-b"}
    spoiled = (
        (changed(first, "timestamp", 82), "timestamp must be a number of seconds in text"),
        (changed(first, "hash_ids", [1]), "hash_ids must be an object of sys_prompt, passages_ids"),
        (changed(first, "hash_ids.history", [77]), "hash_ids.history has 77, whose length is not known"),
        (changed(first, "hash_ids.history", ["1"]), "hash_ids.history must be a list of whole numbers"),
        (changed(first, "input_length", 100), "input_length must be at least the 113 tokens of its pieces"),
        (changed(first, "session_id", 1.5), "session_id must be a string or a whole number"),
    )
    need = ("timestamp", "input_length", "output_length", "session_id", "hash_ids")
    return Sample(
        jsonl(first),
        [
            Row(
                82_000_000_000,
                120,
                7,
                (
                    Span(f"sys_prompt:{2**60}", 0, 50),
                    Span("passages_ids:3", 0, 30),
                    Span("passages_ids:1", 0, 20),
                    Span("web_search:9", 0, 4),
                    Span("user_input:5", 0, 9),
                    Span("rest:1", 0, 7),
                ),
                session="a-b",
            )
        ],
        damaged_lines(first, ["input_length", "output_length"], None, need, spoiled),
        ":2: ",
        beside={
            "1_sys_prompt.jsonl": jsonl({"sys_prompt_id": 2**60, "token_length": 50}),
            "2_passages.jsonl": jsonl({"passage_id": 1, "token_length": 20}, {"passage_id": 3, "token_length": 30}),
            "3_history.jsonl": "",
            "4_user_input.jsonl": "\n" + jsonl({"user_input_id": 5, "token_length": 9}),
            "5_web_search.jsonl": jsonl({"web_search_id": 9, "token_length": 4}),
        },
    )


@sample
def weka() -> Sample:
    def call(t: float, prompt: int, output: int, ids: list[int]) -> dict[str, object]:
        return {"t": t, "type": "n", "model": "m", "in": prompt, "out": output, "hash_ids": ids}

    first = call(0.0, 70, 10, [1])
    nested = call(0.5, 64, 3, [1])
    later = call(1.5, 200, 5, [1, 2, 3])
    agent = {"t": 0.4, "type": "subagent", "agent_id": "a", "requests": [nested]}

    def session(*requests: object) -> dict[str, object]:
        return {"id": "s1", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": list(requests)}

    rest = "rest:1:requests[0]"
    named = (Span(rest, 0, 6), Span("answer:1:requests[0]", 0, 10), Span("s1:2", 16, 48))
    counts = damaged_records(first, ["in", "out"], "t")
    missing = [(changed(first, name, None), f"{name} is missing") for name in ("t", "in", "out", "hash_ids")]
    ids = [(changed(first, "hash_ids", [1, 2, 3]), "hash_ids must have one id per 64 tokens, 2 for input_length 70")]
    return Sample(
        json.dumps(session(first, later, agent), indent=1) + "\n",
        [
            Row(0, 70, 10, (Span("s1:1", 0, 64), Span(rest, 0, 6)), (Span("answer:1:requests[0]", 0, 10),), "s1"),
            Row(500_000_000, 64, 3, (Span("s1:1", 0, 64),), (Span("answer:1:requests[2].requests[0]", 0, 3),), "s1"),
            Row(
                1_500_000_000,
                200,
                5,
                (Span("s1:1", 0, 64), *named, Span("s1:3", 0, 64), Span("rest:1:requests[1]", 0, 8)),
                (Span("answer:1:requests[1]", 0, 5),),
                "s1",
            ),
        ],
        [(jsonl(session(first, spoiled)), rule) for spoiled, rule in (*counts, *missing, *ids)],
        ":1: requests[1]: ",
    )


@sample
def tracelab() -> Sample:
    def event(kind: str, time: str) -> dict[str, str]:
        return {"event_type": kind, "timestamp": time}

    first = {
        "session_id": "c:1",
        "round_index": 0,
        "input_tokens_total": 30,
        "prefix_tokens": 20,
        "newly_append_tokens": 10,
        "output_tokens": 8,
        "timing_events": [
            event("user_message", "2026-06-01T05:40:20.151Z"),
            event("text", "2026-06-01T05:40:29.420Z"),
        ],
    }
    second = {
        **first,
        "input_tokens_total": 40,
        "prefix_tokens": 36,
        "newly_append_tokens": 4,
        "timing_events": [
            event("tool_result", "2026-06-01T05:40:31.000Z"),
            event("tool_result", "2026-06-01T05:40:50Z"),
            event("text", "2026-06-01T05:41:00Z"),
        ],
    }
    begin = (Span("before:c:1", 0, 20), Span("round:1", 0, 10))
    no_time = [event("user_message", "yesterday")]
    spoiled = (
        (changed(first, "prefix_tokens", -1), "prefix_tokens must be a whole number that is not negative"),
        (changed(first, "prefix_tokens", 21), "prefix_tokens and newly_append_tokens must add up to 30"),
        (changed(first, "newly_append_tokens", "1"), "newly_append_tokens must be a whole number"),
        (changed(first, "timing_events", []), "timing_events must be a list of objects, and not empty"),
        (changed(first, "timing_events", no_time), "timing_events.timestamp must look like"),
    )
    return Sample(
        jsonl(first, second),
        [
            Row(1_780_292_420_151_000_000, 30, 8, begin, (Span("answer:1", 0, 8),), "c:1"),
            Row(
                1_780_292_450_000_000_000,
                40,
                8,
                (*begin, Span("answer:1", 0, 6), Span("round:2", 0, 4)),
                (Span("answer:2", 0, 8),),
                "c:1",
            ),
        ],
        damaged_lines(
            first,
            ["input_tokens_total", "output_tokens"],
            None,
            ("session_id", "timing_events", "prefix_tokens"),
            spoiled,
        ),
        ":2: ",
    )


@sample
def dynamo_requests() -> Sample:
    def end(received: int, prompt: int, output: int, hashes: list[int]) -> dict[str, object]:
        request = {
            "request_received_ms": received,
            "input_tokens": prompt,
            "output_tokens": output,
            "replay": {"trace_block_size": 16, "input_length": prompt, "input_sequence_hashes": hashes},
        }
        return {
            "timestamp": 1,
            "event": {"event_type": "request_end", "agent_context": {"session_id": "r"}, "request": request},
        }

    first = end(1_779_163_048_815, 15, 3, [2**64 - 1])
    later = end(1_779_163_048_800, 16, 2, [2**64 - 2])
    tool = {"timestamp": 1, "event": {"event_type": "tool_start"}}
    name = "request.replay.input_sequence_hashes"
    spoiled = (
        (
            changed(first, f"event.{name}", [1, 2]),
            f"{name} must have one id per 16 tokens, 1 for input_length 15, got 2",
        ),
        (changed(first, f"event.{name}", [1.0]), f"{name} must be a list of whole numbers"),
        (changed(first, "event.request.replay.trace_block_size", 0), "request.replay.trace_block_size must be"),
        (changed(first, "event.request.output_tokens", None), "request.output_tokens is missing"),
        (changed(first, "event.request.output_tokens", -1), "request.output_tokens must be a whole number"),
        (changed(first, "event.request.input_tokens", 2.0), "request.input_tokens must be a whole number"),
        (changed(first, "event.request.request_received_ms", -1), "request.request_received_ms must be a number of ms"),
        (changed(first, "event", None), "event is missing"),
        (changed(first, "event.agent_context", {"session_id": []}), "agent_context.session_id must be"),
    )
    return Sample(
        jsonl(tool, first, later),
        [
            Row(1_779_163_048_800_000_000, 16, 2, (Span(2**64 - 2, 0, 16),), (Span("answer:3", 0, 2),), "r"),
            Row(1_779_163_048_815_000_000, 15, 3, (Span(2**64 - 1, 0, 15),), (Span("answer:2", 0, 3),), "r"),
        ],
        damaged_lines(first, [], None, (), spoiled),
        ":2: ",
    )
