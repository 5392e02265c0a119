"""An answer of the calculator as people read it: every text is made here, and app.js only puts it in its place."""

from collections.abc import Mapping
from typing import Any

from kvsim.model.accounting import Accounting
from kvsim.model.sizing import Sizing
from kvsim.study.sizing_table import formulas, ranks_counted, remarks
from kvsim.units import format_bytes
from kvsim.view.calculator_fields import Answer, counted

FIGURES = {"raw": "raw_bytes", "allocated": "allocated_bytes", "slack": "slack_bytes"}
"""The three numbers that everybody watches, and the key that `kvsim size --json` has them under."""


def texts_of(answer: Answer, before: Answer | None) -> dict[str, str]:
    """What is read in each place; `before` is the answer that the three numbers are compared with."""
    sizing, of, each = answer.sizing, answer.accounting, counted(answer.each)
    texts = {
        "title": f"{sizing.model}, {sizing.engine_name if sizing.engine else 'ideal'}, {ranks_counted(sizing)}",
        "token": f"{sizing.ideal.bytes_per_token:,} B",
        "formula": sizing.formula,
        "sequences": _sequences(sizing.num_sequences, sizing.num_tokens),
        "used": f"{of.used_share:,.2%} of {format_bytes(of.memory_bytes)}",
        "verdict": _verdict(answer),
        "most": _most(answer),
        "longest": _longest(answer),
        "raw_more": f"{format_bytes(each.raw_bytes)} each sequence",
        "allocated_name": "Allocated in blocks" if sizing.engine else "Allocated, ideally",
        "allocated_more": _allocated_more(sizing, each),
        "slack_more": f"{_slots(of)}; {of.slack_share:.2%} of what is allocated" if sizing.engine else "none, ideally",
        "formulas": "\n".join(formulas(sizing, answer.budget)),
        "remarks": "\n".join(remarks(sizing)),
        "chart": f"What {_number_of(sizing.num_sequences)} can hold{_when(of)}, by length ({answer.lines.name})",
        "asked_key": f"as asked, {format_bytes(of.peak_bytes)}{_when(of)}",
    }
    for name, key in FIGURES.items():
        now = getattr(of, key)
        texts[name] = format_bytes(now)
        texts[f"{name}_exact"] = f"{now:,} B"
        texts[f"{name}_was"] = "" if before is None else _was(getattr(before.accounting, key), now)
    return texts


def bar_of(answer: Answer) -> dict[str, str]:
    """Widths of a bar that is as long as the budget, or as what is allocated if that is more."""
    of = answer.accounting
    whole = max(of.memory_bytes, of.allocated_bytes)
    parts = {"raw": of.raw_bytes, "slack": of.slack_bytes, "budget": of.memory_bytes}
    return {name: f"{num_bytes / whole:.4%}" for name, num_bytes in parts.items()}


def marks_of(answer: Answer) -> dict[str, bool]:
    """What the page is to look like."""
    return {"over": not answer.accounting.sequences_fit}


def page_of(answer: Answer, before: Answer | None) -> Mapping[str, Any]:
    return {"texts": texts_of(answer, before), "widths": bar_of(answer), "marks": marks_of(answer)}


def _was(before: int, now: int) -> str:
    """Such as "was 1 GiB: 2 times as much" or "was 1 GiB: 128 KiB more"; a number that stayed says so."""
    if now == before:
        return "as before"
    was = f"was {format_bytes(before)}"
    if now == 0:
        return f"{was}: none now"
    if before and now % before == 0:
        return f"{was}: {now // before:,} times as much"
    if before and before % now == 0:
        return f"{was}: 1/{before // now:,} of it"
    return f"{was}: {format_bytes(abs(now - before))} {'more' if now > before else 'less'}" if before else was


def _number_of(sequences: int) -> str:
    return "1 sequence" if sequences == 1 else f"{sequences:,} sequences"


def _sequences(number: int, tokens: int) -> str:
    return f"{_number_of(number)} of {tokens:,} tokens" + ("" if number == 1 else " each")


def _when(of: Accounting) -> str:
    """Where the most that sequences hold is more than what they hold in the end."""
    return " while their prompts are computed" if of.peak_bytes > of.allocated_bytes else ""


def _allocated_more(sizing: Sizing, each: Accounting) -> str:
    if sizing.engine is None:
        return f"how {sizing.engine_name} lays these layers out is not known: no blocks, no padding"
    return f"{format_bytes(each.allocated_bytes)} each sequence"


def _slots(of: Accounting) -> str:
    """What is empty of last blocks, the part of slack that the length decides, and the part that the layers decide."""
    padding = f"; {format_bytes(of.padding_bytes)} pads smaller groups of layers" if of.padding_bytes else ""
    if not of.tail_slots:
        return f"no block that tokens fill{padding}"
    slots = " and ".join(f"{slots:,}" for slots in of.tail_slots)
    plural = "" if of.tail_slots == (1,) else "s"
    return f"{slots} slot{plural} empty in each last block{padding}"


def _verdict(answer: Answer) -> str:
    sizing, of = answer.sizing, answer.accounting
    asked = _sequences(sizing.num_sequences, sizing.num_tokens)
    if not of.sequences_fit:
        why = ": a block is held back" if of.allocated_bytes <= of.memory_bytes else ""
        return f"{asked} {'do' if sizing.num_sequences > 1 else 'does'} not fit{why}"
    if of.most_sequences < sizing.num_sequences:
        return f"{asked} fit once computed, not while all their prompts are"
    return f"{asked} fit" if sizing.num_sequences > 1 else f"{asked} fits"


def _most(answer: Answer) -> str:
    of, tokens = answer.accounting, answer.sizing.num_tokens
    most = f"{_number_of(of.most_sequences) if of.most_sequences else 'no sequence'} of {tokens:,} tokens"
    return most + _when(of)


def _longest(answer: Answer) -> str:
    """The longest that all sequences can be, and where the model itself ends if that comes first."""
    of, who = answer.accounting, _number_of(answer.sizing.num_sequences)
    longest, own = of.longest_of_sequences, answer.geometry.max_model_len
    if longest is None:
        return f"{who} of any length"
    if longest == 0:
        return f"{who}: not even of 1 token"
    ends = f" (the model ends at {own:,})" if own is not None and longest > own else ""
    return f"{who} of {longest:,} tokens{ends}{_when(of)}"
