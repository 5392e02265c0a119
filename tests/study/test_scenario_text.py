from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.study.scenario import overridden, parse_scenario
from kvsim.study.scenario_text import Place, line_of_error, place_of, read_scenario_text, written_value
from kvsim.study.toml import parse_toml, typed_value

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))

TEXT = '''# What this is
# about.
#
#   kvsim run it.toml

question = "Why?"   # the first of all
seed = 0x10

# How blocks are kept.
[memory]
# With its unit.
budget = "24 GiB"
block_size = 16             # tokens # really
watermark = 1_0.5e-2

[workload]   # who asks
kind = "on_off"
prompt = { kind = "fixed", tokens = 5 }  # "quoted"
list = [
  1,  # one
  2,
]
text = """
a # b = 'c' \\""" and ""\\"
d"""""
raw = 'C:\\'

[[workload.windows]]
rate = 1.0
[[workload.windows]]
rate = 2.0
[workload.windows.inner]
"a.b" = 1
'''


def test_every_line_becomes_a_field_with_its_comment() -> None:
    text = read_scenario_text(TEXT)
    assert [(table.key, table.help) for table in text.tables] == [
        ("", "What this is about.\n\n  kvsim run it.toml"),
        ("memory", "How blocks are kept."),
        ("workload", "who asks"),
        ("workload.windows[0]", ""),
        ("workload.windows[1]", ""),
        ("workload.windows[1].inner", ""),
    ]
    assert [(field.named, field.typed, field.help) for field in text.fields] == [
        ("question", "Why?", "the first of all"),
        ("seed", "0x10", ""),
        ("memory.budget", "24 GiB", "With its unit."),
        ("memory.block_size", "16", "tokens # really"),
        ("memory.watermark", "1_0.5e-2", ""),
        ("workload.kind", "on_off", ""),
        ("workload.prompt", '{ kind = "fixed", tokens = 5 }', '"quoted"'),
        ("workload.list", "[1, 2]", ""),
        ("workload.text", '"a # b = \'c\' \\"\\"\\" and \\"\\"\\"\\nd\\"\\""', ""),
        ("workload.raw", "C:\\", ""),
        ("workload.windows[0].rate", "1.0", ""),
        ("workload.windows[1].rate", "2.0", ""),
        ("workload.windows[1].inner.a.b", "1", ""),
    ]
    assert [field.key for field in text.fields if not field.can_be_set] == [
        "workload.windows[0].rate (1)",
        "workload.windows[1].rate (1)",
        "workload.windows[1].inner.a.b (1)",
    ]


def test_only_the_text_of_a_value_is_replaced() -> None:
    text = read_scenario_text(TEXT)
    edited = text.with_values(
        {"memory.block_size": "32", "question": 'Is it "so"?', "seed": "", "workload.list": "[3]"}
    )
    assert edited == (
        TEXT.replace("16 ", "32 ")
        .replace('"Why?"', '"Is it \\"so\\"?"')
        .replace("seed = 0x10\n", "")
        .replace("[\n  1,  # one\n  2,\n]", "[3]")
    )
    assert text.edits_to(edited) == {
        "question": 'Is it "so"?',
        "seed": "",
        "memory.block_size": "32",
        "workload.list": "[3]",
    }


def test_what_set_cannot_say_is_no_edit() -> None:
    text = read_scenario_text(TEXT)
    assert text.edits_to(TEXT + "new = 1\n") is None  # a further key
    assert text.edits_to(TEXT.replace("tokens # really", "tokens")) is None  # a comment
    assert text.edits_to(TEXT.replace("rate = 2.0", "rate = 3.0")) is None  # in a list of tables
    assert text.edits_to("no toml") is None
    assert text.edits_to(TEXT) == {}
    assert text.with_values({"workload.windows[1].rate (1)": "3.0"}) == TEXT.replace("rate = 2.0", "rate = 3.0")


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("16", "16"),
        (" 1_000 ", "1_000"),
        ("true", "true"),
        ("24 GiB", '"24 GiB"'),
        ('"16"', '"16"'),
        ("16 # tokens", "16"),
        ("[1,\n2]", "[1, 2]"),
        ("1\nevil = 2", '"1\\nevil = 2"'),
        ('say "no"', '"say \\"no\\""'),
        ("{ kind = 'fixed', tokens = 3 }", "{ kind = 'fixed', tokens = 3 }"),
    ],
)
def test_what_was_typed_is_written_as_toml(typed: str, written: str) -> None:
    assert written_value(typed) == written


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_every_scenario_of_the_repository_is_read_and_given_back(path: Path) -> None:
    original = path.read_text(encoding="utf-8")
    text = read_scenario_text(original)
    assert text.with_values({}) == original
    assert text.fields[0].named == "question"
    table = parse_toml(original)
    for field in text.fields:
        assert typed_value(field.typed) == field.value
        inner = table
        for part in field.key.split("."):
            inner = inner[part]
        assert inner == field.value
    # Typing what is there already changes nothing that is meant.
    same = text.with_values({field.key: field.typed for field in text.fields})
    assert parse_scenario(same) == parse_scenario(original)
    assert [line.partition("#")[2] for line in same.splitlines()] == [
        line.partition("#")[2] for line in original.splitlines()
    ]


@given(st.data())
def test_an_edit_means_what_set_means_and_keeps_the_rest(data: st.DataObject) -> None:
    original = data.draw(st.sampled_from(SCENARIOS)).read_text(encoding="utf-8")
    text = read_scenario_text(original)
    values = st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.sampled_from(
            ["16", '"a', "'b'", "[1, 2]", "{ kind = 3 }", "# no", "1 # one", '"""', "nan", "07:32:00", "}"]
        ),
    )
    edits = data.draw(st.dictionaries(st.sampled_from([field.key for field in text.fields]), values))
    edited = text.with_values(edits)
    expected = overridden(parse_toml(original), [f"{key}={value}" for key, value in edits.items()])
    assert repr(parse_toml(edited)) == repr(expected)  # as nan is not equal to itself
    again = read_scenario_text(edited)
    kept = [field for field in text.fields if edits.get(field.key, "x").strip()]
    assert [(field.key, field.help) for field in again.fields] == [(field.key, field.help) for field in kept]
    for field in again.fields:
        if field.key not in edits:
            assert field.value == next(before.value for before in text.fields if before.key == field.key)


@given(st.text(max_size=60))
def test_any_text_is_refused_or_given_back(written: str) -> None:
    try:
        text = read_scenario_text(written)
    except ValueError:
        return
    assert text.text == written
    for field in text.fields:
        assert (
            parse_toml(f"value = {written[field.start : field.end]}") == {"value": field.value}
            or field.value != field.value
        )


@pytest.mark.parametrize(
    ("problem", "place"),
    [
        ("memory.block_size must be between 1 and 5, got 9", Place("memory.block_size", None)),
        ("workload.prompt.tokens must be a whole number", Place("workload.prompt", None)),
        ("workload.list[1] must be so", Place("workload.list", None)),
        ("workload.windows[1].rate must be > 0", Place("workload.windows[1].rate (1)", None)),
        ("workload.windows[0]: start and end", Place(None, "workload.windows[0]")),
        ("memory: one of budget and num_blocks must be given", Place(None, "memory")),
        ("memory.block must be so", Place(None, "memory")),
        ("workload needs a kind: one of", Place(None, "workload")),
        ("workload must have a kind that is one of poisson, got 'fish'", Place("workload.kind", None)),
        ("memory must have a kind that is one of poisson, got 'fish'", Place(None, "memory")),
        ("model is missing", Place(None, "")),
        ("memroy: unknown key (did you mean memory?)", Place(None, "")),
        ("questionable is this", Place(None, None)),
        ("trace.csv:17: bad", Place(None, None)),
    ],
)
def test_a_problem_stands_beside_what_it_names(problem: str, place: Place) -> None:
    assert place_of(problem, read_scenario_text(TEXT)) == place


def test_an_error_of_toml_has_a_line() -> None:
    for written, line in (("a = 1\nb =\n", 2), ("a = 1\n\nb = [", 3)):
        with pytest.raises(ValueError, match=r"line|document") as raised:
            read_scenario_text(written)
        assert line_of_error(str(raised.value), written) == line
    assert line_of_error("nested too deeply", "") is None
