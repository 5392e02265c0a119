"""What a user may say about a file that the file does not say itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen, validators

from kvsim.rules import Consistent, not_blank

TimeUnit = Literal["s", "ms", "us", "ns"]
Lack = Literal["times", "content", "sessions", "outputs"]
Said = Literal["block_tokens", "time_unit", "tokenizer", "columns"]
"""The names of the options."""


@frozen(kw_only=True)
class Columns(Consistent):
    """Which columns of a plain table or keys of plain JSON lines hold what; what is not named is not known."""

    prompt: str = field(validator=not_blank)
    output: str | None = field(default=None, validator=validators.optional(not_blank))
    time: str | None = field(default=None, validator=validators.optional(not_blank))
    hash_ids: str | None = field(default=None, validator=validators.optional(not_blank))

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        names = [values[key] for key in KEYS if isinstance(values[key], str)]
        return ["prompt, output, time and hash_ids must be different columns"] if len(set(names)) < len(names) else []

    @property
    def names(self) -> list[str]:
        """The columns that there must be."""
        return [name for name in (self.prompt, self.output, self.time, self.hash_ids) if name is not None]

    @property
    def lacks(self) -> tuple[Lack, ...]:
        """What is not known, as it is not named."""
        named: dict[Lack, str | None] = {"times": self.time, "content": self.hash_ids, "outputs": self.output}
        return (*(word for word, name in named.items() if name is None), "sessions")


KEYS = ("prompt", "output", "time", "hash_ids")


@frozen(kw_only=True)
class Options:
    """`block_tokens`: tokens that an id stands for; `time_unit`: of times; `tokenizer`: a tokenizer.json."""

    block_tokens: int | None = None
    time_unit: TimeUnit | None = None
    tokenizer: Path | None = None
    columns: Columns | None = None
