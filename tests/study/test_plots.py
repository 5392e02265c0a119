"""Pictures: what is drawn is what was measured, at any size of a run."""

import itertools
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kvsim.engine.results import Results
from kvsim.engine.tables import SCHEMAS, MemoryShape, TablesInMemory
from kvsim.engine.totals import Totals
from kvsim.study.plots import PLOTS, TimeColumns, plot_memory, plot_requests, save_memory_plot
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import write_scenario


def run(folder: Path, *overrides: str) -> Results:
    return simulate(load_scenario(write_scenario(folder), overrides))


NOTHING = Results(
    description={},
    totals=Totals(MemoryShape(num_blocks=11, block_size=4, block_bytes=400, token_bytes=100), worst_case_bytes=0),
    tables=TablesInMemory(),
)
"""Results of a run that did nothing."""


def with_timeline(results: Results, *parts: pl.DataFrame) -> Results:
    """The same results but for their timeline, which comes in these parts."""
    tables = TablesInMemory()
    for part in parts:
        tables.add("timeline", part)
    tables.add("requests", results.requests)
    tables.add("pressure", results.pressure)
    old = results.totals
    totals = Totals(old.shape, old.worst_case_bytes, old.num_steps, old.held_back_steps)
    totals.add_all(tables)
    return evolve(results, tables=tables, totals=totals)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(tmp_path_factory.mktemp("short"), "memory.num_blocks=20")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(tmp_path_factory.mktemp("long"), "workload.num_requests=2000", "memory.num_blocks=20")


def test_a_short_run_is_drawn_instant_by_instant(short: Results) -> None:
    columns = TimeColumns.of(short)
    assert columns.mean["live_bytes"].tolist() == short.timeline["live_bytes"].to_list()
    assert columns.peak["allocated_bytes"].tolist() == short.timeline["allocated_bytes"].to_list()
    preempted = short.timeline.filter(pl.col("preempted") > 0)
    assert columns.moments["preempted"].tolist() == (preempted["time_ns"].to_numpy() / 1e9).tolist()
    assert columns.times[:-1].tolist() == (short.timeline["time_ns"].to_numpy() / 1e9).tolist()
    assert columns.times[-1] == columns.times[-2]


def test_a_long_run_is_drawn_by_columns_that_keep_mean_and_peak(long: Results) -> None:
    columns = TimeColumns.of(long)
    assert len(columns.times) < long.timeline.height / 2
    mean = np.average(columns.mean["live_bytes"], weights=np.diff(columns.times))
    assert mean == pytest.approx(long.metrics["live_mean_bytes"])
    assert columns.peak["allocated_bytes"].max() == long.metrics["allocated_peak_bytes"]
    assert (columns.peak["allocated_bytes"] >= columns.mean["allocated_bytes"] - 1e-6).all()


# columns of equal time, whatever the parts in which the timeline comes

DRAWN = ("live_bytes", "allocated_bytes", "cached_bytes", "slack_bytes", "running", "waiting")


def make_timeline(times: list[int], levels: list[int], refused: list[int], preempted: list[int]) -> pl.DataFrame:
    """Levels that differ from each other; what is not drawn is 0."""
    drawn = {name: [(at + 1) * level for level in levels] for at, name in enumerate(DRAWN)}
    columns = {"time_ns": times, **drawn, "refused": refused, "preempted": preempted}
    nothing = [0] * len(times)
    return pl.DataFrame({name: columns.get(name, nothing) for name in SCHEMAS["timeline"]}, schema=SCHEMAS["timeline"])


def in_parts(timeline: pl.DataFrame, cuts: list[int]) -> list[pl.DataFrame]:
    ends = [0, *sorted(min(cut, timeline.height) for cut in cuts), timeline.height]
    return [timeline[start:end] for start, end in pairwise(ends)]


def assert_drawn_as_it_was(columns: TimeColumns, timeline: pl.DataFrame) -> None:
    """Every column by itself, from all rows that overlap it."""
    seconds = timeline["time_ns"].to_numpy() / 1e9
    begin, end = columns.times[:-1, None], columns.times[1:, None]
    until = np.append(seconds[1:], seconds[-1])
    overlaps = np.clip(np.minimum(end, until) - np.maximum(begin, seconds), 0, None)
    holds_somewhere = (seconds < end) & (np.append(seconds[1:], np.inf) > begin)
    for name in DRAWN:
        mean = (overlaps * timeline[name].to_numpy()).sum(axis=1) / (columns.times[1:] - columns.times[:-1])
        assert np.allclose(columns.mean[name], mean, rtol=1e-9, atol=1e-6), name
    peak = np.where(holds_somewhere, timeline["allocated_bytes"].to_numpy(), 0).max(axis=1)
    assert columns.peak["allocated_bytes"].tolist() == peak.tolist()
    blocked: list[float] = []
    for now, row in enumerate(timeline.rows(named=True)):
        before = timeline.row(now - 1, named=True) if now else None
        is_within = before and all(row[name] == before[name] for name in ("logical_bytes", "running"))
        blocked.append(blocked[-1] if is_within and not row["refused"] else float(row["refused"] > 0))
    share = (overlaps * np.array(blocked)).sum(axis=1) / (columns.times[1:] - columns.times[:-1])
    assert np.allclose(columns.mean["blocked"], share, rtol=1e-9, atol=1e-6)
    happened = seconds[timeline["preempted"].to_numpy() > 0]
    column = (happened >= begin) & ((happened < end) | (end == columns.times[-1]))
    assert columns.moments["preempted"].tolist() == columns.times[:-1][column.any(axis=1)].tolist()


@st.composite
def timelines(draw: st.DrawFn) -> pl.DataFrame:
    """Steps much shorter and much longer than a column, also whole columns long."""
    lasted = st.integers(1, 1000) | st.integers(10**6, 10**9) | st.sampled_from([10**6, 10**7])
    rows = draw(st.lists(st.tuples(lasted, *[st.integers(0, 5)] * 3), min_size=2, max_size=25))
    times = np.cumsum([0, *(row[0] for row in rows[1:])]).tolist()
    levels, refused, preempted = ([row[at] for row in rows] for at in (1, 2, 3))
    return make_timeline(times, levels, refused, preempted)


@example(make_timeline([0, 600, 1200], [3, 9, 1], [0, 1, 1], [1, 0, 0]), [1, 2])
@given(timelines(), st.lists(st.integers(1, 24), min_size=1, max_size=6))
def test_columns_are_those_of_all_rows_together_in_whatever_parts_they_come(
    timeline: pl.DataFrame, cuts: list[int]
) -> None:
    columns = TimeColumns.of(with_timeline(NOTHING, *in_parts(timeline, [1, *cuts])))
    assert len(columns.times) == 1201
    assert columns.times[-1] == timeline["time_ns"][-1] / 1e9
    assert_drawn_as_it_was(columns, timeline)


@pytest.mark.parametrize("cuts", [[], [1], [1000, 1200], [1199, 1200, 1201], list(range(0, 3000, 100))])
def test_a_timeline_with_more_instants_than_columns_is_cut_in_whatever_parts_it_comes(cuts: list[int]) -> None:
    random = np.random.default_rng(0)
    times = np.cumsum([0, *random.integers(1, 10**7, 2999)])
    levels, refused, preempted = (random.integers(0, most, 3000) for most in (10**6, 2, 2))
    timeline = make_timeline(*(column.tolist() for column in (times, levels, refused, preempted)))
    columns = TimeColumns.of(with_timeline(NOTHING, *in_parts(timeline, cuts)))
    assert_drawn_as_it_was(columns, timeline)


def test_a_long_run_in_parts_is_drawn_as_it_is_whole(long: Results) -> None:
    whole = TimeColumns.of(long)
    parts = TimeColumns.of(with_timeline(long, *in_parts(long.timeline, [1, 700, 1500, 2000])))
    assert_drawn_as_it_was(whole, long.timeline)
    assert_drawn_as_it_was(parts, long.timeline)
    assert parts.times.tolist() == whole.times.tolist()
    assert parts.peak["allocated_bytes"].tolist() == whole.peak["allocated_bytes"].tolist()
    assert {event: times.tolist() for event, times in parts.moments.items()} == {
        event: times.tolist() for event, times in whole.moments.items()
    }


def test_parts_without_rows_change_nothing(short: Results) -> None:
    nothing = short.timeline.clear()
    columns = TimeColumns.of(with_timeline(short, nothing, short.timeline, nothing))
    assert columns.mean["live_bytes"].tolist() == short.timeline["live_bytes"].to_list()


def test_refusals_and_preemptions_are_marked_and_counted(short: Results) -> None:
    labels = [text.get_text() for text in plot_memory(short).get_legend().get_texts()]
    assert short.metrics["preemptions"]
    share = short.metrics["blocked_ns"] / short.totals.duration_ns
    assert f"refused ({short.metrics['refused']:,} requests, {share:.2%} of the time)" in labels
    assert f"preempted ({short.metrics['preempted']:,} requests)" in labels
    assert f"slack ({short.metrics['slack_share']:.2%} of allocated)" in labels


@pytest.mark.parametrize("name", PLOTS)
def test_axes_carry_units(short: Results, name: str) -> None:
    ax = PLOTS[name](short)
    assert ax.get_xlabel() == "time (s)"
    labels = ("KV cache on one device (KiB)", "slack (% of allocated)", "requests", "running (requests)")
    assert ax.get_ylabel() in labels


def test_refused_time_is_drawn_as_long_as_it_was(long: Results) -> None:
    columns = TimeColumns.of(long)
    drawn_s = (columns.mean["blocked"] * np.diff(columns.times)).sum()
    assert long.metrics["blocked_ns"]
    assert drawn_s == pytest.approx(long.metrics["blocked_ns"] / 1e9)


def test_the_legend_is_within_the_picture(short: Results, long: Results) -> None:
    for size, results in itertools.product(((16, 11), (8, 6)), (short, long)):
        figure = Figure(figsize=size, layout="constrained")
        ax = plot_memory(results, ax=figure.subplots())
        FigureCanvasAgg(figure).draw()
        legend = ax.get_legend().get_window_extent()
        assert len(ax.get_legend().get_texts()) == 7
        assert legend.x0 >= 0
        assert legend.x1 <= figure.bbox.x1
        assert legend.y1 <= figure.bbox.y1


def test_many_more_that_wait_have_an_axis_of_their_own(long: Results) -> None:
    crowded = long.timeline.with_columns(pl.lit(2).alias("running"), pl.lit(500).alias("waiting"))
    ax = plot_requests(with_timeline(long, crowded))
    assert ax.get_ylabel() == "running (requests)"
    assert ax.get_ylim()[1] < 3
    (other,) = [one for one in ax.figure.axes if one is not ax]
    assert (other.get_ylabel(), other.get_ylim()[1] > 500) == ("waiting (requests)", True)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["waiting (right)", "running (left)"]


def test_the_time_axis_counts_in_what_people_count_in(short: Results) -> None:
    for seconds, unit in ((100, "s"), (1000, "min"), (40_000, "h")):
        end_ns = short.timeline["time_ns"][-1]
        stretched = short.timeline.with_columns(short.timeline["time_ns"] * (seconds * 10**9 // end_ns))
        assert plot_memory(with_timeline(short, stretched)).get_xlabel() == f"time ({unit})"


def test_the_picture_is_a_png_of_its_size(short: Results, tmp_path: Path) -> None:
    path = tmp_path / "memory.png"
    save_memory_plot(short, path)
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", header[16:24]) == (1600, 1100)


def test_a_run_in_which_nothing_was_admitted_can_be_drawn(tmp_path: Path) -> None:
    results = run(tmp_path, "memory.num_blocks=2", "workload.prompt={kind='fixed',value=30}", "workload.num_requests=1")
    assert results.metrics["rejected"] == 1
    assert results.metrics["slack_share"] is None
    save_memory_plot(results, tmp_path / "memory.png")
