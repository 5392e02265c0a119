"""What a user may say about a file that the file does not say itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen, validators

from kvsim.rules import Consistent, not_blank

TimeUnit = Literal["s", "ms", "us", "ns"]


@frozen(kw_only=True)
class Columns(Consistent):
    """Which columns of a plain table or keys of plain JSON lines hold what; without `time` there are no times."""

    prompt: str = field(validator=not_blank)
    output: str | None = field(default=None, validator=validators.optional(not_blank))
    time: str | None = field(default=None, validator=validators.optional(not_blank))

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        names = [name for name in (values["prompt"], values["output"], values["time"]) if name is not None]
        return ["prompt, output and time must be different columns"] if len(set(names)) < len(names) else []


@frozen(kw_only=True)
class Options:
    """`block_tokens`: tokens that an id stands for; `time_unit`: of times; `tokenizer`: a tokenizer.json."""

    block_tokens: int | None = None
    time_unit: TimeUnit | None = None
    tokenizer: Path | None = None
    columns: Columns | None = None
