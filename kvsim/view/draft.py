"""A scenario that somebody edits in the app: its text, what was typed into its fields, and what is wrong with it.

It names files of one folder and no model on the hub: nothing is opened before that is known.
"""

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.errors import KvsimError, ScenarioError
from kvsim.model.catalogue import HUB_PREFIX
from kvsim.rules import shown
from kvsim.study.input_files import NAMES_A_FILE, files_beside
from kvsim.study.scenario import Scenario, named_overrides, overridden, parse_scenario, scenario_words
from kvsim.study.scenario_text import Field, Place, ScenarioText, line_of_error, place_of, read_scenario_text
from kvsim.study.toml import parse_toml
from kvsim.view.inside import inside

MOST_BYTES = 2**16
"""Of the text of a scenario in the app."""

READY_MADE = "ready-made"
"""Stands for a scenario that is in no file; no file that ends in .toml is called so."""

READY_MADE_TEXT = """\
# A scenario to begin with: chat traffic for an 8B-class model.

question = "How much of 4 GiB for KV does chat traffic need, and how much of it is waste?"
seed = 1

[model]
config = "llama-3.1-8b"     # a name of the catalogue, or a config.json in this folder

[memory]
budget = "4 GiB"            # KV cache on one device, after weights and activations
block_size = 16             # tokens
prefix_sharing = true

[workload]
kind = "poisson"
rate = 3.0                  # requests per second
num_requests = 1000
prompt = { kind = "lognormal", mean = 900, p50 = 500, min = 1, max = 8000 }   # tokens
output = { kind = "uniform", min = 16, max = 500 }                            # tokens

[engine]
max_num_seqs = 128
max_num_batched_tokens = 8192
max_model_len = 16384
"""

_MOST_FILES = 500
_MOST_ENTRIES = 50_000
_IS_SCENARIO = re.compile(r"^\s*question\s*=", re.MULTILINE)
_NAME_TO_SAVE = "scenario.toml"


class Problem(NamedTuple):
    """A sentence, where it belongs, and the line of the text that it is about, from 1."""

    sentence: str
    place: Place
    line: int | None


def scenario_files(folder: Path) -> list[str]:
    """Those below a folder that hold a scenario, as paths from it; hidden folders are passed over."""
    found = []
    for path in _toml_files(folder):
        name = path.relative_to(folder).as_posix()
        try:
            if _IS_SCENARIO.search(_read(folder, name)):
                found.append(name)
        except KvsimError:
            continue
        if len(found) == _MOST_FILES:
            break
    return sorted(found)


def _toml_files(folder: Path) -> Iterator[Path]:
    seen = 0
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        yield from (Path(parent, name) for name in sorted(files) if name.endswith(".toml"))
        seen += len(folders) + len(files)
        if seen > _MOST_ENTRIES:
            return


def _read(folder: Path, name: str) -> str:
    """The text of a file of the folder; raises KvsimError."""
    path = inside(folder, name)
    try:
        if not path.is_file():
            raise KvsimError(f"{shown(name)}: is not a file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise KvsimError(f"{shown(name)}: must be at most {MOST_BYTES:,} bytes")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise KvsimError(f"{shown(name)}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KvsimError(f"{shown(name)}: not UTF-8 text") from None


class Draft:
    """One scenario under edit. `file` is a path from the folder, or READY_MADE; `fields` is None for what is no TOML.

    What is typed into fields is kept apart from the text, as `--set` would be told of it.
    """

    def __init__(self, folder: Path, file: str = READY_MADE) -> None:
        self.folder = folder
        self.file = file
        self.original = READY_MADE_TEXT if file == READY_MADE else _read(folder, file)
        self.fields: ScenarioText | None = None
        self._text = ""
        self._edits: dict[str, str] = {}
        self.write(self.original)

    # edits

    def write(self, text: str) -> None:
        """Put another text in place of all; raises KvsimError for one that is too long."""
        _check_size(text)
        edits = None
        if (original := _fields_of(self.original)) is not None:
            edits = original.edits_to(text)
        self._text, self._edits = (text, {}) if edits is None else (self.original, edits)
        self.fields = _fields_of(self._text)

    def type(self, key: str, typed: str) -> bool:
        """Say what now stands in the box of a field, if there is such a field.

        Raises KvsimError where the text becomes too long.
        """
        field = self._field(key)
        if field is None or self.fields is None:
            return False
        typed = " ".join(typed.split("\n"))
        edits = {**self._edits, key: typed}
        _check_size(self.fields.with_values(edits))
        if not field.can_be_set:
            # The text alone can say it; boxes stay as they are.
            self._text = self.fields.with_values(edits)
            self._edits = {}
            self.fields = read_scenario_text(self._text)
        elif typed == field.typed:
            self._edits.pop(key, None)
        else:
            self._edits = edits
        return True

    def typed(self, field: Field) -> str:
        """What stands in its box."""
        return self._edits.get(field.key, field.typed)

    def words(self) -> dict[str, tuple[str, ...]]:
        """What fields may say that may say only some words, by their dotted key (`named`)."""
        return {} if self.fields is None else scenario_words(parse_toml(self.text))

    def _field(self, key: str) -> Field | None:
        return next((field for field in self.fields.fields if field.key == key), None) if self.fields else None

    # what it comes to

    @property
    def text(self) -> str:
        return self._text if self.fields is None else self.fields.with_values(self._edits)

    @property
    def overrides(self) -> tuple[str, ...]:
        """As `--set` takes them."""
        return tuple(f"{key}={typed}" for key, typed in self._edits.items())

    @property
    def is_as_in_file(self) -> bool:
        """But for the overrides."""
        return self._text == self.original

    @property
    def named(self) -> str:
        """Its file and how it differs from that: "chat.toml with memory.block_size = 8"."""
        name = "the scenario to begin with" if self.file == READY_MADE else self.file
        if not self.is_as_in_file:
            return f"{name} with changes of its text"
        changes = named_overrides(self.overrides) or ("with another question" if self.overrides else "")
        return f"{name} {changes}".strip()

    @property
    def name_to_save(self) -> str:
        return _NAME_TO_SAVE if self.file == READY_MADE else Path(self.file).name

    @property
    def is_in_file(self) -> bool:
        """Whether a file of the folder says it, with the overrides."""
        return self.is_as_in_file and self.file != READY_MADE

    @property
    def command(self) -> str:
        """What does the same on the command line, in the folder; what is in no file has to be saved first."""
        named = self.file if self.is_in_file else self.name_to_save
        overrides = self.overrides if self.is_in_file else ()
        return shlex.join(["kvsim", "run", named, *(word for text in overrides for word in ("--set", text))])

    def problems(self) -> list[Problem]:
        """What the loader says of it, and names of files that may not be opened from here."""
        try:
            self.scenario()
        except ScenarioError as error:
            return self.placed(error.problems)
        return []

    def placed(self, sentences: list[str] | tuple[str, ...]) -> list[Problem]:
        return [self._placed(sentence) for sentence in sentences]

    def scenario(self) -> Scenario:
        """Raises ScenarioError with all that is wrong; nothing has been opened."""
        base = self._base()
        source = str(self.folder / self.file) if self.file != READY_MADE else "scenario"
        refused: list[str] = []
        if self.fields is not None:
            table = overridden(parse_toml(self._text), self.overrides)
            refused = list(self._refused_names(table, base))
        try:
            scenario = parse_scenario(self._text, self.overrides, base=self.folder / base, source=source)
        except ScenarioError as error:
            raise ScenarioError(source, [*error.problems, *refused]) from None
        if refused:
            raise ScenarioError(source, refused)
        return scenario

    def _base(self) -> Path:
        """What paths in the scenario start from, itself from the folder."""
        return Path() if self.file == READY_MADE else Path(self.file).parent

    def _refused_names(self, table: Mapping[str, Any], base: Path, path: str = "") -> Iterator[str]:
        """A sentence for each value, at any depth, that names something that may not be opened."""
        for key, value in table.items():
            named = f"{path}.{key}" if path else key
            items = value if isinstance(value, list) else [value]
            for index, item in enumerate(items):
                if isinstance(item, Mapping):
                    inner = f"{named}[{index}]" if isinstance(value, list) else named
                    yield from self._refused_names(item, base, inner)
            if key in NAMES_A_FILE and isinstance(value, str) and value.strip():
                if value.startswith(HUB_PREFIX):
                    yield f"{named} must not be a model on the hub, as the app fetches nothing, got {shown(value)}"
                    continue
                try:
                    inside(self.folder, str(base / value))
                    if key == "config":  # a folder stands for this file in it
                        inside(self.folder, str(base / value / "config.json"))
                    elif key == "path":
                        for other in files_beside(self.folder / base / value):
                            inside(self.folder, str((base / value).with_name(other.name)))
                except KvsimError as error:
                    yield f"{named}: {error}"

    def _placed(self, sentence: str) -> Problem:
        if self.fields is None:
            return Problem(sentence, Place(None, None), line_of_error(sentence, self._text))
        place = place_of(sentence, self.fields)
        if place.field is None and (named := self._field_naming(sentence)) is not None:
            place = Place(named.key, None)
        current = _fields_of(self.text)
        line = None
        if place.field is not None and current is not None:
            line = next(
                (current.text.count("\n", 0, field.start) + 1 for field in current.fields if field.key == place.field),
                None,
            )
        return Problem(sentence, place, line)

    def _field_naming(self, sentence: str) -> Field | None:
        """The field whose value is the file with whose path a message begins."""
        assert self.fields is not None, "asked where there are fields"
        for field in self.fields.fields:
            value = self.typed(field)
            if field.name in NAMES_A_FILE and value and sentence.startswith(str(self.folder / self._base() / value)):
                return field
        return None


def _fields_of(text: str) -> ScenarioText | None:
    try:
        return read_scenario_text(text)
    except ValueError:
        return None


def _check_size(text: str) -> None:
    if (size := len(text.encode("utf-8", "replace"))) > MOST_BYTES:
        raise KvsimError(f"the text must be at most {MOST_BYTES:,} bytes, got {size:,}")
