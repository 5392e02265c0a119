"""How long requests are: given lengths, or a mean or percentiles with what they leave open assumed."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from attrs import field, frozen, validators

from kvsim.errors import ModelError


@frozen
class LengthMix:
    """Lengths of requests at their end, in tokens, and how many of them there are of each."""

    counts: tuple[tuple[int, int], ...] = field(validator=validators.min_len(1))
    origin: str

    def mean(self, of: Callable[[int], int]) -> Fraction:
        """The mean of `of(num_tokens)` over the requests."""
        return Fraction(
            sum(of(num_tokens) * count for num_tokens, count in self.counts),
            sum(count for _, count in self.counts),
        )

    def cut_at(self, max_model_len: int) -> "LengthMix":
        """The same mix with lengths beyond the limit cut to it, which its origin then says."""
        beyond = sum(count for num_tokens, count in self.counts if num_tokens > max_model_len)
        if not beyond:
            return self
        share = beyond / sum(count for _, count in self.counts)
        counts = tuple((min(num_tokens, max_model_len), count) for num_tokens, count in self.counts)
        return LengthMix(counts, f"{self.origin}, {share:.1%} of them cut at {max_model_len:,} tokens")


def mix_of_lengths(lengths: Iterable[int]) -> LengthMix:
    """The lengths of a trace, one a request; raises ModelError for none or for one below 1."""
    counts = tuple(sorted(Counter(lengths).items()))
    if not counts or counts[0][0] < 1:
        raise ModelError(f"lengths of a mix must be at least 1 token, got {counts[0][0] if counts else 'none'}")
    return LengthMix(counts, f"{sum(count for _, count in counts):,} given lengths")


def mix_of_mean(num_tokens: int) -> LengthMix:
    """Every request at the mean length: an assumption, as rounding to blocks depends on the spread."""
    mix = mix_of_lengths([num_tokens])
    return LengthMix(mix.counts, f"every request at the mean of {num_tokens:,} tokens (assumed)")


def mix_of_percentiles(percentiles: Mapping[int, int]) -> LengthMix:
    """Requests between two percentiles at the upper one's length, those above the last at that: assumed.

    Raises ModelError where percentiles are not in 1 to 100 or lengths do not rise with them.
    """
    ordered = sorted(percentiles.items())
    lengths = [num_tokens for _, num_tokens in ordered]
    if not ordered or not all(1 <= percent <= 100 for percent, _ in ordered):
        raise ModelError(f"percentiles must lie in 1 to 100, got {dict(ordered)}")
    if lengths != sorted(lengths) or lengths[0] < 1:
        raise ModelError(f"lengths must be at least 1 and rise with their percentiles, got {dict(ordered)}")
    below = [0, *(percent for percent, _ in ordered)]
    shares = [percent - before for (percent, _), before in zip(ordered, below, strict=False)]
    shares[-1] += 100 - ordered[-1][0]
    named = ", ".join(f"p{percent} {num_tokens:,}" for percent, num_tokens in ordered)
    return LengthMix(tuple(zip(lengths, shares, strict=True)), f"the upper end of each step of {named} (assumed)")


def read_mix(
    mean_tokens: int | None = None, percentiles: str | None = None, lengths: Iterable[int] | None = None
) -> LengthMix | None:
    """The mix that a user gave: a mean, "50=800,90=3000,99=8000", or the lengths of a trace; None for none of them.

    Raises ModelError for more than one, or for percentiles that are no numbers.
    """
    if [mean_tokens, percentiles, lengths].count(None) < 2:
        raise ModelError("give one of the mean, the percentiles and the trace of a mix")
    if mean_tokens is not None:
        return mix_of_mean(mean_tokens)
    if lengths is not None:
        return mix_of_lengths(lengths)
    if percentiles is None:
        return None
    try:
        pairs = [pair.split("=") for pair in percentiles.split(",")]
        return mix_of_percentiles({int(percent): int(num_tokens) for percent, num_tokens in pairs})
    except ValueError as error:
        raise ModelError(f"percentiles must be like 50=800,90=3000, got {percentiles!r}") from error
