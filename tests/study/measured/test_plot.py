"""The picture: what is drawn, from where to where."""

from pathlib import Path

import numpy as np
import pytest

from kvsim.study.measured.compare import MeasuredComparison, compare_measured
from kvsim.study.measured.plot import _thinned, panels_of, plot_panel, save_measured_plot
from kvsim.study.measured.series import Course
from tests.study.measurements import measured_of, scraped, series, tight_courses, tight_run

S = 10**9


@pytest.fixture(scope="module")
def comparison() -> MeasuredComparison:
    run = tight_courses()
    return compare_measured(tight_run(), measured_of(scraped(run, range(0, run.duration_ns, S // 2))), offset=0)


def test_a_panel_for_all_that_both_sides_have(comparison: MeasuredComparison) -> None:
    names = ["kv_usage", "running", "waiting", "preemptions", "hit_share", "recent_hit_share"]
    assert [panel.figure for panel in panels_of(comparison)] == names
    log = compare_measured(tight_run(), measured_of({"running": series((0, 1), (S, 2))}), offset=0)
    assert [panel.figure for panel in panels_of(log)] == ["running"]
    assert panels_of(compare_measured(tight_run(), measured_of({}))) == ()


def test_lines_are_the_numbers_of_both(comparison: MeasuredComparison) -> None:
    for panel in panels_of(comparison):
        axes = plot_panel(comparison, panel)
        run, server = axes.get_lines()
        assert (run.get_label(), server.get_label()) == ("run", "server")
        times, values = (np.asarray(each) for each in server.get_data())
        assert server.get_drawstyle() == "steps-post", "a scrape holds until the next"
        assert (server.get_marker(), run.get_marker()) == ("o", "None"), "told apart without colours"
        assert server.get_linestyle() != run.get_linestyle()
        held = np.searchsorted(np.asarray(run.get_xdata()), times + 1e-9, side="right") - 1
        drawn = np.concatenate([[0.0], np.asarray(run.get_ydata())])[held + 1]
        assert values.tolist() == drawn.tolist(), panel.figure
    last = plot_panel(comparison, panels_of(comparison)[3]).get_lines()[0].get_ydata()
    assert np.asarray(last)[-1] == tight_run().metrics["preemptions"]


def test_many_rows_are_drawn_as_means_by_time() -> None:
    many = Course(np.arange(40_000, dtype=np.int64), (np.arange(40_000) % 2).astype(float))
    times, values = _thinned(many, 40_000)
    assert (len(times), set(values.round(9))) == (4_000, {0.5})


def test_equal_numbers_give_equal_pictures_in_any_format(comparison: MeasuredComparison, tmp_path: Path) -> None:
    for suffix in ("png", "svg"):
        for name in ("one", "two"):
            save_measured_plot(comparison, tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
