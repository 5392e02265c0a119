"""Recounts chains of blocks from the requests that hold them, invariants 14 to 18."""

from collections import Counter
from collections.abc import Iterable, Mapping

from kvsim.invariants import hold
from kvsim.memory.chain import Chain, Holder, Run

_Ends = Mapping[Chain, list[int]]


def recount(
    chains: Iterable[Chain],
    cached_order: Iterable[Run],
    num_computed: Mapping[Holder, int],
    block_size: int,
) -> tuple[int, int, int]:
    """Blocks in use, blocks in the cached order, and tokens written in blocks in use.

    `num_computed` are the computed tokens of each holder, all of whose full blocks are published. Raises
    InvariantError with the first invariant that does not hold.
    """
    in_order = list(cached_order)
    places = {run: place for place, run in enumerate(in_order)}
    hold(14, len(places) == len(in_order), "a run is in the cached order twice")
    ends = _ends(num_computed)
    in_use = written = listed = 0
    for chain in chains:
        where = f"chain {chain.id}"
        hold(15, chain.first <= chain.used <= chain.resident, f"{where}: ends are out of order")
        if chain.copies is None:
            _check_runs(where, chain, places)
            _check_holders(where, chain, ends.get(chain, []))
            owned = [spare for spare in chain.spares or () if spare.owner is not None]
            in_use += chain.used - chain.first + len(owned)
            listed += len(chain.runs) + len(chain.spares or ()) - len(owned)
        else:
            in_use += _check_copies(where, chain, num_computed, places)
            runs = {copy.run for copies in chain.copies.values() for copy in copies if not copy.ref_count}
            listed += len(runs)
    written += in_use * block_size
    for computed in num_computed.values():
        in_use += computed % block_size > 0
        written += computed % block_size
    hold(14, listed == len(in_order), "the cached order has runs that no chain knows")
    cached = sum(run.high - run.low if run.copies is None else len(run.copies) for run in in_order)
    return in_use, cached, written


def _ends(num_computed: Mapping[Holder, int]) -> dict[Chain, list[int]]:
    """Of each chain the ends up to which its holders hold it."""
    ends: dict[Chain, list[int]] = {}
    for holder in num_computed:
        for chain, end in holder.path:
            stop = min(end, holder.published)
            if holder.spare is not None and holder.spare.chain is chain:
                hold(17, stop == holder.spare.high, f"chain {chain.id}: a spare is not the last block of its owner")
                stop -= 1
            if stop > chain.first and chain.copies is None:
                ends.setdefault(chain, []).append(stop)
    return ends


def _check_runs(where: str, chain: Chain, places: Mapping[Run, int]) -> None:
    at = chain.resident
    last_place = -1
    for run in chain.runs:
        hold(15, run.low < run.high == at, f"{where}: its runs leave a gap or overlap")
        hold(15, places.get(run, -1) > last_place, f"{where}: a deeper run is evicted later")
        at, last_place = run.low, places[run]
    hold(15, at == chain.used, f"{where}: its runs do not end where it is in use")


def _check_holders(where: str, chain: Chain, ends: list[int]) -> None:
    hold(16, chain.num_holders == len(ends), f"{where}: {len(ends)} requests hold it, counted {chain.num_holders}")
    hold(16, chain.used == max(ends, default=chain.first), f"{where}: it is not in use as far as it is held")
    counts = Counter(ends)
    told = {chain.used: len(ends)} if chain.end_counts is None and ends else chain.end_counts or {}
    hold(16, counts == told, f"{where}: it is held up to {dict(counts)}, counted {told}")
    for spare in chain.spares or ():
        hold(17, chain.first <= spare.low < chain.resident, f"{where}: a spare stands in for a block that is gone")


def _check_copies(where: str, chain: Chain, holders: Iterable[Holder], places: Mapping[Run, int]) -> int:
    """How many of the copies of a contested chain are in use."""
    assert chain.copies is not None, "it is contested"
    hold(18, chain.writer is None, f"{where}: it is contested and has a lazy writer")
    hold(18, sorted(chain.copies) == list(range(chain.first, chain.resident)), f"{where}: its keys are not a prefix")
    counts = Counter(copy for holder in holders for copy in (holder.copies or {}).get(chain, ()))
    in_use = 0
    for index, copies in chain.copies.items():
        for copy in copies:
            hold(18, copy.index == index and copy.ref_count == counts[copy], f"{where}: block {index} is miscounted")
            in_use += copy.ref_count > 0
            if not copy.ref_count:
                hold(18, copy.run in places, f"{where}: a copy of block {index} is neither in use nor cached")
    return in_use
