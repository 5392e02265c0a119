"""What a sweep varies, as typed and as written in a scenario."""

from typing import Any

import pytest

from kvsim.study.vary import Axis, Value, read_axes, vary_table


def values(text: str) -> list[object]:
    (axis,) = read_axes([f"memory.key={text}"])
    return [value.shown for value in axis.values]


def refusal(vary: Any) -> str:
    try:
        read_axes(vary)
    except ValueError as error:
        return str(error)
    raise AssertionError("it is taken")


def test_a_key_takes_each_value_of_a_list() -> None:
    assert read_axes(["memory.block_size=1,2, 16"]) == (
        Axis("memory.block_size", (Value("1", 1), Value("2", 2), Value("16", 16))),
    )


def test_values_are_read_as_set_reads_them() -> None:
    assert values("1,0.5,true,'a,b',8 GiB,\"16 GiB\"") == [1, 0.5, True, "a,b", "8 GiB", "16 GiB"]


def test_commas_in_tables_and_lists_do_not_part_values() -> None:
    assert values("{kind='fixed',value=3},{kind='uniform', min=1, max=[2, 3]}") == [
        '{ kind = "fixed", value = 3 }',
        '{ kind = "uniform", min = 1, max = [2, 3] }',
    ]
    assert values(r'"a\",b",it\'s, c') == ['a",b', r"it\'s", "c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2:12:2", [2, 4, 6, 8, 10, 12]),
        ("2:11:2", [2, 4, 6, 8, 10]),
        ("5:5:1", [5]),
        ("-2:2:2", [-2, 0, 2]),
        ("0:0.3:0.1", [0.0, 0.1, 0.2, 0.3]),
        ("0.7:1:0.1", [0.7, 0.8, 0.9, 1.0]),
        ("-0.1:0.1:0.05", [-0.1, -0.05, 0.0, 0.05, 0.1]),
        ("1e3:2e3:5e2", [1000.0, 1500.0, 2000.0]),
        ("1e-3:3e-3:1e-3", [0.001, 0.002, 0.003]),
        ("0,0.02:0.06:0.02,1", [0, 0.02, 0.04, 0.06, 1]),
    ],
)
def test_ranges_meet_their_stop_and_do_not_drift(text: str, expected: list[float]) -> None:
    assert values(text) == expected
    assert [type(value) for value in values(text)] == [type(value) for value in expected]


def test_a_long_range_is_as_exact_at_its_end() -> None:
    assert values("0:900:0.1")[-1] == 900.0
    assert values("0:900:0.1")[4321] == 432.1


def test_a_table_says_the_same_as_the_command_line() -> None:
    table = {"memory": {"block_size": [1, 2], "budget": ["8 GiB"]}, "workload.rate": "0.5:1:0.5"}
    assert read_axes(table) == (
        Axis("memory.block_size", (Value("1", 1), Value("2", 2))),
        Axis("memory.budget", (Value('"8 GiB"', "8 GiB"),)),
        Axis("workload.rate", (Value("0.5", 0.5), Value("1.0", 1.0))),
    )
    assert vary_table(table) is table


def test_tables_are_values_in_a_list() -> None:
    (axis,) = read_axes({"workload": {"prompt": [{"kind": "fixed", "value": 3}]}})
    assert axis.values[0].text == '{ kind = "fixed", value = 3 }'


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        (["memory"], "must be key=values such as memory.block_size=1,2,4 or workload.rate=2:12:2, got 'memory'"),
        (["memory.=1"], "must have a key such as memory.block_size, got 'memory.'"),
        (["=1"], "must have a key such as memory.block_size, got ''"),
        (["seed=1,2"], "seed is varied by a number of seeds: use --seeds, or [study] seeds"),
        (["study.write=[]"], "study.write is not varied: it changes nothing in a run"),
        (["question=a,b"], "question is not varied: it changes nothing in a run"),
        (["a.b=1,2,1"], "a.b has the value 1 twice"),
        (["a.b=1,true,1.0"], "a.b has the value 1.0 twice"),
        (["a.b=0.1:0.3:0.1,0.30"], "a.b has the value 0.30 twice"),
        (["a.b="], "a.b has an empty value, got ''"),
        (["a.b=1,,2"], "a.b has an empty value, got '1,,2'"),
        (["a.b=1:2:0"], "a.b must go up by steps > 0, got 1:2:0"),
        (["a.b=2:1:1"], "a.b must go up by steps > 0, got 2:1:1"),
        (["a.b=1:1e18:1"], "a.b must have at most 10,000 values, got 1:1e18:1"),
        (["a.b=1:10000:1,0"], "a.b must have at most 10,000 values"),
        (["a.b=1", "a.b=2"], "a.b and a.b set the same key"),
        (["a.b.c=1", "a.b={}"], "a.b.c and a.b set the same key"),
        ({"a": {"b": []}}, "a.b has no values"),
        ({"a": {"b": 3}}, "a.b must be a list of values, or a text such as '1,2,4' or '2:12:2', got 3"),
    ],
)
def test_what_cannot_be_varied_is_refused(vary: Any, message: str) -> None:
    assert refusal(vary) == message


def test_keys_that_only_begin_alike_are_different() -> None:
    assert [axis.key for axis in read_axes(["a.b=1", "a.bc=1"])] == ["a.b", "a.bc"]


def test_a_table_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a table of keys and their values"):
        vary_table([1])
    with pytest.raises(ValueError, match=r"cannot be: a has no values"):
        vary_table({"a": []})
