from collections import Counter

from kvsim.memory.beams import Beams


def test_a_request_is_told_the_same_whenever_it_asks() -> None:
    first, second = (Beams(4, 0.5, seed=7) for _ in range(2))
    steps = list(range(200))
    told = [first.parents(3, step) for step in steps]
    second.parents(5, 0)
    assert told == [second.parents(3, step) for step in steps]
    first.forget(3)
    assert told[70:] == [first.parents(3, step) for step in steps[70:]]


def test_requests_seeds_and_chunks_of_steps_are_drawn_apart() -> None:
    def told(seed: int, request_id: int, first: int = 0) -> list[list[int]]:
        beams = Beams(4, 1.0, seed)
        return [beams.parents(request_id, step) for step in range(first, first + 64)]

    assert len({str(told(*which)) for which in ((1, 1), (1, 2), (2, 1), (1, 1, 64))}) == 4


def test_without_concentration_every_beam_goes_on_from_its_own() -> None:
    beams = Beams(3, 0.0, seed=1)
    assert all(beams.parents(0, step) == [0, 1, 2] for step in range(100))


def test_the_concentration_is_the_chance_to_pick_and_all_are_picked_alike() -> None:
    """With a chance of 0.4 to pick among four, a beam goes on from its own with 0.6 + 0.1."""
    beams = Beams(4, 0.4, seed=1)
    chosen = Counter((place, parent) for step in range(10_000) for place, parent in enumerate(beams.parents(0, step)))
    for place in range(4):
        for parent in range(4):
            assert abs(chosen[place, parent] / 10_000 - (0.7 if place == parent else 0.1)) < 0.02
