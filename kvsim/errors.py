"""Everything kvsim raises about its input.

    KvsimError                  one clear message; the command line prints it and exits with 2
      ScenarioError             all problems of one scenario file, a line each
      ModelError                a model config that cannot be read or makes no sense
        UnsupportedModelError   a readable config whose geometry it does not determine
      TraceError                a trace file
        TraceRowError           one of its rows, which `on_bad_row = "skip"` passes over
      MeasuredError             what a real server logged, and cannot be read or compared
      OutputError               a place that results cannot be written to

    InvariantError              a recount that was asked for found a defect of kvsim

Anything else that escapes is a defect of kvsim too.
"""


class KvsimError(Exception):
    """Input that kvsim refuses; `str(error)` is the whole message."""


class ScenarioError(KvsimError):
    """All problems of one scenario file: `problems` has one `path rule, got value` sentence each."""

    def __init__(self, source: str, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        if len(problems) == 1:
            super().__init__(f"{source}: {problems[0]}")
        else:
            listed = "".join(f"\n  {problem}" for problem in problems)
            super().__init__(f"{source}: {len(problems)} problems{listed}")


class ModelError(KvsimError):
    """A model config that cannot be read or contradicts itself."""


class UnsupportedModelError(ModelError):
    """A model config that does not determine how many bytes a token takes."""


class TraceError(KvsimError):
    """A trace file that cannot be read, or one of its lines."""


class TraceRowError(TraceError):
    """One row of a trace file; the message names its line and the rule it breaks."""


class MeasuredError(KvsimError):
    """What a real server logged, where it cannot be read or not be compared with a run."""


class OutputError(KvsimError):
    """A place that results cannot be written to."""


class InvariantError(Exception):
    """Invariant `number` does not hold; `invariants.py` lists them."""

    def __init__(self, number: int, sentence: str) -> None:
        # simpy makes the error of a process anew from its arguments.
        super().__init__(number, sentence)
        self.number = number
        self.sentence = sentence

    def __str__(self) -> str:
        return f"invariant {self.number} does not hold: {self.sentence}"
