"""What was put into two runs, key by key."""

from pathlib import Path
from typing import Any

import pytest

from kvsim.study.diff_inputs import Input, changed_inputs
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import write_scenario
from tests.study.outcomes import DESCRIPTION


def described(folder: Path, *overrides: str) -> dict[str, Any]:
    few = ("workload.num_requests=2",)
    return simulate(load_scenario(write_scenario(folder), (*few, *overrides))).description


def said(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(key.name, key.before_text, key.after_text) for key in changed_inputs(before, after)]


def test_equal_descriptions_do_not_differ(tmp_path: Path) -> None:
    assert changed_inputs(described(tmp_path), described(tmp_path)) == ()


def test_every_key_that_differs_by_its_dotted_name_with_its_unit(tmp_path: Path) -> None:
    changes = (
        "memory.block_size=8",
        "seed=4",
        "engine.timeout=1 min",
        "engine.latency.base=9500 us",
        "engine.swap_bandwidth=2 GB/s",
        "engine.swap_space=3 GiB",
        "memory.prefix_sharing=false",
        "workload.prompt.max=31",
    )
    one, other = described(tmp_path), described(tmp_path, *changes)
    inputs = changed_inputs(one, other)
    assert said(one, other) == [
        ("seed", "3", "4"),
        ("memory.block_size", "4", "8"),
        ("memory.prefix_sharing", "true", "false"),
        ("workload.prompt.max", "30", "31"),
        ("engine.swap_space", "4 GiB", "3 GiB"),
        ("engine.swap_bandwidth", "25,000,000,000 B/s", "2,000,000,000 B/s"),
        ("engine.timeout", "not set", "1 min"),
        ("engine.latency.base", "9 ms", "9500 us"),
        ("pool.block_size_tokens", "4", "8"),
        ("pool.block_bytes", "128 B", "256 B"),
        ("pool.pool_bytes", "4 KiB", "8 KiB"),
    ]
    assert [key.name for key in inputs if key.follows] == [
        "pool.block_size_tokens",
        "pool.block_bytes",
        "pool.pool_bytes",
    ]
    assert {key.name: key.unit for key in inputs if key.unit} == {
        "engine.swap_space": "bytes",
        "engine.swap_bandwidth": "bytes/s",
        "engine.timeout": "ns",
        "engine.latency.base": "ns",
        "pool.block_bytes": "bytes",
        "pool.pool_bytes": "bytes",
    }


def test_what_is_removed_and_tables_of_a_list(tmp_path: Path) -> None:
    workload = "workload={ kind = 'windows', windows = [{ duration = '1 s', rate = 50 }WINDOWS], prompt = { kind = 'fixed', value = 9 }, output = { kind = 'fixed', value = 2 } }"
    two = described(tmp_path, workload.replace("WINDOWS", ", { duration = '2 s', rate = 4 }"))
    one = described(tmp_path, workload.replace("WINDOWS", ""))
    changed = {name: (before, after) for name, before, after in said(two, one)}
    assert changed["workload.windows[1].duration"] == ("2 s", "not set")
    assert changed["workload.windows[1].rate"] == ("4.0", "not set")
    assert not any(name.startswith("workload.windows[0]") for name in changed)


def test_overrides_are_left_out_where_their_keys_are_listed() -> None:
    def named(before: list[str], after: list[str], **memory: int) -> list[str]:
        scenario = {**DESCRIPTION["scenario"], "memory": {**DESCRIPTION["scenario"]["memory"], **memory}}
        other = DESCRIPTION | {"scenario": scenario, "overrides": after}
        return [name for name, _, _ in said(DESCRIPTION | {"overrides": before}, other)]

    assert named([], ["memory.block_size = 8"], block_size=8) == ["memory.block_size"]
    assert named([], ["memory={ block_size = 8 }"], block_size=8) == ["memory.block_size"]
    assert named(["seed=1"], ["seed=1", "memory.block_size=8"], block_size=8) == ["memory.block_size"]
    # As the file says it anyway: nothing else tells of it.
    assert named([], ["seed=0"]) == ["overrides"]
    assert named([], ["memory.block=1"], block_size=8) == ["memory.block_size", "overrides"]


def test_versions_overrides_and_files_are_put_in_too() -> None:
    files = {"trace.csv": {"bytes": 1025, "sha256": "ab" * 32}}
    other = DESCRIPTION | {"versions": {"kvsim": "0.2.0"}, "overrides": ["seed=0"], "files": files}
    assert said(DESCRIPTION, other) == [
        ("overrides", "[]", '["seed=0"]'),
        ("versions.kvsim", "0.1.0", "0.2.0"),
        ("files.trace.csv", "not used", "SHA-256 ababab, 1.00 KiB (1,025 B)"),
    ]
    assert not any(key.follows for key in changed_inputs(DESCRIPTION, other))


def test_another_content_of_a_file_is_said_in_short() -> None:
    one, other = (
        DESCRIPTION | {"files": {"a/trace.csv": {"bytes": size, "sha256": digits * 32}}}
        for size, digits in ((3, "a1"), (4, "d4"))
    )
    (changed,) = changed_inputs(one, other)
    assert (changed.title, changed.before_text) == ("file a/trace.csv", "SHA-256 a1a1a1, 3 B")
    assert changed.sentence == "file a/trace.csv: other content (SHA-256 a1a1a1 -> d4d4d4)"
    assert changed.to_json()["before"] == {"bytes": 3, "sha256": "a1" * 32}
    (appeared,) = changed_inputs(DESCRIPTION, other)
    assert appeared.sentence == "file a/trace.csv not used -> SHA-256 d4d4d4, 4 B"
    odd = DESCRIPTION | {"files": {"a/trace.csv": "?"}}
    assert said(odd, other)[0][1] == "?", "who edits a summary gets no traceback"


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        (None, None, "not set"),
        (True, None, "true"),
        (0.5, None, "0.5"),
        (65_536, None, "65536"),
        ("lru", None, "lru"),
        ("", None, '""'),
        ("a\nb", None, '"a\\nb"'),
        ([1, 2.5], None, "[1, 2.5]"),
        ({}, None, "{  }"),
        (3 * 2**30, "bytes", "3 GiB"),
        (3 * 2**30 + 1, "bytes", "3.00 GiB (3,221,225,473 B)"),
        (90 * 10**9, "ns", "90 s"),
        ("x" * 500, None, "x" * 200 + "..."),
        (10**40, "bytes", "a number of over 30 digits"),
    ],
)
def test_values_are_written_exactly_on_one_line(value: object, unit: str | None, words: str) -> None:
    assert Input("key", value, None, unit).before_text == words
    assert Input("key", None, value, unit).after_text == words


def test_true_is_not_one() -> None:
    one, true = ({**DESCRIPTION, "scenario": {"key": value}} for value in (1, True))
    assert said(one, true) == [("key", "1", "true")]
    assert said(one, {**DESCRIPTION, "scenario": {"key": 1.0}}) == []
