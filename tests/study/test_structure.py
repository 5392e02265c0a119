"""What tables say of themselves; how they are read is tested where scenarios are."""

from pathlib import Path

from kvsim.study.scenario import load_scenario, scenario_dict, scenario_units
from tests.study.makers import write_scenario


def test_keys_have_the_units_of_their_fields(tmp_path: Path) -> None:
    workload = (
        "workload={ kind = 'windows', windows = [{ duration = '1 s', rate = 5 }, { duration = '2 s', rate = 4 }], "
        "prompt = { kind = 'fixed', value = 9 }, output = { kind = 'fixed', value = 2 }, "
        "sessions = { turns = { kind = 'fixed', value = 2 }, think = { kind = 'uniform', min = '1 s', max = '2 s' } } }"
    )
    table = scenario_dict(load_scenario(write_scenario(tmp_path), (workload, "memory={ budget = '1 MiB' }")))
    latency = ("base", "per_prefill_token", "per_decode_seq", "per_context_token")
    assert scenario_units(table) == {
        "memory.budget": "bytes",
        "workload.windows[0].duration": "ns",
        "workload.windows[1].duration": "ns",
        "workload.sessions.think.min": "ns",
        "workload.sessions.think.max": "ns",
        "engine.swap_space": "bytes",
        "engine.swap_bandwidth": "bytes/s",
        **{f"engine.latency.{name}": "ns" for name in latency},
    }


def test_what_is_not_known_has_no_unit() -> None:
    assert scenario_units({"memory": {"budget": 3, "nothing": 4}, "more": 5, "engine": 7}) == {"memory.budget": "bytes"}
