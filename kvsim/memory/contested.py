"""A chain that several requests write at once, block by block, as its keys have several copies (rule 19).

It happens when a prompt contains the output of a request that still writes it, when two requests generate the same
tokens, and when a request computes again what a preemption has left in the cache. Then this chain alone is kept as
`pool.py` keeps all blocks: of each key the copies in order of publication, of which the first is hit.
"""

from collections import OrderedDict
from collections.abc import Iterable

from kvsim.memory.chain import Chain, Copy, Holder, Run


def contest(chain: Chain, holders: Iterable[Holder], cached_order: OrderedDict[Run, None]) -> None:
    """Turn intervals into copies; runs keep their places in the cached order. Its writer has been caught up with."""
    assert chain.copies is None, "it is contested only once"
    chain.copies = {index: [Copy(index)] for index in range(chain.first, chain.resident)}
    owned = {}
    for spare in chain.spares or ():
        copy = Copy(spare.low)
        chain.copies[spare.low].append(copy)
        owned[spare] = copy
        if spare.owner is None:
            _stand_one_by_one(spare, [copy])
    for holder in holders:
        for held, end in holder.path:
            if held is chain:
                _hold(holder, chain, min(end, holder.published), owned)
    for run in chain.runs:
        _stand_one_by_one(run, [chain.copies[index][0] for index in range(run.high - 1, run.low - 1, -1)])
    chain.runs, chain.spares = [], None
    chain.num_holders, chain.end_counts, chain.used = 0, None, chain.first


def _hold(holder: Holder, chain: Chain, stop: int, owned: dict[Run, Copy]) -> None:
    assert chain.copies is not None, "its copies are there"
    if stop <= chain.first:
        return
    copies = [chain.copies[index][0] for index in range(chain.first, stop)]
    if holder.spare is not None and holder.spare.chain is chain:
        copies[-1] = owned[holder.spare]
        holder.spare = None
    for copy in copies:
        copy.ref_count += 1
    _copies_of(holder)[chain] = copies


def _copies_of(holder: Holder) -> dict[Chain, list[Copy]]:
    if holder.copies is None:
        holder.copies = {}
    return holder.copies


def _stand_one_by_one(run: Run, copies: list[Copy]) -> None:
    run.copies = OrderedDict.fromkeys(copies)
    for copy in copies:
        copy.run = run


def num_copies_in_use(chain: Chain, end: int) -> int:
    """Of the blocks up to `end`, those whose first copy somebody holds."""
    assert chain.copies is not None, "it is contested"
    copies = chain.copies
    return sum(copies[index][0].ref_count > 0 for index in range(chain.first, end))


def hit_copies(holder: Holder, chain: Chain, stop: int, cached_order: OrderedDict[Run, None]) -> int:
    """Hold the first copies up to `stop`; how many left the cached order for it (rule 20)."""
    assert chain.copies is not None, "it is contested"
    hit = [chain.copies[index][0] for index in range(chain.first, stop)]
    woken = 0
    for copy in hit:
        if not copy.ref_count:
            woken += 1
            run = copy.run
            assert run is not None, "it is in the cached order"
            assert run.copies is not None, "copies stand one by one"
            del run.copies[copy]
            if not run.copies:
                del cached_order[run]
        copy.ref_count += 1
    _copies_of(holder)[chain] = hit
    return woken


def publish_copies(holder: Holder, chain: Chain, low: int, high: int) -> None:
    """Blocks of its own, each behind those that carry the key already."""
    assert chain.copies is not None, "it is contested"
    for index in range(low, high):
        copy = Copy(index, ref_count=1)
        chain.copies.setdefault(index, []).append(copy)
        _copies_of(holder).setdefault(chain, []).append(copy)
    chain.resident = max(chain.resident, high)


def release_copies(holder: Holder, chain: Chain, cached_order: OrderedDict[Run, None]) -> int:
    """Let go of them, the last first; how many came to the end of the cached order."""
    freed = []
    for copy in reversed(_copies_of(holder).pop(chain)):
        copy.ref_count -= 1
        if not copy.ref_count:
            freed.append(copy)
    if freed:
        run = Run(chain, freed[-1].index, freed[0].index + 1)
        _stand_one_by_one(run, freed)
        cached_order[run] = None
    return len(freed)


def evict_copy(run: Run) -> None:
    """Take the next block of a run of copies; its key is gone with the last of its copies (rule 25)."""
    chain = run.chain
    assert run.copies is not None, "it stands one by one"
    assert chain.copies is not None, "it is contested"
    copy, _none = run.copies.popitem(last=False)
    others = chain.copies[copy.index]
    others.remove(copy)
    if not others:
        del chain.copies[copy.index]
        chain.resident = copy.index
