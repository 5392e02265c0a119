"""The engine decides what the naive judge decides, over random worlds; all invariants are recounted in every step."""

import pytest
from hypothesis import given, settings

from kvsim.memory.eviction import EVICTION
from tests.check_decisions import first_difference
from tests.engine.worlds import pressed_worlds, worlds
from tests.oracle import Oracle, World
from tests.replay import replay

MAX_STEPS = 150
"""Where a log is cut: some worlds go round in circles for ever."""


def assert_decisions_are_those_of_the_naive_judge(world: World) -> None:
    expected = Oracle(world).run(MAX_STEPS)
    got = replay({**world, "steps": expected["steps"]}, check=True)
    assert first_difference(expected, got) is None


@given(worlds())
def test_every_decision_is_that_of_the_naive_judge(world: World) -> None:
    assert_decisions_are_those_of_the_naive_judge(world)


# There is more to mix here.
@settings(max_examples=3 * settings.default.max_examples)
@given(worlds(windows=True))
def test_every_decision_with_windows_and_several_groups_is_that_of_the_naive_judge(world: World) -> None:
    assert_decisions_are_those_of_the_naive_judge(world)


@pytest.mark.parametrize("eviction", [name for name in EVICTION if name != "lru"])
@given(world=worlds() | worlds(windows=True))
def test_every_decision_under_another_order_of_eviction_is_that_of_the_naive_judge(eviction: str, world: World) -> None:
    world["config"]["eviction"] = eviction
    assert_decisions_are_those_of_the_naive_judge(world)


def assert_decisions_and_moves_are_those_of_the_naive_judge(world: World) -> None:
    expected = Oracle(world).run(MAX_STEPS)
    got = replay({**world, "steps": expected["steps"]}, check=True)
    assert first_difference(expected, got) is None
    for name in ("swapped_out", "swapped_in", "host"):
        assert [step[name] for step in got["steps"]] == [step[name] for step in expected["steps"]]


@settings(max_examples=3 * settings.default.max_examples)
@given(pressed_worlds())
def test_admissions_and_swaps_are_those_of_the_naive_judge(world: World) -> None:
    assert_decisions_and_moves_are_those_of_the_naive_judge(world)


@settings(max_examples=3 * settings.default.max_examples)
@given(pressed_worlds(windows=True))
def test_admissions_and_swaps_with_windows_and_several_groups_are_those_of_the_naive_judge(world: World) -> None:
    assert_decisions_and_moves_are_those_of_the_naive_judge(world)
