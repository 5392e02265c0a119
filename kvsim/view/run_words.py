"""How far a run in the app is, and whose it is where somebody has gone on to edit, in words."""

from attrs import frozen

from kvsim.units import format_duration
from kvsim.view.draft import Draft
from kvsim.view.live_run import Ended, LiveRun, Seen


@frozen
class Ran:
    """The draft that a run was started from: its file, its text, and what it is called."""

    file: str
    text: str
    named: str

    @classmethod
    def of(cls, draft: Draft) -> "Ran":
        return cls(draft.file, draft.text, draft.named)

    def is_of(self, draft: Draft) -> bool:
        """Whether the draft still says what has run."""
        return (self.file, self.text) == (draft.file, draft.text)


def status(run: LiveRun | None, earlier: Ran | None, num_problems: int) -> str:
    """How far the run is, and what keeps the next one from being started.

    `earlier` is what it was started from, where that is not what is edited now.
    """
    many = "one problem is" if num_problems == 1 else f"{num_problems:,} problems are"
    waits = f"{many} to be solved before it can run" if num_problems else ""
    how_far = "" if run is None else _how_far(run)
    if earlier is not None and run is not None:
        # What was wrong with another text is of no use any more.
        how_far = "" if run.state == "refused" else f"run of {earlier.named}: {how_far}"
    return "; ".join(filter(None, (how_far, waits)))


def whose(run: LiveRun | None, earlier: Ran | None) -> str:
    """The line above figures and charts that are not of what is edited now; "" where they are."""
    if earlier is None or run is None:
        return ""
    if run.state == "running":
        return f"Charts of a run that goes on, not of what is edited now: {earlier.named}"
    return f"Figures and charts of an earlier run: {earlier.named}"


def _how_far(run: LiveRun) -> str:
    if run.state == "refused":
        return "not run to its end"
    if isinstance(run.latest, Seen):
        of = "" if run.latest.num_requests is None else f" of {run.latest.num_requests:,}"
        how_far = f"{run.latest.num_ended:,}{of} requests have ended, {format_duration(run.latest.time_ns)} simulated"
        return f"stopped: {how_far}" if run.state == "stopped" else how_far
    if isinstance(run.latest, Ended):
        metrics = run.latest.results.metrics
        return f"done: {metrics['requests']:,} requests in {format_duration(metrics['duration_ns'] or 0)} simulated"
    return "stopped" if run.state == "stopped" else "starting"
