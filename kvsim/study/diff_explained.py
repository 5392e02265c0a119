"""What a difference between two runs is explained by: figures, and what each of their causes means."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, get_args

from kvsim.engine.metrics import METRICS, SAMPLE_METRICS
from kvsim.engine.results import Results
from kvsim.engine.state import Outcome, RejectReason
from kvsim.engine.step import HeldBack
from kvsim.errors import KvsimError
from kvsim.memory.allocator import LeastChange
from kvsim.study import diff_parts

Kind = Literal["outcome", "waste", "queue", "memory", "run", "peak"]
"""What a figure tells of: what became of requests, memory that serves nobody, what held back the head of the queue,
memory in use, time and traffic of the run, or the moment at which most was allocated. A reader wants them in this
order; peaks of two runs are at different moments, and say the least of what the runs differ in."""

_MEANINGS = {metric.name: metric.meaning for metric in (*METRICS, *SAMPLE_METRICS)}


class Explained(NamedTuple):
    """A figure that is taken apart: its name (of METRICS, where it is one), how a sentence calls it, which names what
    is counted, its unit (as those of METRICS), and what each part means. `out_of` is what all that there was of its
    kind is called, `has_share` whether people are told the share of it, and `counted` how the parts are told apart,
    where that is not plain. Parts that are taken off the others are named in `lessening`.
    """

    name: str
    kind: Kind
    title: str
    unit: str
    out_of: str
    of: Callable[[Results], diff_parts.Whole | None]
    meanings: Mapping[str, str]
    has_share: bool = False
    counted: str = ""
    lessening: tuple[str, ...] = ()


_PARTS_OF_SLACK = {
    part: _MEANINGS[f"{part}_mean_bytes"].partition(";")[0].removesuffix(" (0 when paged)")
    for part in diff_parts.SLACK_PARTS
}
_PARTS_OF_ALLOCATED = {
    "live": "written in allocated blocks, each slot once",
    **_PARTS_OF_SLACK,
}
_EXTERNAL = "free, and no extent of it large enough for the head of the queue"
_REFUSED_FOR = {cause: _MEANINGS[f"refusals_for_{cause}"] for cause in get_args(LeastChange)}
_MOST_OFTEN = "each request for what refused it most often"

EXPLAINED: tuple[Explained, ...] = (
    Explained(
        "lost",
        "outcome",
        "requests lost",
        "requests",
        "all requests",
        diff_parts.lost,
        {
            **{f"rejected_{reason}": _MEANINGS[f"rejected_{reason}"] for reason in get_args(RejectReason)},
            **{outcome: _MEANINGS[outcome] for outcome in diff_parts.LOST},
        },
        has_share=True,
        counted="rejected, timed out, hung up or left unfinished",
    ),
    Explained(
        "refused",
        "outcome",
        "requests refused by memory",
        "requests",
        "all requests",
        diff_parts.refused,
        _REFUSED_FOR,
        has_share=True,
        counted=f"made to wait at least once; {_MOST_OFTEN}",
    ),
    Explained(
        "preemptions",
        "outcome",
        "preemptions",
        "times",
        "all requests",
        diff_parts.preemptions,
        {
            "recomputed": "to be computed again",
            "swaps": "to the host instead",
            "swap_fallbacks": "computed again as the host was full",
        },
    ),
    Explained(
        "queued_ns",
        "outcome",
        "waiting time of all requests",
        "ns",
        "the time of all requests in engine and queue",
        diff_parts.queued,
        {
            "to_admission": "from arrival to first admission",
            "in_vain": "of requests that were never admitted",
            "after_preemption": "again, after a preemption",
        },
    ),
    Explained(
        "hit_tokens",
        "outcome",
        "prompt tokens found cached",
        "tokens",
        "prompt tokens",
        diff_parts.hits,
        {"admitted": "prompt tokens of admitted requests", "not_found": "less what the prefix cache did not have"},
        has_share=True,
        counted="prefix hits at first admission",
        lessening=("not_found",),
    ),
    Explained(
        "slack_mean_bytes",
        "waste",
        "slack on average",
        "bytes",
        "allocated memory",
        diff_parts.slack,
        _PARTS_OF_SLACK,
        has_share=True,
        counted="allocated and not written",
    ),
    Explained(
        "external_mean_bytes",
        "waste",
        "unusable free memory",
        "bytes",
        "the pool",
        diff_parts.external,
        {"external": _EXTERNAL},
        has_share=True,
        counted=f"on average; {_EXTERNAL}",
    ),
    Explained(
        "blocked_ns",
        "queue",
        "time memory blocked the queue",
        "ns",
        "the simulated time",
        diff_parts.blocked,
        _REFUSED_FOR,
        has_share=True,
        counted=f"its head was refused; {_MOST_OFTEN}",
    ),
    Explained(
        "held_back_steps",
        "queue",
        "steps holding back the queue",
        "steps",
        "all steps",
        diff_parts.held_back,
        {**_REFUSED_FOR, **{cause: _MEANINGS[f"held_back_by_{cause}"] for cause in get_args(HeldBack)}},
        counted="its head was refused, or not even tried",
    ),
    Explained(
        "allocated_mean_bytes",
        "memory",
        "allocated memory on average",
        "bytes",
        "the pool",
        diff_parts.allocated,
        _PARTS_OF_ALLOCATED,
        has_share=True,
    ),
    Explained(
        "live_mean_bytes",
        "memory",
        "live memory on average",
        "bytes",
        "the pool",
        diff_parts.live,
        {
            "logical": "computed tokens as if nothing were shared",
            "window_saving": "less what windows have passed and given back",
            "shared_saving": "less what is held once for several requests",
        },
        lessening=("window_saving", "shared_saving"),
    ),
    Explained(
        "sample_unshared_mean_bytes",
        "memory",
        "memory without output sharing",
        "bytes",
        "the pool",
        diff_parts.unshared,
        {"allocated": "in blocks that a request holds", "saved": "saved by sharing"},
        counted="on average, if outputs shared nothing",
    ),
    Explained(
        "pool_shares",
        "memory",
        "what the pool consists of",
        "share",
        "the pool",
        diff_parts.pool_shares,
        {
            **_PARTS_OF_ALLOCATED,
            "external": _EXTERNAL,
            "cached": "held by nobody but still findable by key",
            "blank": "free, beside what is external",
        },
        counted="on average",
    ),
    Explained(
        "requests",
        "run",
        "requests that arrived",
        "requests",
        "all requests",
        diff_parts.by_outcome,
        {outcome: _MEANINGS[outcome] for outcome in get_args(Outcome)},
    ),
    Explained(
        "duration_ns",
        "run",
        "simulated time",
        "ns",
        "the simulated time",
        diff_parts.duration,
        {"busy": "while requests run", "idle": "while none runs"},
    ),
    Explained(
        "allocated_peak_bytes",
        "peak",
        "allocated memory at its peak",
        "bytes",
        "the pool",
        diff_parts.allocated_at_peak,
        _PARTS_OF_ALLOCATED,
        counted="at the first moment at which most was allocated, another one in each run",
    ),
)
"""What a difference between two runs is explained by. No part of a figure is left over, and none is counted twice."""


def wholes_of(results: Results) -> dict[str, diff_parts.Whole]:
    """The figures of a run that have a value, by name. The tables of the run must have been kept.

    Raises KvsimError for tables that kvsim has not written so: parts that do not add up.
    """
    wholes = {}
    for explained in EXPLAINED:
        whole = explained.of(results)
        if whole is None:
            continue
        if sum(whole.parts.values()) != whole.value:
            raise KvsimError(f"the tables of a run contradict each other: the parts of {explained.name} do not add up")
        wholes[explained.name] = whole
    return wholes
