"""What belongs to an engine and its version, as data with a name: a scenario says `[engine] rules = "vllm-0.32"`.

The rules themselves stand where they act, each once, with its number: rules 1-15 in `scheduler.py`, 10-32 in
`memory/`. An engine that differs gets a line here and a field for what differs. vLLM V0, for one, would add where
freed blocks go (`BlockPool.release`: all of them to the end); its preemption by swap is there for every engine, as
`[engine] preemption = "swap"`.
"""

from attrs import frozen


@frozen
class EngineRules:
    """Which recordings an engine's decisions are held to, and the rules of `model/engines.py` it lays memory out by."""

    name: str
    sizing: str
    source: str


ENGINE_RULES: dict[str, EngineRules] = {
    "vllm-0.32": EngineRules("vLLM 0.32.0, V1", "vllm-0.32", "tests/golden/vllm_scheduler, rules 1-32"),
}
