"""The names of allocators, as `kvsim waste` and `kvsim compare` are given them: paged:16, max:2048, pow2, oracle.

A name is a kind, and behind a colon what the kind is told:

    paged:B          blocks of B tokens, taken as they are written (PagedAttention)
    max[:LEN]        LEN slots for every request from its first step on, as if each became as long as any may
    pow2[:LEN]       its prompt, and the next power of two that its output fits in
    oracle           exactly the slots that it will have filled at its end
    predicted:ERROR  its prompt, and its output as foreseen by a guess that is ERROR times its length too long

max, pow2 and oracle are Orca (Max), Orca (Pow2) and Orca (Oracle) of the PagedAttention paper. LEN is the longest
request, prompt and output, that an allocator is asked to hold; without it that of the traffic holds. A longer request
is refused. As in the figures of the literature, pow2 is not cut at LEN: for a prompt of 1,000 and an output of 600
tokens pow2:2048 sets 2,024 slots aside, and for one of 1,030 and 600 tokens 2,054.

So it is in closed form, for `kvsim waste`. In a run, for `kvsim compare`, the longest request is engine.max_model_len,
where pow2 is cut, so that LEN is not said; and ERROR is memory.prediction_error, at most 1, by which a guess may be too
long or too short.
"""

import re
from fractions import Fraction
from typing import Literal, NamedTuple

from attrs import field, frozen

from kvsim.errors import KvsimError
from kvsim.rules import MAX_TOKENS, one_of, shown

MAX_ERROR = 5
"""A guess so many times too long is no prediction; and so the token-steps of any request stay within 64 bits."""

_WHOLE = re.compile(r"\d{1,30}", re.ASCII)
_SHARE = re.compile(r"\d(\.\d{1,6})?", re.ASCII)


class Kind(NamedTuple):
    """How the name is written in full, what it sets aside for a request, and what stands behind the colon, if anything
    may: a number of tokens or a share.
    """

    form: str
    about: str
    argument: str = ""
    takes: Literal["tokens", "share"] = "tokens"
    is_needed: bool = False


KINDS: dict[str, Kind] = {
    "paged": Kind("paged:B", "blocks of B tokens, taken as they are written", "block size B", is_needed=True),
    "max": Kind("max[:LEN]", "LEN slots, whatever the request", "LEN"),
    "pow2": Kind("pow2[:LEN]", "the prompt and the next power of two >= the output", "LEN"),
    "oracle": Kind("oracle", "the prompt and the output, exactly"),
    "predicted": Kind(
        "predicted:ERROR", "the prompt and the output guessed ERROR too long", "ERROR", "share", is_needed=True
    ),
}


@frozen
class AllocatorSpec:
    """An allocator by its kind; `argument` is in tokens, or for predicted a share of the output, None if not said."""

    kind: str = field(validator=one_of(KINDS))
    argument: int | Fraction | None = None

    @property
    def name(self) -> str:
        """As parse_allocator reads it, each allocator having one name: "paged:16"."""
        if self.argument is None:
            return self.kind
        # A share has six digits behind its point at most, which a float shows as they were written.
        if KINDS[self.kind].takes == "share":
            return f"{self.kind}:{f'{float(self.argument):.6f}'.rstrip('0').rstrip('.')}"
        return f"{self.kind}:{self.argument}"


def parse_allocator(text: str) -> AllocatorSpec:
    """The allocator of a name such as "paged:16". Raises KvsimError with the rule."""
    kind, colon, argument = text.strip().partition(":")
    if kind not in KINDS:
        raise KvsimError(f"an allocator must be one of {known_forms()}, got {shown(text)}")
    rule = KINDS[kind]
    if not colon and not rule.is_needed:
        return AllocatorSpec(kind)
    if not rule.argument:
        raise KvsimError(f"an allocator {rule.form} takes nothing behind its name, got {shown(text)}")
    read = _tokens if rule.takes == "tokens" else _share
    return AllocatorSpec(kind, read(f"the {rule.argument} of {rule.form}", argument))


def known_forms() -> str:
    return ", ".join(rule.form for rule in KINDS.values())


def parse_allocators(text: str) -> tuple[AllocatorSpec, ...]:
    """Those of a list such as "paged:16,max:2048,oracle", none of them twice. Raises KvsimError with the rule."""
    specs = tuple(parse_allocator(name) for name in text.split(","))
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise KvsimError(f"allocators must differ, got {name} {_times(names.count(name))}")
    return specs


def _tokens(what: str, text: str) -> int:
    tokens = int(text) if _WHOLE.fullmatch(text) else 0
    if not 1 <= tokens <= MAX_TOKENS:
        raise KvsimError(f"{what} must be a whole number of tokens from 1 to {MAX_TOKENS:,}, got {shown(text)}")
    return tokens


def _share(what: str, text: str) -> Fraction:
    error = Fraction(text) if _SHARE.fullmatch(text) else None
    if error is None or error > MAX_ERROR:
        raise KvsimError(
            f"{what} must be a share from 0 to {MAX_ERROR} with at most six decimals, such as 0.25, got {shown(text)}"
        )
    return error


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"
