"""The fields of a config.json under all the names that model families give them, checked as they are read."""

from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeGuard

from kvsim.errors import ModelError, UnsupportedModelError
from kvsim.model.geometry import MAX_LAYERS
from kvsim.rules import shown

# One quantity, many names; the first that is present and not null counts. In an encoder-decoder model that
# is the decoder's, which keeps the cache.
NUM_LAYERS = (
    "num_decoder_layers",
    "decoder_layers",
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_transformer_layers",
)
QUERY_HEADS = ("decoder_attention_heads", "num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")
HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels", "d_kv", "hidden_size_per_head")
WINDOW = ("sliding_window", "sliding_window_size")
MAX_LENGTH = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "context_length",
    "max_context_length",
)
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")

MAX_NUMBER = 10**12
"""More than any size in a config; larger is refused, and as a maximum length means that there is none."""


class Heads(NamedTuple):
    """The attention shape of a model whose layers are all alike."""

    num_query_heads: int
    num_kv_heads: int
    head_dim: int


class ConfigFields:
    """The fields of the part of a config that describes the language model.

    What a reader of the answer must know is collected on the way: `assumptions` and `notes`.
    """

    def __init__(
        self,
        name: str,
        values: Mapping[str, object],
        nested_in: str | None = None,
        parent: "ConfigFields | None" = None,
    ) -> None:
        self.name = name
        self.values = values
        self.nested_in = nested_in
        self.parent = parent
        self.assumptions: list[str] = [] if parent is None else parent.assumptions
        self.notes: list[str] = [] if parent is None else parent.notes

    @property
    def model_type(self) -> str:
        """The family's name, "" if the config has none."""
        if self.parent is not None:
            return self.parent.model_type
        value = self.get("model_type")
        return value if isinstance(value, str) else ""

    def get(self, *names: str) -> object:
        """The value of the first of these fields that is present and not null, else None."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def number(self, *names: str) -> int | None:
        """The first of these fields as a whole number of at least 0, None where all are absent or null."""
        for name in names:
            value = self._whole(name)
            if value is None:
                continue
            if value < 0:
                raise self.error(f"{name} must not be negative, got {shown(value)}")
            return value
        return None

    def count(self, *names: str) -> int | None:
        """The first of these fields as a whole number of at least 1, None where all are absent or null."""
        value = self.number(*names)
        if value == 0:
            zero = next(name for name in names if self.values.get(name) is not None)
            raise self.error(f"{zero} must be > 0, got 0")
        return value

    def required(self, *names: str) -> int:
        """As `count`; raises UnsupportedModelError with the field's name where it is absent."""
        value = self.count(*names)
        if value is None:
            raise self.undetermined(*names)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """A true or false field."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{name} must be true or false, got {shown(value)}")
        return value

    def section(self, name: str) -> "ConfigFields":
        """A nested object, empty where it is absent, of the same model: its layers, type, notes and so on."""
        value = self.values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.error(f"{name} must be an object, got {shown(value)}")
        return ConfigFields(f"{self.name}: {name}", value, parent=self)

    def list_of(self, name: str) -> list[object] | None:
        """A list field, None where it is absent, null or empty."""
        value = self.values.get(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list):
            raise self.error(f"{name} must be a list, got {shown(value)}")
        return value

    def per_layer(self, name: str) -> list[object] | None:
        """A list with one entry a layer, None where it is absent or empty.

        Entries of multi-token-prediction layers past the last are cut off; any other length is refused.
        """
        values = self.list_of(name)
        if values is None:
            return None
        num_layers = self.num_layers()
        if len(values) not in (num_layers, num_layers + self.num_mtp_layers()):
            raise self.error(f"{name} must have one entry for each of {num_layers} layers, got {len(values)}")
        return values[:num_layers]

    def marks(self, name: str) -> list[bool] | None:
        """A list of 0 or 1 for each layer, None where it is absent or empty."""
        values = self.per_layer(name)
        if values is not None and not all(value in (0, 1) for value in values):
            raise self.error(f"{name} must be a list of 0 and 1, got {shown(values)}")
        return None if values is None else [value == 1 for value in values]

    def words(self, name: str, known: Collection[str]) -> list[str] | None:
        """A list with one of the `known` words for each layer, None where it is absent or empty.

        Raises UnsupportedModelError for any other word.
        """
        words: list[str] = []
        for index, word in enumerate(self.per_layer(name) or ()):
            if not isinstance(word, str) or word not in known:
                raise UnsupportedModelError(
                    f"{self.name}: {name}[{index}] is {shown(word)}, which kvsim does not know "
                    f"for model_type {self.model_type!r}"
                )
            words.append(word)
        return words or None

    def layer_numbers(self, name: str, first: int = 0) -> frozenset[int] | None:
        """A list of layers counted from `first`, as indices from 0; None where it is absent or null."""
        values = self.values.get(name)
        if values is None:
            return None
        last = self.num_layers() + first - 1
        if not isinstance(values, list) or not all(
            _is_whole(value, above=first - 1) and value <= last for value in values
        ):
            raise self.error(f"{name} must be a list of layers from {first} to {last}, got {shown(values)}")
        return frozenset(value - first for value in values)

    def num_layers(self) -> int:
        """Layers of the decoder, those without a cache included."""
        if self.parent is not None:
            return self.parent.num_layers()
        layers = self.required(*NUM_LAYERS)
        if layers > MAX_LAYERS:
            raise self.error(f"the number of layers must be at most {MAX_LAYERS:,}, got {layers:,}")
        return layers

    def num_mtp_layers(self) -> int:
        """Layers for multi-token prediction, which the main count leaves out."""
        return self.number(*MTP_LAYERS) or 0

    def head_dim(self, *names: str) -> int | None:
        """An explicit head width; one that is zero or negative counts as absent, as in vLLM."""
        for name in names:
            width = self._whole(name)
            if width is not None and width > 0:
                return width
            if width is not None:
                self.notes.append(f"{name} {width} counts as absent")
        return None

    def heads(self, kv_heads: int | None = None) -> Heads:
        """Query heads, KV heads and head width; `kv_heads` is a family's own reading of the second.

        Without a field for KV heads every query head has its own (MHA). An explicit width wins over
        hidden / heads, from which it differs in many families.
        """
        query_heads = self.required(*QUERY_HEADS)
        kv_heads = kv_heads or self.count(*KV_HEADS) or query_heads
        if query_heads % kv_heads:
            raise self.error(f"{query_heads} query heads must be a multiple of the KV heads, got {kv_heads}")
        head_dim = self.head_dim(*HEAD_DIM)
        hidden = self.count(*HIDDEN)
        if head_dim is None:
            if hidden is None:
                raise self.undetermined(*HIDDEN, *HEAD_DIM)
            if hidden % query_heads:
                raise UnsupportedModelError(
                    f"{self.name}: head_dim is missing, and hidden_size {hidden} is not a multiple "
                    f"of {query_heads} heads"
                )
            return Heads(query_heads, kv_heads, hidden // query_heads)
        if hidden is not None and hidden != head_dim * query_heads:
            shown = f"{hidden}/{query_heads}" if hidden % query_heads else str(hidden // query_heads)
            self.notes.append(f"head_dim {head_dim} is not hidden/heads ({shown})")
        return Heads(query_heads, kv_heads, head_dim)

    def max_length(self) -> int | None:
        """The smallest maximum length in the config; in Cohere's, `model_max_length` is the true one."""
        if self.model_type.startswith("cohere") and self.count("model_max_length"):
            return self.count("model_max_length")
        endless = {name for name in MAX_LENGTH if _is_whole(self.values.get(name), above=MAX_NUMBER)}
        lengths = [self.count(name) for name in MAX_LENGTH if name not in endless]
        return min((length for length in lengths if length is not None), default=None)

    def value_bytes(self) -> int:
        """Bytes of a value in the model's own dtype: 4 for float32, else 2."""
        return 4 if self.get("dtype", "torch_dtype") == "float32" else 2

    def _whole(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if not _is_whole(value):
            raise self.error(f"{name} must be a whole number, got {shown(value)}")
        if value > MAX_NUMBER:
            raise self.error(f"{name} must be at most {MAX_NUMBER:,}, got {shown(value)}")
        return value

    def error(self, problem: str) -> ModelError:
        """A field that makes no sense."""
        return ModelError(f"{self.name}: {problem}")

    def undetermined(self, *names: str) -> UnsupportedModelError:
        """A field that the geometry depends on and the config does not hold."""
        others = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        return UnsupportedModelError(f"{self.name}: {names[0]}{others} is missing, so the geometry is not determined")


def _is_whole(value: object, above: int | None = None) -> TypeGuard[int]:
    """Whether `value` is a whole number, which true and false are not, and greater than `above` if given."""
    return isinstance(value, int) and not isinstance(value, bool) and (above is None or value > above)
