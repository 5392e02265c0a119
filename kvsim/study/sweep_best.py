"""Which value of the first varied key serves best, by a rule that is said with it, and what it is traded for."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvsim.study.sweep_plan import named
from kvsim.study.sweep_record import FIGURES
from kvsim.study.sweep_result import Combination, Sweep
from kvsim.study.vary import Scalar
from kvsim.units import format_duration

ONE_POINT = 0.01
"""A percentage point of a share: what is not worth a longer block table."""

NO_DIFFERENCE = "makes no difference: all figures are equal"


class Line(NamedTuple):
    """The combinations that differ in the first varied key alone; `parameters` are the values of the others."""

    parameters: dict[str, Scalar]
    points: list[Combination]


class Best(NamedTuple):
    line: Line
    point: Combination
    reason: str
    runner_up: Combination
    """What would be best without it."""


def first_key(sweep: Sweep) -> str:
    """What the results are seen against."""
    return sweep.axes[0].key if sweep.axes else "seed"


def varied(sweep: Sweep) -> str:
    """Such as "over memory.block_size, workload.rate, 5 seeds"."""
    keys = [axis.key for axis in sweep.axes]
    return "over " + ", ".join([*keys, *([f"{sweep.num_seeds:,} seeds"] if sweep.num_seeds > 1 else [])])


def lines(sweep: Sweep) -> list[Line]:
    """In the order of the table; if only seeds differ, each is a point."""
    if not sweep.axes:
        points = [Combination({"seed": seed}, sweep.table[at : at + 1]) for at, seed in enumerate(sweep.table["seed"])]
        return [Line({}, points)]
    found: dict[tuple[Scalar, ...], Line] = {}
    for combination in sweep.combinations:
        others = dict(combination.parameters)
        del others[first_key(sweep)]
        found.setdefault(tuple(others.values()), Line(others, [])).points.append(combination)
    return list(found.values())


def best_values(sweep: Sweep) -> list[Best]:
    """The best point of every line that leaves a choice."""
    if not sweep.axes:
        return []
    key = first_key(sweep)
    found = []
    for line in lines(sweep):
        points = [point for point in line.points if point.mean("slack_share") is not None]
        if len(points) > 1:
            point, reason = _chosen(key, points)
            runner_up, _ = _chosen(key, [other for other in points if other is not point])
            found.append(Best(line, point, reason, runner_up))
    return found


def _chosen(key: str, points: Sequence[Combination]) -> "Choice":
    if len(points) > 1 and all(_figures(point) == _figures(points[0]) for point in points):
        return points[0], NO_DIFFERENCE
    return RULES.get(key, _calmest)(key, points) or _calmest(key, points)


def _figures(point: Combination) -> list[float | None]:
    return [point.mean(figure) for figure in FIGURES]


def sentence(best: Best, key: str) -> str:
    """Such as "workload.rate = 2: best memory.block_size is 16, ...", and how close the next one comes."""
    if best.reason == NO_DIFFERENCE:
        return f"{named(best.line.parameters)}: {key} {NO_DIFFERENCE}.".removeprefix(": ")
    where = f"{named(best.line.parameters)}: best" if best.line.parameters else "Best"
    other = best.runner_up
    figures = (
        f"{_slack(other)} slack, {_hits(other)} hits, {_lost(other):,.4g} lost, {_of(other, 'refused'):,.4g} refused, "
        f"{_of(other, 'preemptions'):,.4g} preemptions"
    )
    return (
        f"{where} {key} is {best.point.parameters[key]}, {best.reason}. Runner-up: {other.parameters[key]}, with "
        f"{figures}."
    )


Choice = tuple[Combination, str]
"""The best point and why."""


def _largest_blocks(key: str, points: Sequence[Combination]) -> Choice | None:
    """Large blocks make short tables, as long as slack and hits hardly suffer."""
    least = min(points, key=lambda point: _of(point, "slack_share"))
    most = max(points, key=lambda point: _of(point, "hit_share"))
    smallest = min(points, key=lambda point: _of(point, "block_size_tokens"))
    good = [
        point
        for point in points
        if _of(point, "slack_share") <= _of(least, "slack_share") + ONE_POINT
        and _of(point, "hit_share") >= _of(most, "hit_share") - ONE_POINT
    ]
    if not good:
        return None
    best = max(good, key=lambda point: _of(point, "block_size_tokens"))
    return best, (
        f"the largest within one percentage point of the least slack "
        f"({_against(_slack, best, least, key, ' of allocated')}) and of the most hits "
        f"({_against(_hits, best, most, key, ' of prompt tokens')}): "
        f"prefixes are found again from {_of(best, 'block_size_tokens'):,.0f} tokens on, "
        f"and the block table of a request of {_of(best, 'max_model_len'):,.0f} tokens has "
        f"{_against(_table_length, best, smallest, key, ' entries')}"
    )


def _most_traffic(key: str, points: Sequence[Combination]) -> Choice | None:
    return _last_untroubled(sorted(points, key=lambda point: float(point.parameters[key])), "the most")


def _least_memory(_key: str, points: Sequence[Combination]) -> Choice | None:
    return _last_untroubled(sorted(points, key=lambda point: -_of(point, "pool_bytes")), "the least")


def _last_untroubled(points: Sequence[Combination], which: str) -> Choice | None:
    """The last of those up to which memory troubles nobody; `points` are in the order of growing trouble."""
    untroubled = None
    for point in points:
        if _lost(point) or _of(point, "refused") or _of(point, "preemptions"):
            break
        untroubled = point
    if untroubled is None:
        return None
    most = max(untroubled.rows["pool_used_peak"].drop_nulls().to_list())
    return untroubled, (
        f"{which} at which no request is lost, refused or preempted; at most {most:.2%} of the pool is used"
    )


def _calmest(key: str, points: Sequence[Combination]) -> Choice:
    """What troubles requests least by the first of TROUBLES that tells one from the others, else the first."""
    left = list(points)
    decided = []
    for trouble in TROUBLES:
        best = min(left, key=trouble.of)
        worst = max(left, key=trouble.of)
        decided.append(f"{trouble.least} ({_against(trouble.written, best, worst, key)})")
        left = [point for point in left if trouble.written(point) == trouble.written(best)]
        if len(left) == 1:
            break
    else:
        decided.append("the first of those that are alike in all this")
    best = left[0]
    fewest = min(points, key=lambda point: _of(point, "refused"))
    quickest = min(points, key=lambda point: _of(point, "waited_mean_ns"))
    return best, (
        f"with {', then '.join(decided)}: {_against(_refused, best, fewest, key, ' requests are refused')}, and "
        f"the mean wait is {_against(_wait, best, quickest, key)}"
    )


def _against(
    figure: Callable[[Combination], str], best: Combination, other: Combination, key: str, unit: str = ""
) -> str:
    """What a figure is at the best, and what it is elsewhere if that differs."""
    here, there = figure(best), figure(other)
    return f"{here}{unit}" + ("" if here == there else f" against {there} at {other.parameters[key]}")


RULES: dict[str, Callable[[str, Sequence[Combination]], Choice | None]] = {
    "memory.block_size": _largest_blocks,
    "memory.budget": _least_memory,
    "memory.num_blocks": _least_memory,
    "workload.rate": _most_traffic,
    "workload.clients": _most_traffic,
    "workload.speedup": _most_traffic,
}
"""What is best for a key; for any other, and where a rule gives None, what troubles requests least."""


def _of(point: Combination, figure: str) -> float:
    return point.mean(figure) or 0.0


def _lost(point: Combination) -> float:
    return sum(_of(point, figure) for figure in ("rejected", "timed_out", "unfinished"))


def _table_length(point: Combination) -> str:
    """Entries that the block table of the longest request has."""
    return f"{-(-int(_of(point, 'max_model_len')) // int(_of(point, 'block_size_tokens'))):,}"


def _slack(point: Combination) -> str:
    return f"{_of(point, 'slack_share'):.2%}"


def _hits(point: Combination) -> str:
    return f"{_of(point, 'hit_share'):.2%}"


def _preemptions(point: Combination) -> str:
    return f"{_of(point, 'preemptions'):,.6g}"


def _refused(point: Combination) -> str:
    return f"{_of(point, 'refused'):,.6g}"


def _wait(point: Combination) -> str:
    """As in the table, but for decimals that are 0, which would tell 2.00 s from 2 s."""
    return format_duration(round(_of(point, "waited_mean_ns"))).replace(".00 ", " ").replace(".0 ", " ")


def _pool_used(point: Combination) -> str:
    return f"{_of(point, 'pool_used_mean'):.2%}"


def _lost_requests(point: Combination) -> str:
    return f"{_lost(point):,.6g}"


class Trouble(NamedTuple):
    """Points that are written alike are alike."""

    least: str
    of: Callable[[Combination], float]
    written: Callable[[Combination], str]


TROUBLES = (
    Trouble("the fewest requests lost", _lost, _lost_requests),
    Trouble("the fewest preemptions", lambda point: _of(point, "preemptions"), _preemptions),
    Trouble("the shortest mean wait", lambda point: _of(point, "waited_mean_ns"), _wait),
    Trouble("the least of the pool allocated on average", lambda point: _of(point, "pool_used_mean"), _pool_used),
    Trouble("the fewest requests refused", lambda point: _of(point, "refused"), _refused),
)
"""What decides where no other rule does, in this order."""
