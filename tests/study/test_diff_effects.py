"""Which of two runs' differences a reader is told first, and in what words."""

from fractions import Fraction
from typing import Any

import pytest

from kvsim.study.diff_effects import ORDER, Effect, Part, effects_between, in_order, most_telling, written_factor
from kvsim.study.diff_explained import EXPLAINED, Kind
from tests.study.outcomes import TIMELINE, make_quiet_results, make_results


def effect(kind: Kind, before: float, after: float, out_of: float = 100, **rest: Any) -> Effect:
    """Of a count, named by its kind."""
    old, new, whole = Fraction(before), Fraction(after), Fraction(out_of)
    described: dict[str, Any] = {
        "name": kind,
        "title": f"{kind} figure",
        "unit": "times",
        "out_of": "all",
        "counted": "",
        "shows_shares": False,
        "parts": (Part("this", "", old, new), Part("that", "", Fraction(0), Fraction(0))),
    }
    shares = (old / whole, new / whole)
    return Effect(kind=kind, before=old, after=new, shares=shares, of_all=abs(new - old) / whole, **described | rest)


def names(effects: list[Effect]) -> list[str]:
    return [one.name for one in effects]


def test_kinds_stand_in_their_order_whatever_their_size() -> None:
    kinds: list[Kind] = ["peak", "run", "memory", "queue", "waste", "outcome"]
    effects = [effect(kind, 10, 20 + place) for place, kind in enumerate(kinds)]
    assert names(in_order(effects)) == ["outcome", "waste", "queue", "memory", "run", "peak"]
    assert ORDER.startswith("First what became of requests, then waste, the queue, memory, time, each by")


def test_within_a_kind_the_largest_factor_is_first_be_it_up_or_down() -> None:
    effects = [
        effect("outcome", 10, 15, name="x 1.5"),
        effect("outcome", 30, 10, name="x 1/3"),
        effect("outcome", 10, 20, name="x 2"),
        effect("outcome", 0, 2, name="two from nothing"),
        effect("outcome", 5, 0, name="five to nothing"),
    ]
    assert names(in_order(effects)) == ["five to nothing", "two from nothing", "x 1/3", "x 2", "x 1.5"]


def test_what_is_equal_stays_in_the_order_of_what_is_explained() -> None:
    assert names(in_order([effect("waste", 0, 9, name=name) for name in "ba"])) == ["b", "a"]


def test_totals_that_hardly_changed_stand_below_all_others_but_peaks_however_large_their_parts() -> None:
    parts = (Part("this", "", Fraction(0), Fraction(90)), Part("that", "", Fraction(100), Fraction(10)))
    cancelling = effect("outcome", 100, 100, name="cancelling", parts=parts)
    effects = [
        effect("peak", 100, 1, name="peak"),
        cancelling,
        effect("outcome", 1000, 1009, out_of=1000, name="under 1%"),
        effect("outcome", 1, 1.9, out_of=1000, name="under 0.1% of all"),
        effect("run", 1000, 1011, out_of=1000, name="over 1%"),
    ]
    assert [one.hardly_changed for one in in_order(effects)] == [False, True, True, True, False]
    assert names(in_order(effects)) == ["over 1%", "under 0.1% of all", "under 1%", "cancelling", "peak"]


def test_two_outcomes_and_one_of_memory_tell_the_most() -> None:
    outcomes = [effect("outcome", 10, 20 + more, name=f"outcome {more}") for more in (3, 2, 1)]
    others = [
        effect("waste", 0, 9, name="waste"),
        effect("memory", 9, 99, name="live_mean_bytes"),
        effect("memory", 9, 90, name="allocated_mean_bytes"),
        effect("peak", 1, 99),
    ]
    assert names(list(most_telling([*outcomes, *others]))) == ["outcome 3", "outcome 2", "waste"]
    assert names(list(most_telling([*outcomes, *others[1:]]))) == ["outcome 3", "outcome 2", "allocated_mean_bytes"]
    assert names(list(most_telling([outcomes[0], *others]))) == ["outcome 3", "waste", "allocated_mean_bytes"]
    assert names(list(most_telling([effect("queue", 1, 9), effect("run", 1, 9)]))) == ["queue"]
    assert most_telling([effect("outcome", 1000, 1001), effect("peak", 1, 99)]) == ()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [(221, 263, "+19.0%"), (2, 1, "-50.0%"), (1, 10.9, "+990.0%"), (1, 11.4, "x 11.4"), (1, 7024.7, "x 7,025"), (0, 5, ""), (3, 3, "")],
)  # fmt: skip
def test_percent_are_said_as_long_as_they_are_easily_read(before: float, after: float, words: str) -> None:
    assert written_factor(Fraction(before), Fraction(after)) == words


@pytest.mark.parametrize(
    ("before", "after", "phrase", "sentence"),
    [
        (20, 25, "rose by 25.0%, from 20 to 25", "rose by 5 (+25.0%), from 20 to 25: this +5."),
        (20, 15, "fell by 25.0%, from 20 to 15", "fell by 5 (-25.0%), from 20 to 15: this -5."),
        (2, 40, "rose 20.0-fold, from 2 to 40", "rose by 38 (x 20.0), from 2 to 40: this +38."),
        (0, 7, "rose from 0 to 7", "rose by 7, from 0 to 7: this +7."),
        (7, 0, "fell from 7 to 0", "fell by 7 (-100.0%), from 7 to 0: this -7."),
    ],
)
def test_what_happened_in_words(before: float, after: float, phrase: str, sentence: str) -> None:
    said = effect("outcome", before, after)
    assert said.phrase == f"outcome figure {phrase}"
    assert said.sentence == f"Outcome figure {sentence}"


def test_values_that_are_written_alike_are_written_once() -> None:
    said = effect("run", 434 * 10**9, 434 * 10**9 - 8_000_000, out_of=434 * 10**9, unit="ns").sentence
    assert said.startswith("Run figure fell by 8 ms (-0.002%), still 7.23 min: ")


def test_shares_are_told_where_they_help() -> None:
    said = effect("outcome", 92, 104, out_of=1500, shows_shares=True)
    assert said.phrase == "outcome figure rose by 13.0%, from 92 to 104 (6.13% -> 6.93% of all)"


def test_a_figure_that_is_its_only_cause_is_said_once() -> None:
    alone = effect("waste", 0, 7, parts=(Part("external", "", Fraction(0), Fraction(7)),))
    assert alone.sentence == "Waste figure rose by 7, from 0 to 7."


def test_of_what_is_taken_off_it_is_said_whether_it_became_more() -> None:
    parts = (
        Part("logical", "", Fraction(100), Fraction(100)),
        Part("shared_saving", "", Fraction(-60), Fraction(-20), lessens=True),
        Part("window_saving", "", Fraction(0), Fraction(-10), lessens=True),
    )
    said = effect("memory", 40, 70, unit="bytes", parts=parts).sentence
    assert said.endswith("from 40 B to 70 B: less shared saving +40 B, more window saving -10 B.")
    found = effect("outcome", 5, 9, parts=(Part("not_found", "", Fraction(-4), Fraction(0), lessens=True),) * 2)
    assert found.sentence.endswith("fewer not found +4, fewer not found +4.")


def test_waste_is_told_with_its_share_and_its_causes() -> None:
    more = TIMELINE | {"live_bytes": [0, 250, 700, 0], "slack_bytes": [0, 150, 100, 0], "tail_bytes": [0, 80, 100, 0]}
    more["logical_bytes"] = [0, 250, 1000, 0]
    found = {one.name: one for one in effects_between(make_results(), make_results(timeline=more))}
    assert found["slack_mean_bytes"].sentence == (
        "Slack on average rose by 30 B (+37.5%), from 80 B to 110 B (20.00% -> 27.50% of allocated memory): tail +30 B."
    )


def test_what_there_is_none_of_has_not_changed() -> None:
    one = effect(
        "outcome", 0, 0, parts=(Part("a", "", Fraction(5), Fraction(4)), Part("b", "", Fraction(-5), Fraction(-4)))
    )
    assert not one.has_changed
    quiet = effects_between(make_quiet_results(), make_quiet_results())
    assert not any(one.has_changed for one in quiet)
    assert [one.name for one in quiet] == [one.name for one in EXPLAINED if one.name != "sample_unshared_mean_bytes"]
