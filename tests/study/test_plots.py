"""Pictures: what is drawn is what was measured, at any size of a run."""

import struct
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from kvsim.engine.results import Results
from kvsim.study.plots import PLOTS, TimeColumns, plot_memory, save_memory_plot
from kvsim.study.run import simulate
from kvsim.study.scenario import load_scenario
from tests.study.makers import write_scenario


def run(folder: Path, *overrides: str) -> Results:
    return simulate(load_scenario(write_scenario(folder), overrides))


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(tmp_path_factory.mktemp("short"), "memory.num_blocks=20")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(tmp_path_factory.mktemp("long"), "workload.num_requests=2000", "memory.num_blocks=20")


def test_a_short_run_is_drawn_instant_by_instant(short: Results) -> None:
    columns = TimeColumns.of(short)
    assert columns.is_exact
    assert columns.mean("live_bytes").tolist() == short.timeline["live_bytes"].to_list()
    assert columns.times[:-1].tolist() == (short.timeline["time_ns"].to_numpy() / 1e9).tolist()
    assert columns.times[-1] == columns.times[-2]


def test_a_long_run_is_drawn_by_columns_that_keep_mean_and_peak(long: Results) -> None:
    columns = TimeColumns.of(long)
    assert not columns.is_exact
    assert len(columns.times) < long.timeline.height / 2
    mean = np.average(columns.mean("live_bytes"), weights=np.diff(columns.times))
    assert mean == pytest.approx(long.metrics["live_mean_bytes"])
    assert columns.peak("allocated_bytes").max() == long.metrics["allocated_peak_bytes"]
    assert (columns.peak("allocated_bytes") >= columns.mean("allocated_bytes") - 1e-6).all()


def test_refusals_and_preemptions_are_marked_and_counted(short: Results) -> None:
    labels = [text.get_text() for text in plot_memory(short).get_legend().get_texts()]
    assert short.metrics["preemptions"]
    assert f"refused ({short.metrics['refused']:,} requests)" in labels
    assert f"preempted ({short.metrics['preempted']:,} requests)" in labels
    assert f"slack ({short.metrics['slack_share']:.2%} of allocated)" in labels


@pytest.mark.parametrize("name", PLOTS)
def test_axes_carry_units(short: Results, name: str) -> None:
    ax = PLOTS[name](short)
    assert ax.get_xlabel() == "time (s)"
    assert ax.get_ylabel() in ("KV cache on one device (KiB)", "slack (% of allocated)", "requests")


def test_the_time_axis_counts_in_what_people_count_in(short: Results) -> None:
    for seconds, unit in ((100, "s"), (1000, "min"), (40_000, "h")):
        end_ns = short.timeline["time_ns"][-1]
        stretched = short.timeline.with_columns(short.timeline["time_ns"] * (seconds * 10**9 // end_ns))
        assert plot_memory(evolve(short, timeline=stretched)).get_xlabel() == f"time ({unit})"


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
