"""Figures taken apart: by hand on a small run, and that parts add up exactly in runs of every kind."""

from fractions import Fraction
from pathlib import Path

import pytest

from kvsim.engine.metrics import METRICS, SAMPLE_METRICS
from kvsim.engine.results import Results
from kvsim.errors import KvsimError
from kvsim.study.colours import COLOURS
from kvsim.study.compare_record import POOL_PARTS
from kvsim.study.diff_explained import EXPLAINED, wholes_of
from kvsim.study.diff_parts import Whole
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import write_scenario
from tests.study.outcomes import REQUESTS, TIMELINE, make_results, refusals, request

UNITS = {metric.name: metric.unit for metric in (*METRICS, *SAMPLE_METRICS)}


def nonzero(whole: Whole) -> dict[str, object]:
    return {name: part for name, part in whole.parts.items() if part}


def test_memory_of_a_small_run() -> None:
    wholes = wholes_of(make_results())
    # For 30 ns 400 bytes, and for 10 ns 800, of 50 ns.
    assert wholes["allocated_mean_bytes"] == Whole(
        Fraction(30 * 400 + 10 * 800, 50),
        {
            "live": Fraction(30 * 300 + 10 * 700, 50),
            "tail": Fraction(30 * 30 + 10 * 100, 50),
            "reserved": Fraction(30 * 40, 50),
            "unused": Fraction(30 * 10, 50),
            "padding": Fraction(30 * 20, 50),
        },
        4000,
    )
    # Of the same 400 bytes on average.
    slack = {"tail": 38, "reserved": 24, "unused": 6, "padding": 12}
    assert wholes["slack_mean_bytes"] == Whole(80, slack, 400)
    assert wholes["external_mean_bytes"] == Whole(120, {"external": 120}, 4000)
    peak = wholes["allocated_peak_bytes"]
    assert (peak.value, nonzero(peak)) == (800, {"live": 700, "tail": 100})
    live = wholes["live_mean_bytes"]
    assert live.value == Fraction(16_000, 50)
    assert live.parts == {
        "logical": Fraction(30 * 300 + 10 * 1000, 50),
        "window_saving": -Fraction(10 * 100, 50),
        "shared_saving": -Fraction(10 * 200, 50),
    }


def test_shares_of_the_pool_are_all_of_it() -> None:
    shares = wholes_of(make_results())["pool_shares"]
    assert tuple(shares.parts) == POOL_PARTS
    assert shares.value == 1
    assert shares.parts["live"] == Fraction(16_000, 4000 * 50)
    assert shares.parts["cached"] == Fraction(10 * 400, 4000 * 50)
    assert shares.parts["external"] == Fraction(30 * 200, 4000 * 50)
    # The last level does not last.
    assert shares.parts["blank"] == Fraction(10 * 4000 + 30 * (3600 - 200) + 10 * 2800, 4000 * 50)


def test_requests_by_outcome_reason_and_cause() -> None:
    requests = (
        request(refusals=3, refusal_cause="blocks", blocked_ns=7, preemptions=3, swaps=1, swap_fallbacks=1),
        request(refusals=2, refusal_cause="watermark", blocked_ns=5),
        request(refusals=1, refusal_cause="blocks", blocked_ns=1, outcome="cut"),
        request(outcome="timed_out", admitted_ns=None, ended_ns=20, refusals=1, refusal_cause="gate"),
        request(outcome="rejected", reason="queue_full", admitted_ns=None, ended_ns=0),
        request(outcome="rejected", reason="never_fits", admitted_ns=None, ended_ns=0),
    )
    pressure = (refusals("blocks", 5), refusals("watermark", 1), refusals("gate", 1))
    run = make_results(requests=requests, pressure=pressure, held_back={"max_num_seqs": 4, "preemption": 2})
    wholes = wholes_of(run)
    figures = {name: (whole.value, nonzero(whole), whole.out_of) for name, whole in wholes.items()}
    assert figures["requests"] == (6, {"finished": 2, "cut": 1, "timed_out": 1, "rejected": 2}, 6)
    # What is cut has got an answer.
    assert figures["lost"] == (3, {"rejected_queue_full": 1, "rejected_never_fits": 1, "timed_out": 1}, 6)
    assert figures["refused"] == (4, {"blocks": 2, "watermark": 1, "gate": 1}, 6)
    assert figures["blocked_ns"] == (13, {"blocks": 8, "watermark": 5}, 50)
    causes = {"blocks": 5, "watermark": 1, "gate": 1, "max_num_seqs": 4, "preemption": 2}
    assert figures["held_back_steps"] == (13, causes, 20)
    assert figures["preemptions"] == (3, {"recomputed": 1, "swaps": 1, "swap_fallbacks": 1}, 6)


def test_hits_time_in_the_queue_and_time_of_a_small_run() -> None:
    wholes = wholes_of(make_results())
    assert wholes["hit_tokens"] == Whole(64, {"admitted": 200, "not_found": -136}, 200)
    # Two wait for 10 ns, one for 30 more; one runs for 30 ns and two for 10.
    assert wholes["queued_ns"] == Whole(50, {"to_admission": 50, "in_vain": 0, "after_preemption": 0}, 100)
    assert wholes["duration_ns"] == Whole(50, {"busy": 40, "idle": 10}, 50)


def test_who_is_never_let_in_waits_until_it_leaves_or_to_the_end() -> None:
    for left, waited in ((20, 20), (None, 50)):
        gone = request(outcome="unfinished" if left is None else "aborted", admitted_ns=None, ended_ns=left)
        timeline = TIMELINE | {"waiting": [1, 1, 1, 0]}
        whole = wholes_of(make_results(timeline=timeline, requests=(gone,), pressure=()))["queued_ns"]
        assert whole.value == 50
        assert whole.parts == {"to_admission": 0, "in_vain": waited, "after_preemption": 50 - waited}


def test_what_has_no_length_has_no_average() -> None:
    wholes = wholes_of(make_results(timeline={name: levels[:1] for name, levels in TIMELINE.items()}))
    assert "allocated_mean_bytes" not in wholes
    assert "pool_shares" not in wholes
    assert wholes["duration_ns"] == Whole(0, {"busy": 0, "idle": 0}, 0)


def test_tables_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(KvsimError, match="the parts of refused do not add up"):
        wholes_of(make_results(requests=(REQUESTS[0], request(refusals=3, refusal_cause=None))))


def test_every_part_has_a_meaning_and_every_figure_a_unit_of_figures() -> None:
    wholes = wholes_of(make_results())
    for explained in EXPLAINED:
        assert explained.unit == UNITS.get(explained.name, explained.unit)
        assert explained.unit in set(UNITS.values())
        if explained.name in wholes:
            assert set(wholes[explained.name].parts) == set(explained.meanings)
    pool = next(explained for explained in EXPLAINED if explained.name == "pool_shares")
    assert set(pool.meanings) <= set(COLOURS)


RUNS = {
    "as it is": (),
    "scarce": ("memory.num_blocks=14", "workload.rate=400"),
    "late": ("memory.num_blocks=14", "engine.timeout=20 ms", "workload.rate=400"),
    "rejected": ("engine.max_waiting=1", "engine.max_model_len=40", "workload.rate=1000"),
    "stalled": ("memory.num_blocks=6", "engine.reject_unservable=false"),
    "few seats": ("engine.max_num_seqs=1", "workload.rate=300"),
    "watermark": ("memory.num_blocks=16", "memory.watermark=0.3", "workload.rate=400"),
    "worst case": ("memory.num_blocks=40", "engine.admission=worst_case", "engine.max_output_tokens=64"),
    "swaps": ("memory.num_blocks=14", "engine.preemption=swap", "engine.swap_space=2 KiB", "workload.rate=400"),
    "few swaps": ("memory.num_blocks=14", "engine.preemption=swap", "engine.swap_space=256 B", "workload.rate=400"),
    "pow2": ("memory.allocator=pow2", "workload.rate=400"),
    "predicted": ("memory.allocator=predicted", "memory.prediction_error=0.5", "memory.placement=first_fit"),
    "samples": ("workload.samples=3",),
    "copy on write": ("workload.samples=3", "memory.sample_sharing=copy_on_write"),
    "shared": ("workload.prefixes={ count = 2, tokens = 9 }", "memory.num_blocks=20"),
    "cut": ("engine.max_model_len=25",),
    "too large": ("memory.num_blocks=9",),
    "hybrid": (
        "model={ config = 'gemma-3-1b' }",
        "memory={ num_blocks = 2000, block_size = 16 }",
        "engine={ max_model_len = 2048, max_num_batched_tokens = 2048 }",
        "workload.prompt={ kind = 'fixed', value = 1500 }",
        "workload.num_requests=3",
    ),
}


@pytest.fixture(scope="module", params=RUNS)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder: Path = tmp_path_factory.mktemp("scenario")
    return simulate(load_scenario(write_scenario(folder), RUNS[request.param]))


def test_the_parts_add_up_exactly_and_are_the_figures_of_the_summary(ran: Results) -> None:
    wholes, metrics = wholes_of(ran), ran.metrics
    for explained in EXPLAINED:
        if explained.name not in wholes:
            assert explained.name == "sample_unshared_mean_bytes"
            continue
        whole = wholes[explained.name]
        assert sum(whole.parts.values()) == whole.value
        assert all(part <= 0 if name in explained.lessening else part >= 0 for name, part in whole.parts.items())
        assert 0 <= whole.value <= whole.out_of or not explained.has_share
        if explained.name in metrics:
            assert float(whole.value) == metrics[explained.name]
    for part in ("live", "tail", "reserved", "unused", "padding"):
        assert float(wholes["allocated_mean_bytes"].parts[part]) == metrics[f"{part}_mean_bytes"]
    for part in ("blocks", "gate", "watermark", "extent", "reservation"):
        assert wholes["held_back_steps"].parts[part] == metrics[f"refusals_for_{part}"]
    if not metrics["preemptions"]:
        assert wholes["queued_ns"].parts["after_preemption"] == 0
    assert wholes["duration_ns"].parts["busy"] == ran.totals.busy_ns


def test_the_runs_are_of_every_kind(tmp_path: Path) -> None:
    """Else adding up would say little."""
    path = write_scenario(tmp_path)
    wholes = {name: wholes_of(simulate(load_scenario(path, overrides))) for name, overrides in RUNS.items()}
    never = {
        (explained.name, part)
        for explained in EXPLAINED
        for part in explained.meanings
        if not any(run[explained.name].parts[part] for run in wholes.values() if explained.name in run)
    }
    assert never == {("requests", "aborted"), ("lost", "aborted")}, "nobody hangs up in generated traffic"
