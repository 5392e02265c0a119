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
from tests.replay_clocked import NAMES_BLOCKS, is_in_scope, replay_clocked

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


def check_case_in_chains(case: Case, *, fast_forward: bool, check: bool = True) -> Difference | None:
    """The same for the clocked scheduler and chains of blocks, in everything but block ids."""
    got = replay_clocked(case, fast_forward=fast_forward, check=check)
    if "steps" not in case:
        return next(_differing("end", SCALE_FIELDS, case, got), None)
    if got.get("runs_on"):
        return Difference("end", "truncated", False, True)
    untold = {*NAMES_BLOCKS, *(["keys"] if fast_forward else [])}
    steps = [{name: value for name, value in step.items() if name not in untold} for step in case["steps"]]
    untold |= {"stalled"} if case.get("truncated") else set()
    told = {name: value for name, value in case.items() if name not in untold}
    return first_difference(told | {"steps": steps}, {name: got[name] for name in got if name not in untold})


def first_difference(expected: Case, got: Case) -> Difference | None:
    """Compare two logs; fields that a log does not keep at all are not compared, empty ones may be left out."""
    optional = [name for name in ("alloc", "tables", "keys", "free_queue") if not _is_logged(expected, name)]
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
    parser.add_argument("--step", action="store_true", help="chains of blocks step by step, without windows")
    options = parser.parse_args(arguments)
    in_chains = "in chains of blocks, " + ("step by step" if options.step else "with windows")
    compared = {"block by block": 0, in_chains: 0}
    matching = dict(compared)
    for path in case_files(options.folder):
        case = read_case(path)
        checks = {"block by block": check_case(case)}
        if is_in_scope(case):
            checks[in_chains] = check_case_in_chains(case, fast_forward=not options.step)
        for form, difference in checks.items():
            compared[form] += 1
            matching[form] += difference is None
            if difference is not None:
                print(f"{case['name']}{', ' + form if form == in_chains else ''}: {difference}")
    print(f"{matching['block by block']} of {compared['block by block']} match")
    if compared[in_chains]:
        print(f"{matching[in_chains]} of {compared[in_chains]} match {in_chains}")
    if not any(compared.values()):
        print(f"no case in {options.folder}", file=sys.stderr)
    return 0 if any(compared.values()) and matching == compared else 1


if __name__ == "__main__":
    sys.exit(main())
