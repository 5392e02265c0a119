"""Rows by instants, in small timelines that can be drawn, and in random ones against one that goes step by step."""

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.engine.timeline import EVENTS, LEVELS, Decoding, Rows, Timeline
from kvsim.memory.allocator import Occupancy

EMPTY = Occupancy(0, 0, 9, 0, 0, 0, 0)


def make_timeline(**instants: list[int]) -> Timeline:
    """A timeline that has seen events at these times."""
    timeline = Timeline()
    for name, times in instants.items():
        timeline.instants[name].extend(times)
    return timeline


def occupancy(allocated: int = 0, cached: int = 0, blank: int = 0, live: int = 0) -> Occupancy:
    """What is live is all there is: nothing shared, padded or given back."""
    return Occupancy(allocated, cached, blank, live, 0, live, 0)


def decoding(
    ticks: int, tick_ns: int = 5, longer_ns: int = 0, blocks: tuple[int, ...] = (), padding: int = 0
) -> Decoding:
    """Steps that write 3 bytes each."""
    return Decoding(ticks, tick_ns, longer_ns, 3, list(blocks), padding)


def columns(rows: Rows, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(rows[name].tolist() for name in names), strict=True))


def counted(rows: Rows) -> dict[str, list[int]]:
    """The events that happened at all."""
    return {name: rows[name].tolist() for name in EVENTS if rows[name].any()}


def joined(pieces: list[Rows]) -> Rows:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def as_lists(rows: Rows) -> dict[str, list[int]]:
    return {name: column.tolist() for name, column in rows.items()}


# rows by instants


def test_rows_are_the_instants_at_which_a_step_began_or_a_request_came() -> None:
    """As it is drawn at the top of the module, with arrivals at 20, 22 and, twice, at 10."""
    timeline = make_timeline(arrived=[10, 10, 20, 22])
    timeline.observe(0, occupancy(live=7), 1)
    timeline.observe(10, occupancy(live=10), 1, decoding(4))
    timeline.observe(30, occupancy(), 0)
    rows = timeline.take(None)
    assert columns(rows, "time", "live_bytes", "running", "waiting") == [
        (0, 7, 1, 0),
        (10, 13, 1, 2),
        (15, 16, 1, 2),
        (20, 19, 1, 3),
        (22, 19, 1, 4),
        (25, 22, 1, 4),
        (30, 0, 0, 4),
    ]
    assert counted(rows) == {"arrived": [0, 2, 0, 1, 1, 0, 0]}
    assert tuple(rows) == ("time", *LEVELS, *EVENTS)


def test_of_two_stretches_at_one_instant_the_last_says_the_levels_and_events_add_up() -> None:
    timeline = make_timeline(arrived=[5])
    timeline.observe(0, EMPTY, 0)
    timeline.pending.finished = 2
    timeline.observe(5, occupancy(allocated=1, live=4), 1)
    timeline.pending.finished = 1
    timeline.pending.admitted = 1
    timeline.observe(5, occupancy(allocated=2, live=6), 3)
    rows = timeline.take(None)
    assert columns(rows, "time", "allocated_blocks", "live_bytes", "running") == [(0, 0, 0, 0), (5, 2, 6, 3)]
    assert counted(rows) == {"arrived": [0, 1], "admitted": [0, 1], "finished": [0, 3]}


def test_a_window_that_begins_where_a_stretch_did_says_the_levels() -> None:
    timeline = make_timeline()
    timeline.observe(5, occupancy(blank=4, live=9), 1)
    timeline.observe(5, occupancy(blank=4, live=1), 2, decoding(2, blocks=(1,)))
    assert columns(timeline.take(None), "time", "allocated_blocks", "blank_blocks", "live_bytes", "running") == [
        (5, 1, 3, 4, 2),
        (10, 2, 2, 7, 2),
    ]


def test_events_of_steps_are_those_of_the_next_stretch_and_are_counted_once() -> None:
    timeline = make_timeline()
    timeline.observe(0, EMPTY, 0)
    pending = timeline.pending
    pending.admitted, pending.resumed, pending.preempted, pending.finished = 1, 2, 3, 4
    timeline.observe(5, EMPTY, 0, decoding(2))
    timeline.observe(15, EMPTY, 0)
    assert counted(timeline.take(None)) == {
        "admitted": [0, 1, 0, 0],
        "resumed": [0, 2, 0, 0],
        "preempted": [0, 3, 0, 0],
        "finished": [0, 4, 0, 0],
    }


def test_every_step_of_a_window_refuses_who_is_refused() -> None:
    timeline = make_timeline(arrived=[7])
    timeline.pending.refused = 1
    timeline.observe(5, EMPTY, 0, decoding(3))
    timeline.observe(20, EMPTY, 0)
    rows = timeline.take(None)
    assert columns(rows, "time", "refused") == [(5, 1), (7, 0), (10, 1), (15, 1), (20, 0)]


def test_who_arrived_between_steps_waits_until_somebody_is_admitted_or_leaves() -> None:
    timeline = make_timeline(arrived=[0, 1, 2, 3], rejected=[2], timed_out=[6], aborted=[7])
    timeline.observe(0, EMPTY, 0)
    timeline.pending.admitted = 1
    timeline.observe(4, EMPTY, 1)
    timeline.pending.preempted = 1
    timeline.observe(5, EMPTY, 0)
    timeline.pending.resumed = 1
    timeline.observe(9, EMPTY, 1)
    assert columns(timeline.take(None), "time", "waiting") == [
        *((0, 1), (1, 2), (2, 2), (3, 3)),
        *((4, 2), (5, 3), (6, 2), (7, 1), (9, 0)),
    ]


def test_of_the_aborted_those_that_ran_did_not_wait() -> None:
    """Three hang up at 7, two of which were running."""
    timeline = make_timeline(arrived=[0, 0, 0, 0], aborted=[7, 7, 7], left_running=[7, 7])
    timeline.observe(0, EMPTY, 0)
    timeline.pending.admitted = 2
    timeline.observe(1, EMPTY, 2)
    timeline.observe(7, EMPTY, 0)
    rows = timeline.take(None)
    assert columns(rows, "time", "running", "waiting", "aborted") == [(0, 0, 4, 0), (1, 2, 2, 0), (7, 0, 1, 3)]
    assert "left_running" not in rows


# windows


def test_steps_of_a_window_last_longer_and_longer() -> None:
    """7, 9, 11 and 13 ns; somebody arrives within the third, and exactly when the fourth begins."""
    timeline = make_timeline(arrived=[120, 127])
    timeline.observe(100, occupancy(live=50), 2, decoding(4, tick_ns=7, longer_ns=2))
    timeline.observe(140, occupancy(live=0), 0)
    assert columns(timeline.take(None), "time", "live_bytes", "waiting") == [
        (100, 53, 0),
        (107, 56, 0),
        (116, 59, 0),
        (120, 59, 1),
        (127, 62, 2),
        (140, 0, 2),
    ]


@pytest.mark.parametrize(("tick_ns", "longer_ns"), [(1, 0), (7, 0), (7, 2), (1, 100)])
def test_a_step_of_a_window_begins_when_those_before_it_have_lasted(tick_ns: int, longer_ns: int) -> None:
    window = decoding(9, tick_ns, longer_ns)
    begin = accumulate((tick_ns + longer_ns * tick for tick in range(9)), initial=0)
    assert [window.begins_ns(tick) for tick in range(10)] == list(begin)


def test_blocks_are_taken_in_turns_that_begin_anew_with_each_window() -> None:
    """One sequence crosses a block boundary in every third step, two others do in the step after it."""
    timeline = make_timeline()
    timeline.observe(0, occupancy(blank=20), 3, decoding(5, blocks=(1, 2, 0)))
    timeline.observe(25, occupancy(allocated=6, blank=14), 3, decoding(1, blocks=(4, 0)))
    timeline.observe(30, occupancy(allocated=10, blank=10), 3, decoding(3, blocks=(0, 1)))
    assert columns(timeline.take(None), "time", "allocated_blocks", "blank_blocks") == [
        *((0, 1, 19), (5, 3, 17), (10, 3, 17), (15, 4, 16), (20, 6, 14)),
        (25, 10, 10),
        *((30, 10, 10), (35, 11, 9), (40, 11, 9)),
    ]


def test_when_blank_blocks_have_run_out_inside_a_window_cached_ones_go() -> None:
    """3 blank and 4 cached; each step takes two blocks, the second of which is half blank and half cached."""
    timeline = make_timeline()
    timeline.observe(0, occupancy(allocated=1, cached=4, blank=3), 2, decoding(3, blocks=(2,)))
    assert columns(timeline.take(None), "allocated_blocks", "cached_blocks", "blank_blocks") == [
        (3, 4, 1),
        (5, 3, 0),
        (7, 1, 0),
    ]


def test_what_a_window_writes_is_live_and_logical_and_what_it_takes_is_padded() -> None:
    """Shared and given-back bytes stay as they were: a decode step neither shares nor gives back."""
    timeline = make_timeline()
    timeline.observe(0, Occupancy(4, 0, 9, 100, 20, 150, 30), 2, decoding(3, blocks=(1, 0), padding=8))
    names = ("live_bytes", "padding_bytes", "logical_bytes", "window_saving_bytes")
    assert columns(timeline.take(None), *names) == [(103, 28, 153, 30), (106, 28, 156, 30), (109, 36, 159, 30)]


@pytest.mark.parametrize(("blocks", "allocated"), [((), 2), ((1,), 3)])
def test_a_window_of_a_single_step_writes_and_takes_as_well(blocks: tuple[int, ...], allocated: int) -> None:
    timeline = make_timeline()
    timeline.observe(0, occupancy(allocated=2, blank=7, live=10), 1, decoding(1, blocks=blocks))
    assert columns(timeline.take(None), "time", "allocated_blocks", "live_bytes") == [(0, allocated, 13)]


def test_a_window_that_takes_no_blocks_stands_beside_one_that_does() -> None:
    timeline = make_timeline()
    timeline.observe(0, occupancy(allocated=1, blank=9), 1, decoding(2))
    timeline.observe(10, occupancy(allocated=1, blank=9), 1, decoding(2, blocks=(1, 1)))
    timeline.observe(20, occupancy(allocated=3, blank=7), 1)
    assert timeline.take(None)["allocated_blocks"].tolist() == [1, 1, 2, 3, 3]


# in pieces


def test_rows_before_an_instant_are_taken_once() -> None:
    timeline = make_timeline(arrived=[0, 3, 20])
    timeline.observe(0, occupancy(live=1), 0)
    timeline.observe(10, occupancy(live=5), 1, decoding(2))
    assert columns(timeline.take(20), "time", "live_bytes", "waiting") == [
        (0, 1, 1),
        (3, 1, 2),
        (10, 8, 2),
        (15, 11, 2),
    ]
    timeline.observe(20, occupancy(live=2), 1)
    assert columns(timeline.take(None), "time", "live_bytes", "waiting") == [(20, 2, 3)]
    assert timeline.take(None)["time"].tolist() == []


def test_events_that_happened_at_the_instant_of_a_cut_go_into_the_row_that_begins_there() -> None:
    timeline = make_timeline(arrived=[0, 0, 0], aborted=[4, 8, 8], left_running=[8])
    timeline.observe(0, EMPTY, 0)
    timeline.pending.finished = 1
    assert columns(timeline.take(8), "time", "waiting", "aborted", "finished") == [(0, 3, 0, 0), (4, 2, 1, 0)]
    timeline.observe(8, EMPTY, 0)
    assert columns(timeline.take(None), "time", "waiting", "aborted", "finished") == [(8, 1, 2, 1)]


def test_who_waits_goes_on_waiting_over_pieces() -> None:
    timeline = make_timeline(arrived=[0, 0, 0])
    timeline.observe(0, EMPTY, 0)
    waiting = [timeline.take(10)["waiting"].tolist()]
    timeline.observe(10, EMPTY, 0)
    waiting.append(timeline.take(20)["waiting"].tolist())
    timeline.pending.admitted = 2
    timeline.observe(20, EMPTY, 0)
    waiting.append(timeline.take(None)["waiting"].tolist())
    assert waiting == [[3], [3], [1]]


def test_rows_to_come_are_counted_by_steps_until_they_are_taken() -> None:
    timeline = make_timeline()
    timeline.observe(0, EMPTY, 0)
    timeline.observe(10, EMPTY, 0, decoding(7))
    assert timeline.num_rows == 8
    assert len(timeline.take(45)["time"]) == timeline.num_rows + 8
    timeline.observe(45, EMPTY, 0)
    assert timeline.num_rows == 1


def test_the_end_is_the_last_instant_whatever_happened_there_and_stays_when_rows_are_taken() -> None:
    timeline = make_timeline()
    assert timeline.end_ns == 0
    timeline.observe(4, EMPTY, 0)
    assert timeline.end_ns == 4
    timeline.instants["arrived"].append(9)
    assert timeline.end_ns == 9
    timeline.take(None)
    assert timeline.end_ns == 9
    timeline.observe(12, EMPTY, 0)
    assert timeline.end_ns == 12


def test_times_beyond_64_bits_are_refused() -> None:
    with pytest.raises(OverflowError):
        make_timeline().observe(2**63, EMPTY, 0)


# random timelines


class Stretch(NamedTuple):
    """What happens from one stretch to the next. Instants are counted from its beginning."""

    pending: dict[str, int]
    occupancy: Occupancy
    running: int
    decoding: Decoding | None
    duration_ns: int
    instants: list[tuple[int, str]]
    may_cut: bool


@st.composite
def stretches(draw: st.DrawFn) -> Stretch:
    few = st.integers(0, 3)
    window, duration_ns = None, draw(st.integers(0, 6))
    if draw(st.booleans()):
        blocks = draw(st.lists(few, max_size=3))
        window = Decoding(draw(st.integers(1, 6)), draw(st.integers(1, 4)), draw(few), draw(few), blocks, draw(few))
        duration_ns = window.begins_ns(window.num_ticks)
    kinds = st.sampled_from(["arrived", "arrived", "rejected", "timed_out", "aborted", "left_running"])
    return Stretch(
        {name: draw(few) for name in ("admitted", "resumed", "preempted", "refused", "finished")},
        Occupancy(*(draw(st.integers(0, 5)) for _ in Occupancy._fields)),
        draw(few),
        window,
        duration_ns,
        sorted(draw(st.lists(st.tuples(st.integers(0, duration_ns), kinds), max_size=5))),
        draw(st.booleans()),
    )


def taken_in_pieces(story: list[Stretch]) -> list[Rows]:
    """Rows as a timeline makes them, cut where a stretch may cut and begins later than the one before."""
    timeline, pieces, now = Timeline(), [], 0
    last = 0
    for stretch in story:
        if stretch.may_cut and now > last:
            pieces.append(timeline.take(now))
        for name, count in stretch.pending.items():
            setattr(timeline.pending, name, count)
        timeline.observe(now, stretch.occupancy, stretch.running, stretch.decoding)
        for after_ns, name in stretch.instants:
            timeline.instants[name].append(now + after_ns)
            if name == "left_running":
                timeline.instants["aborted"].append(now + after_ns)
        last, now = now, now + stretch.duration_ns
    return [*pieces, timeline.take(None)]


def step_by_step(stretch: Stretch) -> Iterator[tuple[int, dict[str, int]]]:
    """When each step begins, from the beginning of the stretch, and its levels: one block, one step at a time."""
    level = {**stretch.occupancy._asdict(), "running": stretch.running}
    if stretch.decoding is None:
        yield 0, level
        return
    num_ticks, tick_ns, longer_ns, written_bytes, blocks_taken, padding_bytes = stretch.decoding
    now = 0
    for tick in range(num_ticks):
        for _ in range(blocks_taken[tick % len(blocks_taken)] if blocks_taken else 0):
            level["blank_blocks" if level["blank_blocks"] else "cached_blocks"] -= 1
            level["allocated_blocks"] += 1
            level["padding_bytes"] += padding_bytes
        level["live_bytes"] += written_bytes
        level["logical_bytes"] += written_bytes
        yield now, dict(level)
        now += tick_ns + tick * longer_ns


def naive_rows(story: list[Stretch]) -> list[dict[str, int]]:
    levels: dict[int, dict[str, int]] = {}
    events: dict[int, Counter[str]] = {}
    now = 0
    for stretch in story:
        for after_ns, level in step_by_step(stretch):
            happened = events.setdefault(now + after_ns, Counter())
            levels[now + after_ns] = level
            happened["refused"] += stretch.pending["refused"]
            if after_ns == 0:
                happened.update({name: count for name, count in stretch.pending.items() if name != "refused"})
        for after_ns, name in stretch.instants:
            happened = events.setdefault(now + after_ns, Counter())
            happened[name] += 1
            if name == "left_running":
                happened["aborted"] += 1
        now += stretch.duration_ns
    rows, level, waiting = [], {}, 0
    for time, happened in sorted(events.items()):
        level = levels.get(time, level)
        waiting += happened["arrived"] + happened["preempted"] + happened["left_running"]
        for name in ("admitted", "resumed", "rejected", "timed_out", "aborted"):
            waiting -= happened[name]
        rows.append({"time": time, **level, "waiting": waiting, **{name: happened[name] for name in EVENTS}})
    return rows


@given(st.lists(stretches(), min_size=1, max_size=8))
def test_rows_made_by_columns_are_those_made_step_by_step(story: list[Stretch]) -> None:
    (rows,) = taken_in_pieces([stretch._replace(may_cut=False) for stretch in story])
    expected = naive_rows(story)
    assert as_lists(rows) == {name: [row[name] for row in expected] for name in expected[0]}


@given(st.lists(stretches(), min_size=2, max_size=8))
def test_rows_taken_in_pieces_are_those_taken_at_once(story: list[Stretch]) -> None:
    (whole,) = taken_in_pieces([stretch._replace(may_cut=False) for stretch in story])
    assert as_lists(joined(taken_in_pieces(story))) == as_lists(whole)
