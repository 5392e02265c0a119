"""Each numbered invariant is broken on the structures of a real engine, and must be the first that is named.

The engine in its third step; blocks have 4 slots:

    id   computed   full attention   window of 5
     0   has left, its blocks 1, 2 and 5 are shared, block 4 lies cached
     1         10   1  2  6          0  5  3
     2         13   1  2  7  9       0  0  8  10
     3   waits

Invariants 14 to 18 are of chains of blocks. The engine in its sixth step, and what it has of two chains:

    id   computed
     0   has left "sys" blocks 3 and 4, and 1 has left "sys" block 2 later; all of them are cached
     2         11   "sys" 0, and a second block 1 beside the one that 4 holds, a spare
     3          8   "same" 0, which 3 and 4 share, and a block 1 of its own: they generate the same
     4          8   "same" 0, and a block 1 of its own
     5         12   "sys" 0 and 1

Invariants 19 to 21 are of extents. The engine in its third step, with 30 slots:

    id   computed   extent
     1          6   9 ... 17, of which it will write 8
     2          7   18 ... 29, of which it will write 11
     -              0 ... 8 are free, as 0 has left
"""

import re
from collections.abc import Callable

import pytest

from kvsim import invariants
from kvsim.engine.clocked import ClockedScheduler
from kvsim.engine.config import EngineConfig
from kvsim.engine.latency import LatencyModel
from kvsim.engine.scheduler import Scheduler
from kvsim.engine.simulation import Simulation
from kvsim.engine.step import Sampled, Step
from kvsim.errors import InvariantError
from kvsim.invariants import hold
from kvsim.memory.chain import Chain, Copy, Run
from kvsim.memory.chains import ChainAllocator
from kvsim.memory.contiguous import ReservingAllocator
from kvsim.memory.extents import Extent, FirstFit
from kvsim.memory.groups import LayerGroup
from kvsim.memory.host_pool import SwappedOut
from kvsim.memory.paged import PagedAllocator
from kvsim.memory.pool import NULL_BLOCK, BlockPool
from kvsim.model.attention import Attention
from kvsim.workload.request import Request, Span
from tests.makers import make_request

ONE_NS = LatencyModel(base=1, per_prefill_token=0, per_decode_seq=0, per_context_token=0)
GROUPS = LayerGroup(Attention(), token_bytes=100), LayerGroup(Attention("sliding_window", 5), token_bytes=50)


def make_simulation(
    on_step: Callable[[int, Step], None] | None = None,
    on_outputs: Callable[[int, Sampled], None] | None = None,
    check: bool = True,
) -> Simulation:
    memory = PagedAllocator(20, 4, True, groups=GROUPS, block_bytes=400, retention_interval=None)
    scheduler = Scheduler(EngineConfig(max_model_len=100, max_num_seqs=2, latency=ONE_NS), memory)
    return Simulation(
        scheduler.config,
        scheduler,
        [
            make_request(0, shared=8, own=1, output=1),
            *(make_request(id, shared=8, own=own, output=6, arrival=1) for id, own in ((1, 1), (2, 4), (3, 9))),
        ],
        check=check,
        on_step=on_step,
        on_outputs=on_outputs,
    )


def make_engine() -> tuple[Scheduler, PagedAllocator]:
    simulation = make_simulation()
    simulation.run(until_ns=3)
    return engine_of(simulation)


def engine_of(simulation: Simulation) -> tuple[Scheduler, PagedAllocator]:
    assert isinstance(simulation.scheduler, Scheduler)
    assert isinstance(simulation.memory, PagedAllocator)
    return simulation.scheduler, simulation.memory


def table(memory: PagedAllocator, id: int, group: int) -> list[int]:
    return memory.holdings[id].tables[group].blocks


def change_key(pool: BlockPool, block: int, key: int | None) -> None:
    """Without a trace in the index that it ever had another."""
    old = pool._keys[block]
    assert old is not None
    del pool._first_block[old]
    pool._keys[block] = key
    if key is not None:
        pool._first_block[key] = block


def add(structure: object, name: str, number: int) -> None:
    setattr(structure, name, getattr(structure, name) + number)


Damage = Callable[[Scheduler, PagedAllocator], object]

DAMAGES: list[tuple[int, Damage]] = [
    (1, lambda engine, memory: memory.pool._blank.insert(0, NULL_BLOCK)),
    (1, lambda engine, memory: memory.pool._ref_counts.__setitem__(NULL_BLOCK, 1)),
    (2, lambda engine, memory: memory.pool._blank.remove(19)),
    (2, lambda engine, memory: memory.pool._ref_counts.__setitem__(19, 1)),
    (2, lambda engine, memory: memory.pool._ref_counts.__setitem__(6, 0)),
    (3, lambda engine, memory: memory.pool._blank.insert(0, 19)),
    (3, lambda engine, memory: memory.pool._blank.insert(0, 4)),
    (4, lambda engine, memory: memory.pool._keys.__setitem__(19, 999)),
    (4, lambda engine, memory: memory.pool._keys.__setitem__(4, None)),
    (5, lambda engine, memory: memory.pool._first_block.update({999: 1})),
    (5, lambda engine, memory: memory.pool._first_block.pop(memory.pool._keys[1])),
    (5, lambda engine, memory: memory.pool._later_blocks.update({999: []})),
    (6, lambda engine, memory: memory.pool._ref_counts.__setitem__(1, 3)),
    (6, lambda engine, memory: memory.pool._ref_counts.__setitem__(1, 1)),
    (7, lambda engine, memory: table(memory, 1, 0).append(19)),
    (7, lambda engine, memory: table(memory, 1, 0).pop()),
    (7, lambda engine, memory: table(memory, 1, 1).__setitem__(0, 4)),
    (7, lambda engine, memory: table(memory, 1, 1).__setitem__(1, NULL_BLOCK)),
    (7, lambda engine, memory: table(memory, 1, 1).__setitem__(2, 6)),
    (8, lambda engine, memory: change_key(memory.pool, 1, 999)),
    (8, lambda engine, memory: change_key(memory.pool, 1, None)),
    (8, lambda engine, memory: change_key(memory.pool, 5, 998)),
    (9, lambda engine, memory: add(memory, "_live_bytes", 1)),
    (9, lambda engine, memory: add(memory, "_padding_held", -200)),
    (9, lambda engine, memory: memory._in_use.reverse()),
    (10, lambda engine, memory: add(memory, "_logical_bytes", 150)),
    (10, lambda engine, memory: add(memory, "_window_saving_bytes", -1)),
    (11, lambda engine, memory: add(engine.running[0], "num_computed_tokens", -1)),
    (11, lambda engine, memory: engine.running.pop()),
    (11, lambda engine, memory: engine.running.append(engine.waiting.pop())),
    (12, lambda engine, memory: engine.waiting.submit(engine.running[0])),
    (13, lambda engine, memory: add(engine.running[0], "num_tokens", -2)),
    (13, lambda engine, memory: setattr(engine.running[0], "num_tokens", engine.running[0].stop_tokens)),
    (22, lambda engine, memory: add(memory.host, "num_used", 1)),
    (22, lambda engine, memory: memory.host._held.update({3: SwappedOut(8, (0, 1), 3)})),
    (22, lambda engine, memory: add(memory.host, "num_blocks", -1)),
    (22, lambda engine, memory: add(memory.host, "moved_out", 1)),
    (22, lambda engine, memory: add(memory.host, "dropped", 1)),
    (23, lambda engine, memory: memory.host.put(3, SwappedOut(8, (2, 2), 0))),
    (23, lambda engine, memory: memory.host.put(1, SwappedOut(8, (2, 2), 0))),
    (23, lambda engine, memory: setattr(engine.waiting.head(), "swapped_tokens", 8)),
]


# chains of blocks


def make_clocked_simulation(
    on_step: Callable[[int, Step], None] | None = None,
    on_outputs: Callable[[int, Sampled], None] | None = None,
    check: bool = True,
) -> Simulation:
    memory = ChainAllocator(40, 4, True)
    scheduler = ClockedScheduler(EngineConfig(max_model_len=100, max_num_seqs=8, latency=ONE_NS), memory)
    same = (Span("same", 0, 5),), (Span("generated", 0, 9),)
    return Simulation(
        scheduler.config,
        scheduler,
        [
            make_request(0, shared=20, own=1, output=1),
            make_request(1, shared=12, own=1, output=1, arrival=1),
            make_request(2, shared=8, output=9, arrival=2),
            Request(3, 2, *same),
            Request(4, 2, *same),
            make_request(5, shared=8, own=1, output=9, arrival=2),
        ],
        check=check,
        fast_forward=False,
        on_step=on_step,
        on_outputs=on_outputs,
    )


class Chains:
    """An engine and what the damages are done to."""

    def __init__(self, simulation: Simulation) -> None:
        assert isinstance(simulation.scheduler, ClockedScheduler)
        self.scheduler = simulation.scheduler
        self.memory = simulation.scheduler.allocator
        self.order = self.memory._cached_order

    @property
    def sys(self) -> Chain:
        (chain,) = [chain for chain in self.memory._tree if chain.parent is None]
        return chain

    @property
    def same(self) -> Chain:
        (chain,) = [chain for chain in self.memory._tree if chain.copies is not None]
        return chain

    @property
    def copies(self) -> dict[int, list[Copy]]:
        assert self.same.copies is not None
        return self.same.copies

    @property
    def spare(self) -> Run:
        assert self.sys.spares is not None
        (spare,) = self.sys.spares
        return spare

    @property
    def ends(self) -> dict[int, int]:
        assert self.sys.end_counts is not None
        return self.sys.end_counts


DAMAGES_OF_CHAINS: list[tuple[int, Callable[[Chains], object]]] = [
    (2, lambda engine: add(engine.memory, "num_blank", 1)),
    (9, lambda engine: add(engine.memory, "live_tokens", -1)),
    (10, lambda engine: add(engine.memory, "logical_tokens", 1)),
    (11, lambda engine: engine.memory._active.popitem()),
    (12, lambda engine: engine.scheduler.submit(next(iter(engine.scheduler.running)))),
    (13, lambda engine: setattr(next(iter(engine.scheduler.running)), "stop_tokens", 9)),
    (14, lambda engine: add(engine.memory, "num_cached", -1)),
    (14, lambda engine: engine.order.update({Run(engine.sys, 2, 3): None})),
    (14, lambda engine: setattr(engine.spare, "owner", None)),
    (15, lambda engine: add(engine.sys, "first", 3)),
    (15, lambda engine: add(engine.sys, "used", -1)),
    (15, lambda engine: add(engine.sys, "resident", 1)),
    (15, lambda engine: engine.sys.runs.reverse()),
    (15, lambda engine: add(engine.sys.runs[0], "low", 1)),
    (15, lambda engine: engine.order.move_to_end(engine.sys.runs[0])),
    (16, lambda engine: add(engine.sys, "num_holders", 1)),
    (16, lambda engine: setattr(engine.sys, "end_counts", None)),
    (16, lambda engine: engine.ends.update({1: 2})),
    (17, lambda engine: add(engine.spare, "high", 1)),
    (17, lambda engine: setattr(engine.spare, "low", 5)),
    (18, lambda engine: setattr(engine.same, "writer", next(iter(engine.memory.eager)))),
    (18, lambda engine: engine.copies.pop(0)),
    (18, lambda engine: add(engine.same, "resident", 1)),
    (18, lambda engine: add(engine.copies[1][1], "ref_count", -1)),
    (18, lambda engine: add(engine.copies[1][0], "index", -1)),
    (18, lambda engine: engine.copies[1].append(Copy(1))),
]


def make_chains() -> Chains:
    simulation = make_clocked_simulation()
    simulation.run(until_ns=6)
    return Chains(simulation)


def test_chains_are_as_they_are_drawn() -> None:
    engine = make_chains()
    computed = {state.request.id: state.num_computed_tokens for state in engine.scheduler.running}
    assert computed == {2: 11, 3: 8, 4: 8, 5: 12}
    assert (engine.sys.used, engine.sys.resident, engine.ends) == (2, 5, {1: 1, 2: 1})
    assert [(run.low, run.high) for run in engine.order] == [(run.low, run.high) for run in engine.sys.runs]
    assert [(run.low, run.high) for run in engine.order] == [(3, 5), (2, 3)]
    assert (engine.spare.low, engine.spare.high) == (1, 2)
    assert [[copy.ref_count for copy in copies] for copies in engine.copies.values()] == [[2], [1, 1]]


@pytest.mark.parametrize(("number", "damage"), DAMAGES_OF_CHAINS)
def test_what_is_broken_in_chains_is_named_first(number: int, damage: Callable[[Chains], object]) -> None:
    engine = make_chains()
    engine.scheduler.complete(Step())
    engine.scheduler.check()
    damage(engine)
    with pytest.raises(InvariantError, match=rf"^invariant {number} does not hold: \S") as caught:
        engine.scheduler.check()
    assert caught.value.number == number


@pytest.mark.parametrize(("number", "damage"), DAMAGES_OF_CHAINS)
def test_a_run_in_chains_that_is_checked_ends_where_it_was_damaged(
    number: int, damage: Callable[[Chains], object]
) -> None:
    """Damaged right after the decision of the sixth step, it does not get beyond the end of that step."""
    ends: list[int] = []

    def on_step(now: int, _step: Step) -> None:
        if now == 5:
            damage(Chains(simulation))

    simulation = make_clocked_simulation(on_step, lambda now, _sampled: ends.append(now))
    with pytest.raises(InvariantError) as caught:
        simulation.run()
    assert (caught.value.number, ends) == (number, [1, 2, 3, 4, 5])


def test_a_run_in_chains_that_is_not_checked_does_not_mind() -> None:
    simulation = make_clocked_simulation(lambda now, _step: add(simulation.memory, "logical_tokens", 1), check=False)
    simulation.run()
    assert {state.outcome for state in simulation.recorder.states} == {"finished"}


# extents


class Extents:
    """An engine and what the damages are done to."""

    def __init__(self) -> None:
        self.memory = ReservingAllocator(30, "oracle", "first_fit", 100)
        self.scheduler = Scheduler(EngineConfig(max_model_len=100, latency=ONE_NS), self.memory)
        lengths = (8, 1), (4, 5), (5, 7)
        requests = [make_request(id, own=own, output=output) for id, (own, output) in enumerate(lengths)]
        Simulation(self.scheduler.config, self.scheduler, requests, check=True).run(until_ns=3)
        self.scheduler.complete(Step())

    @property
    def free(self) -> FirstFit:
        assert isinstance(self.memory.extents, FirstFit)
        return self.memory.extents

    def move(self, id: int, start: int, size: int) -> None:
        self.memory.reservations[id].extent = Extent(start, size)


DAMAGES_OF_EXTENTS: list[tuple[int, Callable[[Extents], object]]] = [
    (11, lambda engine: add(engine.scheduler.running[0], "num_computed_tokens", -1)),
    (19, lambda engine: add(engine.free, "num_free", -1)),
    (19, lambda engine: engine.free._sizes.__setitem__(0, 8)),
    (19, lambda engine: (engine.free._starts.append(9), engine.free._sizes.append(0))),
    (19, lambda engine: (engine.free._starts.append(29), engine.free._sizes.append(2))),
    (20, lambda engine: engine.move(1, 9, 10)),
    (20, lambda engine: engine.move(1, 10, 8)),
    (20, lambda engine: engine.move(2, 18, 11)),
    (20, lambda engine: engine.memory.reservations.pop(2)),
    (21, lambda engine: add(engine.memory.reservations[1], "num_tokens", 4)),
    (21, lambda engine: add(engine.memory.reservations[1], "final_tokens", -2)),
    (21, lambda engine: add(engine.memory, "_written", 1)),
    (21, lambda engine: add(engine.memory, "_reserved", -1)),
    (21, lambda engine: add(engine.memory, "_unused", 1)),
]


def test_extents_are_as_they_are_drawn() -> None:
    engine = Extents()
    held = {id: (r.num_tokens, r.final_tokens, *r.extent) for id, r in engine.memory.reservations.items()}
    assert held == {1: (6, 8, 9, 9), 2: (7, 11, 18, 12)}
    assert list(engine.free.free_extents()) == [(0, 9)]
    engine.scheduler.check()


@pytest.mark.parametrize(("number", "damage"), DAMAGES_OF_EXTENTS)
def test_what_is_broken_in_extents_is_named_first(number: int, damage: Callable[[Extents], object]) -> None:
    engine = Extents()
    damage(engine)
    with pytest.raises(InvariantError, match=rf"^invariant {number} does not hold: \S") as caught:
        engine.scheduler.check()
    assert caught.value.number == number


# block by block


def test_the_engine_is_as_it_is_drawn() -> None:
    _engine, memory = make_engine()
    tables = {id: [table(memory, id, group) for group in (0, 1)] for id in memory.holdings}
    assert tables == {1: [[1, 2, 6], [0, 5, 3]], 2: [[1, 2, 7, 9], [0, 0, 8, 10]]}


def test_every_invariant_is_broken_and_no_other() -> None:
    listed = re.findall(r"^ *(\d+)  \S", invariants.__doc__ or "", re.MULTILINE)
    broken = {number for number, _damage in (*DAMAGES, *DAMAGES_OF_CHAINS, *DAMAGES_OF_EXTENTS)}
    assert [int(number) for number in listed] == sorted(broken)


@pytest.mark.parametrize(("number", "damage"), DAMAGES)
def test_what_is_broken_is_named_first(number: int, damage: Damage) -> None:
    engine, memory = make_engine()
    engine.check()
    damage(engine, memory)
    with pytest.raises(InvariantError, match=rf"^invariant {number} does not hold: \S") as caught:
        engine.check()
    assert caught.value.number == number


@pytest.mark.parametrize(("number", "damage"), DAMAGES)
def test_a_run_that_is_checked_ends_where_it_was_damaged(number: int, damage: Damage) -> None:
    """Damaged right after the decision of the second step, it does not get beyond the end of that step."""
    ends: list[int] = []

    def on_step(now: int, _step: Step) -> None:
        if now == 1:
            damage(*engine_of(simulation))

    simulation = make_simulation(on_step, lambda now, _sampled: ends.append(now))
    with pytest.raises(InvariantError) as caught:
        simulation.run()
    assert (caught.value.number, ends) == (number, [1])


def test_a_run_that_is_not_checked_does_not_mind() -> None:
    simulation = make_simulation(lambda now, _step: add(simulation.memory, "_window_saving_bytes", 1), check=False)
    simulation.run()
    assert {state.outcome for state in simulation.recorder.states} == {"finished"}


def test_a_run_is_checked_after_every_decision_and_at_the_end_of_every_step() -> None:
    seen: list[tuple[str, int]] = []
    simulation = make_simulation(lambda now, _: seen.append(("decided", now)), lambda now, _: seen.append(("end", now)))
    _engine, memory = engine_of(simulation)
    recount = memory.check

    def check() -> None:
        seen.append(("checked", simulation.now))
        recount()

    memory.check = check
    simulation.run(until_ns=3)
    assert seen == [
        *(("checked", 0), ("decided", 0), ("checked", 1), ("end", 1)),
        *(("checked", 1), ("decided", 1), ("checked", 2), ("end", 2)),
        *(("checked", 2), ("decided", 2)),
    ]


def test_what_holds_is_not_said() -> None:
    hold(7, True, "never said")
    with pytest.raises(InvariantError, match=r"^invariant 7 does not hold: said$"):
        hold(7, False, "said")
