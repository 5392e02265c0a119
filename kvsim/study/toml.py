"""TOML as text and as values."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def parse_toml(text: str) -> dict[str, Any]:
    """Raises ValueError with what is wrong."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:
        raise ValueError("a number has too many digits") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def typed_value(text: str) -> Any:
    """What is meant by a value typed on the command line: TOML, or else the text itself."""
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        parsed = {}
    return parsed["value"] if set(parsed) == {"value"} else text.strip()


def toml_text(value: object) -> str:
    """A value on one line of a TOML file."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {toml_text(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(toml_text(inner) for inner in value) + "]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value) if isinstance(value, int | float) else str(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_text(name)
