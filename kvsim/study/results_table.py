"""The figures of a run as a person reads them on a console."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.engine.results import CLAIM, Results
from kvsim.memory.extents import DEFAULT_PLACEMENT
from kvsim.study.scenario import named_overrides
from kvsim.study.written import written_bytes, written_number, written_share, written_time
from kvsim.units import format_bytes


class Row(NamedTuple):
    """What it is, the figure (of a level: its mean over time), the most of it, what it means."""

    name: str
    figure: str
    most: str
    meaning: str


class Section(NamedTuple):
    """Rows that belong together; `heading` also says what the columns of figures are."""

    heading: Row
    rows: list[Row]


def sections(results: Results) -> list[Section]:
    """A short answer: what a token costs, the pool, what traffic made of it, what became of the requests."""
    return [
        Section(Row("Model and pool", "", "", ""), _model_rows(results)),
        Section(Row("Memory over time", "mean", "most", ""), _memory_rows(results)),
        Section(Row("Requests", "", "most", ""), _request_rows(results)),
    ]


def results_table(results: Results) -> RenderableType:
    """The sections as one table, under the question, and what must be said beside it."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for heading, rows in sections(results):
        table.add_row(*(Text(cell, style="bold") for cell in heading))
        for row in rows:
            table.add_row(f"  {row.name}", row.figure, row.most, row.meaning)
    headings = [Text(str(results.description["question"]), style="bold")]
    if overrides := named_overrides(results.description["overrides"]):
        headings.append(Text(overrides))
    return Group(*headings, Padding(table, (1, 0)), *_remarks(results))


def _model_rows(results: Results) -> list[Row]:
    shape = results.shape
    geometry = results.description["geometry"]
    usable = shape.usable_blocks
    memory = results.description["scenario"]["memory"]
    times_the_pool = results.worst_case_bytes / shape.pool_bytes
    devices = geometry["num_devices"]
    groups = geometry["groups"]
    tokens = f" = {usable * shape.block_size:,} tokens" if len(groups) == 1 else ""
    each = "" if devices == 1 else f" on each of {devices:,} devices"
    if memory["allocator"] == "paged":
        pool = [
            Row("block", format_bytes(shape.block_bytes), "", f"{shape.block_size:,} tokens{_of_groups(results)}"),
            Row(
                "pool",
                format_bytes(shape.pool_bytes),
                "",
                f"{usable:,} blocks{tokens}{each}, after the null block",
            ),
        ]
    else:
        placement = memory.get("placement", DEFAULT_PLACEMENT)
        pool = [
            Row("allocator", memory["allocator"], "", f"reserves an extent for each request, placed by {placement}"),
            Row("pool", format_bytes(shape.pool_bytes), "", f"{usable:,} slots of a token{each}"),
        ]
    return [
        Row("bytes per token", f"{shape.token_bytes:,} B", "", f"{geometry['name']}{each}: {geometry['formula']}"),
        *pool,
        Row(
            "worst case",
            format_bytes(results.worst_case_bytes),
            "",
            f"max_num_seqs requests of max_model_len tokens: {times_the_pool:,.2f} x the pool",
        ),
    ]


def _of_groups(results: Results) -> str:
    """How many groups of layers draw blocks from the pool, where it is more than one."""
    counts = Counter(group["kind"].replace("_", " ") for group in results.description["geometry"]["groups"])
    if counts.total() == 1:
        return ""
    return " in one of " + " and ".join(f"{count} {kind}" for kind, count in counts.items()) + " groups of layers"


def _memory_rows(results: Results) -> list[Row]:
    metrics = results.metrics
    meanings = {
        "allocated": "in blocks that requests hold",
        "live": "written tokens in them, each slot once",
        "slack": "allocated and not written",
        "padding": "slack in blocks of groups with fewer layers",
        "reserved": "slack for tokens still to come",
        "unused": "slack reserved and never used",
        "external": "free, and no extent large enough for the head of the queue",
        "cached": "held by nobody, kept for prefix hits",
        "logical": "computed tokens as if nothing were shared or dropped",
        "window_saving": "dropped by windows",
        "shared_saving": "held once for several requests",
        "host": "on the host, of requests that were swapped out",
    }
    only_where_there_is_any = {"padding", "reserved", "unused", "external", "window_saving", "host"}
    levels = [
        Row(
            level.replace("_", " "),
            written_bytes(metrics[f"{level}_mean_bytes"]),
            written_bytes(metrics[f"{level}_peak_bytes"]),
            meaning,
        )
        for level, meaning in meanings.items()
        if level not in only_where_there_is_any or metrics[f"{level}_peak_bytes"]
    ]
    return [
        *levels,
        *_output_rows(results),
        Row(
            "pool used",
            written_share(metrics["pool_used_mean"]),
            written_share(metrics["pool_used_peak"]),
            "allocated / pool",
        ),
        Row(
            "utilization",
            written_share(metrics["utilization"]),
            "",
            f"live / allocated; {written_share(metrics['utilization_at_peak'])} when most is allocated",
        ),
        Row(
            "fragmentation",
            written_share(metrics["slack_share"]),
            "",
            f"slack / allocated{_split(metrics)}; "
            f"{written_share(metrics['slack_share_at_peak'])} when most is allocated",
        ),
    ]


def _split(metrics: Mapping[str, int | float | None]) -> str:
    """Slack by its kinds, where memory is reserved."""
    if not metrics["reserved_peak_bytes"] and not metrics["unused_peak_bytes"]:
        return ""
    return f": reserved {written_share(metrics['reserved_share'])}, unused {written_share(metrics['unused_share'])}"


def _output_rows(results: Results) -> list[Row]:
    """What outputs of the same prompt share, where there are several."""
    metrics = results.metrics
    if results.totals.unshared is None:
        return []
    block_bytes = results.shape.block_bytes
    most = [(metrics[name] or 0) // block_bytes for name in ("allocated_peak_bytes", "sample_unshared_peak_bytes")]
    return [
        Row(
            "without sharing",
            written_bytes(metrics["sample_unshared_mean_bytes"]),
            written_bytes(metrics["sample_unshared_peak_bytes"]),
            f"blocks if every output had its own; at most {most[1]:,}, and {most[0]:,} with sharing",
        ),
        Row(
            "saved by sharing",
            written_share(metrics["sample_saved_share"]),
            "",
            f"of the blocks without it; blocks copied: {metrics['sample_copies']:,}",
        ),
    ]


def _request_rows(results: Results) -> list[Row]:
    """Those that went well, then each way in which others did not; outcomes that are rare only where they occur."""
    metrics = results.metrics
    reasons = {
        "prompt of max_model_len or more": metrics["rejected_prompt_too_long"],
        "could never fit the pool": metrics["rejected_never_fits"],
        "queue full": metrics["rejected_queue_full"],
    }
    why_rejected = ", ".join(f"{reason}: {count:,}" for reason, count in reasons.items() if count)
    why_held = ", ".join(f"{cause} {steps:,}" for cause, steps in _held_back(results).items())
    lengths = f"{metrics['prompt_mean_tokens']:,.0f} prompt and {metrics['output_mean_tokens']:,.0f} output tokens"
    rows = [
        _counted("arrived", metrics["requests"], f"{lengths} on average"),
        _counted("finished", metrics["finished"], "with their whole output"),
        _counted("cut", metrics["cut"], "ended at max_model_len"),
        _counted("rejected", metrics["rejected"], why_rejected or "turned away on arrival"),
        _counted(
            "refused",
            metrics["refused"],
            f"by memory at the head of the queue, which it blocked for {written_time(metrics['blocked_ns'])} in all",
        ),
        _counted("timed out", metrics["timed_out"], "waited too long for admission"),
        _counted("aborted", metrics["aborted"], "their clients hung up"),
        _counted("unfinished", metrics["unfinished"], "left when nothing could move any more"),
        _counted(
            "preempted",
            metrics["preempted"],
            f"preemptions: {metrics['preemptions']:,}; tokens computed again: {metrics['recomputed_tokens']:,}",
        ),
        *_moves(metrics),
        _counted(
            "swapped",
            metrics["swaps"],
            f"times, {written_bytes(metrics['swapped_out_bytes'])} out and "
            f"{written_bytes(metrics['swapped_in_bytes'])} back in; "
            f"computed again as the host was full: {metrics['swap_fallbacks']:,} times",
        ),
        Row(
            "prefix hits",
            written_share(metrics["hit_share"]),
            "",
            f"of prompt tokens at first admission: {metrics['hit_tokens']:,} tokens",
        ),
        Row(
            "waiting time",
            written_time(metrics["waited_mean_ns"]),
            written_time(metrics["waited_max_ns"]),
            f"of the admitted; median {written_time(metrics['waited_p50_ns'])}, "
            f"99 % {written_time(metrics['waited_p99_ns'])}",
        ),
        Row(
            "queue",
            written_number(metrics["waiting_mean"]),
            f"{metrics['waiting_peak']:,}",
            "waiting at once, mean and most",
        ),
        Row(
            "held back",
            f"{sum(_held_back(results).values()):,}",
            "",
            f"steps that admitted nobody more, for: {why_held}",
        ),
        Row(
            "batched",
            written_number(metrics["batched_mean"]),
            f"{metrics['running_peak']:,}",
            "running at once, while any run",
        ),
        Row("simulated", written_time(metrics["duration_ns"]), "", f"{metrics['steps']:,} engine steps"),
    ]
    rare = {"cut", "aborted", "unfinished"}
    if not metrics["swap_fallbacks"]:
        rare.add("swapped")
    return [row for row in rows if row.name not in rare or row.figure != "0"]


def _moves(metrics: Mapping[str, int | float | None]) -> list[Row]:
    moved = metrics["moved_bytes"]
    return [Row("moved", written_bytes(moved), "", "copied for requests that outgrew their extent")] if moved else []


def _held_back(results: Results) -> dict[str, int]:
    """Steps by what held back the head of the queue: where it is not memory, compute is short and not memory."""
    metrics = results.metrics
    causes = {
        "memory refused": "refusals",
        "tokens of the step used up": "held_back_by_token_budget",
        "seats taken": "held_back_by_max_num_seqs",
        "preempting": "held_back_by_preemption",
    }
    return {cause: int(metrics[name] or 0) for cause, name in causes.items()}


def _remarks(results: Results) -> list[Text]:
    remarks = [Text(f"Note: {note}", style="yellow") for note in results.notes]
    if results.stalled is not None:
        remarks.append(Text(f"Stopped: {results.stalled}", style="bold red"))
    remarks.append(Text(CLAIM, style="dim italic"))
    return remarks


def _counted(name: str, count: int | float | None, meaning: str) -> Row:
    return Row(name, f"{count:,}", "", meaning)
