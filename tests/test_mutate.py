"""The mutations still fit the package and MUTATIONS.md is of these; whether each is caught, `tests.mutate` says."""

from pathlib import Path

import pytest

from tests.mutate import INTRODUCTION, MUTATIONS, NO_RULE, ROOT, Mutation, table_row

PAGE = (Path(__file__).parent / "MUTATIONS.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: f"{mutation.rule}-{mutation.what}")
def test_a_mutation_changes_one_place_and_is_still_python(mutation: Mutation) -> None:
    text = (ROOT / "kvsim" / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.old) == 1
    changed = text.replace(mutation.old, mutation.new)
    assert changed != text
    compile(changed, mutation.file, "exec")


def test_every_rule_is_broken_at_least_once() -> None:
    rules = [mutation.rule for mutation in MUTATIONS]
    assert set(rules) == {NO_RULE, *range(1, 33)}
    assert rules == sorted(rules, key=lambda rule: (rule == NO_RULE, rule))
    assert len({mutation.what for mutation in MUTATIONS}) == len(MUTATIONS)


def test_the_page_has_a_row_for_each_mutation_and_all_are_caught() -> None:
    assert PAGE.startswith(INTRODUCTION + "\n")
    rows = PAGE.removeprefix(INTRODUCTION + "\n").splitlines()
    *rows, blank, last = rows
    assert [row.rpartition(" | ")[0] for row in rows] == [
        table_row(mutation, "").removesuffix(" |  |") for mutation in MUTATIONS
    ]
    assert "nothing" not in {row.rpartition(" | ")[2].removesuffix(" |") for row in rows}
    assert (blank, last) == ("", f"{len(rows)} of {len(rows)} are caught.")
