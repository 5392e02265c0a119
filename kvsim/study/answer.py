"""The answer of one run in a few sentences made of its figures."""

from collections.abc import Iterator

from kvsim.engine.results import Results
from kvsim.study.written import written_bytes, written_share, written_time


def answer(results: Results) -> str:
    """What became of the requests, how much memory they took, and what of it was waste or saved."""
    return " ".join(_sentences(results))


def _sentences(results: Results) -> Iterator[str]:
    metrics = results.metrics
    if results.stalled is not None:
        yield "The engine stopped for ever before all requests had ended."
    yield _requests(results)
    used, mean = written_share(metrics["pool_used_peak"]), written_bytes(metrics["allocated_mean_bytes"])
    yield (
        f"At most {written_bytes(metrics['allocated_peak_bytes'])} of the {written_bytes(metrics['pool_bytes'])} pool "
        f"({used}) were allocated, {mean} on average, of which {written_share(metrics['slack_share'])} was slack."
    )
    if metrics["hit_tokens"]:
        yield f"Prefix sharing found {written_share(metrics['hit_share'])} of prompt tokens."
    saved = metrics.get("sample_saved_share")
    if saved:
        yield f"Outputs that share saved {written_share(saved)} of the blocks they would take."


def _requests(results: Results) -> str:
    metrics = results.metrics
    lost = [
        f"{metrics[name]:,} {said}"
        for name, said in (
            ("rejected", "rejected"),
            ("timed_out", "timed out"),
            ("aborted", "aborted"),
            ("cut", "cut at max_model_len"),
            ("unfinished", "left unfinished"),
        )
        if metrics[name]
    ]
    finished = f"{metrics['finished']:,} of {metrics['requests']:,} requests finished"
    outcome = f"{finished} ({', '.join(lost)})" if lost else finished
    refused, preempted = metrics["refused"], metrics["preempted"]
    if not refused and not preempted:
        return f"Memory refused nobody and preempted nobody: {outcome}."
    blocked = f"for {written_time(metrics['blocked_ns'])} of {written_time(metrics['duration_ns'])}"
    said = []
    if refused:
        said.append(f"refused {refused:,} requests at the head of the queue, which they blocked {blocked},")
    if preempted:
        said.append(f"preempted {preempted:,}{'' if refused else ' requests'} ({metrics['preemptions']:,} times)")
    return f"Memory {' and '.join(said).rstrip(',')}; {outcome}."
