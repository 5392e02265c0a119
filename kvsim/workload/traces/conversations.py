"""Recorded services whose rows say what prompts contain and which conversation they belong to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvsim.errors import TraceError
from kvsim.workload.request import Content, Span
from kvsim.workload.traces.fields import (
    count,
    json_object,
    name_of_session,
    required,
    time_in_text_ns,
    time_ns,
    whole_numbers,
)
from kvsim.workload.traces.lineage import MOST_TURNS, Lineage
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.mooncake import Blocks
from kvsim.workload.traces.options import Options
from kvsim.workload.traces.row import Row

BAILIAN_BLOCK_TOKENS = 16

COMPONENTS = {
    "sys_prompt": ("sys_prompt", "sys_prompt_id"),
    "passages_ids": ("passages", "passage_id"),
    "history": ("history", "history_id"),
    "web_search": ("web_search", "web_search_id"),
    "user_input": ("user_input", "user_input_id"),
}
"""RAGPulse: the kinds of pieces of a prompt; the name of the file with their lengths, and its key."""


def read_bailian(lines: Lines, options: Options) -> Iterator[Row]:
    """Qwen-Bailian JSONL: chat_id, parent_chat_id (-1 for none), timestamp (s), input_length, output_length, hash_ids.

    Ids are of 16-token prefix blocks. The prompt of a later turn contains the prompt and the output of its parent.
    A session is named by its first chat.
    """
    blocks = Blocks(lines, options.block_tokens or BAILIAN_BLOCK_TOKENS, BAILIAN_BLOCK_TOKENS)
    lineage = Lineage()
    sessions: dict[str, str] = {}
    unit = options.time_unit or "s"

    def convert(line: str) -> Row | None:
        record = json_object(lines, line)
        if record is None:
            return None
        chat, parent, time, prompt, output, ids = required(
            lines, record, "chat_id", "parent_chat_id", "timestamp", "input_length", "output_length", "hash_ids"
        )
        prompt_tokens = count(lines, "input_length", prompt)
        output_tokens = count(lines, "output_length", output)
        time = time_ns(lines, "timestamp", time, unit)
        chat_name = name_of_session(lines, "chat_id", chat) or ""
        parent_name = name_of_session(lines, "parent_chat_id", parent)
        spans = blocks.content("hash_ids", whole_numbers(lines, "hash_ids", ids), prompt_tokens)
        size = blocks.block_tokens or BAILIAN_BLOCK_TOKENS
        content = lineage.prompt(parent_name, spans, size)
        answer = Span(f"answer:{lines.number}", 0, output_tokens)
        lineage.remember(chat_name, spans, content, size, answer)
        session = sessions[chat_name] = sessions.get(parent_name or "", chat_name)
        if len(sessions) > MOST_TURNS:
            del sessions[next(iter(sessions))]
        return Row(time, prompt_tokens, output_tokens, content, (answer,), session)

    yield from lines.each(lines, convert)


def read_ragpulse(lines: Lines, _options: Options) -> Iterator[Row]:
    """RAGPulse JSONL: timestamp (s, in text), input_length, output_length, session_id, and hash_ids of five kinds.

    An id is a piece of text, in the order in which the row lists them; how long it is stands in the files beside
    this one whose names end in sys_prompt, passages, history, web_search and user_input. What a prompt has beyond
    its pieces, a few tokens of its template, is put at its end and shared with nobody.
    """
    lengths: dict[str, dict[int, int]] = {}

    def convert(line: str) -> Row | None:
        record = json_object(lines, line)
        if record is None:
            return None
        if not lengths:
            lengths.update({kind: _lengths(lines.path, *named) for kind, named in COMPONENTS.items()})
        time, prompt, output, session, ids = required(
            lines, record, "timestamp", "input_length", "output_length", "session_id", "hash_ids"
        )
        if not isinstance(time, str):
            lines.refuse("timestamp must be a number of seconds in text")
        prompt_tokens = count(lines, "input_length", prompt)
        return Row(
            time_in_text_ns(lines, "timestamp", time, "s"),
            prompt_tokens,
            count(lines, "output_length", output),
            _pieces(lines, ids, lengths, prompt_tokens),
            session=name_of_session(lines, "session_id", session),
        )

    yield from lines.each(lines, convert)


def _pieces(lines: Lines, ids: Any, lengths: dict[str, dict[int, int]], prompt_tokens: int) -> Content:
    if not isinstance(ids, dict) or not ids.keys() <= lengths.keys():
        lines.refuse(f"hash_ids must be an object of {', '.join(lengths)}")
    spans = []
    left = prompt_tokens
    for kind, listed in ids.items():
        for piece in whole_numbers(lines, f"hash_ids.{kind}", listed):
            if piece not in lengths[kind]:
                lines.refuse(f"hash_ids.{kind} has {piece}, whose length is not known")
            spans.append(Span(f"{kind}:{piece}", 0, lengths[kind][piece]))
            left -= spans[-1].length
    if left < 0:
        lines.refuse(f"input_length must be at least the {prompt_tokens - left} tokens of its pieces")
    return (*spans, Span(f"rest:{lines.number}", 0, left)) if left else tuple(spans)


def _lengths(trace: Path, file_name: str, key: str) -> dict[int, int]:
    """The length of each piece of a kind, from the one file beside the trace that is named after it."""
    files = [path for path in sorted(trace.parent.glob(f"*{file_name}.jsonl*")) if path.name != trace.name]
    if len(files) != 1:
        found = ", ".join(path.name for path in files) or "none"
        raise TraceError(f"{trace}: needs one file named *{file_name}.jsonl beside it, found {found}")
    lines = Lines(files[0])
    lengths = {}
    for line in lines:
        record = json_object(lines, line)
        if record is not None:
            piece, tokens = required(lines, record, key, "token_length")
            if type(piece) is not int:
                lines.refuse(f"{key} must be a whole number")
            lengths[piece] = count(lines, "token_length", tokens)
    return lengths
