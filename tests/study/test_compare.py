"""compare: the same traffic through several allocators, whoever runs it and whatever fails."""

from pathlib import Path

import polars as pl
import pytest

from kvsim.errors import KvsimError, TraceError
from kvsim.study.compare import Comparison, compare
from kvsim.study.compare_record import ALLOCATED_PARTS, POOL_PARTS, Measured
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import TINY_TRACE, write_scenario
from tests.study.sweeps import NEVER_ENDS

SCENARIOS = Path(__file__).parents[2] / "scenarios"
ALL = "paged:4,paged:1,paged:16,max,pow2,oracle,predicted:0.8"
SHARING = "workload.prefixes={count=2,tokens=9}"
MORE_ROOM = "memory.num_blocks=65"
SHORT = "engine.max_model_len=64"


def digests(comparison: Comparison) -> set[tuple[str, ...]]:
    return {tuple(row.digests.values()) for row in comparison.rows}


def test_a_row_has_the_figures_of_its_run(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    rows = compare(path, ALL, jobs=1).rows
    assert [row.allocator for row in rows] == [row.label for row in rows] == ALL.split(",")
    alone = simulate(load_scenario(path, "memory.allocator=pow2")).metrics
    assert {name: rows[4].figure(name) for name in alone} == alone
    assert rows[0].refused_share == rows[0].figure("refused") / 40  # type: ignore[operator]


def test_changing_the_allocator_leaves_arrivals_lengths_and_content_as_they_were(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    comparison = compare(path, ALL, ["memory.placement=buddy,first_fit"], overrides=[SHARING, MORE_ROOM], jobs=1)
    assert len(comparison.rows) == 14
    assert len(digests(comparison)) == 1
    assert comparison.same == {"arrivals": True, "lengths": True, "content": True}
    other = compare(path, "paged:4", overrides=[SHARING, MORE_ROOM, "seed=4"], jobs=1)
    assert (comparison.seed, other.seed) == (3, 4)
    (mine,), (theirs,) = digests(comparison), digests(other)
    assert all(one != another for one, another in zip(mine, theirs, strict=True))


def test_a_trace_is_the_same_for_all_and_its_digest_that_of_the_replay(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    comparison = compare(path, "paged:4,max,oracle", jobs=1)
    assert comparison.has_same_traffic
    assert len(digests(comparison)) == 1
    slower = compare(path, "paged:4,max", ["workload.speedup=1,2"], jobs=1)
    assert slower.same == {"arrivals": False, "lengths": True, "content": True}


def test_traffic_that_waits_for_ends_comes_differently_and_it_is_known(tmp_path: Path) -> None:
    closed = "workload={kind='closed',clients=6,num_requests=30,prompt={kind='uniform',min=1,max=30},output={kind='uniform',min=1,max=20}}"
    comparison = compare(write_scenario(tmp_path), "paged:4,max", overrides=[closed], jobs=1)
    assert [row.figure("requests") for row in comparison.rows] == [30, 30]
    assert comparison.same == {"arrivals": False, "lengths": True, "content": True}
    assert not comparison.has_same_traffic


def test_shares_of_allocated_and_of_the_pool_add_up(tmp_path: Path) -> None:
    for row in compare(write_scenario(tmp_path), ALL, overrides=[SHARING, MORE_ROOM], jobs=1).rows:
        assert isinstance(row.record, Measured)
        assert sum(row.record.byte_ns.values()) == row.figure("pool_bytes") * row.figure("duration_ns")  # type: ignore[operator]
        assert sum(row.share(part) or 0 for part in ALLOCATED_PARTS) == pytest.approx(1, abs=1e-15)
        assert sum(row.pool_share(part) or 0 for part in POOL_PARTS) == pytest.approx(1, abs=1e-15)
        assert row.share("live") == pytest.approx(row.figure("utilization"), rel=1e-15)
        assert row.share("reserved") == pytest.approx(row.figure("reserved_share"), rel=1e-15)
        assert row.pool_share("external") == pytest.approx(row.figure("external_share"), rel=1e-12)


def test_one_request_by_hand(tmp_path: Path) -> None:
    """10 prompt and 3 output tokens in three steps of 9 ms: 10, 11 and 12 tokens are written in turn."""
    one = (
        "workload={kind='constant',rate=1,num_requests=1,prompt={kind='fixed',value=10},output={kind='fixed',value=3}}"
    )
    steps = "engine.latency={base='9 ms',per_prefill_token='0 ms',per_decode_seq='0 ms',per_context_token='0 ms'}"
    paged, most, known = compare(write_scenario(tmp_path), "paged:4,max,oracle", overrides=[one, steps], jobs=1).rows
    assert paged.figure("duration_ns") == 1_000_000_000 + 27_000_000, "the first second nobody is there"
    assert [paged.share(part) for part in ALLOCATED_PARTS] == [33 / 36, 3 / 36, 0, 0, 0]
    assert [most.share(part) for part in ALLOCATED_PARTS] == [33 / 384, 0, 3 / 384, 348 / 384, 0]
    assert [known.share(part) for part in ALLOCATED_PARTS] == [33 / 39, 0, 3 / 39, 3 / 39, 0]
    assert [row.figure("batched_mean") for row in (paged, most, known)] == [1, 1, 1]
    while_it_runs = 27 / 1027
    assert paged.pool_share("live") == pytest.approx(while_it_runs * 11 / 128)
    assert most.pool_share("blank") == pytest.approx(1 - while_it_runs)


def test_the_result_is_the_same_whoever_runs_it(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    for vary in (None, ["memory.placement=buddy,best_fit"]):
        here, apart = (compare(path, "paged:8,max,oracle", vary, jobs=jobs) for jobs in (1, 2))
        assert [row.record for row in here.rows] == [row.record for row in apart.rows]
        assert here.notes == apart.notes


def test_rows_are_named_by_what_differs(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    both = compare(path, "paged:4,max", ["memory.placement=buddy"], jobs=1).rows
    assert [row.label for row in both] == ["paged:4, memory.placement = buddy", "max, memory.placement = buddy"]
    vary = compare(path, None, "memory.allocator=max,oracle", jobs=1).rows
    assert [(row.label, row.allocator) for row in vary] == [
        ("memory.allocator = max", "max"),
        ("memory.allocator = oracle", "oracle"),
    ]


def test_a_run_that_fails_is_a_row_that_says_why(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    comparison = compare(path, "paged:4,max", NEVER_ENDS, jobs=1)
    assert [row.has_failed for row in comparison.rows] == [False, True, False, True]
    assert [row.label for row in comparison.compared] == [
        "paged:4, engine.latency.base = 9 ms",
        "max, engine.latency.base = 9 ms",
    ]
    failed = comparison.rows[1]
    assert (failed.figure("refused"), failed.share("live"), failed.pool_share("blank")) == (None, None, None)
    assert failed.refused_share is None
    assert comparison.has_same_traffic
    assert comparison.failures == [
        f"{allocator}, engine.latency.base = 100000 h: {path}: simulated times and bytes must fit in 64 bits: raise "
        "the rate, or lower speed-up, latency or sizes"
        for allocator in ("paged:4", "max")
    ]


def test_where_nothing_is_allocated_there_is_no_share(tmp_path: Path) -> None:
    (row,) = compare(write_scenario(tmp_path), "max", overrides=["engine.max_model_len=200"], jobs=1).rows
    assert row.figure("rejected") == 40
    assert row.share("live") is None
    assert row.pool_share("blank") == 1


def test_progress_counts_runs(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    compare(write_scenario(tmp_path), "paged:4,max", jobs=1, on_progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_what_reserves_shares_one_note(tmp_path: Path) -> None:
    path = write_scenario(tmp_path)
    (note,) = compare(path, "paged:4,max,oracle", jobs=1).notes
    assert note == (
        "max, oracle: every request holds one extent of slots, of a token each, in the bytes of the pool that is paged "
        "in the scenario's own blocks; the engine's rules but for memory still hold. No prefix is shared."
    )
    (note,) = compare(path, "paged:4,max", overrides=[SHARING], jobs=1).notes
    assert note.endswith("No prefix is shared: with --set memory.prefix_sharing=false it is not when paged either.")
    converted, _, placed = compare(path, "paged:8,max", overrides=["memory.placement=buddy", SHORT], jobs=1).notes
    assert converted.startswith("memory.num_blocks = 33 of 4 tokens are taken as")
    assert placed == ("memory.placement is given, but memory.allocator is paged: any free block serves. (paged:8)")


def test_what_cannot_be_run_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = write_scenario(tmp_path, TINY_TRACE)
    with pytest.raises(KvsimError, match=r"^jobs must be >= 1, got 0$"):
        compare(path, jobs=0)
    with pytest.raises(KvsimError, match=r"^allocators must differ, got max twice$"):
        compare(path, "max,max")
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,many,4\n")
    with pytest.raises(TraceError):
        compare(path, "paged:4,max", jobs=1)


def test_paging_buys_what_the_paper_says() -> None:
    """The order of the paper's figures 2 and 13a, five minutes of traffic; the scenario has the figures of an hour."""
    comparison = compare(SCENARIOS / "what_does_paging_buy.toml", overrides=["workload.duration=5 min"])
    rows = {row.allocator: row for row in comparison.rows}
    assert list(rows) == ["paged:16", "max", "pow2", "oracle"]
    assert comparison.has_same_traffic
    ascending = [rows[name] for name in ("max", "pow2", "oracle", "paged:16")]
    for figures in (
        [row.share("live") for row in ascending],
        [row.pool_share("live") for row in ascending],
        [row.figure("batched_mean") for row in ascending],
    ):
        assert figures == sorted(figures)  # type: ignore[type-var]
        assert len(set(figures)) == 4
    assert rows["paged:16"].share("live") > 0.96  # type: ignore[operator]
    assert rows["max"].figure("running_peak") == 7 == 14_624 // 2_048
    assert {row.figure("pool_bytes") for row in ascending} == {14_624 * 819_200}


def test_tables_of_a_run_agree_with_the_row(tmp_path: Path) -> None:
    """External bytes are free ones: the two parts of what is free are those of the timeline."""
    path = write_scenario(tmp_path)
    (row,) = compare(path, "oracle", jobs=1).rows
    timeline = simulate(load_scenario(path, "memory.allocator=oracle")).timeline
    lasts = pl.col("time_ns").diff().shift(-1)
    blank = timeline.select((pl.col("blank_bytes") * lasts).sum()).item()
    assert isinstance(row.record, Measured)
    assert row.record.byte_ns["external"] > 0
    assert row.record.byte_ns["external"] + row.record.byte_ns["blank"] == blank
