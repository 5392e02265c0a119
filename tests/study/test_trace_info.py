"""Statistics of traces: those that the README beside the public files states, and small ones by hand."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvsim.errors import TraceError
from kvsim.study.trace_file import Reading, TraceFile
from kvsim.study.trace_info import Arrivals, Spread, trace_info
from kvsim.workload.request import Span
from kvsim.workload.traces import Row
from tests.study.makers import AZURE_ROWS

PUBLIC = {
    "mooncake conversation": ("mooncake/conversation_trace.jsonl.gz", 12_031),
    "mooncake first 1000 (arXiv)": ("mooncake/mooncake_trace_1000.jsonl", 1_000),
    "azure conv": ("azure2023/AzureLLMInferenceTrace_conv.csv", 19_366),
    "azure code": ("azure2023/AzureLLMInferenceTrace_code.csv", 8_819),
    "burstgpt 400": ("burstgpt/BurstGPT_1_first400.csv", 400),
    "ragpulse 0-3799": ("ragpulse/0_trace_rows0_3799.jsonl.gz", 3_800),
    "arxiv summarization": (
        "arxiv_summarization/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        28_257,
    ),
    "sharegpt 300": ("sharegpt/sharegpt_llama31_300req_blk16.jsonl.gz", 300),
    "agent magagent": ("agentic/agent_magagent_blk16.jsonl.gz", 693),
    "agent miniswe 0-9": ("agentic/agent_miniswe_sessions0to9_blk16.jsonl.gz", 238),
    "dynamo pi": ("agentic/dynamo_pi_request_trace.jsonl.gz", 17),
    "tracelab example": ("agentic/tracelab_example_round_trace.jsonl", 19),
}


def stated(shared: Path, name: str) -> list[list[str]]:
    """The cells of a row of the README's statistics: prompt, output, duration, rate, CV, IoD, each its numbers."""
    (line,) = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", (shared / "traces" / "README.md").read_text(), re.M)
    return [re.findall(r"\d[\d,]*(?:\.\d+)?", cell) for cell in line.split("|")]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_statistics_of_a_public_trace_are_those_stated(shared: Path, name: str) -> None:
    path, rows = PUBLIC[name]
    info = trace_info(TraceFile.of(shared / "traces" / path))
    prompt, output, *arrivals = stated(shared, name)
    assert info.rows == rows
    for spread, numbers in ((info.prompt, prompt), (info.output, output)):
        assert spread is not None
        mean, median, p99, least, most = numbers
        assert f"{spread.mean:,.1f}" == mean
        assert f"{spread.median:,.0f}" == median
        assert f"{spread.p99:,.0f}" == p99
        assert (f"{spread.min:,}", f"{spread.max:,}") == (least, most)
    figures = (info.arrivals.duration_s, info.arrivals.rate_per_s, info.arrivals.gap_cv, info.arrivals.iod)
    if name == "tracelab example":
        return  # its two sessions lie months apart
    for figure, (number,) in zip(figures, filter(None, arrivals), strict=False):
        digits = len(number.partition(".")[2])
        assert f"{figure:,.{digits}f}" == number


def test_missing_words_follow_the_format(shared: Path) -> None:
    azure = trace_info(TraceFile.of(shared / "traces" / PUBLIC["azure code"][0]))
    assert azure.missing == ("content", "sessions")
    assert azure.ideal_hit_tokens is None
    assert azure.reuse_distance is None
    mooncake = trace_info(TraceFile.of(shared / "traces" / PUBLIC["mooncake first 1000 (arXiv)"][0]))
    assert mooncake.missing == ("sessions",)
    assert mooncake.ideal_hit_tokens == dict.fromkeys((16, 64, 256, 512), 3_826_202)
    assert mooncake.reuse_distance is not None
    assert mooncake.reuse_distance.median == 48


def test_percentiles_are_interpolated() -> None:
    assert Spread.of([1, 2, 3, 10]) == Spread(mean=4.0, median=2.5, p99=9.79, min=1, max=10)
    assert Spread.of([]) is None


def test_arrivals_are_counted_in_time_order_by_the_second() -> None:
    arrivals = Arrivals.of([5_000_000_000, 3_000_000_000, 3_500_000_000])
    assert arrivals.duration_s == 2.0
    assert arrivals.rate_per_s == 1.0
    assert arrivals.gap_cv == 0.5  # gaps of 0.5 and 1.5 s
    assert arrivals.iod == pytest.approx(2 / 3)  # 2, 0 and 1 arrivals


@pytest.mark.parametrize(("times", "duration"), [([], None), ([7], 0.0), ([7, 7], 0.0)])
def test_too_few_arrivals_have_no_rate(times: list[int], duration: float | None) -> None:
    assert Arrivals.of(times) == Arrivals(duration, None, None, None)


class Invented(TraceFile):
    """Rows as a reader may give them that takes odd ones too."""

    def all_rows(self, reading: Reading) -> Iterator[Row]:
        yield Row(2_000, 8, 1, (Span("a", 0, 8),))
        yield Row(1_000, 0, 0, None)
        reading.bad_rows = 2
        yield Row(3_000, 9, 2, (Span("a", 0, 8), Span("b", 0, 1)))


def test_odd_rows_are_counted_and_counted_in() -> None:
    info = trace_info(Invented(Path("invented"), "mooncake"), (4,))
    assert info.odd_rows == {
        "empty prompt": 1,
        "empty output": 1,
        "time before that of the row above": 1,
        "a broken rule": 2,
    }
    assert (info.rows, info.prompt_tokens) == (3, 17)
    assert info.prompt is not None
    assert info.prompt.min == 0
    assert info.ideal_hit_tokens == {4: 8}
    assert info.to_json()["ideal_hit_tokens"] == {"4": 8}
    assert info.reuse_distance == Spread(1.0, 1.0, 1.0, 1, 1)


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE_ROWS.partition("\n")[0])
    with pytest.raises(TraceError, match=r"trace\.csv: has no requests"):
        trace_info(TraceFile.of(path))


def test_a_format_is_recognised_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(AZURE_ROWS)
    assert TraceFile.of(path).format == "azure"
    path.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]}')
    assert TraceFile.of(path).format == "mooncake"
    path.write_text("nothing known")
    with pytest.raises(TraceError, match="its format is not recognised; name one of azure, "):
        TraceFile.of(path)
    with pytest.raises(TraceError, match=r"the format of a trace must be one of azure, .*got 'tape'"):
        TraceFile.of(path, "tape")


def test_content_is_asked_for_by_name(tmp_path: Path) -> None:
    TraceFile.of(tmp_path / "trace", "mooncake").need_content()
    (tmp_path / "trace").write_text(AZURE_ROWS)
    with pytest.raises(TraceError, match="has no content: the format azure does not say what prompts share"):
        TraceFile.of(tmp_path / "trace", "azure").need_content()
