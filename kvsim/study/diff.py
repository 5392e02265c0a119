"""What changed between two runs, and why: what was put in, and what came out, by causes that add up exactly."""

from fractions import Fraction
from typing import Any

from attrs import field, frozen

from kvsim.engine.metrics import METRICS, SAMPLE_METRICS, Number
from kvsim.engine.results import CLAIM, Results
from kvsim.engine.tables import SCHEMAS, whole
from kvsim.study.diff_effects import EXPLAINED, Explained, Whole, wholes_of
from kvsim.study.diff_inputs import Input, changed_inputs
from kvsim.study.written import written, written_change, written_distance, written_percent

_TRAFFIC = {
    "arrivals": ("arrival_ns", "priority"),
    "lengths": ("prompt_tokens", "output_tokens"),
}
"""What the table of requests says of what was asked, by its columns. It does not say what prompts contain."""

_MOST_INPUTS = 6

_DECIDE_NOTHING = ("question", "overrides")
"""Not worth a word where other keys differ: overrides are keys of the scenario, which speak for themselves."""


@frozen
class Part:
    """One cause of a change, in the unit of its effect; what lessens the whole is negative."""

    name: str
    meaning: str
    before: Fraction
    after: Fraction

    @property
    def change(self) -> Fraction:
        return self.after - self.before


@frozen(kw_only=True)
class Effect:
    """A figure that changed, or whose parts did: they add up to it exactly, before, after, and in change.

    Parts stand with the largest change first. `moved` is that change as a share of all that there was of its kind in
    the larger of the runs, which `out_of` names: of the pool, the requests, the steps, the tokens, the time.
    """

    name: str
    title: str
    unit: str
    out_of: str
    counted: str
    before: Fraction
    after: Fraction
    parts: tuple[Part, ...]
    moved: Fraction
    independent_of_step_times: bool

    @property
    def change(self) -> Fraction:
        return self.after - self.before

    @property
    def changed_parts(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.change)

    @property
    def relative_change(self) -> Fraction | None:
        """Of what it was before; None where that was nothing."""
        return relative_change(self.before, self.after)

    @property
    def sentence(self) -> str:
        title = f"{self.title[0].upper()}{self.title[1:]}"
        causes = ", ".join(
            f"{part.name.replace('_', ' ')} {written_change(part.change, self.unit)}" for part in self.changed_parts
        )
        before, after = written(self.before, self.unit), written(self.after, self.unit)
        if not self.change:
            return f"{title}: {causes}; {before} in all, as before."
        verb = "rose" if self.change > 0 else "fell"
        relative = self.relative_change
        percent = "" if relative is None else f" ({written_percent(relative)})"
        by = f"{written_distance(self.change, self.unit)}{percent}"
        return f"{title} {verb} by {by}, from {before} to {after}: {causes}."

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.unit,
            "before": _json(self.before),
            "after": _json(self.after),
            "change": _json(self.change),
            "relative_change": _json(self.relative_change),
            "independent_of_step_times": self.independent_of_step_times,
            "moved": _json(self.moved),
            "out_of": self.out_of,
            "counted": self.counted or None,
            "parts": [
                {
                    "name": part.name,
                    "meaning": part.meaning,
                    "before": _json(part.before),
                    "after": _json(part.after),
                    "change": _json(part.change),
                }
                for part in self.parts
            ],
            "sentence": self.sentence,
        }


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

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "before": self.before,
            "after": self.after,
            "change": _json(self.change),
            "relative_change": _json(self.relative_change),
            "independent_of_step_times": self.independent_of_step_times,
        }


@frozen(kw_only=True)
class Differences:
    """All that differs between two runs. `same_traffic` tells of "arrivals" and "lengths" whether requests had the
    same; `effects` stand with the largest cause first, measured as `Effect.moved` says, and `figures` with the largest
    relative change first. `same_effects` are the titles of those in which nothing changed, and `other_rows` the tables
    whose rows differ, looked at only where all figures are the same.
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
        if not (self.effects or self.figures):
            return f"{self._inputs_sentence()} All figures are the same; rows of {', '.join(self.other_rows)} differ."
        first = self.effects[0].sentence if self.effects else _figure_sentence(self.figures[0])
        return f"{self._inputs_sentence()} The largest change: {first[0].lower()}{first[1:]}"

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was put in, whether the same was asked, and each effect with its causes, the largest first."""
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

    def _inputs_sentence(self) -> str:
        given = [changed for changed in self.given if changed.name not in _DECIDE_NOTHING] or self.given or self.inputs
        if not given:
            return "The same was put into both runs."
        listed = [f"{changed.name} {changed.before_text} -> {changed.after_text}" for changed in given[:_MOST_INPUTS]]
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
    old, new = wholes_of(before), wholes_of(after)
    both = [explained for explained in EXPLAINED if explained.name in old and explained.name in new]
    effects = [_effect(explained, old[explained.name], new[explained.name]) for explained in both]
    changed = [effect for effect in effects if effect.changed_parts]
    figures = _changed_figures(before, after)
    return Differences(
        inputs=changed_inputs(before.description, after.description),
        same_traffic=_same_traffic(before, after),
        effects=tuple(sorted(changed, key=lambda effect: -effect.moved)),
        figures=figures,
        same_effects=tuple(effect.title for effect in effects if not effect.changed_parts),
        other_rows=() if changed or figures else _other_rows(before, after),
        stalled=(before.stalled, after.stalled),
        notes=(
            tuple(note for note in before.notes if note not in after.notes),
            tuple(note for note in after.notes if note not in before.notes),
        ),
    )


def relative_change(before: Fraction, after: Fraction) -> Fraction | None:
    """As a share of what was before; None where that was nothing."""
    return (after - before) / abs(before) if before else None


def _effect(explained: Explained, old: Whole, new: Whole) -> Effect:
    parts = [
        Part(name, explained.meanings[name], Fraction(old.parts[name]), Fraction(new.parts[name])) for name in new.parts
    ]
    parts.sort(key=lambda part: -abs(part.change))
    there_was = max(Fraction(old.out_of), Fraction(new.out_of))
    return Effect(
        name=explained.name,
        title=explained.title,
        unit=explained.unit,
        out_of=explained.out_of,
        counted=explained.counted,
        before=Fraction(old.value),
        after=Fraction(new.value),
        parts=tuple(parts),
        moved=abs(parts[0].change) / there_was if there_was else Fraction(0),
        independent_of_step_times=explained.name in _INDEPENDENT,
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
    return tuple(sorted(figures, key=lambda figure: -_of_the_larger(figure)))


def _of_the_larger(figure: Figure) -> Fraction:
    """The change as a share of the larger value, so that what appears counts as much as what disappears."""
    if figure.before is None or figure.after is None:
        return Fraction(1)
    old, new = Fraction(figure.before), Fraction(figure.after)
    return abs(new - old) / max(abs(old), abs(new))


def _same_traffic(before: Results, after: Results) -> dict[str, bool]:
    return {
        name: before.requests.select(columns).equals(after.requests.select(columns))
        for name, columns in _TRAFFIC.items()
    }


def _other_rows(before: Results, after: Results) -> tuple[str, ...]:
    return tuple(name for name in SCHEMAS if not whole(before.tables, name).equals(whole(after.tables, name)))


def _figure_sentence(figure: Figure) -> str:
    return f"{figure.name} is {written(figure.after, figure.unit)} and was {written(figure.before, figure.unit)}."


def _json(value: Fraction | None) -> Number:
    """A whole number as it is, any other as a float."""
    if value is None:
        return None
    return value.numerator if value.denominator == 1 else float(value)
