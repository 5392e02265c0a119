import numpy as np
import pytest

from kvsim.engine.latency import LatencyModel


def make_model() -> LatencyModel:
    return LatencyModel(base=1000, per_prefill_token=100, per_decode_seq=10, per_context_token=1)


@pytest.mark.parametrize(
    ("prefill_tokens", "decode_seqs", "context_tokens", "nanoseconds"),
    [
        (0, 0, 0, 1000),
        (7, 0, 7, 1000 + 700 + 7),
        (0, 3, 500, 1000 + 30 + 500),
        (7, 3, 507, 1000 + 700 + 30 + 507),
    ],
)
def test_a_step_is_affine_in_its_work(
    prefill_tokens: int, decode_seqs: int, context_tokens: int, nanoseconds: int
) -> None:
    assert make_model().step_ns(prefill_tokens, decode_seqs, context_tokens) == nanoseconds


def test_the_formula_takes_arrays_and_gives_what_it_gives_for_each() -> None:
    model = make_model()
    work = np.array([[0, 0, 0], [7, 0, 7], [0, 3, 500]], dtype=np.int64)
    durations = model.step_ns(*work.T)
    assert np.asarray(durations).dtype == np.int64
    assert np.asarray(durations).tolist() == [model.step_ns(*row) for row in work.tolist()]


def test_the_defaults_are_those_of_the_docstring() -> None:
    """A batch of 64 sequences of 1,000 tokens: 8 ms, 128 us, 2.56 ms."""
    model = LatencyModel()
    assert model.step_ns(0, 64, 64_000) == 8_000_000 + 128_000 + 2_560_000
    assert model.step_ns(8192, 0, 8192) == 8_000_000 + 8192 * 40_000 + 8192 * 40
    # What the numbers are made from: 16 GB and 131,072 bytes at 3.35 TB/s, 16 GFLOP at 40 % of 989 TFLOP/s.
    assert model.base > 16e9 / 3.35e12 * 1e9
    assert model.per_context_token == pytest.approx(131_072 / 3.35e12 * 1e9, rel=0.03)
    assert model.per_prefill_token == pytest.approx(2 * 8e9 / (0.4 * 989e12) * 1e9, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"base": 0}, "base must be >= 1 ns, got 0 s"),
        ({"per_prefill_token": -1}, "per_prefill_token must be >= 0 s, got -1 ns"),
        ({"per_decode_seq": -1}, "per_decode_seq must be >= 0 s, got -1 ns"),
        ({"per_context_token": -1}, "per_context_token must be >= 0 s, got -1 ns"),
    ],
)
def test_time_passes_and_does_not_go_back(changes: dict[str, int], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        LatencyModel(**changes)
