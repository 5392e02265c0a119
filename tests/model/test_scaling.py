from pathlib import Path

import pytest

from kvsim.errors import ModelError
from kvsim.model.catalogue import load_geometry
from kvsim.model.geometry import uniform_geometry
from kvsim.model.scaling import plot_scaling, save_scaling_plot, scaling
from kvsim.model.sizing import size

GIB = 2**30
LLAMA = load_geometry("llama-3.1-8b", Path())


def test_lines_are_what_requests_can_hold_at_each_length():
    got = scaling(LLAMA, 40 * GIB, max_model_len=1000, sequences=(1, 3))
    assert got.lengths == (
        *(128 + 16 * step for step in range(8)),
        *(256 + 32 * step for step in range(8)),
        *(512 + 64 * step for step in range(8)),
        1000,
    )
    assert [line.num_bytes[0] for line in got.lines] == [8 * 2**21, 3 * 8 * 2**21]
    assert [line.num_bytes[-1] for line in got.lines] == [63 * 2**21, 3 * 63 * 2**21]


def test_line_ends_where_its_requests_stop_to_fit():
    got = scaling(LLAMA, 40 * GIB, sequences=(1, 16, 100_000))
    sized = size(LLAMA, 40 * GIB).engine
    assert sized is not None
    assert got.lines[0].longest_model_len == sized.longest_model_len
    assert got.lines[1].longest_model_len == 20_479 // 16 * 16
    assert got.lines[1].bytes_at_longest == 16 * 1279 * 2**21
    assert (got.lines[2].longest_model_len, got.lines[2].bytes_at_longest) == (0, 0)


def test_windowed_model_fits_at_any_length():
    got = scaling(load_geometry("mistral-7b-v0.1", Path()), 40 * GIB, sequences=(1,))
    assert got.lines[0].longest_model_len is None
    assert got.lines[0].num_bytes[-1] == got.lines[0].num_bytes[-2]


def test_ideal_lines_stand_in_for_a_layout_that_is_not_described():
    assert scaling(load_geometry("deepseek-v4-flash", Path()), 40 * GIB).name == "ideal"


def test_short_length_is_a_point():
    assert scaling(LLAMA, GIB, max_model_len=100).lengths == (100,)


@pytest.mark.parametrize(("sequences", "length"), [((), 10), ((0,), 10), ((1,), 0)])
def test_nonsense_is_refused(sequences, length):
    with pytest.raises(ModelError):
        scaling(LLAMA, GIB, max_model_len=length, sequences=sequences)


def test_picture_has_lines_marks_budget_and_units():
    ax = plot_scaling(scaling(LLAMA, 40 * GIB))
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [
        "1 sequence: up to 327,664 tokens",
        "4 sequences: up to 81,904 tokens",
        "16 sequences: up to 20,464 tokens",
        "64 sequences: up to 5,104 tokens",
        "budget 40 GiB",
    ]
    assert len(ax.lines) == 4 + 3 + 1  # one ends beyond the model's length
    assert "tokens" in ax.get_xlabel()
    assert "GiB" in ax.get_ylabel()


def test_equal_numbers_draw_equal_files(tmp_path):
    lines = scaling(uniform_geometry(2, 1, 4), 10_000, max_model_len=300)
    for name in ("first.png", "second.png"):
        save_scaling_plot(lines, tmp_path / name)
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()
