"""What changed between two runs, and why: what was put in, and what came out, by causes that add up exactly."""

from fractions import Fraction
from typing import Any

from attrs import field, frozen

from kvsim.engine.metrics import METRICS, SAMPLE_METRICS, Number
from kvsim.engine.results import CLAIM, Results
from kvsim.engine.tables import SCHEMAS, whole
from kvsim.study.diff_effects import (
    ORDER,
    Effect,
    as_number,
    effects_between,
    in_order,
    is_small,
    most_telling,
    of_the_larger,
    relative_change,
)
from kvsim.study.diff_inputs import Input, changed_inputs
from kvsim.study.written import written

_TRAFFIC = {
    "arrivals": ("arrival_ns", "priority"),
    "lengths": ("prompt_tokens", "output_tokens"),
}
"""What the table of requests says of what was asked, by its columns. It does not say what prompts contain."""

_MOST_INPUTS = 6

_DECIDE_NOTHING = ("question", "overrides")
"""Not worth a word where other keys differ: overrides are keys of the scenario, which speak for themselves."""


@frozen(kw_only=True)
class Figure:
    """A figure of the summary that changed; None where a run has no value for it."""

    name: str
    unit: str
    meaning: str
    before: Number
    after: Number
    independent_of_step_times: bool

    @property
    def change(self) -> Fraction | None:
        if self.before is None or self.after is None:
            return None
        return Fraction(self.after) - Fraction(self.before)

    @property
    def relative_change(self) -> Fraction | None:
        """Of what it was before; None where that is 0, or one of the runs has no value."""
        if self.before is None or self.after is None:
            return None
        return relative_change(Fraction(self.before), Fraction(self.after))

    @property
    def of_the_larger(self) -> Fraction:
        """The change as a share of the larger value; all of it where one of the runs has no value."""
        if self.before is None or self.after is None:
            return Fraction(1)
        return of_the_larger(Fraction(self.before), Fraction(self.after))

    @property
    def hardly_changed(self) -> bool:
        return is_small(self.of_the_larger)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "before": self.before,
            "after": self.after,
            "change": as_number(self.change),
            "relative_change": as_number(self.relative_change),
            "independent_of_step_times": self.independent_of_step_times,
        }


@frozen(kw_only=True)
class Differences:
    """All that differs between two runs. `same_traffic` tells of "arrivals" and "lengths" whether requests had the
    same. `effects` stand in the order that ORDER says: what became of requests, waste, what held the queue back,
    memory, time, in each with the largest factor first; then totals that hardly changed, and peaks. `figures` have
    those of peaks last too, and else the largest factor first. `same_effects` are the titles of those in which nothing
    changed, and `other_rows` the tables whose rows differ, looked at only where all figures are the same.
    """

    inputs: tuple[Input, ...]
    same_traffic: dict[str, bool]
    effects: tuple[Effect, ...]
    figures: tuple[Figure, ...]
    same_effects: tuple[str, ...]
    other_rows: tuple[str, ...] = field(default=())
    stalled: tuple[str | None, str | None] = field(default=(None, None))
    notes: tuple[tuple[str, ...], tuple[str, ...]] = field(default=((), ()))
    """What only the first run, and what only the second said a reader should know."""

    @property
    def have_same_traffic(self) -> bool:
        return all(self.same_traffic.values())

    @property
    def given(self) -> tuple[Input, ...]:
        """What was put in, without what follows from it."""
        return tuple(changed for changed in self.inputs if not changed.follows)

    @property
    def have_same_outcome(self) -> bool:
        return not (self.effects or self.figures or self.other_rows) and self.stalled[0] == self.stalled[1]

    @property
    def are_equal(self) -> bool:
        return not self.inputs and self.have_same_outcome

    @property
    def answer(self) -> str:
        """What it comes to, in a sentence or two."""
        if self.are_equal:
            return "The two runs are equal: the same was put in, and all figures and all rows are the same."
        if self.have_same_outcome:
            return f"{self._inputs_sentence()} It makes no difference: all figures and all rows are the same."
        said = [self._inputs_sentence(), self._stalled_sentence(), self._headline()]
        if not self.have_same_traffic:
            said.append(self.traffic_sentence)
        return " ".join(sentence for sentence in said if sentence)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was put in, whether the same was asked, and each effect with its causes, in order."""
        return (
            self._inputs_sentence(),
            self.traffic_sentence,
            *(effect.sentence for effect in self.effects),
        )

    @property
    def traffic_sentence(self) -> str:
        different = [name for name, same in self.same_traffic.items() if not same]
        if not different:
            return "Requests came at the same times and had the same lengths in both runs."
        return f"The {' and '.join(different)} of the requests differ, so that the runs were not asked the same."

    def _stalled_sentence(self) -> str:
        """Figures of a run that never ended are compared with care."""
        which = [name for name, stalled in zip(("first", "second"), self.stalled, strict=True) if stalled is not None]
        if not which:
            return ""
        runs = f"the {which[0]} run" if len(which) == 1 else "both runs"
        return f"In {runs} the engine stopped for ever before all requests had ended."

    def _headline(self) -> str:
        if not (self.effects or self.figures):
            rows = f"; rows of {', '.join(self.other_rows)} differ" if self.other_rows else ""
            return f"All figures are the same{rows}."
        telling = most_telling(self.effects)
        if telling:
            said = "; ".join(effect.phrase for effect in telling)
            return f"{said[0].upper()}{said[1:]}."
        said = self.effects[0].sentence if self.effects else _figure_sentence(self.figures[0])
        return f"Little changed: {said[0].lower()}{said[1:]}"

    def _inputs_sentence(self) -> str:
        given = [changed for changed in self.given if changed.name not in _DECIDE_NOTHING] or self.given or self.inputs
        if not given:
            return "The same was put into both runs."
        listed = [changed.sentence for changed in given[:_MOST_INPUTS]]
        if len(given) > _MOST_INPUTS:
            listed.append(f"and {len(given) - _MOST_INPUTS:,} keys more")
        if not self.given:
            return f"The same was put into both runs, but other files were behind it: {', '.join(listed)}."
        return f"What was put in differs: {', '.join(listed)}."

    def to_json(self) -> dict[str, Any]:
        """All of it; averages over time are rounded to floats here."""
        return {
            "equal": self.are_equal,
            "answer": self.answer,
            "sentences": list(self.sentences),
            "inputs": [changed.to_json() for changed in self.inputs],
            "same_traffic": self.same_traffic,
            "order": ORDER,
            "effects": [effect.to_json() for effect in self.effects],
            "same_effects": list(self.same_effects),
            "figures": [figure.to_json() for figure in self.figures],
            "other_rows": list(self.other_rows),
            "stalled": {"before": self.stalled[0], "after": self.stalled[1]},
            "notes": {"before": list(self.notes[0]), "after": list(self.notes[1])},
            "claim": CLAIM,
        }


def differences(before: Results, after: Results) -> Differences:
    """What was put into two runs and what came out of them, as far as it differs. Their tables must have been kept.

    Raises KvsimError where the tables of a run contradict each other, OutputError where they cannot be read.
    """
    effects = effects_between(before, after)
    changed = [effect for effect in effects if effect.has_changed]
    figures = _changed_figures(before, after)
    return Differences(
        inputs=changed_inputs(before.description, after.description),
        same_traffic=_same_traffic(before, after),
        effects=tuple(in_order(changed)),
        figures=figures,
        same_effects=tuple(effect.title for effect in effects if not effect.has_changed),
        other_rows=() if changed or figures else _other_rows(before, after),
        stalled=(before.stalled, after.stalled),
        notes=(
            tuple(note for note in before.notes if note not in after.notes),
            tuple(note for note in after.notes if note not in before.notes),
        ),
    )


_METRICS = {metric.name: metric for metric in (*METRICS, *SAMPLE_METRICS)}
_INDEPENDENT = {metric.name for metric in METRICS if not metric.depends_on_step_times}


def _changed_figures(before: Results, after: Results) -> tuple[Figure, ...]:
    figures = [
        Figure(
            name=name,
            unit=metric.unit,
            meaning=metric.meaning,
            before=before.metrics.get(name),
            after=after.metrics.get(name),
            independent_of_step_times=name in _INDEPENDENT,
        )
        for name, metric in _METRICS.items()
        if before.metrics.get(name) != after.metrics.get(name)
    ]
    return tuple(sorted(figures, key=lambda figure: ("peak" in figure.name, -figure.of_the_larger)))


def _same_traffic(before: Results, after: Results) -> dict[str, bool]:
    return {
        name: before.requests.select(columns).equals(after.requests.select(columns))
        for name, columns in _TRAFFIC.items()
    }


def _other_rows(before: Results, after: Results) -> tuple[str, ...]:
    return tuple(name for name in SCHEMAS if not whole(before.tables, name).equals(whole(after.tables, name)))


def _figure_sentence(figure: Figure) -> str:
    return f"{figure.name} is {written(figure.after, figure.unit)} and was {written(figure.before, figure.unit)}."
