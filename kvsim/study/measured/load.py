"""Whether both sides had the same load, and over which time what they counted may be compared.

In all, each side counts what it saw: that is one and the same load if the scrapes hold all of it, and then requests at
the edges of a common time are of no interest. Where they hold a part, only the common time says anything.
"""

from collections.abc import Mapping
from typing import Literal

from kvsim.study.measured.clocks import Alignment
from kvsim.study.measured.series import COUNTERS, CounterError, Series, Simulated

Counted = Literal["in_all", "between"]

_OF_LOAD = ("finished", "prompt_tokens", "generation_tokens")
_SAME = 0.05
_SAME_BETWEEN = 0.1
"""Parts by which two loads may differ and be called the same, in all and between two moments, whose edges count too."""

_NEARLY_ALL = 0.95

SAID_AS = {
    "finished": "finished requests",
    "prompt_tokens": "prompt tokens",
    "generation_tokens": "generated tokens",
    "queried_tokens": "tokens looked up",
    "hit_tokens": "tokens hit",
}


def what_to_count(
    series: Mapping[str, Series], run: Simulated, alignment: Alignment | None, counters: Mapping[str, CounterError]
) -> Counted:
    """In all, if totals say that the load is the same, or the server idled at both ends of scrapes of the whole run.

    Where it had the same load while the run lasts and more before or after, that is left out.
    """
    if alignment is None:
        return "in_all"
    load = [counters[name] for name in _OF_LOAD if name in counters]
    if load and all(_near(each.measured_in_all, each.simulated_in_all, _SAME) for each in load):
        return "in_all"
    covered = alignment.end_ns - alignment.start_ns
    if idle_at_both_ends(series) and covered >= _NEARLY_ALL * run.duration_ns:
        return "between" if _had_more(counters) else "in_all"
    return "between"


def _had_more(counters: Mapping[str, CounterError]) -> bool:
    """Whether the server had the same load while the run lasts, and in all more than that."""
    known = [
        (each, each.measured, each.simulated)
        for name, each in counters.items()
        if name in _OF_LOAD and each.measured is not None and each.simulated is not None
    ]
    return bool(known) and all(
        _near(measured, simulated, _SAME_BETWEEN) and each.measured_in_all >= each.simulated_in_all
        for each, measured, simulated in known
    )


def idle_at_both_ends(series: Mapping[str, Series]) -> bool:
    levels = [series[name] for name in ("running", "kv_usage") if name in series]
    return bool(levels) and not any(each.values[end] > 0 for each in levels[:1] for end in (0, -1))


def on_load(series: Mapping[str, Series], counted: Counted, counters: Mapping[str, CounterError]) -> list[str]:
    """A sentence where the load was another one."""
    load = {name: counters[name] for name in _OF_LOAD if name in counters}
    if counted == "between" and _had_more(counters):
        return []
    if counted == "in_all" or idle_at_both_ends(series):
        pairs = {name: (each.measured_in_all, each.simulated_in_all) for name, each in load.items()}
        different = {name: pair for name, pair in pairs.items() if not _near(*pair, _SAME)}
        what = "Not the same load" if counted == "in_all" else "Not the same load, or scrapes of a part of it"
    else:
        each = load.get("prompt_tokens", load.get("finished"))
        if each is None or each.measured is None or each.simulated is None:
            return []
        name = "prompt_tokens" if "prompt_tokens" in load else "finished"
        pair = (each.measured, each.simulated)
        different = {} if _near(*pair, _SAME_BETWEEN) else {name: pair}
        what = "Not the same load in the time that both cover, or not the same pace"
    told = [
        f"{SAID_AS[name]} {pair[0]:,.0f} on the server, {pair[1]:,.0f} in the run" for name, pair in different.items()
    ]
    return [f"{what}: {'; '.join(told)}."] if told else []


def on_edges(counted: Counted, counters: Mapping[str, CounterError]) -> list[str]:
    """What is not compared, and why it may differ."""
    if counted == "in_all":
        edges = {
            name: each.difference
            for name, each in counters.items()
            if each.difference is not None and each.difference != each.difference_in_all
        }
        if not edges:
            return []
        told = ", ".join(f"{SAID_AS.get(name, name)} {_signed(value)}" for name, value in edges.items())
        return [
            f"Counted between the first and the last scrape inside of the run alone, errors are {told}: an effect of "
            "the edges, where a request falls on one side or the other. In all, each side has the whole load."
        ]
    if any(each.difference is not None and each.difference != each.difference_in_all for each in counters.values()):
        return [
            "Counted is what lies between the first and the last scrape inside of the run. In all the sides count "
            "different spans of time (measured.json has both)."
        ]
    return []


def comparable(error: CounterError, counted: Counted) -> tuple[float | None, float | None]:
    """What the server and the run counted, where it is comparable."""
    if counted == "in_all":
        return error.measured_in_all, error.simulated_in_all
    return error.measured, error.simulated


def in_order(counters: Mapping[str, CounterError]) -> list[str]:
    return [figure.name for figure in COUNTERS if figure.name in counters]


def _near(measured: float, simulated: float, part: float) -> bool:
    return abs(simulated - measured) <= part * max(measured, simulated)


def _signed(value: float) -> str:
    return f"{value:+,.0f}" if value else "0"
