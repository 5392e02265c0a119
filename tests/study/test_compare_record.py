"""What one run of a comparison came to."""

from pathlib import Path

import polars as pl
import pytest

from kvsim.study.compare_record import ALLOCATED_PARTS, POOL_PARTS, Measured, TrafficDigest, measure
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from kvsim.study.sweep_record import record_of
from kvsim.workload.request import Request, Span
from tests.makers import make_request
from tests.study.makers import write_scenario

SHARING = "workload.prefixes={count=2,tokens=9}"


def measured(folder: Path, *overrides: str) -> Measured:
    record = measure(load_scenario(write_scenario(folder), overrides))
    assert isinstance(record, Measured)
    return record


@pytest.mark.parametrize(
    "overrides", [(), (SHARING,), ("memory.allocator=max",), ("memory.allocator=pow2",), ("memory.allocator=oracle",)]
)
def test_all_parts_of_the_pool_are_summed_over_time_and_add_up_to_it(
    overrides: tuple[str, ...], tmp_path: Path
) -> None:
    record = measured(tmp_path, *overrides)
    results = simulate(load_scenario(tmp_path / "scenario.toml", overrides))
    lasts = pl.col("time_ns").shift(-1) - pl.col("time_ns")
    level = {part: pl.col(f"{part}_bytes") for part in POOL_PARTS}
    level["blank"] = level["blank"] - level["external"]
    by_hand = results.timeline.select(**{part: (of * lasts).sum() for part, of in level.items()}).row(0, named=True)
    assert record.byte_ns == by_hand
    assert tuple(record.byte_ns) == POOL_PARTS
    assert sum(record.byte_ns.values()) == results.shape.pool_bytes * results.totals.duration_ns
    allocated = sum(record.byte_ns[part] for part in ALLOCATED_PARTS)
    assert allocated == results.totals.integrals["allocated_bytes"]


def test_the_rest_is_what_a_sweep_keeps_of_the_run(tmp_path: Path) -> None:
    record, kept = measured(tmp_path), record_of(load_scenario(tmp_path / "scenario.toml"))
    assert (record.outcome, record.error, record.figures, record.notes) == (
        kept.outcome,
        kept.error,
        kept.figures,
        kept.notes,
    )


def test_a_run_that_cannot_end_is_the_record_of_a_failure(tmp_path: Path) -> None:
    record = measure(load_scenario(write_scenario(tmp_path), "engine.latency.base=100000 h"))
    assert record.outcome == "failed"
    assert "must fit in 64 bits" in str(record.error)


def digests(*requests: Request) -> dict[str, str]:
    digest = TrafficDigest()
    for request in requests:
        digest.add(request)
    return digest.hexdigests()


ONE, TWO = make_request(0, 5, output=3), make_request(1, 7, arrival=9)


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        (make_request(0, 5, output=3), set()),
        (make_request(0, 5, output=3, arrival=1), {"arrivals"}),
        (make_request(0, 5, output=3, priority=1), {"arrivals"}),
        (make_request(0, 5, output=3, abort=0), {"arrivals"}),
        (make_request(0, 6, output=3), {"lengths", "content"}),
        (make_request(0, 5, output=4), {"lengths", "content"}),
        (make_request(0, 4, shared=1, output=3), {"content"}),
        (Request(0, 0, (Span("user:0", 1, 5),), (Span("out:0", 0, 3),)), {"content"}),
        (Request(0, 0, (Span("user:0", 0, 5),), (Span("out:1", 0, 3),)), {"content"}),
        (Request(7, 0, (Span("user:0", 0, 5),), (Span("out:0", 0, 3),)), set()),
    ],
)
def test_digests_tell_apart_what_differs_and_nothing_else(other: Request, differ: set[str]) -> None:
    first, second = digests(ONE, TWO), digests(other, TWO)
    assert {name for name in first if first[name] != second[name]} == differ


def test_digests_hang_on_the_order_and_on_every_request() -> None:
    assert len({digests(*some)["content"] for some in ((), (ONE,), (TWO,), (ONE, TWO), (TWO, ONE))}) == 5


def test_numbers_do_not_run_into_each_other() -> None:
    one, other = digests(make_request(0, 1, output=11)), digests(make_request(0, 11, output=1))
    assert one["lengths"] != other["lengths"]
