"""What changed between two runs by causes that add up exactly, and what of it a reader wants first."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, get_args

from attrs import frozen

from kvsim.engine.metrics import METRICS, Number
from kvsim.engine.results import Results
from kvsim.study import diff_parts
from kvsim.study.diff_explained import EXPLAINED, Explained, Kind, wholes_of
from kvsim.study.written import written_amount, written_change, written_percent, written_share

ORDER = (
    "First what became of requests, then waste, the queue, memory, time, each by the largest factor; below, totals "
    "that changed by less than 1% (or 0.1% of all there was), and peaks."
)
"""The order of effects, for people; `in_order` keeps it."""

_KINDS = get_args(Kind)
_SMALL_OF_ITSELF = Fraction(1, 100)
_SMALL_OF_ALL = Fraction(1, 1000)
_MOST_TELLING, _MOST_OUTCOMES = 3, 2
_TIMES_FROM, _TIMES_WHOLE = 10, 100
"""From so many times what it was on, percent are no longer read easily, and then tenths of it tell nothing."""

_INDEPENDENT = {metric.name for metric in METRICS if not metric.depends_on_step_times}


@frozen
class Part:
    """One cause of a change, in the unit of its effect; what lessens the whole is negative."""

    name: str
    meaning: str
    before: Fraction
    after: Fraction
    lessens: bool = False

    @property
    def change(self) -> Fraction:
        return self.after - self.before


@frozen(kw_only=True)
class Effect:
    """A figure that changed, or whose parts did: they add up to it exactly, before, after, and in change.

    Parts stand with the largest change first. `shares` are what it was and is of all that there was of its kind in
    either run, which `out_of` names; None where there was nothing. `counted` says how parts are told apart, and
    `shows_shares` whether people are told the shares.
    """

    name: str
    kind: Kind
    title: str
    unit: str
    out_of: str
    counted: str
    before: Fraction
    after: Fraction
    shares: tuple[Fraction | None, Fraction | None]
    shows_shares: bool
    of_all: Fraction
    """The change as a share of all that there was of its kind in the larger of the runs."""
    parts: tuple[Part, ...]

    @property
    def change(self) -> Fraction:
        return self.after - self.before

    @property
    def changed_parts(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.change)

    @property
    def has_changed(self) -> bool:
        """It, or its parts; what there is none of in either run is the same, whatever it is made of."""
        return bool(self.changed_parts and (self.before or self.after))

    @property
    def relative_change(self) -> Fraction | None:
        """Of what it was before; None where that was nothing."""
        return relative_change(self.before, self.after)

    @property
    def of_the_larger(self) -> Fraction:
        """The change as a share of the larger value: it orders by factors, whether something grew or shrank."""
        return of_the_larger(self.before, self.after)

    @property
    def hardly_changed(self) -> bool:
        """In all, whatever its parts did: by less than 1% of itself, or 0.1% of all that there was of its kind."""
        return is_small(self.of_the_larger) or self.of_all < _SMALL_OF_ALL

    @property
    def stands_below(self) -> bool:
        """Below what a reader wants: it hardly changed, or is a peak."""
        return self.hardly_changed or self.kind == "peak"

    @property
    def independent_of_step_times(self) -> bool:
        return self.name in _INDEPENDENT

    @property
    def phrase(self) -> str:
        """What happened to it in all, without its causes: "preemptions rose by 19.0%, from 221 to 263"."""
        factor = written_factor(self.before, self.after) if self.after else ""
        times = f" {factor.removeprefix('x ')}-fold," if factor.startswith("x") else f" by {factor.lstrip('+-')},"
        return f"{self.title} {self._verb}{times if factor else ''} {self._from_to}"

    @property
    def sentence(self) -> str:
        title = f"{self.title[0].upper()}{self.title[1:]}"
        causes = ", ".join(self._cause(part) for part in self.changed_parts)
        if not self.change:
            return f"{title}: {causes}; {written_amount(self.before, self.unit)} in all, as before."
        factor = written_factor(self.before, self.after)
        by = written_change(abs(self.change), self.unit).removeprefix("+")
        because = f": {causes}" if len(self.parts) > 1 else ""
        return f"{title} {self._verb} by {by}{f' ({factor})' if factor else ''}, {self._from_to}{because}."

    @property
    def _verb(self) -> str:
        return "rose" if self.change > 0 else "fell"

    @property
    def _from_to(self) -> str:
        old, new = written_amount(self.before, self.unit), written_amount(self.after, self.unit)
        said = f"from {old} to {new}" if old != new else f"still {new}"
        if not self.shows_shares or None in self.shares:
            return said
        before, after = (written_share(share) for share in self.shares)
        return f"{said} ({before} -> {after} of {self.out_of})"

    def _cause(self, part: Part) -> str:
        """Of what is taken off, a plus would be read as if there were more of it."""
        more, less = ("more ", "less ") if self.unit == "bytes" else ("more ", "fewer ")
        word = "" if not part.lessens else less if part.change > 0 else more
        return f"{word}{part.name.replace('_', ' ')} {written_change(part.change, self.unit)}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "title": self.title,
            "unit": self.unit,
            "before": as_number(self.before),
            "after": as_number(self.after),
            "change": as_number(self.change),
            "relative_change": as_number(self.relative_change),
            "hardly_changed": self.hardly_changed,
            "shares": {"before": as_number(self.shares[0]), "after": as_number(self.shares[1]), "of": self.out_of},
            "independent_of_step_times": self.independent_of_step_times,
            "counted": self.counted or None,
            "parts": [
                {
                    "name": part.name,
                    "meaning": part.meaning,
                    "before": as_number(part.before),
                    "after": as_number(part.after),
                    "change": as_number(part.change),
                }
                for part in self.parts
            ],
            "sentence": self.sentence,
        }


def effects_between(before: Results, after: Results) -> list[Effect]:
    """What both runs have a value for, changed or not. Raises as `wholes_of` does."""
    old, new = wholes_of(before), wholes_of(after)
    both = [explained for explained in EXPLAINED if explained.name in old and explained.name in new]
    return [_effect(explained, old[explained.name], new[explained.name]) for explained in both]


def in_order(effects: Sequence[Effect]) -> list[Effect]:
    """As a reader wants them, see ORDER. What came from nothing, or came to it, is ordered by how much of all there was
    it is; and what is still equal, as in EXPLAINED.
    """
    return sorted(
        effects,
        key=lambda effect: (
            effect.kind == "peak",
            effect.hardly_changed,
            _KINDS.index(effect.kind),
            -effect.of_the_larger,
            -effect.of_all,
        ),
    )


def most_telling(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """The first two of what became of requests, and the first of waste and of all allocated memory: three at most, none
    that hardly changed and no peak. Where none of these changed much, the first that did.
    """
    much = [effect for effect in effects if not effect.stands_below]
    outcomes = [effect for effect in much if effect.kind == "outcome"][:_MOST_OUTCOMES]
    memory = [effect for effect in much if effect.kind == "waste" or effect.name == "allocated_mean_bytes"]
    return (*outcomes, *memory[: _MOST_TELLING - len(outcomes)]) or tuple(much[:1])


def relative_change(before: Fraction, after: Fraction) -> Fraction | None:
    """As a share of what was before; None where that was nothing."""
    return (after - before) / abs(before) if before else None


def of_the_larger(before: Fraction, after: Fraction) -> Fraction:
    """The change as a share of the larger value, so that what appears counts as much as what disappears."""
    larger = max(abs(before), abs(after))
    return abs(after - before) / larger if larger else Fraction(0)


def is_small(of_the_larger: Fraction) -> bool:
    """Whether a change is one of less than 1%."""
    return of_the_larger < _SMALL_OF_ITSELF


def written_factor(before: Fraction, after: Fraction) -> str:
    """What a change is of what was before: "+19.0%", or "x 12.3"; "" where there was nothing, or nothing changed."""
    relative = relative_change(before, after)
    if not relative:
        return ""
    if relative < _TIMES_FROM:
        return written_percent(relative)
    times = float(after / before)
    return f"x {times:,.0f}" if times >= _TIMES_WHOLE else f"x {times:,.1f}"


def as_number(value: Fraction | None) -> Number:
    """A whole number as it is, any other as a float."""
    if value is None:
        return None
    return value.numerator if value.denominator == 1 else float(value)


def _effect(explained: Explained, old: diff_parts.Whole, new: diff_parts.Whole) -> Effect:
    parts = [
        Part(
            name,
            explained.meanings[name],
            Fraction(old.parts[name]),
            Fraction(new.parts[name]),
            lessens=name in explained.lessening,
        )
        for name in new.parts
    ]
    parts.sort(key=lambda part: -abs(part.change))
    there_was = max(Fraction(old.out_of), Fraction(new.out_of))
    return Effect(
        name=explained.name,
        kind=explained.kind,
        title=explained.title,
        unit=explained.unit,
        out_of=explained.out_of,
        counted=explained.counted,
        before=Fraction(old.value),
        after=Fraction(new.value),
        shares=(_share(old), _share(new)),
        shows_shares=explained.has_share,
        of_all=abs(Fraction(new.value) - Fraction(old.value)) / there_was if there_was else Fraction(0),
        parts=tuple(parts),
    )


def _share(whole: diff_parts.Whole) -> Fraction | None:
    return Fraction(whole.value) / whole.out_of if whole.out_of else None
