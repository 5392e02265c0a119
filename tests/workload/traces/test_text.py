"""Texts that the real library cuts up, where it is installed."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import TraceError
from kvsim.workload.request import Span
from kvsim.workload.traces import READERS, Options, Row, read_rows
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.readers import rows_of

WORDS = {"hello": 1, "world": 2, "yes": 3, "no": 4}


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A tokenizer of four words, which knows no others."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return Options(tokenizer=tmp_path / "tokenizer.json")


def test_conversations_are_cut_up_turn_by_turn(tmp_path: Path, options: Options) -> None:
    said = [("human", "hello world"), ("gpt", "yes no"), ("human", "hello"), ("gpt", "no")]
    turns = [{"from": side, "value": text} for side, text in said]
    (tmp_path / "t").write_text(json.dumps([{"id": "a", "conversations": turns}]))
    assert list(read_rows(tmp_path / "t", options=options)) == [
        Row(None, 2, 2, (Span("token", 1, 2),), (Span("token", 3, 2),), "a"),
        Row(None, 5, 1, (Span("token", 1, 4), Span("token", 1, 1)), (Span("token", 4, 1),), "a"),
    ]


def test_prompts_are_cut_up(tmp_path: Path, options: Options) -> None:
    (tmp_path / "t").write_text('{"prompt": "hello world hello", "output_tokens": 3}\n')
    assert list(read_rows(tmp_path / "t", options=options)) == [
        Row(None, 3, 3, (Span("token", 1, 2), Span("token", 1, 1)))
    ]


@pytest.mark.parametrize("text", ["hello nobody", "hello \\ud800"])
def test_what_cannot_be_cut_up_is_a_bad_row(tmp_path: Path, options: Options, text: str) -> None:
    """A word that is not known, half a character."""
    sound = '{"prompt": "hello", "output_tokens": 3}\n'
    (tmp_path / "t").write_text(sound + sound.replace("hello", text))
    with pytest.raises(TraceError, match="t:2: prompt must be a text that the tokenizer can cut up: "):
        list(read_rows(tmp_path / "t", options=options))
    turns = f'[{{"from": "human", "value": "{text}"}}, {{"from": "gpt", "value": "no"}}]'
    (tmp_path / "t").write_text(f'[{{"id": "a", "conversations": {turns}}}, {{"id": "b", "conversations": []}}]')
    with pytest.raises(
        TraceError, match=r"t:1: conversations\[0\]: value must be a text that the tokenizer can cut up"
    ):
        list(read_rows(tmp_path / "t", options=options))
    lines = Lines(tmp_path / "t", skip_bad_rows=True)
    assert (list(rows_of(READERS["sharegpt"], lines, options)), lines.skipped) == ([], 1)


def test_what_is_no_tokenizer_is_refused(tmp_path: Path, options: Options) -> None:
    (tmp_path / "t").write_text('{"prompt": "hello", "output_tokens": 3}\n')
    for name in ("t", "nowhere.json"):
        with pytest.raises(TraceError, match=f"{name}: not a tokenizer.json that can be read: "):
            list(read_rows(tmp_path / "t", options=Options(tokenizer=tmp_path / name)))
