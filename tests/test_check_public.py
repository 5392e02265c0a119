"""The figures of public logs, and a check that the check sees wrong ones."""

import csv
from fractions import Fraction
from pathlib import Path

import pytest

from tests.check_public import check_row, main, printed_bytes

NEEDS_MORE = {"kv025", "kv026"}
"""Pipeline stages of which only one printed its memory, and not the poorest."""


@pytest.fixture(scope="module")
def rows(shared: Path) -> dict[str, dict[str, str]]:
    with (shared / "golden" / "public_kv_sizes.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def test_every_row_matches_that_can(shared, capsys):
    assert main([str(shared / "golden" / "public_kv_sizes.csv")]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "75 of 77 match"
    assert {line.partition(":")[0] for line in others} == NEEDS_MORE


def altered(text: str) -> str:
    """A figure that is a tenth larger."""
    return f"{float(text) * 1.1:.2f}" if "." in text else str(int(text) * 11 // 10)


@pytest.mark.parametrize("column", ["tokens_reported", "gpu_blocks_reported", "max_concurrency_reported"])
def test_figure_that_is_a_tenth_too_large_is_found(rows, column):
    for row in rows.values():
        budget_printed = row["available_kv_bytes_printed"] or row["tokens_reported"]
        is_checked = row["engine"] != "llama.cpp" or column == "tokens_reported"
        if not row[column] or not budget_printed or not is_checked or row["id"] in NEEDS_MORE:
            continue
        verdict = check_row(row | {column: altered(row[column])})
        assert not verdict.matches, (row["id"], column)
        assert verdict.told


def test_pool_of_a_row_that_needs_more_is_still_bounded(rows):
    for row_id in NEEDS_MORE:
        verdict = check_row(rows[row_id] | {"available_kv_bytes_printed": "60 GiB"})
        assert "by rule" in verdict.told
        assert verdict.not_printed is None


def test_catalogue_that_contradicts_the_row_is_found(rows):
    verdict = check_row(rows["kv001"] | {"num_layers": "31"})
    assert verdict.told == "codellama-7b of the catalogue keeps other layers than the columns say"


def test_unknown_engine_is_a_mismatch(rows):
    assert check_row(rows["kv001"] | {"engine": "orca"}).told == "no rule for the engine orca"


def test_print_stands_for_the_bytes_that_round_to_it():
    gib = 2**30
    assert printed_bytes("0.5 GiB") == (Fraction(45, 100) * gib, Fraction(55, 100) * gib)
    assert printed_bytes("69.8 GiB", decimals=2) == (Fraction("69.795") * gib, Fraction("69.805") * gib)
    assert printed_bytes("16 GiB") == (16 * gib, 16 * gib)
    assert printed_bytes("12118 MiB") == (Fraction("12117.5") * 2**20, Fraction("12118.5") * 2**20)


def test_file_without_rows_is_no_success(tmp_path, capsys):
    (tmp_path / "empty.csv").write_text("id,engine\n", encoding="utf-8")
    assert main([str(tmp_path / "empty.csv")]) == 1
    assert capsys.readouterr().out == "0 of 0 match\n"
