"""The picture of a sweep: what is drawn is what the table says."""

import struct
from pathlib import Path
from typing import Any

import pytest

from kvsim.study.sweep_plot import PANELS, plot_panel, save_sweep_plot
from kvsim.study.sweep_result import Sweep
from tests.study.sweeps import make_sweep

SLACK = PANELS[0]


def drawn(sweep: Sweep, panel: Any = SLACK) -> list[tuple[list[float], list[float]]]:
    """Points of each line of means."""
    lines = [line for line in plot_panel(sweep, panel).get_lines() if line.get_marker() == "o"]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in lines]


def blocks(*slacks: float) -> list[dict[str, Any]]:
    return [{"slack_share": slack, "block_size_tokens": 1, "max_model_len": 10} for slack in slacks]


def test_a_line_for_each_value_of_the_second_key() -> None:
    sweep = make_sweep({"memory.block_size": [2, 4], "workload.rate": [1, 9]}, *blocks(0.25, 0.5, 0.75, 1.0))
    assert drawn(sweep) == [([2.0, 4.0], [25.0, 75.0]), ([2.0, 4.0], [50.0, 100.0])]
    labels = plot_panel(sweep, SLACK).get_legend_handles_labels()[1]
    assert labels == ["workload.rate = 1", "workload.rate = 9"]


def test_means_are_drawn_and_the_whole_range_is_shaded() -> None:
    sweep = make_sweep({"memory.block_size": [2, 4]}, *blocks(0.25, 0.75, 0.5, 0.5), seeds=2)
    assert drawn(sweep) == [([2.0, 4.0], [50.0, 50.0])]
    band, bars = plot_panel(sweep, SLACK).collections
    assert {tuple(corner) for corner in band.get_paths()[0].vertices} == {(2, 25), (2, 75), (4, 50)}
    assert [segment.tolist() for segment in bars.get_segments()] == [[[2, 25], [2, 75]], [[4, 50], [4, 50]]]


def test_the_best_is_marked_by_a_star() -> None:
    ax = plot_panel(make_sweep({"memory.watermark": [0.0, 0.1]}, {"refused": 3}, {"refused": 1}), PANELS[2])
    (star,) = [line for line in ax.get_lines() if line.get_marker() == "*"]
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([0.1], [1.0])


def test_doublings_stand_alike_and_words_in_a_row() -> None:
    far = plot_panel(make_sweep({"memory.block_size": [1, 4, 16]}, *blocks(0.25, 0.5, 0.75)), SLACK)
    assert far.get_xscale() == "log"
    assert [label.get_text() for label in far.get_xticklabels()] == ["1", "4", "16"]
    near = plot_panel(make_sweep({"workload.rate": [0, 4, 16]}, *blocks(0.25, 0.5, 0.75)), SLACK)
    assert near.get_xscale() == "linear"
    words = make_sweep({"memory.budget": ["8 GiB", "1 GiB"]}, *blocks(0.25, 0.5))
    assert drawn(words) == [([0.0, 1.0], [25.0, 50.0])]
    assert [label.get_text() for label in plot_panel(words, SLACK).get_xticklabels()] == ["8 GiB", "1 GiB"]


@pytest.mark.parametrize("panel", PANELS)
def test_axes_carry_their_key_and_unit(panel: Any) -> None:
    ax = plot_panel(make_sweep({"memory.block_size": [2, 4]}, *blocks(0.25, 0.5)), panel)
    assert ax.get_xlabel() == "memory.block_size"
    assert ax.get_ylabel() == panel.label
    assert ax.get_ylim()[0] == 0


def test_failed_runs_leave_a_gap_and_may_be_all() -> None:
    assert drawn(make_sweep({"a.b": [1, 2, 3]}, {"slack_share": 0.5}, {}, {"slack_share": 0.5})) == [
        ([1.0, 3.0], [50.0, 50.0])
    ]
    assert drawn(make_sweep({"a.b": [1, 2]}, {}, {})) == []


@pytest.mark.parametrize(
    "sweep",
    [
        make_sweep({"a.b": [1, 2]}, {}, {}),
        make_sweep({}, {"refused": 1}, {"refused": 2}, seeds=2),
        make_sweep({"a.b": ["$x", "$y"], "a.c": list(range(20))}, *([{"refused": 1}] * 40), question="$5 or $6?"),
    ],
)
def test_the_picture_is_a_png_of_its_size_whatever_there_is(sweep: Sweep, tmp_path: Path) -> None:
    save_sweep_plot(sweep, tmp_path / "one.png")
    save_sweep_plot(sweep, tmp_path / "two.png")
    written = (tmp_path / "one.png").read_bytes()
    assert written[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", written[16:24]) == (1400, 1000)
    assert (tmp_path / "two.png").read_bytes() == written
