"""The tab that answers what fits as somebody turns knobs: `kvsim size`, with sliders."""

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from bokeh.model import Model

from kvsim.errors import KvsimError, ModelError
from kvsim.model.catalogue import catalogue
from kvsim.model.engines import ENGINES
from kvsim.model.formats import FORMATS, PACKED_LATENT_BYTES
from kvsim.model.geometry import ModelGeometry, is_uniform
from kvsim.model.hf_config import geometry_from_json
from kvsim.model.scaling import lengths_up_to
from kvsim.model.sizing import CLAIM
from kvsim.rules import shown
from kvsim.units import parse_bytes
from kvsim.view.calculator_chart import ContextChart
from kvsim.view.calculator_fields import (
    DEFAULTS,
    LABELS,
    NUMBERS,
    OF_SOURCE,
    SHAPE,
    Answer,
    Calculations,
    FieldsRefused,
    in_words_of_page,
    whole_number,
)
from kvsim.view.calculator_words import page_of
from kvsim.view.channel import Channel, Touch, faults_said

MAX_UPLOAD_BYTES = 2**20
"""A model config takes kilobytes. The page says this bound, and does not send what is larger."""

DIGEST_LETTERS = 16
"""Of the SHA-256 of a chosen file: enough to know it again."""

MAX_FIELD = 200
"""Characters of a field that are looked at; more is no setting."""

LONGEST = 2**20
"""Right end of the slider of lengths where nothing names a longest one."""

MANY_SEQUENCES = tuple(sorted({2**power * part // 2 for power in range(13) for part in (2, 3)}))
BLOCK_SIZES = tuple(2**power for power in range(10))
BUDGETS_GIB = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 30, 32, 40, 48, 60, 64, 80, 96, 120, 128, 160, 192, 256, 320, 384,
               512, 640, 768, 1024)  # fmt: skip

PRESSES: dict[str, Callable[[Answer], dict[str, int]]] = {
    "start": lambda _: {"num_tokens": 8192, "num_sequences": 1, "block_size": 16},
    "twice_the_context": lambda answer: {"num_tokens": answer.sizing.num_tokens * 2},
    "eight_times_the_sequences": lambda answer: {"num_sequences": answer.sizing.num_sequences * 8},
    "one_more_token": lambda answer: {"num_tokens": answer.sizing.num_tokens + 1},
    "blocks_of_16": lambda _: {"block_size": 16},
    "blocks_of_256": lambda _: {"block_size": 256},
}
"""Buttons of the page, and the fields that each one sets from the figures that are shown."""

NEW_MODEL = ("model", "source", "config", "start")
"""Changes after which a context length that is longer than the model is taken down to where it ends."""


class Calculator:
    """A tab of the app: holds what is in the fields, and shows the answer or what is wrong beside them."""

    name = "calculator"
    title = "Calculator"
    scripts = ("theme.js",)
    max_upload_bytes = MAX_UPLOAD_BYTES
    claim = CLAIM
    models = tuple(sorted(catalogue()))
    kv_dtypes = (*FORMATS, *PACKED_LATENT_BYTES)
    engines = tuple(ENGINES)
    labels: Mapping[str, str] = LABELS

    def __init__(self) -> None:
        self.on_state: Callable[[], None] | None = None
        self._calculations = Calculations()
        self._channel = Channel(name=self.name)
        self._chart = ContextChart()
        self._fields = dict(DEFAULTS)
        self._config: ModelGeometry | None = None
        self._digest_in_address = ""
        self._notes: list[str] = []
        """What is wrong and belongs to no field."""
        self._news: list[str] = []
        """What was done without being asked for."""
        self._has_fault = False
        self._problems: Mapping[str, str] = {}
        self._file_problem: str | None = None
        self._max_model_len: int | None = None
        self._shown_fields: Mapping[str, str] = self._fields
        self._answer = self._calculations.answer(self._fields)
        self._before: Answer | None = None
        self._in_hand: str | None = None
        """The field that is being changed: all of a drag, or of typing, is one change."""
        self._seen: tuple[Answer, Mapping[str, str], Answer | None] = self._answer, self._fields, None
        """Answer, fields of it and what it is compared with, as they stand in the page."""
        self._channel.when_touched(self._touched, self._failed)
        self._show()

    def roots(self) -> dict[str, Model]:
        return {"channel": self._channel, "chart": self._chart.figure}

    def state(self) -> dict[str, str]:
        """The fields of the figures that are shown, but for those at their defaults or of no account."""
        source = self._shown_fields["source"]
        idle = {name for other, names in OF_SOURCE.items() if other != source for name in names}
        written = {name: _plain(name, value) for name, value in self._shown_fields.items() if name not in idle}
        return {name: value for name, value in written.items() if value != DEFAULTS[name]}

    def close(self) -> None:
        """Nothing of it goes on anyway."""

    def restore(self, state: Mapping[str, str]) -> None:
        """Fill in the fields of an address; what cannot be used is said, and the defaults are shown."""
        with faults_said(self._failed):
            self._restore(state)

    def _restore(self, state: Mapping[str, str]) -> None:
        self._fields = DEFAULTS | {name: value[:MAX_FIELD] for name, value in state.items() if name in DEFAULTS}
        self._digest_in_address = self._fields["sha256"]
        self._recount()
        if "num_tokens" not in state:
            self._take_context_down()
        said = [f"{shown(name)} is no setting here" for name in state if name not in DEFAULTS]
        said += (in_words_of_page(name, message) for name, message in self._problems.items())
        if said:
            more = f", and {len(said) - 2:,} more" if len(said) > 2 else ""
            self._notes.append(f"This address cannot be followed in all: {'; '.join(said[:2])}{more}")
        self._before = None
        self._show()

    def _touched(self, touch: Touch) -> None:
        self._notes, self._news, self._file_problem, self._has_fault = [], [], None, False
        if touch.kind == "pressed" and touch.name in PRESSES:
            changes = PRESSES[touch.name](self._answer)
            self._change(touch.name, {name: str(number) for name, number in changes.items()})
        elif touch.kind == "slid" and touch.name in (ticks := self._ticks()):
            places = dict(enumerate(ticks[touch.name]))
            place = int(touch.value) if touch.value and touch.value.isdecimal() and len(touch.value) < 6 else None
            if place in places:
                self._change(touch.name, {touch.name: places[place]})
        elif touch.kind == "file":
            self._read_config(touch)
        elif touch.kind in ("typed", "set") and touch.name in DEFAULTS and touch.value is not None:
            no_longer = (
                {"max_model_len": ""} if touch.name == "source" else {"label": ""} if touch.name in SHAPE else {}
            )
            self._change(touch.name, {touch.name: touch.value[:MAX_FIELD], **no_longer})
        if touch.kind not in ("typed", "slid"):
            self._in_hand = None
            if touch.name in NEW_MODEL:
                self._take_context_down()
                if self._answer is not self._seen[0]:
                    self._before = self._seen[0]
        self._show()

    def _failed(self, sentence: str) -> None:
        """Say it, beside the figures that were seen before."""
        self._answer, self._shown_fields, self._before = self._seen
        self._notes, self._news, self._has_fault = [sentence], [], True
        self._tell_state()
        self._show()

    def _change(self, what: str, fields: Mapping[str, str]) -> None:
        """Put something into fields, and compare with what stood there before it was begun to be changed."""
        before = self._answer
        self._fields = {**self._fields, **fields}
        self._recount()
        if self._in_hand != what and self._answer is not before:
            self._before = before
            self._in_hand = what

    def _recount(self) -> None:
        """Answer the fields; if that cannot be done the last answer stays."""
        try:
            answer = self._calculations.answer(self._fields, self._config)
        except FieldsRefused as refused:
            self._problems, self._max_model_len = refused.problems, refused.max_model_len
        else:
            self._problems, self._max_model_len = {}, answer.geometry.max_model_len
            self._answer, self._shown_fields = answer, self._fields
        self._tell_state()

    def _tell_state(self) -> None:
        if self.on_state is not None:
            self.on_state()

    def _take_context_down(self) -> None:
        """What is longer than the model would begin with an error; it is asked about up to its end."""
        asked, longest = _amount("num_tokens", self._fields["num_tokens"]), self._longest()
        if longest is not None and asked > longest:
            self._fields = {**self._fields, "num_tokens": str(longest)}
            self._recount()
            self._news.append(f"Context length is {longest:,} tokens now, not {asked:,}: the model ends there")

    def _read_config(self, touch: Touch) -> None:
        """Take a chosen config.json: typed in where its layers are alike, since an address can carry that."""
        name = touch.file_name[:MAX_FIELD] or "config.json"
        try:
            content = _content(name, touch.value)
            geometry = geometry_from_json(content, name)
        except KvsimError as error:
            self._file_problem = str(error)
            return
        if is_uniform(geometry) and not geometry.assumptions:
            self._news.append(f"{name}: its layers are all alike, so they stand in the fields and in the address")
            self._change("config", {**_typed(geometry), "label": name})
            return
        digest, expected = sha256(content).hexdigest()[:DIGEST_LETTERS], self._digest_in_address
        self._config, self._digest_in_address = geometry, ""
        other_model = {"max_model_len": ""} if expected != digest else {}
        self._change("config", {"source": "config", "config": name, "sha256": digest, **other_model})
        if expected and expected != digest:
            self._notes.append(f"{name}: not the file of the address, whose SHA-256 began with {shown(expected)}")

    def _file(self) -> str:
        """The file whose geometry counts, if it is a file's."""
        of_file = self._config is not None and self._fields["source"] == "config"
        return f"{self._fields['config']}, SHA-256 {self._fields['sha256']}..." if of_file else ""

    @property
    def _awaits_file(self) -> bool:
        """Whether a file is asked for and none was ever chosen: nothing is wrong with that."""
        return self._fields["source"] == "config" and self._config is None and not self._fields["config"]

    def _earlier(self) -> str:
        """Why the figures are not those of the fields; empty if they are."""
        if self._awaits_file:
            return f"No config.json is chosen yet: these are the figures of {self._answer.sizing.model}."
        if self._has_fault:
            return "These are the figures of the earlier values."
        if self._problems:
            names = " and ".join(LABELS.get(name, name) for name in self._problems)
            return f"{names} cannot be used: these are the figures of the earlier values."
        return ""

    def _longest(self) -> int | None:
        """The longest request as far as it is known: what is typed in, or the model's own."""
        typed = _amount("max_model_len", self._fields["max_model_len"])
        return typed if 1 <= typed <= 10**9 else self._max_model_len

    def _ticks(self) -> dict[str, tuple[str, ...]]:
        """What each slider can be put to."""
        return {
            "num_tokens": tuple(map(str, lengths_up_to(self._longest() or LONGEST))),
            "num_sequences": tuple(map(str, MANY_SEQUENCES)),
            "block_size": tuple(map(str, BLOCK_SIZES)),
            "budget": tuple(f"{size} GiB" for size in BUDGETS_GIB),
        }

    def _positions(self) -> dict[str, dict[str, Any]]:
        """Where the sliders stand: at what is in the field, or the next smaller; to the left of all at nonsense."""
        return {
            name: {
                "max": len(ticks) - 1,
                "at": max(0, bisect_right([_amount(name, tick) for tick in ticks], _amount(name, value)) - 1),
                "says": _grouped(name, value),
            }
            for name, ticks in self._ticks().items()
            for value in (self._fields[name],)
        }

    def _show(self) -> None:
        page = page_of(self._answer, self._before)
        earlier = self._earlier()
        wrong = {name: in_words_of_page(name, message) for name, message in self._problems.items()}
        if self._awaits_file:
            wrong.pop("config", None)
        if self._file_problem is not None:
            wrong["config"] = self._file_problem
        self._chart.show(self._answer)
        self._channel.show(
            {
                "fields": {name: _grouped(name, value) for name, value in self._fields.items()},
                "sliders": self._positions(),
                "wrong": wrong,
                "texts": {
                    **page["texts"],
                    "note": ". ".join(self._notes),
                    "news": ". ".join(self._news),
                    "file": self._file(),
                    "earlier": earlier,
                },
                "widths": page["widths"],
                "marks": {
                    **page["marks"],
                    "earlier": bool(earlier),
                    "awaits_file": self._awaits_file,
                    **{f"from_{source}": self._fields["source"] == source for source in OF_SOURCE},
                },
            }
        )
        self._seen = self._answer, self._shown_fields, self._before


def _content(name: str, encoded: str | None) -> bytes:
    """The bytes of a file that comes as base64; None stands for one that was too large to be sent."""
    rule = f"{name}: a config must be at most {MAX_UPLOAD_BYTES:,} bytes"
    if encoded is None:
        raise ModelError(f"{rule}, and this file is larger")
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ModelError(f"{name}: did not arrive whole, choose it again") from None
    if len(content) > MAX_UPLOAD_BYTES:
        raise ModelError(f"{rule}, got {len(content):,}")
    return content


def _typed(geometry: ModelGeometry) -> dict[str, str]:
    """The fields that make the same layers."""
    layer = geometry.layers[0]
    numbers = {
        "num_layers": len(geometry.layers),
        "num_kv_heads": layer.num_kv_heads,
        "k_dim": layer.k_dim,
        "v_dim": layer.v_dim,
        "window": layer.window,
        "num_query_heads": geometry.num_query_heads,
        "max_model_len": geometry.max_model_len,
    }
    return {"source": "typed"} | {name: "" if number is None else str(number) for name, number in numbers.items()}


def _amount(name: str, value: str) -> int:
    """Tokens, sequences or bytes; 0 for what is none of them."""
    try:
        return parse_bytes(value) if name == "budget" else whole_number(value)
    except ValueError:
        return 0


def _grouped(name: str, value: str) -> str:
    """A number as people read it: 8,192. What is none stays as it was typed."""
    plain = _plain(name, value)
    return f"{int(plain):,}" if name in NUMBERS and plain.lstrip("-").isdecimal() else value


def _plain(name: str, value: str) -> str:
    """A number as addresses carry it: 8192."""
    try:
        return str(whole_number(value)) if name in NUMBERS else value
    except ValueError:
        return value
