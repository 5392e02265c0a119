"""Results of benchmarks: runs that were measured, to be replayed. None says what prompts contain.

Requests that failed have no output, or no count of it: they are bad rows.
"""

from collections.abc import Iterator
from typing import Any

from kvsim.workload.traces.documents import json_documents
from kvsim.workload.traces.fields import count, json_object, name_of_session, optional, required, time_ns
from kvsim.workload.traces.lines import Lines
from kvsim.workload.traces.options import Options
from kvsim.workload.traces.row import Row


def read_vllm_bench(lines: Lines, _options: Options) -> Iterator[Row]:
    """`vllm bench serve --save-result --save-detailed`: input_lens, output_lens, and start_times (s)."""
    return _read_lists(lines, "start_times")


def read_sglang_bench(lines: Lines, _options: Options) -> Iterator[Row]:
    """SGLang's bench_serving with --output-details: input_lens and output_lens. There are no times."""
    return _read_lists(lines, None)


def _read_lists(lines: Lines, times_name: str | None) -> Iterator[Row]:
    """A run as lists with a place for each request."""
    run = _only_one(lines)
    names = ("input_lens", "output_lens", *([times_name] if times_name else []))
    lists = required(lines, run, *names)
    for name, values in zip(names, lists, strict=True):
        if not isinstance(values, list) or len(values) != len(lists[0]):
            lines.refuse(f"{name} must be a list of a value for each request")

    def convert(request: tuple[int, tuple[Any, ...]]) -> Row:
        index, (prompt, output, *time) = request
        lines.item = f"requests[{index}]"
        return Row(
            time_ns(lines, str(times_name), time[0], "s") if time else None,
            count(lines, "input_lens", prompt),
            count(lines, "output_lens", output),
        )

    yield from lines.each(enumerate(zip(*lists, strict=True)), convert)


def read_aiperf_bench(lines: Lines, _options: Options) -> Iterator[Row]:
    """AIPerf's profile_export.jsonl: metadata.request_start_ns, metrics.input_sequence_length, output_sequence_length.

    Rows of the warm-up are left out. A session is a conversation.
    """

    def convert(line: str) -> Row | None:
        record = json_object(lines, line)
        if record is None or optional(record, "metadata.benchmark_phase") == "warmup":
            return None
        time, prompt, output = required(
            lines,
            record,
            "metadata.request_start_ns",
            "metrics.input_sequence_length.value",
            "metrics.output_sequence_length.value",
        )
        session = record["metadata"].get("conversation_id")
        return Row(
            time_ns(lines, "metadata.request_start_ns", time, "ns"),
            count(lines, "metrics.input_sequence_length", _whole(prompt)),
            count(lines, "metrics.output_sequence_length", _whole(output)),
            session=name_of_session(lines, "metadata.conversation_id", session),
        )

    yield from lines.each(lines, convert)


def _whole(value: Any) -> Any:
    """Counts go through floats there."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_guidellm_bench(lines: Lines, _options: Options) -> Iterator[Row]:
    """GuideLLM's benchmarks.json with one benchmark: prompt_tokens, output_tokens and the start of its requests.

    Taken are the requests that were successful; their start, in seconds, is request_start_time or start_time.
    """
    (runs,) = required(lines, _only_one(lines), "benchmarks")
    if not isinstance(runs, list) or len(runs) != 1 or not isinstance(runs[0], dict):
        found = len(runs) if isinstance(runs, list) else 0
        lines.refuse(f"benchmarks must be a list of one benchmark, got {found}: cut out the one to replay")
    (requests,) = required(lines, runs[0], "requests.successful")
    if not isinstance(requests, list):
        lines.refuse("requests.successful must be a list")

    def convert(numbered: tuple[int, Any]) -> Row:
        index, request = numbered
        lines.item = f"requests[{index}]"
        if not isinstance(request, dict):
            lines.refuse("must be a JSON object")
        start = "request_start_time" if "request_start_time" in request else "start_time"
        time, prompt, output = required(lines, request, start, "prompt_tokens", "output_tokens")
        return Row(
            time_ns(lines, start, time, "s"),
            count(lines, "prompt_tokens", prompt),
            count(lines, "output_tokens", output),
        )

    yield from lines.each(enumerate(requests), convert)


def read_inference_perf(lines: Lines, _options: Options) -> Iterator[Row]:
    """inference-perf's per_request_lifecycle_metrics.json: start_time (s), info.input_tokens, info.output_tokens."""

    def convert(request: dict[str, Any]) -> Row:
        time, prompt, output = required(lines, request, "start_time", "info.input_tokens", "info.output_tokens")
        return Row(
            time_ns(lines, "start_time", time, "s"),
            count(lines, "info.input_tokens", prompt),
            count(lines, "info.output_tokens", output),
        )

    yield from lines.each(json_documents(lines), convert)


def _only_one(lines: Lines) -> dict[str, Any]:
    documents = list(json_documents(lines))
    if len(documents) != 1:
        lines.refuse_file(f"must be the result of one run, got {len(documents)}")
    return documents[0]
