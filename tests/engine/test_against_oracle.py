"""The engine decides what the naive judge decides, over random worlds."""

from hypothesis import given

from tests.check_decisions import first_difference
from tests.engine.worlds import worlds
from tests.oracle import Oracle, World
from tests.replay import replay

MAX_STEPS = 150
"""Where a log is cut: some worlds go round in circles for ever."""


@given(worlds())
def test_every_decision_is_that_of_the_naive_judge(world: World) -> None:
    expected = Oracle(world).run(MAX_STEPS)
    got = replay({**world, "steps": expected["steps"]})
    assert first_difference(expected, got) is None
