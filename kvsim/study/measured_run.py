"""The run's side of a comparison with a real server: its tables as courses over time, in the meaning of vLLM's series.

vLLM's loggers report what is left when a step has ended, a row of the timeline what the step holds that begins then:
the two are apart by the blocks and requests of one step.
"""

from collections import deque

import numpy as np
import polars as pl

from kvsim.engine.results import Results
from kvsim.study.measured import Course, Simulated

RECENT_REQUESTS = 1_000
"""Of which vLLM's log has its hit rate (`CachingMetrics`)."""

_READ = ("time_ns", "allocated_bytes", "running", "waiting", "preempted", "finished")


def simulated(results: Results) -> Simulated:
    """Courses of what the tables of a run can say at any moment.

    No table says how many of its tokens a request has so far: `generation_tokens` has them when it ends, and
    `generating` tells at which moments that is all.
    """
    timeline = pl.concat(list(results.tables.parts("timeline", _READ)))
    times = timeline["time_ns"].to_numpy()

    def course(values: pl.Series) -> Course:
        return Course(times, values.to_numpy().astype(np.float64))

    requests = results.requests
    courses = {
        "kv_usage": Course(times, timeline["allocated_bytes"].to_numpy() / results.shape.pool_bytes),
        "running": course(timeline["running"]),
        "waiting": course(timeline["waiting"]),
        "preemptions": course(timeline["preempted"].cum_sum()),
        "finished": course(timeline["finished"].cum_sum()),
        "prompt_tokens": _counted(requests, "first_token_ns", "prompt_tokens"),
        "generation_tokens": _counted(requests, "ended_ns", "generated_tokens"),
    }
    if results.description["scenario"]["memory"].get("prefix_sharing", True):
        courses["queried_tokens"] = _counted(requests, "admitted_ns", "prompt_tokens")
        courses["hit_tokens"] = _counted(requests, "admitted_ns", "hit_tokens")
        courses["recent_hit_share"] = _recent_hit_share(requests)
    return Simulated(courses=courses, generating=_generating(requests), duration_ns=results.totals.duration_ns)


def _counted(requests: pl.DataFrame, when: str, what: str) -> Course:
    """The sum over requests for which it has happened, from the moment at which it did."""
    summed = requests.drop_nulls(when).group_by(when).agg(pl.col(what).sum()).sort(when)
    return Course(summed[when].to_numpy(), summed[what].cum_sum().to_numpy().astype(np.float64))


def _generating(requests: pl.DataFrame) -> Course:
    """How many requests have their first token and have not ended."""
    begun = requests.drop_nulls("first_token_ns")
    changes = pl.concat(
        [
            begun.select(time_ns="first_token_ns", change=pl.lit(1)),
            begun.drop_nulls("ended_ns").select(time_ns="ended_ns", change=pl.lit(-1)),
        ]
    )
    summed = changes.group_by("time_ns").agg(pl.col("change").sum()).sort("time_ns")
    return Course(summed["time_ns"].to_numpy(), summed["change"].cum_sum().to_numpy().astype(np.float64))


def _recent_hit_share(requests: pl.DataFrame) -> Course:
    """Hit rate as vLLM's log has it: of those admitted last, at least the last step's, else at most RECENT_REQUESTS."""
    steps = (
        requests.drop_nulls("admitted_ns")
        .group_by("admitted_ns")
        .agg(pl.len().alias("requests"), pl.col("prompt_tokens").sum(), pl.col("hit_tokens").sum())
        .sort("admitted_ns")
    )
    kept: deque[tuple[int, int, int]] = deque()
    num_requests = queried = hits = 0
    shares = []
    for step in steps.select("requests", "prompt_tokens", "hit_tokens").iter_rows():
        kept.append(step)
        num_requests, queried, hits = num_requests + step[0], queried + step[1], hits + step[2]
        while len(kept) > 1 and num_requests > RECENT_REQUESTS:
            old = kept.popleft()
            num_requests, queried, hits = num_requests - old[0], queried - old[1], hits - old[2]
        shares.append(hits / queried if queried else 0.0)
    return Course(steps["admitted_ns"].to_numpy(), np.array(shares, dtype=np.float64))
