"""Formats that say which tokens, by their ids or as text that a tokenizer of the user's cuts up."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kvsim.errors import TraceError
from kvsim.workload.request import Content
from kvsim.workload.traces.documents import json_documents
from kvsim.workload.traces.fields import (
    count,
    json_object,
    name_of_session,
    required,
    time_ns,
    token_spans,
    whole_numbers,
)
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.options import Options
from kvsim.workload.traces.row import Row

Tokenize = Callable[[str], list[int]]

_ASKING = ("human", "user")
_ANSWERING = ("gpt", "assistant", "chatgpt", "bing", "bard")


def read_llmservingsim(lines: Lines, _options: Options) -> Iterator[Row]:
    """LLMServingSim JSONL: input_toks, output_toks, arrival_time_ns, and where they are there the token ids of both.

    Sessions of sub_requests, whose times hang on when earlier ones end, are refused.
    """

    def convert(line: str) -> Row | None:
        record = json_object(lines, line)
        if record is None:
            return None
        if "sub_requests" in record:
            lines.refuse("sub_requests are timed by the run itself, which a trace cannot say")
        time, prompt, output = required(lines, record, "arrival_time_ns", "input_toks", "output_toks")
        prompt_tokens = count(lines, "input_toks", prompt)
        output_tokens = count(lines, "output_toks", output)
        return Row(
            time_ns(lines, "arrival_time_ns", time, "ns"),
            prompt_tokens,
            output_tokens,
            _content(lines, record, "input_tok_ids", prompt_tokens),
            _content(lines, record, "output_tok_ids", output_tokens),
            name_of_session(lines, "session_id", record.get("session_id")),
        )

    yield from lines.each(lines, convert)


def _content(lines: Lines, record: dict[str, Any], name: str, tokens: int) -> Content | None:
    if record.get(name) is None:
        return None
    ids = whole_numbers(lines, name, record[name])
    if len(ids) != tokens or min(ids, default=0) < 0:
        lines.refuse(f"{name} must be {tokens} ids that are not negative, got {len(ids)} ids")
    return token_spans(ids)


def read_sharegpt(lines: Lines, options: Options) -> Iterator[Row]:
    """ShareGPT JSON: an array of objects with id and conversations of from (human, gpt) and value.

    Each answer that follows a question is a request: its prompt is all that was said before it, without a chat
    template. There are no times.
    """
    tokenize = _tokenizer(lines, options)

    def convert(turn: _Turn) -> Row | None:
        lines.item = turn.place
        if turn.wrong:
            lines.refuse(turn.wrong)
        if not turn.is_answer:
            return None
        return Row(
            None,
            count(lines, "the prompt's tokens", len(turn.said)),
            count(lines, "the answer's tokens", len(turn.tokens)),
            token_spans(turn.said),
            token_spans(turn.tokens),
            turn.session,
        )

    for conversation in json_documents(lines):
        yield from lines.each(_turns(lines, conversation, tokenize), convert)
        lines.item = ""


class _Turn(NamedTuple):
    """What one side says, and the tokens of all that was said before."""

    place: str
    session: str
    said: list[int]
    tokens: list[int]
    is_answer: bool
    wrong: str = ""


def _turns(lines: Lines, conversation: dict[str, Any], tokenize: Tokenize) -> Iterator[_Turn]:
    name, turns = conversation.get("id"), conversation.get("conversations")
    session = str(lines.number) if name is None else str(name)
    said: list[int] = []
    asked = False
    for index, turn in enumerate(turns if isinstance(turns, list) else [turns]):
        place = f"conversations[{index}]"
        if (
            not isinstance(turn, dict)
            or not isinstance(turn.get("value"), str)
            or not isinstance(turn.get("from"), str)
        ):
            yield _Turn(place, session, [], [], is_answer=False, wrong="must have from, and value, a text")
            return
        try:
            tokens = tokenize(turn["value"])
        except ValueError as error:
            yield _Turn(place, session, [], [], is_answer=False, wrong=f"value {error}")
            return
        yield _Turn(place, session, said, tokens, is_answer=asked and turn["from"] in _ANSWERING)
        asked = turn["from"] in _ASKING
        said = said + tokens


def read_vllm_custom(lines: Lines, options: Options) -> Iterator[Row]:
    """vLLM's custom dataset, JSONL: prompt, a text, and output_tokens where it is there. There are no times."""
    tokenize = _tokenizer(lines, options)

    def convert(line: str) -> Row | None:
        record = json_object(lines, line)
        if record is None:
            return None
        (text,) = required(lines, record, "prompt")
        if not isinstance(text, str):
            lines.refuse("prompt must be a text")
        try:
            ids = tokenize(text)
        except ValueError as error:
            lines.refuse(f"prompt {error}")
        output = record.get("output_tokens")
        output_tokens = None if output is None else count(lines, "output_tokens", output)
        return Row(None, count(lines, "the prompt's tokens", len(ids)), output_tokens, token_spans(ids))

    yield from lines.each(lines, convert)


def _tokenizer(lines: Lines, options: Options) -> Tokenize:
    """Cuts up text, or raises ValueError; the tokenizer is loaded for the first one."""
    loaded: list[Any] = []

    def tokenize(text: str) -> list[int]:
        if not loaded:
            loaded.append(_load_tokenizer(lines, options))
        try:
            return list(loaded[0].encode(text, add_special_tokens=False).ids)
        except Exception as error:  # the library raises nothing narrower: a word it does not know, half a character
            raise ValueError(f"must be a text that the tokenizer can cut up: {error}") from None

    return tokenize


def _load_tokenizer(lines: Lines, options: Options) -> Any:
    if options.tokenizer is None:
        lines.refuse_file("is text, which needs a tokenizer: name a tokenizer.json")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        lines.refuse_file("is text, which needs the tokenizers library: pip install 'kvsim[tokenizers]'")
    try:
        return Tokenizer.from_file(str(options.tokenizer))
    except Exception as error:  # the library raises nothing narrower
        raise TraceError(f"{options.tokenizer}: not a tokenizer.json that can be read: {error}") from None
