"""Files of rates and lengths by window: recognised, summed up, and not taken for requests."""

import gzip
from pathlib import Path

import pytest

from kvsim.study.servegen import LengthSpread, LengthWindows, RateWindows, servegen_windows, to_json

RATES = "0,0,0,,0,0\n600,2,1.5,Gamma,1,2\n1200,1,3,Weibull,1,2\n"
LENGTHS = '{"0": {"input_tokens": "{}", "output_tokens": "{}"}, "100": {"input_tokens": "{10: 0.5, 30: 0.5}", "output_tokens": "{7: 1.0}"}}'


@pytest.mark.parametrize("packed", [False, True])
def test_rates_are_summed_up(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "client-trace.csv"
    path.write_bytes(gzip.compress(RATES.encode()) if packed else RATES.encode())
    assert servegen_windows(path) == RateWindows(
        windows=3,
        idle_windows=1,
        window_s=600.0,
        duration_s=1_800.0,
        requests=1_800.0,
        rate_per_s=1.0,
        most_per_s=2.0,
        gap_cv=2.0,
        gaps={"Gamma": 1, "Weibull": 1},
    )


def test_lengths_are_those_of_all_windows_together(tmp_path: Path) -> None:
    path = tmp_path / "client-dataset.json"
    path.write_text(LENGTHS)
    found = servegen_windows(path)
    assert found == LengthWindows(
        windows=2,
        idle_windows=1,
        window_s=100.0,
        prompt=LengthSpread(20.0, 10, 30, 10, 30),
        output=LengthSpread(7.0, 7, 7, 7, 7),
    )
    assert found is not None
    assert to_json(found)["missing"] == ["requests"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0,0,0,,0,0\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,1,1\n",
        "0,1,1,Cauchy,1,1\n600,1,1,Gamma,1,1\n",
        "0,-1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n",
        '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}\n{"timestamp": 1}',
        '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}',
        '{"0": {"input_tokens": "{}"}, "1": {}}',
        '{"0": {"input_tokens": "f()", "output_tokens": "{}"}, "1": {}}',
        "{broken",
    ],
)
def test_other_files_are_not_taken_for_windows(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    assert servegen_windows(tmp_path / "file") is None


@pytest.mark.parametrize(
    ("client", "windows", "lengths"),
    [("language_m-large_chunk-153", 2_016, 56), ("language_m-small_chunk-2", 2_016, 56), ("reason_deepseek-r1_chunk-66", 144, 4)],
)  # fmt: skip
def test_public_clients_are_recognised(shared: Path, client: str, windows: int, lengths: int) -> None:
    folder = shared / "traces" / "servegen"
    rates = servegen_windows(folder / f"{client}-trace.csv.gz")
    assert isinstance(rates, RateWindows)
    assert (rates.windows, rates.window_s, rates.duration_s) == (windows, 600.0, 600.0 * windows)
    spread = servegen_windows(folder / f"{client}-dataset.json.gz")
    assert isinstance(spread, LengthWindows)
    assert (spread.windows, spread.window_s) == (lengths, 21_600.0)
