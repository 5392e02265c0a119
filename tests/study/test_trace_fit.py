"""Fitted workloads: what is put in comes out again, and what is off is said."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import field, frozen

from kvsim.errors import TraceError
from kvsim.study.scenario import load_scenario
from kvsim.study.trace_convert import write_mooncake
from kvsim.study.trace_file import TraceFile
from kvsim.study.trace_fit import Fit, fit
from kvsim.workload.generate import Constant, Fixed, Gamma, Lognormal, Poisson, SharedPrefixes, Uniform
from kvsim.workload.traces import Row


@frozen
class Made(TraceFile):
    """A trace made by a generator."""

    workload: Poisson | Gamma | Constant = field(kw_only=True)

    def rows(self) -> Iterator[Row]:
        for request in self.workload.requests(seed=11):
            yield Row(request.arrival_ns, request.prompt_tokens, request.output_tokens, request.prompt)


def fitted(workload: Poisson | Gamma | Constant) -> Fit:
    return fit(Made(Path("made"), "mooncake", workload=workload))


def test_what_was_generated_is_found_again() -> None:
    found = fitted(
        Gamma(
            rate=5.0,
            cv=3.0,
            num_requests=20_000,
            prompt=Lognormal(mean=900, p50=600),
            output=Uniform(20, 300),
            prefixes=SharedPrefixes(count=20, tokens=500, popularity=1.1),
        )
    )
    workload = found.workload
    assert isinstance(workload, Gamma)
    assert workload.rate == pytest.approx(5, rel=0.08)
    assert workload.cv == pytest.approx(3, rel=0.05)
    assert workload.output == Uniform(20, 300)
    assert workload.prefixes is not None
    assert (workload.prefixes.count, workload.prefixes.tokens) == (20, 500)
    assert workload.prefixes.popularity == pytest.approx(1.1, abs=0.03)
    off = {one.name: one.off for one in found.likeness}
    assert off.pop("dispersion (IoD)") == pytest.approx(0, abs=0.15)
    assert off.pop("prompt tokens, p99") == pytest.approx(0, abs=0.1)
    assert {name: round(value, 1) for name, value in off.items() if value is not None and abs(value) > 0.06} == {}


@pytest.mark.parametrize("kind", [Poisson, Constant])
def test_the_kind_of_arrivals_follows_the_gaps(kind: type[Poisson] | type[Constant]) -> None:
    found = fitted(kind(rate=4.0, num_requests=20_000, prompt=Fixed(30), output=Fixed(7)))
    assert type(found.workload) is kind
    assert found.workload.prompt == Fixed(30)
    assert found.workload.prefixes is None
    assert found.notes == ("Hardly anything is shared in the trace, so nothing is shared.",)


def test_the_table_is_a_scenario_s_workload(tmp_path: Path) -> None:
    found = fitted(
        Gamma(
            rate=5.0,
            cv=2.0,
            num_requests=500,
            prompt=Uniform(8, 90),
            output=Fixed(9),
            prefixes=SharedPrefixes(count=3, tokens=64),
        )
    )
    text = found.to_toml('a "quoted" name')
    (tmp_path / "scenario.toml").write_text(
        f'question = "Does it fit?"\n[model]\nconfig = "llama-3.1-8b"\n[memory]\nbudget = "1 GiB"\n{text}'
    )
    assert load_scenario(tmp_path / "scenario.toml").workload == found.workload
    assert tomllib.loads(text)["workload"] == found.table()
    assert text.startswith('# Fitted to "a \\"quoted\\" name"; trace, generated, off:\n#   requests per second: ')
    json.dumps(found.to_json(), allow_nan=False)


def test_a_public_trace_is_fitted_in_mean_and_burstiness(shared: Path) -> None:
    found = fit(TraceFile.of(shared / "traces" / "azure2023" / "AzureLLMInferenceTrace_conv.csv"))
    off = {one.name: one.off for one in found.likeness}
    assert found.notes == ("The trace does not say what prompts share, so nothing is shared.",)
    for name in ("requests per second", "CV of gaps", "prompt tokens, mean"):
        assert off[name] == pytest.approx(0, abs=0.05)


def test_a_trace_whose_requests_come_all_at_once_has_no_rate(tmp_path: Path) -> None:
    write_mooncake(iter([Row(0, 5, 5), Row(0, 6, 5)]), tmp_path / "trace.jsonl", 512)
    with pytest.raises(TraceError, match="has no times from which a rate follows"):
        fit(TraceFile.of(tmp_path / "trace.jsonl"))
