"""JSON that is not lines: one object, an array of objects, or objects one after the other."""

import re
from collections.abc import Iterator
from typing import Any

from kvsim.workload.traces.fields import json_object
from kvsim.workload.traces.lines import Lines

_MARKS = re.compile(r'\\.|["{}\[\]\n]', re.DOTALL)


def json_texts(lines: Lines) -> Iterator[str]:
    """The text of each object at the top of the file or in its one array; an object is held, and never the file.

    `lines.number` is the line on which it begins.
    """
    depth = 0
    in_text = False
    begun: list[str] = []
    rest = ""
    line, array_line = 1, 0
    for piece in lines.pieces():
        text = rest + piece
        cut = len(text) - (len(text) - len(text.rstrip("\\"))) % 2  # an escape is not torn apart
        text, rest = text[:cut], text[cut:]
        start = 0
        for mark in _MARKS.finditer(text):
            character = mark.group()
            if character == "\n":
                line += 1
            elif character == '"':
                in_text = not in_text
            elif in_text or character[0] == "\\":
                continue
            elif character in "{[":
                if depth == 0:
                    _only_commas(lines, line, text[start : mark.start()])
                    start = mark.start()
                    lines.number = line
                    if character == "[" and not array_line:
                        array_line, start = line, mark.end()
                        continue
                depth += 1
            elif depth > 0:
                depth -= 1
                if depth == 0:
                    yield "".join([*begun, text[start : mark.end()]])
                    begun, start = [], mark.end()
            else:
                _only_commas(lines, line, text[start : mark.start()])
                if character != "]" or not array_line:
                    lines.number = line
                    lines.refuse(f"not JSON: {character} closes nothing")
                array_line, start = 0, mark.end()
        if depth:
            begun.append(text[start:])
        else:
            _only_commas(lines, line, text[start:])
    if depth or in_text or array_line:
        lines.refuse_file(f"not JSON: what begins on line {array_line or lines.number} does not end")


def json_documents(lines: Lines) -> Iterator[dict[str, Any]]:
    """Those objects, read."""
    for text in json_texts(lines):
        document = json_object(lines, text)
        if document is not None:
            yield document


def _only_commas(lines: Lines, line: int, text: str) -> None:
    if text.replace(",", "").strip():
        lines.number = line
        lines.refuse("not JSON objects, alone or in one array")
