import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.workload.request import Content, Span, merged, num_tokens
from kvsim.workload.traces import lineage as lineage_module
from kvsim.workload.traces.lineage import Lineage, part


def tokens(content: Content) -> list[tuple[object, int]]:
    return [(span.source, span.start + i) for span in content for i in range(span.length)]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(1, 9)), max_size=5), st.data())
def test_a_part_of_a_content_is_those_of_its_tokens(spans: list[tuple[str, int, int]], data: st.DataObject) -> None:
    content = merged(Span(*span) for span in spans)
    start = data.draw(st.integers(0, 50))
    length = data.draw(st.integers(0, 50))
    assert tokens(part(content, start, length)) == tokens(content)[start : start + length]


def blocks(*ids: int, last: int = 4) -> Content:
    return (*(Span(block, 0, 4) for block in ids[:-1]), Span(ids[-1], 0, last))


def asked(lineage: Lineage, key: str, parent: str, content: Content, output: int) -> Content:
    prompt = lineage.prompt(parent, content, 4)
    lineage.remember(key, content, prompt, 4, Span(f"out {key}", 0, output))
    return prompt


def test_a_later_turn_contains_the_prompt_and_the_output_before_it() -> None:
    lineage = Lineage()
    first = asked(lineage, "a", "", blocks(1, 2, last=3), 6)
    second = asked(lineage, "b", "a", blocks(1, 3, 4, 5, last=2), 5)
    assert tokens(second)[:13] == tokens(first) + [("out a", i) for i in range(6)]
    assert tokens(second)[13:] == [(5, 1)]
    third = asked(lineage, "c", "b", blocks(1, 3, 4, 6, 7), 1)
    assert tokens(third)[: num_tokens(second)] == tokens(second)


def test_another_child_shares_as_many_blocks_as_its_ids_say() -> None:
    lineage = Lineage()
    asked(lineage, "a", "", blocks(1, 2), 8)
    one = asked(lineage, "b", "a", blocks(1, 2, 3, 4, 5), 1)
    other = asked(lineage, "c", "a", blocks(1, 2, 3, 9, 5), 1)
    assert tokens(one)[8:16] == [("out a", i) for i in range(8)]
    assert tokens(other)[:12] == tokens(one)[:12]
    assert tokens(other)[12:16] == [(9, i) for i in range(4)]


def test_turns_and_names_are_forgotten_from_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_module, "MOST_TURNS", 1)
    monkeypatch.setattr(lineage_module, "MOST_NAMED_BLOCKS", 1)
    lineage = Lineage()
    asked(lineage, "a", "", blocks(1), 4)
    asked(lineage, "b", "", blocks(2), 8)
    assert asked(lineage, "c", "a", blocks(1, 3), 1) == blocks(1, 3)
    asked(lineage, "d", "", blocks(4), 8)
    first = lineage.prompt("d", blocks(4, 5, 6, 7), 4)
    assert tokens(first) == [(4, i) for i in range(4)] + [(5, i) for i in range(4)] + [
        *(("out d", i) for i in range(4, 8)),
        *((7, i) for i in range(4)),
    ]


def test_a_prompt_that_cannot_hold_the_output_or_starts_otherwise_names_nothing() -> None:
    lineage = Lineage()
    asked(lineage, "a", "", blocks(1, 2), 9)
    assert asked(lineage, "b", "a", blocks(1, 2, 3, 4), 1) == blocks(1, 2, 3, 4)
    assert asked(lineage, "c", "a", blocks(1, 7, 3, 4, 5), 1) == blocks(1, 7, 3, 4, 5)
    assert tokens(asked(lineage, "d", "a", blocks(1, 2, 8, 4, 5), 1))[8] == ("out a", 0)
