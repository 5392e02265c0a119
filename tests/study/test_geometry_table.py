"""A geometry as a person reads it."""

from pathlib import Path
from typing import Any

from rich.console import Console

from kvsim.model.catalogue import load_geometry
from kvsim.study.geometry_table import geometry_table, model_page


def printed(name: str, *arguments: Any) -> list[list[str]]:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(geometry_table(load_geometry(name, Path()), *arguments))
    lines = [line.strip("│┃ ") for line in capture.get().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.split("│")] for line in lines]


def test_the_table_has_a_row_for_each_sort_of_cache() -> None:
    assert printed("gemma-3-1b") == [
        ["sliding", "22", "1", "256", "256", "512", "22,528", "-"],
        ["full", "4", "1", "256", "256", "-", "4,096", "-"],
    ]
    assert printed("deepseek-v3.2", "fp8") == [
        ["mla", "61", "1", "576", "-", "-", "35,136", "-"],
        ["+ index", "61", "1", "128", "-", "-", "8,052", "-"],
    ]
    assert printed("falcon-h1-0.5b", "bf16", 2) == [
        ["full", "36", "2", "64", "64", "-", "9,216", "-"],
        ["+ mamba", "36", "-", "-", "-", "-", "-", "7,299,072"],
    ]


def test_the_page_shows_the_fullest_stage_and_its_formula() -> None:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(model_page(load_geometry("llama-3.1-8b", Path()), "fp8", 4, 2))
    page = capture.get()
    assert "llama-3.1-8b: llama, 32 layers, 16 on the fullest of 2 stages" in page
    assert "bytes per token = 16 layers x 2 KV heads x (128 K + 128 V) x 1 B = 8,192 B" in page


def test_the_page_shows_state_in_both_widths_and_what_was_assumed() -> None:
    console = Console(width=300)
    with console.capture() as capture:
        console.print(model_page(load_geometry("jamba-v0.1", Path()), "bf16", 1, 1))
    page = capture.get()
    assert "state per sequence = " in page
    assert "with fp32 recurrent values" in page
    assert "Assumed: " in page
