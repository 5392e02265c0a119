"""The tab of the app in which a scenario is edited, checked and run.

The page holds real inputs, and `static/scenario.js` tells what was touched; everything that can be seen is made here,
by templates that escape what is not their own.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bokeh.core.properties import String
from bokeh.model import DataModel, Model

from kvsim.engine.results import CLAIM, Results
from kvsim.errors import KvsimError, ScenarioError
from kvsim.rules import shown
from kvsim.study.results_table import sections
from kvsim.study.scenario import named_overrides
from kvsim.view.block_chart import BlockChart
from kvsim.view.draft import MOST_BYTES, READY_MADE, Draft, Problem, scenario_files
from kvsim.view.faults import faults_told
from kvsim.view.live_run import MOST_ROWS, MOST_ROWS_TOLD, MOST_SECONDS, Ended, LiveRun, Refused, Seen
from kvsim.view.over_time import SCRIPTS, OverTime
from kvsim.view.pages import TEMPLATES
from kvsim.view.problem_places import Mode, beside_fields, first_of
from kvsim.view.run_words import Ran, status, whose
from kvsim.view.text_in_address import MOST_OF_ADDRESS, packed, unpacked

_PREFERRED = "quick_start.toml"


class ScenarioPage(DataModel):
    """What the page says, and what it shows: JSON, but for `form` and `results`, which are markup from a template."""

    said = String(default="")
    draft = String(default="")
    form = String(default="")
    run = String(default="")
    results = String(default="")
    fault = String(default="")


class ScenarioTab:
    """One scenario of a folder under edit, and one run of it at a time, which ends with the session or by `close`.

    `on_state` is called when `state` has changed.
    """

    name = "scenario"
    title = "Run a scenario"
    scripts = (*SCRIPTS, "scenario.js")
    most_bytes, most_seconds, most_rows, most_rows_told = MOST_BYTES, MOST_SECONDS, MOST_ROWS, MOST_ROWS_TOLD

    def __init__(self, folder: Path) -> None:
        self.on_state: Callable[[], None] | None = None
        self._folder = folder
        self._files = scenario_files(folder)
        self._default = next((name for name in self._files if Path(name).name == _PREFERRED), READY_MADE)
        self._draft = Draft(folder, self._default)
        self._mode: Mode = "fields"
        self._trouble: tuple[str, ...] = ()
        """What could not be done of what was asked for last."""
        self._run: LiveRun | None = None
        self._ran: Ran | None = None
        self._news_awaited = False
        self._has_charts = False
        self._over_time = OverTime()
        self._blocks = BlockChart()
        self._page = ScenarioPage(name="scenario-page")
        self._page.on_change("said", lambda _attribute, _old, new: self._hear(new))
        self._show_form()
        self._show_run()

    @property
    def over_time(self) -> list[str]:
        """Names of the roots that are charts over time, from above."""
        return list(self._over_time.figures)

    @property
    def block_charts(self) -> list[str]:
        return list(self._blocks.figures)

    def roots(self) -> dict[str, Model]:
        return {"page": self._page, **self._over_time.figures, **self._blocks.figures}

    def close(self) -> None:
        """Nothing of it goes on, and no file of it stays."""
        if self._run is not None:
            self._run.close()
            self._run = None

    # in the address

    def state(self) -> dict[str, str]:
        """The file; what was typed into its fields, a line each, or else the whole text; whether that has run.

        What is as at the start is left out, and so is a text that is too long for an address.
        """
        state = {}
        draft = self._draft
        if draft.file != self._default:
            state["file"] = draft.file
        if not draft.is_as_in_file:
            letters = packed(draft.text)
            if len(letters) > MOST_OF_ADDRESS:
                return state
            state["text"] = letters
        elif draft.overrides:
            state["set"] = "\n".join(draft.overrides)
        if self._ran is not None and self._ran.is_of(draft):
            state["run"] = "1"
        return state

    def restore(self, state: Mapping[str, str]) -> None:
        """As an address says; what of it cannot be is told in the page."""
        with self._faults_told():
            self._restore(state)

    def _restore(self, state: Mapping[str, str]) -> None:
        self._trouble = ()
        try:
            file = state.get("file", self._default)
            self._open(file)
            if "text" in state:
                self._draft.write(unpacked(state["text"]))
                self._mode = "fields" if self._draft.fields is not None else "text"
            for override in filter(None, state.get("set", "").split("\n")):
                key, _, typed = override.partition("=")
                if not self._draft.type(key, typed):
                    raise KvsimError(f"set names {shown(key)}, which is no field of this scenario")
        except KvsimError as error:
            self._trouble = (f"This address cannot be shown as it was: {error}",)
        self._show_form()
        if state.get("run") == "1" and not self._trouble:
            self._start()
        self._show_run()

    # from the page

    def _hear(self, said: str) -> None:
        """Do what was asked for; what is not as scenario.js says it is passed over."""
        with self._faults_told():
            self._do(_read(said))

    def _faults_told(self) -> AbstractContextManager[None]:
        return faults_told(lambda sentence: self._page.update(fault=sentence))

    def _do(self, message: Mapping[str, str]) -> None:
        value = message.get("value", "")
        acts: dict[str, Callable[[], object]] = {
            "files": self._look_for_files,
            "file": lambda: self._open(value),
            "mode": lambda: self._switch(value),
            "field": lambda: self._draft.type(message.get("key", ""), value),
            "text": lambda: self._draft.write(value),
            "run": self._start,
            "stop": self._stop,
        }
        kind = message.get("kind", "")
        if kind not in acts:
            return
        if kind != "files":  # which nobody asks for, as it comes with the pointer
            self._trouble = ()
            self._page.update(fault="")
        try:
            acts[kind]()
        except KvsimError as error:
            self._trouble = (str(error),)
        if kind in ("file", "mode"):
            self._show_form()
        self._show_draft()
        self._show_run()
        self._tell_state()

    def _look_for_files(self) -> None:
        self._files = scenario_files(self._folder)

    def _open(self, file: str) -> None:
        if file not in (READY_MADE, *self._files):
            self._look_for_files()
        if file not in (READY_MADE, *self._files):
            raise KvsimError(f"{shown(file)} is not one of the scenarios of this folder")
        self._draft = Draft(self._folder, file)
        self._mode = "fields" if self._draft.fields is not None else "text"

    def _switch(self, mode: str) -> None:
        if mode == "fields" and self._draft.fields is None:
            raise KvsimError("only a text that is TOML can be shown as fields")
        self._mode = "fields" if mode == "fields" else "text"

    def _tell_state(self) -> None:
        if self.on_state is not None:
            self.on_state()

    # the run

    @property
    def _earlier(self) -> Ran | None:
        """What ran last, if it is not what is edited now."""
        return None if self._ran is None or self._ran.is_of(self._draft) else self._ran

    @property
    def _is_running(self) -> bool:
        return self._run is not None and self._run.state == "running"

    def _start(self) -> None:
        """Nothing happens while one runs, or where there are problems, which are to be seen already."""
        if self._is_running:
            return
        try:
            scenario = self._draft.scenario()
        except ScenarioError:
            return
        self.close()
        self._page.update(results="")
        self._has_charts = False
        self._ran = Ran.of(self._draft)
        self._run = LiveRun(scenario, self._await_news)

    def _stop(self) -> None:
        if self._run is not None:
            self._run.stop()

    def _await_news(self) -> None:
        """From the run's thread: look at it as soon as the session can."""
        document = self._page.document
        if document is None:  # its session has ended
            if self._run is not None:
                self._run.stop()
        elif not self._news_awaited:
            self._news_awaited = True
            document.add_next_tick_callback(self._look)

    def _look(self) -> None:
        """Show what is known of the run."""
        with self._faults_told():
            self._show_news()

    def _show_news(self) -> None:
        self._news_awaited = False
        run = self._run
        if run is None:
            return
        latest = run.latest
        if isinstance(latest, Seen):
            self._has_charts = True
            self._over_time.show(latest.shape, latest.timeline, latest.pressure, MOST_ROWS_TOLD)
            self._blocks.show([latest.blocks])
        elif isinstance(latest, Ended):
            self._has_charts = True
            results = latest.results
            self._over_time.show(results.shape, results.timeline, results.pressure)
            self._blocks.show(latest.maps)
            self._page.update(results=_figures(results))
        elif isinstance(latest, Refused):
            self._show_draft()
        self._show_run()

    # to the page

    def _show_form(self) -> None:
        self._show_draft()
        form = TEMPLATES.get_template("scenario_fields.html").render(groups=self._groups())
        self._page.update(form=form)

    def _groups(self) -> list[dict[str, Any]]:
        """Tables with their fields, as they are numbered in the page."""
        text = self._draft.fields
        if text is None:
            return []
        boxes = defaultdict(list)
        words = self._draft.words()
        for number, field in enumerate(text.fields):
            typed = self._draft.typed(field)
            boxes[field.table].append(
                {
                    "number": number,
                    "key": field.key,
                    "name": field.name,
                    "typed": typed,
                    "words": words.get(field.named, ()),
                    "help": field.help,
                }
            )
        return [
            {
                "number": number,
                "title": table.key or "The question",
                "help": table.help,
                "boxes": boxes.pop(table.key, []),
            }
            for number, table in enumerate(text.tables)
        ]

    def _show_draft(self) -> None:
        draft = self._draft
        page = {
            "files": self._files_by_folder(),
            "file": draft.file,
            "mode": self._mode,
            "text": draft.text,
            "name": draft.name_to_save,
            "command": draft.command,
            "is_in_file": draft.is_in_file,
            "fits_address": draft.is_as_in_file or len(packed(draft.text)) <= MOST_OF_ADDRESS,
            "problems": beside_fields(self._problems(), draft.fields, self._mode),
        }
        self._page.update(draft=json.dumps(page))

    def _files_by_folder(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Folders with the files in each, by path and name; the one under edit is there even if it is no more."""
        names = {*self._files, self._draft.file} - {READY_MADE}
        folders: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
        folders[""].append((READY_MADE, "a scenario to begin with"))
        for name in sorted(names, key=lambda name: (Path(name).parent.parts, name)):
            parent = Path(name).parent.as_posix()
            folders["" if parent == "." else parent].append((name, Path(name).name))
        return list(folders.items())

    def _problems(self) -> list[Problem]:
        """Those of the draft, what its run has refused, and what could not be done."""
        draft, run = self._draft, self._run
        refused = run.latest.problems if run is not None and isinstance(run.latest, Refused) else ()
        told = self._trouble if self._earlier is not None else (*refused, *self._trouble)
        return [*draft.problems(), *draft.placed(told)]

    def _show_run(self) -> None:
        run = self._run
        seen = run.latest if run is not None and isinstance(run.latest, Seen) else None
        problems = self._draft.problems()
        earlier = self._earlier
        page = {
            "can_run": not self._is_running and not problems,
            "can_stop": self._is_running,
            "num_ended": seen.num_ended if seen else 0,
            "num_requests": seen.num_requests if seen else None,
            "status": status(run, earlier, 0 if self._is_running else len(problems)),
            "problem": first_of(self._problems(), self._draft.fields, self._mode),
            "has_charts": self._has_charts,
            "earlier": whose(run, earlier) if self._has_charts else "",
        }
        self._page.update(run=json.dumps(page))


def _figures(results: Results) -> str:
    return TEMPLATES.get_template("scenario_results.html").render(
        question=results.description["question"],
        overrides=named_overrides(results.description["overrides"]),
        sections=sections(results),
        notes=results.notes,
        stalled=results.stalled,
        claim=CLAIM,
    )


def _read(said: str) -> dict[str, str]:
    """A message of texts by name; what is anything else is left out."""
    try:
        message = json.loads(said)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(message, dict):
        return {}
    # Half of a surrogate pair is no text that could be written anywhere.
    return {
        name: value.encode("utf-8", "replace").decode() for name, value in message.items() if isinstance(value, str)
    }
