"""How much of what allocators set aside for the requests of a trace is ever written, in closed form.

Each request is alone, has all its prompt from its first step on and is alive for `output` steps. After step
t = 1 ... output it holds prompt + t tokens, on purpose one more than an engine writes, so that the figures are those of
the literature; all steps of all requests weigh the same. The unit is the token-step: a slot of a token, held for a
step. There is no clock, no queue and no sharing.

    0            prompt       prompt + t     prompt + output     reserved
    |--------------|--------------|-----------------|----------------|
                 live               reserved: its own    unused: never
                                    later tokens

Paged, all that is not live is tail: the rest of the last block.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import Factory, asdict, define, field, frozen

from kvsim.errors import KvsimError, TraceError
from kvsim.rules import MAX_TOKENS, Consistent, between, out_of_order
from kvsim.study.allocators import AllocatorSpec
from kvsim.study.reuse import Ints
from kvsim.study.trace_file import TraceFile
from kvsim.workload.traces import Row
from kvsim.workload.traces.readers import reader_of

Bools = npt.NDArray[np.bool_]

MAX_TOTAL = 2 * MAX_TOKENS

ROWS_AT_ONCE = 65_536
"""Requests that are held at a time."""

LATER_TURNS = "later_turns"

_HALF = 32
"""Bits of the lower half of a number that is summed."""


@frozen(kw_only=True)
class Bounds(Consistent):
    """Which requests are kept, in tokens, each bound included; those of the figures of the literature."""

    min_prompt: int = field(default=4, validator=between(1, MAX_TOKENS))
    max_prompt: int = field(default=1024, validator=between(1, MAX_TOKENS))
    min_output: int = field(default=4, validator=between(1, MAX_TOKENS))
    max_total: int = field(default=2048, validator=between(2, MAX_TOTAL))

    @staticmethod
    def contradictions(values: Mapping[str, Any]) -> list[str]:
        sentences = out_of_order(values, "min_prompt", "max_prompt")
        if values["min_prompt"] + values["min_output"] > values["max_total"]:
            sentences.append(
                f"max_total must be >= min_prompt + min_output = {values['min_prompt'] + values['min_output']:,}, "
                f"got {values['max_total']:,}"
            )
        return sentences

    def broken(self, prompts: Ints, outputs: Ints) -> dict[str, Bools]:
        """For each bound, which of the requests break it."""
        return {
            "min_prompt": prompts < self.min_prompt,
            "max_prompt": prompts > self.max_prompt,
            "min_output": outputs < self.min_output,
            "max_total": prompts + outputs > self.max_total,
        }


@define
class AllocatorWaste:
    """What one allocator sets aside, in token-steps; the four parts add up to `allocated`."""

    spec: AllocatorSpec
    live: int = 0
    tail: int = 0
    """Unwritten slots of the last block."""
    reserved: int = 0
    """Slots that the request's own later tokens will fill."""
    unused: int = 0
    """Slots that are never filled."""
    beyond: int = 0
    """Requests for which pow2 sets more aside than its LEN, at which it is not cut."""

    @property
    def allocated(self) -> int:
        return self.live + self.tail + self.reserved + self.unused

    def share(self, part: str) -> float:
        """Of what is allocated; `part` is live, tail, reserved or unused."""
        return float(Fraction(getattr(self, part), self.allocated))

    def to_json(self) -> dict[str, Any]:
        return {
            "allocator": self.spec.name,
            "allocated_token_steps": self.allocated,
            **{f"{part}_share": self.share(part) for part in PARTS},
            **{f"{part}_token_steps": getattr(self, part) for part in PARTS},
        }


PARTS = ("live", "reserved", "unused", "tail")


@define
class Waste:
    """All that `kvsim waste` says. Of a request that breaks several bounds, the first in the order of `left_out`
    counts.
    """

    format: str
    bounds: Bounds
    first_turns: bool
    """Whether only the first request of each session counts."""
    turns_lack_history: bool
    """Whether later turns count, of which the file does not say what else their prompts hold."""
    allocators: tuple[AllocatorWaste, ...]
    kept: int = 0
    left_out: dict[str, int] = Factory(dict)
    live_token_steps: int = 0

    @property
    def num_rows(self) -> int:
        """Kept or left out; rows that were passed over as bad are not among them."""
        return self.kept + sum(self.left_out.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "rows_read": self.num_rows,
            "kept": self.kept,
            "left_out": self.left_out,
            "bounds": asdict(self.bounds),
            "first_turns": self.first_turns,
            "live_token_steps": self.live_token_steps,
            "rows": [each.to_json() for each in self.allocators],
        }

    def add(self, prompts: Ints, outputs: Ints) -> None:
        """Count these requests. Raises KvsimError for one that an allocator is too short for."""
        keep = np.ones(len(prompts), dtype=np.bool_)
        for bound, broken in self.bounds.broken(prompts, outputs).items():
            self.left_out[bound] = self.left_out.get(bound, 0) + int((keep & broken).sum())
            keep &= ~broken
        prompts, outputs = prompts[keep], outputs[keep]
        live = exact_sum(live_token_steps(prompts, outputs))
        self.kept += len(prompts)
        self.live_token_steps += live
        for each in self.allocators:
            each.live += live
            if each.spec.kind == "paged":
                assert isinstance(each.spec.argument, int), "paged has a block size"
                each.tail += exact_sum(paged_token_steps(prompts, outputs, each.spec.argument)) - live
            else:
                self._add_reserved(each, prompts, outputs)

    def _add_reserved(self, each: AllocatorWaste, prompts: Ints, outputs: Ints) -> None:
        longest = longest_length(each.spec, self.bounds)
        too_long = prompts + outputs > longest
        if too_long.any():
            raise _too_short(each.spec, longest, int((prompts + outputs)[too_long][0]))
        slots = RESERVE[each.spec.kind](prompts, outputs, each.spec, longest)
        each.reserved += exact_sum(outputs * (outputs - 1) // 2)
        each.unused += exact_sum((slots - prompts - outputs) * outputs)
        if each.spec.kind == "pow2" and each.spec.argument is not None:
            each.beyond += int((slots > longest).sum())


def longest_length(spec: AllocatorSpec, bounds: Bounds) -> int:
    """The longest request that an allocator is asked to hold: its LEN, or the longest that is kept."""
    return spec.argument if isinstance(spec.argument, int) else bounds.max_total


def _too_short(spec: AllocatorSpec, longest: int, total: int) -> KvsimError:
    return KvsimError(
        f"{spec.name} holds requests of at most {longest:,} tokens, got one of {total:,}; --max-total {longest} leaves "
        f"longer ones out"
    )


def _reserve_max(prompts: Ints, _outputs: Ints, _spec: AllocatorSpec, longest: int) -> Ints:
    return np.full_like(prompts, longest)


def _reserve_pow2(prompts: Ints, outputs: Ints, _spec: AllocatorSpec, _longest: int) -> Ints:
    # The exponent of a number as frexp gives it is how many bits it has; floats hold such lengths exactly.
    return prompts + (1 << np.frexp((outputs - 1).astype(np.float64))[1].astype(np.int64))


def _reserve_oracle(prompts: Ints, outputs: Ints, _spec: AllocatorSpec, _longest: int) -> Ints:
    return prompts + outputs


def _reserve_predicted(prompts: Ints, outputs: Ints, spec: AllocatorSpec, _longest: int) -> Ints:
    factor = 1 + Fraction(spec.argument or 0)
    return prompts - (-outputs * factor.numerator // factor.denominator)  # rounded up


RESERVE: dict[str, Callable[[Ints, Ints, AllocatorSpec, int], Ints]] = {
    "max": _reserve_max,
    "pow2": _reserve_pow2,
    "oracle": _reserve_oracle,
    "predicted": _reserve_predicted,
}
"""Slots that each request reserves from its first step to its last, by prompts, outputs, and the longest length."""


def live_token_steps(prompts: Ints, outputs: Ints) -> Ints:
    """The sum of prompt + t over t = 1 ... output, of each request."""
    return prompts * outputs + outputs * (outputs + 1) // 2


def paged_token_steps(prompts: Ints, outputs: Ints, block_size: int) -> Ints:
    """The sum of prompt + t, each rounded up to whole blocks, over t = 1 ... output, of each request."""
    return block_size * (_blocks_up_to(prompts + outputs, block_size) - _blocks_up_to(prompts, block_size))


def _blocks_up_to(tokens: Ints, block_size: int) -> Ints:
    """The sum of ceil(n / block_size) over n = 1 ... tokens."""
    full, rest = tokens // block_size, tokens % block_size
    return block_size * full * (full + 1) // 2 + rest * (full + 1)


def exact_sum(numbers: Ints) -> int:
    """Of numbers of up to 63 bits, whose sum may have more."""
    return (int((numbers >> _HALF).sum()) << _HALF) + int((numbers & (2**_HALF - 1)).sum())


def count_waste(
    trace: TraceFile,
    specs: Sequence[AllocatorSpec],
    bounds: Bounds | None = None,
    *,
    first_turns: bool | None = None,
    limit: int | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> Waste:
    """What each allocator would set aside for the requests of a trace, of which some are held at a time.

    `first_turns` keeps the first request of each session, as is done without being asked where the file does not say
    what else a later prompt holds. `limit` is of rows read. Raises KvsimError for a trace that cannot be read, lacks
    outputs or has no request within the bounds, and for an allocator that cannot hold one.
    """
    reader = reader_of(trace.format, trace.options)
    if first_turns is None:
        first_turns = reader.turns_apart
    if first_turns and "sessions" in reader.lacks:
        raise TraceError(
            f"{trace.path}: has no sessions: the format {trace.format} does not say which turn is the first"
        )
    if "outputs" in reader.lacks:
        raise _no_outputs(trace)
    waste = Waste(
        format=trace.format,
        bounds=bounds or Bounds(),
        first_turns=first_turns,
        turns_lack_history=reader.turns_apart and not first_turns,
        allocators=tuple(AllocatorWaste(spec) for spec in specs),
    )
    rows = islice(trace.lengths(by_time=first_turns), limit)
    for prompts, outputs in _parts(trace, _first_turns(rows, waste) if first_turns else rows):
        waste.add(prompts, outputs)
        if on_progress is not None:
            on_progress(waste.num_rows, None)
    _need_kept(trace, waste)
    return waste


def _first_turns(rows: Iterable[Row], waste: Waste) -> Iterator[Row]:
    """Those that belong to no session, or begin one; the others are counted as left out."""
    begun: set[str] = set()
    waste.left_out[LATER_TURNS] = 0
    for row in rows:
        if row.session is not None and row.session in begun:
            waste.left_out[LATER_TURNS] += 1
            continue
        if row.session is not None:
            begun.add(row.session)
        yield row


def _parts(trace: TraceFile, rows: Iterator[Row]) -> Iterator[tuple[Ints, Ints]]:
    """Prompt and output tokens of some requests at a time."""
    while True:
        prompts, outputs = array("q"), array("q")
        for row in islice(rows, ROWS_AT_ONCE):
            if row.output_tokens is None:
                raise _no_outputs(trace)
            prompts.append(row.prompt_tokens)
            outputs.append(row.output_tokens)
        if not prompts:
            return
        yield np.array(prompts, dtype=np.int64), np.array(outputs, dtype=np.int64)


def _no_outputs(trace: TraceFile) -> TraceError:
    return TraceError(f"{trace.path}: has no outputs, so how long its requests live is not known")


def _need_kept(trace: TraceFile, waste: Waste) -> None:
    if waste.kept:
        return
    if not waste.num_rows:
        raise TraceError(f"{trace.path}: has no requests" + (" but bad ones" if trace.reading.bad_rows else ""))
    raise TraceError(f"{trace.path}: none of its {waste.num_rows:,} requests is kept: {left_out_words(waste)}")


def left_out_words(waste: Waste) -> str:
    """How many requests were left out, and by which bound; "" if all were kept."""
    bounds = waste.bounds
    words = {
        LATER_TURNS: "later turns of a session",
        "min_prompt": f"with fewer than {bounds.min_prompt:,} prompt tokens",
        "max_prompt": f"with more than {bounds.max_prompt:,} prompt tokens",
        "min_output": f"with fewer than {bounds.min_output:,} output tokens",
        "max_total": f"with more than {bounds.max_total:,} tokens in all",
    }
    return ", ".join(f"{count:,} {words[bound]}" for bound, count in waste.left_out.items() if count)
