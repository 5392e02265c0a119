"""How a tab's page of plain HTML and its Python half talk: one says what was touched, the other what is to be seen.

The page has real inputs, with labels and messages beside them, and no arithmetic; app.js binds them by their
`data-` attributes to the one model of this module that the tab has as a root.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, cast, get_args

from bokeh.core.properties import String
from bokeh.model import DataModel

from kvsim.view.faults import faults_told

TouchKind = Literal["typed", "set", "slid", "let_go", "pressed", "file"]
"""A box while somebody types and when that is done, a slider and when that is done, a button, a chosen file."""


class Touch(NamedTuple):
    """What somebody did to an input: its name, and what it says now (the position of a slider, a file in base64).

    A file has a name of its own too, and `value` is None where it was too large to be sent.
    """

    kind: TouchKind
    name: str
    value: str | None
    file_name: str = ""


class Channel(DataModel):
    """`said` comes from the page, `shown` goes to it; both are JSON, which both sides read strictly."""

    said = String(default="")
    shown = String(default="{}")

    def show(self, page: Mapping[str, Any]) -> None:
        """Have app.js put it into the page: always as text, never as markup."""
        self.update(shown=json.dumps(page))

    def when_touched(self, act: Callable[[Touch], None], failed: Callable[[str], None]) -> None:
        """Call `act` for what comes from the page; what is not as app.js sends it is passed over.

        `failed` is told of an error that nobody foresaw and that ended `act`.
        """

        def hear(_attribute: str, _old: str, new: str) -> None:
            touch = _read(new)
            if touch is not None:
                with faults_said(failed):
                    act(touch)

        self.on_change("said", hear)


def faults_said(failed: Callable[[str], None]) -> AbstractContextManager[None]:
    """Tell `failed` of an error that nobody foresaw."""
    return faults_told(lambda sentence: failed(f"This could not be answered: {sentence}"))


def _read(said: str) -> Touch | None:
    try:
        message = json.loads(said)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    kind, name, value, file_name = (message.get(key) for key in ("kind", "name", "value", "file_name"))
    if kind not in get_args(TouchKind) or not isinstance(name, str) or not isinstance(value, str | None):
        return None
    if (value is None and kind != "file") or not isinstance(file_name, str | None):
        return None
    return Touch(cast(TouchKind, kind), name, value, file_name or "")
