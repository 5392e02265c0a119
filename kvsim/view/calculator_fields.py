"""What somebody types into the calculator, read and answered by what `kvsim size` reads and answers by.

Fields are named as messages name them, so that a message finds its field by its first word.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from attrs import frozen

from kvsim.errors import KvsimError, ModelError
from kvsim.model.accounting import Accounting
from kvsim.model.budget import KVBudget, read_budget
from kvsim.model.catalogue import catalogue_geometry
from kvsim.model.deployment import Deployment
from kvsim.model.formats import known_dtype
from kvsim.model.geometry import MAX_LAYERS, ModelGeometry, uniform_geometry
from kvsim.model.scaling import Scaling, scaling
from kvsim.model.sizing import Sizing, size
from kvsim.rules import shown

DEFAULTS = {
    "source": "catalogue",
    "model": "llama-3.1-8b",
    "config": "",
    "sha256": "",
    "label": "",
    "num_layers": "32",
    "num_kv_heads": "8",
    "k_dim": "128",
    "v_dim": "",
    "window": "",
    "num_query_heads": "",
    "kv_dtype": "bf16",
    "tensor_parallel": "1",
    "num_tokens": "8192",
    "num_sequences": "1",
    "block_size": "16",
    "budget": "16 GiB",
    "engine": "vllm",
    "pipeline_parallel": "1",
    "max_model_len": "",
    "source_tokens": "",
}
"""Every field and what it holds at first; empty is "not given" where the command line has an option to leave out.

`label` is the name of a file whose numbers stand in the fields of a typed geometry.
"""

LABELS = {
    "model": "Name",
    "config": "config.json",
    "num_layers": "Layers",
    "num_kv_heads": "KV heads",
    "k_dim": "K dimension",
    "v_dim": "V dimension",
    "window": "Window",
    "num_query_heads": "Query heads",
    "kv_dtype": "KV dtype",
    "tensor_parallel": "Tensor parallel",
    "num_tokens": "Context length",
    "num_sequences": "Sequences",
    "block_size": "Block size",
    "budget": "Budget for KV",
    "engine": "Engine",
    "pipeline_parallel": "Pipeline parallel",
    "max_model_len": "Longest request",
    "source_tokens": "Image or encoder tokens",
}
"""How the page calls the fields that it shows."""

OF_SOURCE = {
    "catalogue": ("model",),
    "config": ("config", "sha256"),
    "typed": ("num_layers", "num_kv_heads", "k_dim", "v_dim", "window", "num_query_heads", "label"),
}
"""Where the geometry comes from, and the fields that say it; the first of them takes what is said about the model."""

COUNTS = ("tensor_parallel", "num_tokens", "num_sequences", "block_size", "pipeline_parallel")
COUNTS_OR_NONE = ("max_model_len", "source_tokens")
SHAPE = {
    "num_layers": MAX_LAYERS,
    "num_kv_heads": 100_000,
    "k_dim": 100_000,
    "v_dim": 100_000,
    "window": 10**9,
    "num_query_heads": 100_000,
}
"""Numbers of a typed geometry and the most that each may be, as in a scenario."""

SHAPE_OR_NONE = ("v_dim", "window", "num_query_heads")
NUMBERS = (*COUNTS, *COUNTS_OR_NONE, *SHAPE)

T = TypeVar("T")

_KEYS_INSIDE = re.compile(rf"\b({'|'.join(name for name in LABELS if '_' in name)})\b")
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+")


class FieldsRefused(Exception):
    """`problems` has a sentence for each field that cannot be used.

    `max_model_len` is the model's own length as far as the model is known.
    """

    def __init__(self, problems: Mapping[str, str], max_model_len: int | None) -> None:
        super().__init__("; ".join(problems.values()))
        self.problems = problems
        self.max_model_len = max_model_len


@frozen
class Answer:
    """What the fields ask for, answered; `each` is the same for one sequence, `lines` go over all lengths."""

    geometry: ModelGeometry
    sizing: Sizing
    each: Sizing
    budget: KVBudget
    lines: Scaling

    @property
    def accounting(self) -> Accounting:
        """The engine's, or the ideal one where the engine's layout is refused or not described."""
        return counted(self.sizing)


def counted(sizing: Sizing) -> Accounting:
    return sizing.ideal if sizing.engine is None else sizing.engine


def whole_number(text: str) -> int:
    """ "8192" or "8,192"; raises ValueError in the words of the command line."""
    digits = text.replace(",", "") if _GROUPED.fullmatch(text.strip()) else text
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"{shown(text)} is not a valid integer") from None


class Calculations:
    """Answers fields; the geometry read last is kept, since most changes are of other fields."""

    def __init__(self) -> None:
        self._named: ModelGeometry | None = None

    def answer(self, fields: Mapping[str, str], config: ModelGeometry | None = None) -> Answer:
        """What `fields` ask for, one for each of DEFAULTS; `config` is the geometry of a chosen file.

        Raises FieldsRefused with all fields that cannot be read, or the one that does not go with the others.
        """
        problems: dict[str, str] = {}
        numbers = {name: _number(name, fields[name], problems) for name in (*COUNTS, *COUNTS_OR_NONE)}
        geometry = _tried(fields["source"], problems, lambda: self._geometry(fields, config, problems))
        budget = _tried("budget", problems, lambda: read_budget(budget=fields["budget"]))
        kv_dtype = _tried("kv_dtype", problems, lambda: known_dtype(fields["kv_dtype"]))
        own_length = None if geometry is None else geometry.max_model_len
        if problems or geometry is None or budget is None or kv_dtype is None:
            raise FieldsRefused(problems, own_length)
        num_tokens, num_sequences = numbers["num_tokens"], numbers["num_sequences"]
        tensor_parallel, pipeline_parallel = numbers["tensor_parallel"], numbers["pipeline_parallel"]
        assert num_tokens is not None
        assert num_sequences is not None
        assert tensor_parallel is not None
        assert pipeline_parallel is not None
        try:
            deployment = Deployment(
                kv_dtype=kv_dtype,
                engine=fields["engine"],
                block_size=numbers["block_size"],
                tensor_parallel=tensor_parallel,
                pipeline_parallel=pipeline_parallel,
                source_tokens=numbers["source_tokens"],
            )

            def sized(sequences: int) -> Sizing:
                return size(
                    geometry,
                    budget.kv_bytes,
                    deployment,
                    max_model_len=numbers["max_model_len"],
                    num_sequences=sequences,
                    num_tokens=num_tokens,
                    assumptions=budget.assumptions,
                )

            asked, each = sized(num_sequences), sized(1)
            lines = scaling(
                geometry, budget.kv_bytes, deployment, max_model_len=asked.max_model_len, sequences=(num_sequences,)
            )
            return Answer(geometry, asked, each, budget, lines)
        except KvsimError as error:
            raise FieldsRefused({_field_of(str(error), fields["source"]): str(error)}, own_length) from None

    def _geometry(
        self, fields: Mapping[str, str], config: ModelGeometry | None, problems: dict[str, str]
    ) -> ModelGeometry | None:
        """By name, of the chosen file, or as typed; None where `problems` says why not."""
        match fields["source"]:
            case "catalogue":
                if self._named is None or self._named.name != fields["model"]:
                    self._named = catalogue_geometry(fields["model"])
                return self._named
            case "config":
                if config is None:
                    name = f"{shown(fields['config'])} again: an address has its name" if fields["config"] else "one"
                    problems["config"] = f"no config.json is chosen: choose {name}"
                    if fields["config"]:
                        problems["config"] += ", not what stands in it"
                return config
            case "typed":
                shape = {name: _number(name, fields[name], problems) for name in SHAPE}
                return None if problems else _typed_geometry(shape, fields["label"])
            case other:
                raise ModelError(f"source must be one of {', '.join(OF_SOURCE)}, got {shown(other)}")


def in_words_of_page(name: str, message: str) -> str:
    """A message about a field as the page says it: by labels in place of keys."""
    first, _, rest = message.partition(" ")
    if first == name and name in LABELS:
        return f"{LABELS[name]} {_KEYS_INSIDE.sub(_label_inside, rest)}"
    return _KEYS_INSIDE.sub(_label_inside, message)


def _label_inside(key: re.Match[str]) -> str:
    """Such as "the longest request"; "KV heads" stays in capitals."""
    label = LABELS[key[0]]
    return f"the {label[0].lower()}{label[1:]}" if label[1].islower() else f"the {label}"


def _typed_geometry(shape: Mapping[str, int | None], label: str) -> ModelGeometry:
    num_layers, num_kv_heads, k_dim = shape["num_layers"], shape["num_kv_heads"], shape["k_dim"]
    assert num_layers is not None
    assert num_kv_heads is not None
    assert k_dim is not None
    return uniform_geometry(
        num_layers,
        num_kv_heads,
        k_dim,
        label or "given geometry",
        v_dim=shape["v_dim"],
        window=shape["window"],
        num_query_heads=shape["num_query_heads"],
    )


def _number(name: str, text: str, problems: dict[str, str]) -> int | None:
    """The number in a field, None where it is left out or `problems` says what is wrong with it."""
    if not text.strip() and name in (*COUNTS_OR_NONE, *SHAPE_OR_NONE):
        return None
    try:
        number = whole_number(text)
    except ValueError as error:
        problems[name] = str(error)
        return None
    if name in SHAPE and not 1 <= number <= SHAPE[name]:
        problems[name] = f"{name} must be between 1 and {SHAPE[name]:,}, got {shown(number)}"
        return None
    return number


def _tried(name: str, problems: dict[str, str], read: Callable[[], T]) -> T | None:
    try:
        return read()
    except KvsimError as error:
        problems[_field_of(str(error), name)] = str(error)
        return None


def _field_of(message: str, source: str) -> str:
    """The field that a message is about: the one that it names first, else the one that says the model."""
    words = message.removeprefix("the ").split(maxsplit=1)
    if words and words[0] in DEFAULTS:
        return words[0]
    return OF_SOURCE[source][0] if source in OF_SOURCE else source
