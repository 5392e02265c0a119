"""Histogram files."""

import gzip
from pathlib import Path

import pytest

from kvsim.errors import TraceError
from kvsim.workload.generate import Empirical
from tests.workload.generate.makers import draw, make_workload

WINDOWS = b"""{"0": {"input_tokens": "{5: 0.5, 7: 0.5}", "output_tokens": "{}"},
 "21600": {"input_tokens": "{7: 1}", "output_tokens": "{1: 0.25}"}}"""


def load(folder: Path, content: bytes, **options: object) -> Empirical:
    (folder / "lengths.json").write_bytes(content)
    return Empirical(path="lengths.json", **options).loaded(folder)  # type: ignore[arg-type]


def test_a_plain_histogram(tmp_path: Path) -> None:
    assert load(tmp_path, b'{"12": 0.25, "3": 0.75}') == Empirical(values=(3, 12), weights=(0.75, 0.25))


@pytest.mark.parametrize("content", [WINDOWS, gzip.compress(WINDOWS)], ids=["plain", "gzip"])
def test_windows_are_taken_together_or_one_of_them(tmp_path: Path, content: bytes) -> None:
    assert load(tmp_path, content, column="input_tokens") == Empirical(values=(5, 7), weights=(0.5, 1.5))
    assert load(tmp_path, content, column="input_tokens", window=21600) == Empirical(values=(7,), weights=(1.0,))
    assert load(tmp_path, content, column="output_tokens") == Empirical(values=(1,), weights=(0.25,))


def test_a_workload_reads_its_files_from_its_base(tmp_path: Path) -> None:
    (tmp_path / "lengths.json").write_text('{"12": 1}')
    workload = make_workload(num_requests=3, prompt=Empirical(path="lengths.json"))
    assert [request.prompt_tokens for request in workload.requests(1, tmp_path)] == [12] * 3


@pytest.mark.parametrize(
    ("content", "options", "rule"),
    [
        (b"", {}, "not JSON"),
        (b"\xff", {}, "not JSON"),
        (b"\x1f\x8b\x00", {}, "not a sound gzip stream"),
        (b"[1]", {}, "must be a JSON object, got [1]"),
        (b"{}", {}, "has no lengths"),
        (b'{"0": 1}', {}, "lengths must be between 1 and 1,000,000,000, got '0'"),
        (b'{"x": 1}', {}, "lengths must be between 1 and 1,000,000,000, got 'x'"),
        (b'{"3": 0}', {}, "the weight of length 3 must be > 0, got 0"),
        (b'{"3": true}', {}, "the weight of length 3 must be > 0, got True"),
        (b'{"0": {"input_tokens": "{3:"}}', {"column": "input_tokens"}, "must hold tables of lengths, got '{3:'"),
        (b'{"0": {"input_tokens": 4}}', {"column": "input_tokens"}, "must hold tables of lengths, got 4"),
        (b'{"0": {"input_tokens": {}}}', {"column": "output_tokens"}, "window '0' has no column output_tokens"),
        (b'{"0": {"a": {}}}', {"column": "a", "window": 600}, "has no window 600, only '0'"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, options: dict[str, object], rule: str) -> None:
    with pytest.raises(TraceError) as caught:
        load(tmp_path, content, **options)
    assert str(caught.value) == f"{tmp_path / 'lengths.json'}: {rule}"


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is not a file"):
        Empirical(path="none.json").loaded(tmp_path)


def test_a_public_histogram(shared: Path) -> None:
    folder = shared / "traces" / "servegen"
    lengths = Empirical(path="language_m-small_chunk-2-dataset.json.gz", column="output_tokens").loaded(folder)
    assert lengths.most == max(lengths.values or ())
    assert len(set(draw(lengths).tolist())) > 50
