"""What each request held at its end, how long it waited, and what it found in the prefix cache.

A request of P prompt tokens that has got G output tokens has P + G - 1 tokens in memory when it ends, as its last token
is never computed. What memory holds for so many is asked of the functions that size and simulate it. Where these cannot
say it of a request whose end alone is known, nothing is said.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import polars as pl
from attrs import frozen

from kvsim.engine.results import Results
from kvsim.memory.contiguous import RESERVE, Prediction
from kvsim.memory.samples import most_blocks_of_group
from kvsim.model.attention import Attention
from kvsim.study.outputs import is_grouped
from kvsim.workload.request import Request, Span


class Held(NamedTuple):
    """Blocks of a request in its last step, those included that it shares, and the bytes of them not written."""

    num_blocks: int
    slack_bytes: int


class Ended(NamedTuple):
    """A row of the requests table, as far as it says what the request held when it ended."""

    request_id: int
    prompt_tokens: int
    output_tokens: int
    generated_tokens: int
    preemptions: int

    @property
    def num_tokens(self) -> int:
        """All but the last, which is never computed."""
        return self.prompt_tokens + self.generated_tokens - 1


HeldAtEnd = Callable[[Ended], Held | None]
"""None where it hangs on more than the row says."""


@frozen(eq=False)
class AtEnd:
    """`requests` has a row for each request that finished or was cut: request_id, num_blocks and slack_bytes, null for
    `num_not_known` of them; `why_not_known` says why, "" where all are known.
    """

    requests: pl.DataFrame
    num_not_known: int
    why_not_known: str


def held_at_end(results: Results) -> AtEnd:
    """What each request that got to its end held in its last step; a shared block counts for each who holds it."""
    held, why_not_known = _layout(results)
    rows = results.requests.filter(pl.col("outcome").is_in(["finished", "cut"])).select(Ended._fields)
    at_end = [held(Ended(*row)) for row in rows.iter_rows()]
    columns = {
        "request_id": rows["request_id"],
        "num_blocks": pl.Series([None if one is None else one.num_blocks for one in at_end], dtype=pl.Int64),
        "slack_bytes": pl.Series([None if one is None else one.slack_bytes for one in at_end], dtype=pl.Int64),
    }
    num_not_known = at_end.count(None)
    return AtEnd(pl.DataFrame(columns), num_not_known, why_not_known if num_not_known else "")


def _layout(results: Results) -> tuple[HeldAtEnd, str]:
    """How memory was laid out, and of which requests it cannot be said."""
    memory = results.description["scenario"]["memory"]
    workload = results.description["scenario"]["workload"]
    if memory["allocator"] != "paged":
        return _extents(results, memory), "they outgrew what was reserved for them, and moved to where there was room"
    if is_grouped(memory.get("sample_sharing")):
        if workload.get("beam_width") is not None:
            return lambda _ended: None, "which blocks beams share is drawn while a run goes on"
        return _samples(results, memory["sample_sharing"] == "copy_on_write", workload["samples"]), ""
    return _blocks(results), (
        "their last step computed more than one token, and where it began says what their windows had passed"
    )


def _blocks(results: Results) -> HeldAtEnd:
    """Of all groups of layers. A window drops what it has passed before a step, so a last step of one token is told
    from its end; longer ones are of requests with one output token, and of those that were preempted.
    """
    shape = results.shape
    size = shape.block_size
    groups = [
        (Attention(group["kind"], group["window"]), group["bytes_per_token"])
        for group in results.description["geometry"]["groups"]
    ]

    @cache
    def held(num_tokens: int) -> Held:
        blocks, live_bytes = 0, 0
        for attention, token_bytes in groups:
            in_group = attention.blocks_held(num_tokens, size)
            dropped = -(-num_tokens // size) - in_group
            blocks += in_group
            live_bytes += (num_tokens - dropped * size) * token_bytes
        return Held(blocks, blocks * shape.block_bytes - live_bytes)

    def may_drop(num_tokens: int) -> bool:
        return any(attention.first_needed_token(num_tokens) >= size for attention, _bytes in groups)

    def at_end(ended: Ended) -> Held | None:
        is_last_alone = ended.generated_tokens > 1 and not ended.preemptions
        return held(ended.num_tokens) if is_last_alone or not may_drop(ended.num_tokens) else None

    return at_end


def _samples(results: Results, sharing: bool, num_seqs: int) -> HeldAtEnd:
    """Of a request that is a group of sequences. Each has a last block of its own once it has written behind the
    prompt.
    """
    shape = results.shape
    size = shape.block_size

    def at_end(ended: Ended) -> Held:
        prompt, tokens = ended.prompt_tokens, ended.num_tokens
        blocks = most_blocks_of_group(prompt, tokens, size, num_seqs, sharing=sharing)
        last_blocks = 1 if sharing and tokens <= prompt else num_seqs
        tail = last_blocks * (-tokens % size) * shape.token_bytes
        return Held(blocks, tail + blocks * (shape.block_bytes - size * shape.token_bytes))

    return at_end


def _extents(results: Results, memory: Mapping[str, Any]) -> HeldAtEnd:
    """Slots that were reserved at admission. Where too few were, how many more came hangs on what else was there."""
    reserve = RESERVE[memory["allocator"]]
    max_model_len = results.description["geometry"]["max_model_len"]
    error = memory.get("prediction_error") if memory["allocator"] == "predicted" else None
    prediction = Prediction(error or 0.0, results.description["seed"])

    def at_end(ended: Ended) -> Held | None:
        output_tokens = ended.output_tokens
        if error:
            request = Request(
                ended.request_id, 0, (Span("", 0, ended.prompt_tokens),), (Span("", 0, ended.output_tokens),)
            )
            output_tokens = prediction.output_tokens(request)
        slots = reserve(ended.prompt_tokens, output_tokens, max_model_len)
        if slots < ended.num_tokens:
            return None
        return Held(slots, (slots - ended.num_tokens) * results.shape.token_bytes)

    return at_end


class Spread(NamedTuple):
    """Of values that are not weighted: how many, and below what a share of them lies, rounded to whole units."""

    num_values: int
    median: int
    p90: int
    p99: int
    maximum: int


def spread(values: pl.Series) -> Spread | None:
    """Quantiles between two values are interpolated, as those of the waiting time in a summary; None without values."""
    known = values.drop_nulls()
    if known.is_empty():
        return None
    quantiles = [known.quantile(share, "linear") for share in (0.5, 0.9, 0.99, 1.0)]
    return Spread(len(known), *(round(value or 0) for value in quantiles))


@frozen(eq=False)
class PrefixHits:
    """Tokens found in the prefix cache at first admission, of the prompt tokens of those who were admitted, and after
    preemptions, beside those computed again. `of_each` has for each admitted request its prompt_tokens, hit_tokens at
    first admission, and their share.
    """

    prompt_tokens: int
    hit_tokens: int
    resumed_hit_tokens: int
    recomputed_tokens: int
    of_each: pl.DataFrame

    @property
    def missed_tokens(self) -> int:
        return self.prompt_tokens - self.hit_tokens


def prefix_hits(results: Results) -> PrefixHits:
    """Over all requests of a run."""
    sums = results.totals.sums
    admitted = results.requests.filter(pl.col("admitted_ns").is_not_null())
    return PrefixHits(
        prompt_tokens=results.totals.admitted_prompt_tokens,
        hit_tokens=sums["hit_tokens"],
        resumed_hit_tokens=sums["resumed_hit_tokens"],
        recomputed_tokens=sums["recomputed_tokens"],
        of_each=admitted.select("prompt_tokens", "hit_tokens", share=pl.col("hit_tokens") / pl.col("prompt_tokens")),
    )
