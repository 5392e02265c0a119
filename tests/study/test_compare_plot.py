"""The picture of a comparison: what is drawn is what the rows say."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from kvsim.study.colours import COLOURS
from kvsim.study.compare import Comparison, compare
from kvsim.study.compare_plot import MEANINGS, PANELS, plot_pools, plot_requests, save_comparison_plot
from kvsim.study.compare_record import POOL_PARTS
from tests.study.comparisons import make_comparison
from tests.study.makers import write_scenario
from tests.study.test_compare_table import MOST, PAGED


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    return make_comparison(tmp_path, "paged:4,max,oracle", PAGED, MOST, {}, overrides=("engine.max_waiting=9",))


def bars(ax: Any) -> dict[str, BarContainer]:
    return {container.get_label(): container for container in ax.containers}


def test_the_pool_is_stacked_from_its_parts(comparison: Comparison) -> None:
    ax = plot_pools(comparison)
    drawn = {label: [(bar.get_x(), bar.get_width()) for bar in found] for label, found in bars(ax).items()}
    assert drawn == {
        "live (written)": [(0, 45), (0, 10), (0, 0)],
        "tail (rest of last blocks)": [(45, 5), (10, 0), (0, 0)],
        "reserved (for later tokens)": [(50, 0), (10, 15), (0, 0)],
        "unused (never written)": [(50, 0), (25, 25), (0, 0)],
        "external (free, no extent large enough)": [(50, 0), (50, 30), (0, 0)],
        "blank (free)": [(50, 50), (80, 20), (0, 0)],
    }
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["paged:4", "max", "oracle\n(failed)"]
    assert ax.yaxis_inverted(), "the first run stands at the top"
    assert (ax.get_xlabel(), ax.get_xlim()) == ("share of the pool, by time (%)", (0, 100))
    assert [text.get_text() for text in ax.texts if text.get_text()] == [
        "45.0", "10.0", "5.0", "15.0", "25.0", "30.0", "50.0", "20.0",
    ]  # fmt: skip


def test_a_part_has_the_colour_that_it_has_elsewhere(comparison: Comparison) -> None:
    by_label = {MEANINGS[part]: COLOURS[part] for part in POOL_PARTS}
    for label, found in bars(plot_pools(comparison)).items():
        assert {to_hex(bar.get_facecolor()) for bar in found} == {by_label[label]}
    assert len({COLOURS[part] for part in POOL_PARTS}) == len(POOL_PARTS)


def test_bars_of_real_runs_end_at_the_whole_pool(tmp_path: Path) -> None:
    overrides = ["workload.prefixes={count=2,tokens=9}", "memory.num_blocks=65"]
    ax = plot_pools(compare(write_scenario(tmp_path), "paged:4,max,oracle", overrides=overrides, jobs=1))
    assert [bar.get_x() + bar.get_width() for bar in bars(ax)["blank (free)"]] == pytest.approx([100] * 3)
    assert "cached (for hits only)" in bars(ax)


@pytest.mark.parametrize(
    ("panel", "widths", "labels"),
    [
        (PANELS[0], [4.5, 1.5, 0], ["4.50", "1.50", "-"]),
        (PANELS[1], [3, 1234, 0], ["3", "1,234", "-"]),
        (PANELS[2], [0, 0, 0], ["0", "0", "-"]),
    ],
)
def test_requests_have_bars_with_their_numbers(
    panel: Any, widths: list[float], labels: list[str], comparison: Comparison
) -> None:
    ax = plot_requests(comparison, panel)
    (container,) = ax.containers
    assert [bar.get_width() for bar in container] == widths
    assert [text.get_text() for text in ax.texts] == labels
    assert ax.get_xlabel().endswith(("(requests)", "(requests at once)"))
    assert ax.get_xlim()[1] >= max(widths)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_equal_numbers_give_equal_bytes_whatever_the_format(
    suffix: str, comparison: Comparison, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        save_comparison_plot(comparison, tmp_path / f"{name}{suffix}")
    assert (tmp_path / f"one{suffix}").read_bytes() == (tmp_path / f"two{suffix}").read_bytes()
    assert (tmp_path / f"one{suffix}").stat().st_size > 1000


@pytest.mark.parametrize("question", ["a $5 pool_of_$2 [x]?", "文" * 300, "q" * 500])
def test_no_question_stops_it(question: str, tmp_path: Path) -> None:
    save_comparison_plot(make_comparison(tmp_path, "max", {}, question=question), tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()


def test_keys_that_vary_stand_below_their_allocator(tmp_path: Path) -> None:
    vary = "memory.placement=buddy,best_fit"
    ax = plot_pools(make_comparison(tmp_path, "max", PAGED, MOST, vary=vary))
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["max\nmemory.placement = buddy", "max\nmemory.placement = best_fit"]


def test_many_runs_have_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_args, **_kwargs: sizes.append(tuple(self.get_size_inches())))
    allocators = ",".join(f"paged:{size}" for size in range(1, 61))
    for names, runs in (("max", [PAGED]), (allocators, [PAGED] * 60)):
        save_comparison_plot(make_comparison(tmp_path, names, *runs), tmp_path / "x.png")
    assert sizes[0][1] < 5 < 30 < sizes[1][1] < 100
