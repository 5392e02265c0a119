"""Recorded agents: sessions of many calls, each of which resends what came before."""

from collections.abc import Iterator
from typing import Any

from kvsim.workload.request import Content, Span, merged, num_tokens
from kvsim.workload.traces.documents import json_documents
from kvsim.workload.traces.fields import (
    count,
    json_object,
    name_of_session,
    optional,
    required,
    time_ns,
    timestamp_ns,
    whole_numbers,
)
from kvsim.workload.traces.lineage import MOST_TURNS, Lineage, part
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.mooncake import Blocks
from kvsim.workload.traces.options import Options
from kvsim.workload.traces.row import Row

WEKA_BLOCK_TOKENS = 64


def read_weka(lines: Lines, options: Options) -> Iterator[Row]:
    """Agentic coding sessions of Weka and SemiAnalysis: a JSON object a session, one in a file or one a line.

    Taken are id, block_size (else 64), hash_id_scope (local unless it says global) and requests with t (s from the
    start of the session), in, out and hash_ids of full prefix blocks; those of a subagent, nested in an entry of
    type subagent, have the clock of the session. All sessions of a file start together. A call of the same agent
    that goes on from the call before contains its output. `type` n and s, the whole and the streamed call, are both
    calls.
    """
    lineage = Lineage()
    for session in json_documents(lines):
        name, requests = required(lines, session, "id", "requests")
        name = str(name_of_session(lines, "id", name))
        size = options.block_tokens or session.get("block_size", WEKA_BLOCK_TOKENS)
        blocks = Blocks(lines, count(lines, "block_size", size), WEKA_BLOCK_TOKENS)
        scope = "" if session.get("hash_id_scope") == "global" else f"{name}:"

        def convert(
            call: tuple[str, str, Any], name: str = name, blocks: Blocks = blocks, scope: str = scope, size: int = size
        ) -> Row:
            lines.item, agent, request = call
            if not isinstance(request, dict):
                lines.refuse("must be a JSON object")
            time, prompt, output, ids = required(lines, request, "t", "in", "out", "hash_ids")
            prompt_tokens = count(lines, "in", prompt)
            answer = Span(f"answer:{lines.place}", 0, count(lines, "out", output))
            spans = blocks.content("hash_ids", whole_numbers(lines, "hash_ids", ids), prompt_tokens, scope)
            time = time_ns(lines, "t", time, "s")
            content = lineage.prompt((name, agent), spans, size)
            lineage.remember((name, agent), spans, content, size, answer)
            return Row(time, prompt_tokens, answer.length, content, (answer,), name)

        yield from lines.each(_calls(lines, requests), convert)
        lines.item = ""


def _calls(lines: Lines, requests: Any, place: str = "requests", agent: str = "") -> Iterator[tuple[str, str, Any]]:
    """Where each call stands, which agent makes it, and the call; nested calls where their agent is entered."""
    if not isinstance(requests, list):
        lines.refuse(f"{place} must be a list")
    for index, request in enumerate(requests):
        here = f"{place}[{index}]"
        if isinstance(request, dict) and request.get("type") == "subagent":
            yield from _calls(lines, request.get("requests"), f"{here}.requests", here)
        else:
            yield here, agent, request


def read_tracelab(lines: Lines, _options: Options) -> Iterator[Row]:
    """TraceLab rounds, JSONL: session_id, prefix_tokens, newly_append_tokens, output_tokens, timing_events.

    The first prefix_tokens of a prompt are those of the round before and its output, as far as these go; what is
    beyond them, such as what was cached before the trace began, belongs to the session. A round is asked at the
    last of its user_message and tool_result events.
    """
    histories: dict[str, Content] = {}

    def convert(line: str) -> Row | None:
        record = json_object(lines, line)
        if record is None:
            return None
        session, total, prefix, appended, output, events = required(
            lines,
            record,
            *("session_id", "input_tokens_total", "prefix_tokens", "newly_append_tokens", "output_tokens"),
            "timing_events",
        )
        prompt_tokens = count(lines, "input_tokens_total", total)
        output_tokens = count(lines, "output_tokens", output)
        for name, value in (("prefix_tokens", prefix), ("newly_append_tokens", appended)):
            if type(value) is not int or value < 0:
                lines.refuse(f"{name} must be a whole number that is not negative")
        if prefix + appended != prompt_tokens:
            lines.refuse(f"prefix_tokens and newly_append_tokens must add up to {prompt_tokens}")
        name = str(name_of_session(lines, "session_id", session))
        asked = _asked_ns(lines, events)
        known = part(histories.pop(name, ()), 0, prefix)
        missing = prefix - num_tokens(known)
        before = Span(f"before:{name}", prefix - missing, missing)
        prompt = merged((*known, before, Span(f"round:{lines.number}", 0, appended)))
        answer = Span(f"answer:{lines.number}", 0, output_tokens)
        histories[name] = (*prompt, answer)
        if len(histories) > MOST_TURNS:
            del histories[next(iter(histories))]
        return Row(asked, prompt_tokens, output_tokens, prompt, (answer,), name)

    yield from lines.each(lines, convert)


def _asked_ns(lines: Lines, events: Any) -> int:
    """When all that a round was asked with had arrived."""
    if not isinstance(events, list) or not events or not all(isinstance(event, dict) for event in events):
        lines.refuse("timing_events must be a list of objects, and not empty")
    asked = [event for event in events if event.get("event_type") in ("user_message", "tool_result")]
    times = [timestamp_ns(lines, "timing_events.timestamp", event.get("timestamp")) for event in asked or events[:1]]
    return max(times)


def read_dynamo_requests(lines: Lines, options: Options) -> Iterator[Row]:
    """Dynamo's request trace, JSONL: the events request_end, which stand in the order in which requests ended.

    Taken are request.request_received_ms, input_tokens and output_tokens, agent_context.session_id, and where it is
    there request.replay with trace_block_size and input_sequence_hashes, ids of prefix blocks. A request of a session
    that goes on from the one before contains its output.
    """
    lineage = Lineage()

    def convert(line: str) -> Row | None:
        record = json_object(lines, line)
        if record is None:
            return None
        event, kind = required(lines, record, "event", "event.event_type")
        if kind != "request_end":
            return None
        time, prompt, output = required(
            lines, event, "request.request_received_ms", "request.input_tokens", "request.output_tokens"
        )
        received = time_ns(lines, "request.request_received_ms", time, "ms")
        prompt_tokens = count(lines, "request.input_tokens", prompt)
        answer = Span(f"answer:{lines.number}", 0, count(lines, "request.output_tokens", output))
        session_name = "agent_context.session_id"
        session = name_of_session(lines, session_name, optional(event, session_name))
        content = None
        if optional(event, "request.replay") is not None:
            size, ids = required(
                lines, event, "request.replay.trace_block_size", "request.replay.input_sequence_hashes"
            )
            size = count(lines, "request.replay.trace_block_size", size)
            ids = whole_numbers(lines, "request.replay.input_sequence_hashes", ids)
            spans = Blocks(lines, options.block_tokens or size, size).content(
                "request.replay.input_sequence_hashes", ids, prompt_tokens
            )
            content = lineage.prompt(session, spans, size)
            if session is not None:
                lineage.remember(session, spans, content, size, answer)
        return Row(received, prompt_tokens, answer.length, content, (answer,), session)

    yield from lines.each(lines, convert)
