"""What must hold of the results of any run."""

import polars as pl

from kvsim.engine.results import Results

OUTCOMES = {"finished", "cut", "rejected", "timed_out", "aborted", "unfinished"}


def check_conservation(results: Results) -> None:
    """Every byte and every request is somewhere, once."""
    timeline = results.timeline
    rows = timeline.select(
        pool=(pl.col("allocated_bytes") + pl.col("cached_bytes") + pl.col("blank_bytes") == pl.col("pool_bytes")).all(),
        live=(pl.col("live_bytes") + pl.col("slack_bytes") == pl.col("allocated_bytes")).all(),
        slack=(
            pl.sum_horizontal("tail_bytes", "reserved_bytes", "unused_bytes", "padding_bytes") == pl.col("slack_bytes")
        ).all(),
        logical=(
            pl.sum_horizontal("live_bytes", "window_saving_bytes", "shared_saving_bytes") == pl.col("logical_bytes")
        ).all(),
        time=(pl.col("time_ns").diff().drop_nulls() > 0).all(),
    ).row(0, named=True)
    assert rows == dict.fromkeys(rows, True)
    levels = timeline.select(pl.exclude("shared_saving_bytes")).min().row(0, named=True)
    assert min(levels.values()) >= 0, levels
    assert (timeline["shared_saving_bytes"] >= 0).all()

    requests = results.requests
    assert set(requests["outcome"].unique()) <= OUTCOMES
    assert requests["request_id"].n_unique() == requests.height == results.metrics["requests"]
    assert sum(int(results.metrics[outcome] or 0) for outcome in OUTCOMES) == requests.height
    finished = requests.filter(pl.col("outcome") == "finished")
    assert (finished["generated_tokens"] == finished["output_tokens"]).all()

    # At most one request is blocked at a time, and only while it waits.
    head_refused = timeline.filter(pl.col("waiting") > 0).height
    assert requests["blocked_ns"].sum() <= timeline["time_ns"][-1] if head_refused else True
    assert (requests.filter(pl.col("refusals") == 0)["blocked_ns"] == 0).all()

    events = timeline.select("arrived", "admitted", "preempted", "refused", "finished").sum().row(0, named=True)
    assert events["arrived"] == requests.height
    assert events["admitted"] == requests["admitted_ns"].is_not_null().sum()
    assert events["preempted"] == requests["preemptions"].sum()
    assert events["refused"] == requests["refusals"].sum()
    assert events["finished"] == results.metrics["finished"] + results.metrics["cut"]  # type: ignore[operator]

    if results.stalled is None:
        assert results.metrics["unfinished"] == 0
        end = timeline.row(-1, named=True)
        empty = ("allocated_bytes", "live_bytes", "slack_bytes", "logical_bytes", "running", "waiting")
        assert {name: end[name] for name in empty} == dict.fromkeys(empty, 0)
