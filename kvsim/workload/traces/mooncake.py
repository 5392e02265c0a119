"""Mooncake JSONL and its dialects: a request a line, with the ids of the blocks of its prompt."""

from collections.abc import Iterator
from math import gcd
from typing import Any, NamedTuple

from kvsim.rules import shown
from kvsim.workload.request import Content, Span
from kvsim.workload.traces.fields import count, json_object, name_of_session, required, time_ns, whole_numbers
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.options import Options, TimeUnit
from kvsim.workload.traces.row import Row

KNOWN_BLOCK_TOKENS = (512, 16, 64)
"""What an id stands for in the files that are about; which of them it is, the first row with a prompt shows."""


class Blocks:
    """The content that ids of blocks of tokens stand for.

    A prompt has an id for each block that it fills, and may have one for the rest:

        0        block_tokens     2 * block_tokens   prompt_tokens
        |-- id 17 --|----- id 4 -----|----- id 9 ------|.........|
                                       its own id, or none: then it shares nothing

    An id that comes again means equal tokens, in another row and in the same one.
    """

    def __init__(self, lines: Lines, block_tokens: int | None, usual: int, *, rest_has_id: bool = False) -> None:
        self._lines = lines
        self._usual = usual
        self._rest_has_id = rest_has_id
        self.block_tokens = block_tokens

    def content(self, name: str, ids: list[int], prompt_tokens: int, scope: str = "") -> Content:
        """The spans of a prompt; `scope` tells equal ids of different files or sessions apart."""
        size = self.block_tokens or self._shown_by(len(ids), prompt_tokens)
        self._lines.block_tokens = gcd(size, self._lines.block_tokens or 0)
        full, rest = divmod(prompt_tokens, size)
        needed = full + (rest > 0)
        if len(ids) != needed and (self._rest_has_id or len(ids) != full):
            self._lines.refuse(
                f"{name} must have one id per {size} tokens, {needed} for input_length {prompt_tokens}, got {len(ids)}"
            )
        sources: list[int | str] = [f"{scope}{block}" for block in ids] if scope else [*ids]
        spans = [Span(source, 0, size) for source in sources[:full]]
        if rest:
            spans.append(Span(sources[full] if len(ids) > full else f"rest:{self._lines.place}", 0, rest))
        return tuple(spans)

    def _shown_by(self, num_ids: int, prompt_tokens: int) -> int:
        """The size that fits the first row, the usual one before others; it then holds for the file."""
        sizes = (self._usual, *KNOWN_BLOCK_TOKENS)
        fitting = [size for size in sizes if num_ids in (prompt_tokens // size, -(-prompt_tokens // size))]
        if prompt_tokens and fitting:
            self.block_tokens = fitting[0]
        return fitting[0] if fitting else self._usual


class Dialect(NamedTuple):
    """How a tool writes it: the unit of times, tokens of a block, and whether times and ids may be left out."""

    time_unit: TimeUnit
    block_tokens: int
    strict: bool = False


MOONCAKE = Dialect("ms", 512, strict=True)
AIPERF = Dialect("ms", 512)
DYNAMO = Dialect("ms", 512)
TIMED_TRACE = Dialect("s", 16)
GUIDELLM = Dialect("s", 512)

_TIME = ("timestamp", "created_time")
_PROMPT = ("input_length", "input_tokens", "prompt_tokens")
_OUTPUT = ("output_length", "output_tokens")


def read_mooncake(lines: Lines, options: Options) -> Iterator[Row]:
    """Mooncake JSONL: timestamp (whole ms), input_length, output_length, hash_ids of 512-token prefix blocks."""
    return _read(lines, options, MOONCAKE)


def read_aiperf(lines: Lines, options: Options) -> Iterator[Row]:
    """AIPerf's mooncake_trace: as Mooncake; timestamp (ms with decimals), output_length and hash_ids may be missing.

    Rows with text_input or messages in place of input_length, and those timed by a delay after the turn before,
    are refused: the first has no tokens, the second no times.
    """
    return _read(lines, options, AIPERF)


def read_dynamo(lines: Lines, options: Options) -> Iterator[Row]:
    """Dynamo's Mooncake rows: created_time, input_tokens and output_tokens are other names; session_id is read."""
    return _read(lines, options, DYNAMO)


def read_timed_trace(lines: Lines, options: Options) -> Iterator[Row]:
    """vLLM's timed_trace: as Mooncake with timestamp in seconds and ids of 16 tokens, vLLM's defaults."""
    return _read(lines, options, TIMED_TRACE)


def read_guidellm(lines: Lines, options: Options) -> Iterator[Row]:
    """GuideLLM's trace for replay: timestamp in seconds, input_length, output_length; hash_ids may be missing."""
    return _read(lines, options, GUIDELLM)


def _read(lines: Lines, options: Options, dialect: Dialect) -> Iterator[Row]:
    blocks = Blocks(lines, options.block_tokens, dialect.block_tokens, rest_has_id=dialect.strict)
    unit = options.time_unit or dialect.time_unit

    def convert(line: str) -> Row | None:
        record = json_object(lines, line)
        if record is None:
            return None
        if dialect.strict:
            required(lines, record, "timestamp", "input_length", "output_length", "hash_ids")
        prompt_name, prompt = _first_of(lines, record, _PROMPT)
        prompt_tokens = count(lines, prompt_name, prompt)
        time = None
        if any(name in record for name in _TIME):
            time_name, value = _first_of(lines, record, _TIME)
            time = _whole_ms(lines, value) if dialect.strict else time_ns(lines, time_name, value, unit)
        output_tokens = None
        if any(name in record for name in _OUTPUT):
            output_tokens = count(lines, *_first_of(lines, record, _OUTPUT))
        content = None
        if "hash_ids" in record:
            ids = whole_numbers(lines, "hash_ids", record["hash_ids"])
            content = blocks.content("hash_ids", ids, prompt_tokens)
        session = name_of_session(lines, "session_id", record.get("session_id"))
        return Row(time, prompt_tokens, output_tokens, content, session=session)

    yield from lines.each(lines, convert)


def _first_of(lines: Lines, record: dict[str, Any], names: tuple[str, ...]) -> tuple[str, Any]:
    """A value by whichever of its names it goes."""
    name = next((name for name in names if name in record), None)
    if name is None:
        lines.refuse(f"{names[0]} is missing")
    return name, record[name]


def _whole_ms(lines: Lines, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 10**12:
        lines.refuse(f"timestamp must be a whole number of milliseconds from 0 to 10^12, got {shown(value)}")
    return value * 10**6
