"""What allocators waste, as it is printed and drawn."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from rich.console import Console

from kvsim.study.waste import Bounds, Waste
from kvsim.study.waste_table import answer, plot_waste, save_waste_plot, waste_page
from tests.study.test_waste import waste_of

# One request of 3 prompt and 5 output tokens: 30 live token-steps.
ONE = [(3, 5)]
TINY = Bounds(min_prompt=1, max_prompt=10, min_output=1, max_total=12)


def printed(waste: Waste, width: int = 120) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(waste_page(waste, "trace.csv"))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_page_has_a_row_an_allocator_and_says_who_was_left_out() -> None:
    lines = printed(waste_of([*ONE, (11, 1), (4, 9)], "paged:4,max,pow2,oracle", TINY))
    assert lines[:2] == [
        "trace.csv: 1 of 3 requests, 30 live token-steps",
        "Left out: 1 with more than 10 prompt tokens, 1 with more than 12 tokens in all.",
    ]
    rows = [line.split() for line in lines if line.startswith(("paged:4 ", "max ", "pow2 ", "oracle "))]
    assert rows[:4] == [
        ["paged:4", "36", "83.33%", "16.67%", "0", "0"],
        ["max", "60", "50.00%", "0", "16.67%", "33.33%"],
        ["pow2", "55", "54.55%", "0", "18.18%", "27.27%"],
        ["oracle", "40", "75.00%", "0", "25.00%", "0"],
    ]
    assert (
        "paged:4 wastes 16.67% of what it allocates, max 50.00%: the same memory holds 1.67 times as much with paged:4."
        in lines
    )
    assert "LEN: the longest request to be held; where it is not given, 12 tokens." in lines
    assert any(line.startswith("Closed form: each request alone") for line in lines)


def test_the_page_explains_only_what_is_there() -> None:
    text = "\n".join(printed(waste_of(ONE, "paged:4", TINY)))
    assert "No request was left out." in text
    assert "paged:4 wastes 16.67% of what is allocated." in text
    assert "live (written); tail (rest of the last block), of what is allocated." in text
    assert "reserved (" not in text
    assert "LEN" not in text
    assert "oracle" not in text


@pytest.mark.parametrize("width", [80, 100])
def test_the_page_fits_a_console(width: int) -> None:
    waste = waste_of([(10**6, 10**6)], "paged:1000,max:1000000000,predicted:0.123456")
    lines = printed(waste, width)
    assert max(map(len, lines)) <= width
    assert any(line.startswith("predicted:0.123456 ") and line.endswith("%") for line in lines)


def test_many_token_steps_are_in_millions() -> None:
    lines = printed(waste_of([(10**6, 10**6)], "oracle"))
    assert next(line.split() for line in lines if line.startswith("oracle "))[1] == "2,000,000.0"


def test_notes_say_what_a_reader_might_trip_over() -> None:
    waste = waste_of([(6, 5), (6, 4)], "pow2:12", TINY)
    waste.turns_lack_history = True
    text = "\n".join(printed(waste))
    assert "pow2:12 sets more than 12 slots aside for 1 requests: it is not cut there." in text
    assert "Later turns count without what was said before them" in text


def test_equals_waste_alike() -> None:
    waste = waste_of([(4, 1)], "oracle,pow2", TINY)
    assert answer(waste) == "oracle and pow2 waste 0.00% of what is allocated."


def test_bars_are_stacked_to_the_whole() -> None:
    waste = waste_of(ONE, "paged:4,max,oracle", TINY)
    ax = plot_waste(waste)
    bars = {container.get_label(): [(bar.get_x(), bar.get_width()) for bar in container] for container in ax.containers}
    assert list(bars) == [
        "live (written)",
        "tail (rest of the last block)",
        "reserved (for its own later tokens)",
        "unused (never written)",
    ]
    assert [width for _, width in bars["live (written)"]] == pytest.approx([100 * 30 / 36, 50, 75])
    assert [start for start, _ in bars["unused (never written)"]] == pytest.approx([100, 50 + 100 / 6, 100])
    ends = [start + width for start, width in bars["unused (never written)"]]
    assert ends == pytest.approx([100, 100, 100])
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["paged:4\n83.33% live", "max\n50.00% live", "oracle\n75.00% live"]
    assert ax.yaxis_inverted(), "the first allocator stands at the top"
    assert ax.get_xlabel() == "share of allocated token-steps (%)"


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_picture_is_drawn_whatever_its_name(tmp_path: Path, suffix: str) -> None:
    waste = waste_of(ONE, "paged:4,max", TINY)
    save_waste_plot(waste, "a $5 trace_of_$2 [x].csv", tmp_path / f"waste{suffix}")
    assert (tmp_path / f"waste{suffix}").stat().st_size > 1000


def test_equal_numbers_give_equal_bytes(tmp_path: Path) -> None:
    waste = waste_of(ONE, "paged:4,max", TINY)
    for name in ("one.png", "two.png"):
        save_waste_plot(waste, "trace.csv", tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


def test_no_number_of_allocators_makes_a_figure_too_tall(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_args, **_kwargs: sizes.append(tuple(self.get_size_inches())))
    save_waste_plot(waste_of(ONE, ",".join(f"paged:{size}" for size in range(1, 301))), "x", tmp_path / "x.png")
    assert sizes == [(10.0, 100.0)]
