"""What a run takes for granted, each thing under a label of its own; what depends on it says so."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from kvsim.engine.results import Results
from kvsim.units import exact_duration, format_bytes


class Assumption(NamedTuple):
    """`label` says what kind it is: step times, memory, traffic, content, engine or note."""

    label: str
    text: str


def assumptions(results: Results) -> list[Assumption]:
    """In the order in which they matter: from the description of a run alone, and from its notes."""
    scenario = results.description["scenario"]
    return [
        Assumption("step times", _step_times(scenario["engine"]["latency"])),
        Assumption("memory", _memory(scenario["memory"], results)),
        Assumption("traffic", _traffic(scenario["workload"], results.description["seed"])),
        Assumption("engine", f"The rules of {scenario['engine']['rules']} hold, on one replica."),
        *_choices(scenario),
        *(Assumption("note", note) for note in results.notes),
    ]


def _step_times(latency: Mapping[str, int]) -> str:
    parts = ", ".join(f"{name.replace('_', ' ')} {exact_duration(value)}" for name, value in latency.items())
    return (
        f"A step takes {parts}. This is a stated model and no measurement; waiting, refusals and preemptions depend "
        "on it."
    )


def _memory(memory: Mapping[str, Any], results: Results) -> str:
    given = (
        f"{format_bytes(memory['budget'])} for KV on each device were given"
        if memory.get("budget") is not None
        else f"{memory['num_blocks']:,} blocks were given"
    )
    return f"{given}: weights, activations and overhead are taken to have been subtracted, and nothing else grows."


def _traffic(workload: Mapping[str, Any], seed: int) -> str:
    if workload["kind"] == "trace":
        speed = workload.get("speedup", 1.0)
        pace = "at its own speed" if speed == 1 else f"at {speed:g} times its speed"
        return f"Arrivals and lengths are those of {workload['path']}, {pace}."
    return f"Arrivals ({workload['kind']}), lengths and content are drawn, from seed {seed}; they were not measured."


def _choices(scenario: Mapping[str, Any]) -> Iterator[Assumption]:
    memory, engine = scenario["memory"], scenario["engine"]
    if memory.get("prediction_error"):
        yield Assumption(
            "prediction",
            f"The output is misjudged by up to {memory['prediction_error']:.0%}, every share equally likely.",
        )
    if engine["preemption"] == "swap":
        yield Assumption("swap", f"Blocks move to and from the host at {engine['swap_bandwidth'] / 10**9:,.4g} GB/s.")
