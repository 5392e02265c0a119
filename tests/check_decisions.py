"""Replays recorded cases and compares every logged field: `python -m tests.check_decisions DIR`.

DIR holds cases in the format of tests/golden/vllm_scheduler/README.md, long runs in DIR/scale. Prints the first
difference of each case that does not match, and ends with 1 if there is any.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.replay import Case, read_case, replay, replay_scale

# What was decided, before what follows from it.
STEP_FIELDS = (
    "step",
    "aborted",
    "sched",
    "new",
    "resumed",
    "preempted",
    "running",
    "waiting",
    "free",
    "nblocks",
    "alloc",
    "tables",
    "keys",
    "finished",
    "free_end",
    "free_queue",
)
END_FIELDS = ("outcome", "stalled", "truncated", "rejected_by_front_end", "final_free_queue")
SCALE_FIELDS = ("totals", "digests")


class Difference(NamedTuple):
    """`where` is "step 12", or "end" for what is said of the whole run; `field` may point at an item: "sched[2]"."""

    where: str
    field: str
    expected: object
    got: object

    def __str__(self) -> str:
        return f"{self.where}, {self.field}: expected {self.expected}, got {self.got}"


def case_files(folder: Path) -> list[Path]:
    """Short cases first, long runs last."""
    files = [path for path in folder.glob("*.json*") if path.name.endswith((".json", ".json.gz"))]
    return sorted(files) + sorted((folder / "scale").glob("*.json.gz"))


def check_case(case: Case, *, check: bool = True) -> Difference | None:
    """The first difference between what is recorded and what the simulation decides."""
    if "steps" not in case:
        return next(_differing("end", SCALE_FIELDS, case, replay_scale(case)), None)
    return first_difference(case, replay(case, check=check))


def first_difference(expected: Case, got: Case) -> Difference | None:
    """Compare two logs; fields that a log does not keep at all are not compared, empty ones may be left out."""
    optional = [name for name in ("tables", "keys", "free_queue") if not _is_logged(expected, name)]
    if _is_logged(expected, "tables"):
        optional.append("alloc")  # whole tables stand instead of it
    fields = tuple(name for name in STEP_FIELDS if name not in optional)
    expected_steps, got_steps = expected["steps"], got["steps"]
    for expected_step, got_step in zip(expected_steps, got_steps, strict=False):
        for difference in _differing(f"step {expected_step['step']}", fields, expected_step, got_step):
            return difference
    if len(expected_steps) != len(got_steps):
        return Difference("end", "number of steps", len(expected_steps), len(got_steps))
    return next(_differing("end", END_FIELDS, expected, got), None)


def _is_logged(log: Case, name: str) -> bool:
    return any(name in step for step in log["steps"])


def _differing(where: str, fields: tuple[str, ...], expected: Case, got: Case) -> Iterator[Difference]:
    for name in fields:
        a, b = expected.get(name), got.get(name)
        if (a or None) == (b or None):
            continue
        if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
            index = next(i for i in range(len(a)) if a[i] != b[i])
            name, a, b = f"{name}[{index}]", a[index], b[index]
        yield Difference(where, name, a, b)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.check_decisions", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with recorded cases")
    parser.add_argument("--step", action="store_true", help="step by step: so far the only way that a run is simulated")
    folder = parser.parse_args(arguments).folder
    compared = matching = 0
    for path in case_files(folder):
        case = read_case(path)
        compared += 1
        difference = check_case(case)
        if difference is None:
            matching += 1
        else:
            print(f"{case['name']}: {difference}")
    print(f"{matching} of {compared} match")
    if not compared:
        print(f"no case in {folder}", file=sys.stderr)
    return 0 if compared and matching == compared else 1


if __name__ == "__main__":
    sys.exit(main())
