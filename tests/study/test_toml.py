"""TOML as text and as values."""

import tomllib

import pytest

from kvsim.study.toml import parse_toml, toml_text, typed_value


@pytest.mark.parametrize(
    "value",
    [
        1,
        -0.5,
        1e-7,
        1e22,
        True,
        "",
        'a "quoted" \\ \u65e5 \U0001f600 \x7f \n',
        [1, [2.0, "x"]],
        {"kind": "fixed", "a b": {"c": []}},
    ],
)
def test_what_is_written_is_read_again(value: object) -> None:
    assert tomllib.loads(f"value = {toml_text(value)}")["value"] == value


def test_a_typed_value_is_toml_or_else_text() -> None:
    assert [typed_value(text) for text in ("1", "1.0", "true", "'x'", " 8 GiB ", "1\nother = 2")] == [
        1,
        1.0,
        True,
        "x",
        "8 GiB",
        "1\nother = 2",
    ]


def test_text_that_python_gives_up_on_is_refused() -> None:
    with pytest.raises(ValueError, match="a number has too many digits"):
        parse_toml("a = " + "9" * 5000)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_toml("a = " + "[" * 100_000)
