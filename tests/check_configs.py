"""Compare every config of a folder with the figures in its facts.jsonl: `python -m tests.check_configs DIR`.

Prints `N of M match` and each mismatch with both values; exits 1 if there is one.
"""

import json
import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvsim.errors import KvsimError
from kvsim.model.describe import describe
from kvsim.model.geometry import ModelGeometry
from kvsim.model.hf_config import read_config

PLAIN = (
    "model_type",
    "nested_in",
    "layers",
    "q_heads",
    "kv_heads",
    "head_dim",
    "head_dim_explicit",
    "max_positions",
    "groups",
    "kv_bytes_per_token_bf16",
    "unbounded_bytes_per_token_bf16",
    "window_bound_bytes_per_seq_bf16",
)
"""Fields that are compared as they stand."""

NOTES = (
    re.compile(r"\d+ MTP layer\(s\) not counted"),
    re.compile(r"sliding_window=\d+ present but use_sliding_window=false: full attention"),
    re.compile(r"sliding_window=\d+ >= max positions: never binds, counted as full"),
    re.compile(r"head_dim \d+ is not hidden/heads \(.+\)"),
    re.compile(r"cla_share_factor present but use_cla=false: no sharing"),
)
"""Notes with one wording; the others are prose."""


def mismatches(fact: dict[str, Any], geometry: ModelGeometry) -> Iterator[tuple[str, object, object]]:
    """Each field that differs: its name, the fact's value and ours. Every key of the fact is looked at."""
    ours = describe(geometry)
    compared = {name: (fact[name], ours[name]) for name in PLAIN}
    state = ours["state"] if isinstance(ours["state"], dict) else {}
    for name, value in fact.get("state", {}).items():
        compared[f"state.{name}"] = (value, state.get(name))
    if "state" not in fact:
        compared["state"] = (None, ours["state"])
    for name, value in fact.get("extra", {}).items():
        compared[f"extra.{name}"] = (extra_value(value), extra(name, ours, geometry))
    if not any("indexer" in name for name in fact.get("extra", {})):
        compared["indexer"] = (None, ours["indexer"])
    compared["notes"] = (notes(fact["notes"], fact), notes(list(geometry.notes), fact))
    unknown = set(fact) - {*PLAIN, "file", "notes", "state", "extra"}
    compared |= {name: (fact[name], "a field that is not compared") for name in unknown}
    return ((name, theirs, mine) for name, (theirs, mine) in compared.items() if theirs != mine)


def extra_value(value: object) -> object:
    """A sum of shares such as "21*584/4 + 20*584/128" rounded up to bytes; any other value as it is."""
    if not isinstance(value, str):
        return value
    shares = re.findall(r"(\d+)\*(\d+)/(\d+)", value)
    total = sum((Fraction(int(count) * int(size), int(tokens)) for count, size, tokens in shares), Fraction(0))
    return -(-total.numerator // total.denominator)


def extra(name: str, ours: dict[str, Any], geometry: ModelGeometry) -> object:
    """Our value of one of the figures that only some models have."""
    if name == "indexer_layers":
        return ours["indexer"]["layers"]
    if name.startswith("indexer_"):
        return ours["indexer"]["bytes_per_token"]
    if name.startswith("cross_bytes_per_"):
        return ours["cross_bytes_per_source_token_bf16"]
    if name == "packed_fp8_growth_bytes_per_token":
        return geometry.unbounded_bytes_per_token("fp8_ds_mla")
    return {
        "growth_bytes_per_token_bf16": ours["unbounded_bytes_per_token_bf16"],
        "window_bytes_per_seq_bf16": ours["window_bound_bytes_per_seq_bf16"],
    }.get(name, "a figure that is not known")


def notes(lines: list[str], fact: dict[str, Any]) -> list[str]:
    """The notes of fixed wording; a head width that plays no part in the cache is left out."""
    kept = [line for line in lines if any(form.fullmatch(line) for form in NOTES)]
    return sorted(line for line in kept if fact["head_dim"] is not None or not line.startswith("head_dim"))


def check(folder: Path) -> tuple[int, list[str]]:
    """How many configs there are facts for, and a line for each mismatch."""
    facts = [json.loads(line) for line in (folder / "facts.jsonl").read_text().splitlines() if line.strip()]
    problems = []
    for fact in facts:
        try:
            differing = list(mismatches(fact, read_config(folder / fact["file"])))
        except KvsimError as error:
            differing = [("geometry", "determined", str(error))]
        if differing:
            lines = "".join(f"\n    {name}: expected {theirs}, got {mine}" for name, theirs, mine in differing)
            problems.append(f"{fact['file']}{lines}")
    without = {path.name for path in folder.glob("*.json")} - {fact["file"] for fact in facts}
    problems += [f"{name}\n    no line in facts.jsonl" for name in sorted(without)]
    return len(facts) + len(without), problems


def main(arguments: list[str]) -> int:
    """The command; returns its exit code."""
    if len(arguments) != 1:
        print("usage: python -m tests.check_configs DIR", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    if not (folder / "facts.jsonl").is_file():
        print(f"{folder}: there is no facts.jsonl", file=sys.stderr)
        return 2
    total, problems = check(folder)
    for problem in problems:
        print(problem)
    print(f"{total - len(problems)} of {total} match")
    return 1 if problems or not total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
