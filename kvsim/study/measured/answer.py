"""What a comparison comes to, in a sentence or two: does the run do what the server did, and how far is it off?"""

from kvsim.study.measured.compare import MeasuredComparison
from kvsim.study.measured.load import SAID_AS, comparable, in_order

NAMES_SHOWN = {
    "kv_usage": "KV cache used",
    "running": "running requests",
    "waiting": "waiting requests",
    "recent_hit_share": "recent prefix hits",
    **SAID_AS,
}

MOST_CLOSELY = 0.02
MOST_ROUGHLY = 0.1
"""Shares of the blocks by which KV cache used differs on average where a run follows a server so."""


def answer(comparison: MeasuredComparison) -> tuple[str, ...]:
    """Whether both are the same thing; how far levels, counters and sizes are apart."""
    different = [name.replace("_", " ") for name in comparison.conditions.different]
    different += ["load"] * comparison.load_differs
    sentences = []
    if different:
        sentences.append(f"This does not say whether the simulation is right: not the same {_listed(different)}.")
        said = [_of_levels(comparison, is_other=True)]
    else:
        said = [_of_levels(comparison, is_other=False), _of_counters(comparison), _of_sizes(comparison)]
    return (*sentences, *(sentence for sentence in said if sentence))


def _of_levels(comparison: MeasuredComparison, *, is_other: bool) -> str:
    name = next((name for name in ("kv_usage", "running") if name in comparison.levels), None)
    if name is None:
        return ""
    error = comparison.levels[name]
    value = percent if name == "kv_usage" else count
    off = error.mean_absolute_error
    how_far = (
        f"{NAMES_SHOWN[name]} differ{'s' if name == 'kv_usage' else ''} by {of_figure(name, off)} on average "
        f"(server {value(error.measured_mean)}, run {value(error.simulated_mean)})"
    )
    fit = None if comparison.alignment is None else comparison.alignment.fit
    if fit is not None and fit.matters:
        how_far += f", up to {of_figure(name, fit.worst_end)} with the clocks set otherwise"
    if is_other or name != "kv_usage":
        return f"{how_far}."
    if off > MOST_ROUGHLY:
        return f"The run does not follow the server: {how_far}."
    return f"The run follows the server {'closely' if off <= MOST_CLOSELY else 'roughly'}: {how_far}."


def _of_counters(comparison: MeasuredComparison) -> str:
    """Equal ones are counted; of others the first few are named, by how much they differ."""
    equal, other = [], []
    for name in in_order(comparison.counters):
        measured, simulated = comparable(comparison.counters[name], comparison.counted)
        if measured is None or simulated is None:
            continue
        if measured == simulated:
            equal.append(name)
        else:
            part = f" ({(simulated - measured) / measured:+.1%})" if measured else ""
            other.append(f"{NAMES_SHOWN.get(name, name)} {measured:,.0f}, in the run {simulated:,.0f}{part}")
    if not equal and not other:
        return ""
    if not other:
        some = f"All {len(equal)} counters are equal" if len(equal) > 1 else "The counter is equal"
        return f"{some}."
    return f"Of {len(equal) + len(other)} counters {len(equal)} are equal; {'; '.join(other[:2])}."


def _of_sizes(comparison: MeasuredComparison) -> str:
    judged = [row for row in comparison.conditions.sizes if row.agrees is not None]
    bad = [row.name.replace("_", " ") for row in judged if not row.agrees]
    if not judged:
        return ""
    return f"Sizes differ: {', '.join(bad)}." if bad else f"All {len(judged)} sizes agree."


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def of_figure(name: str, error: float) -> str:
    """An error of a level without its sign."""
    return f"{100 * error:.2f} points" if name in ("kv_usage", "recent_hit_share") else f"{error:,.2f}"


def percent(share: float) -> str:
    return f"{share:.2%}"


def points(share: float) -> str:
    """Points of per cent."""
    return f"{100 * share:+.2f} pt" if share else "0 pt"


def count(value: float) -> str:
    return f"{value:,.2f}"


def seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:,.2f} s"
