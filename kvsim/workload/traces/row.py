"""What every format is read into."""

from typing import NamedTuple

from kvsim.workload.request import Content


class Row(NamedTuple):
    """One request of a trace, times in nanoseconds from any origin; what the file does not say is None."""

    time_ns: int | None
    prompt_tokens: int
    output_tokens: int | None
    prompt: Content | None = None
    output: Content | None = None
    session: str | None = None
