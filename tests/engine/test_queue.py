import pytest

from kvsim.engine.queue import WAITING_QUEUES, WaitingQueue
from kvsim.engine.state import RequestState
from tests.makers import make_request


def make_state(order: int, priority: int = 0) -> RequestState:
    return RequestState(make_request(order, own=4, priority=priority), order, max_model_len=100)


def ids(queue: WaitingQueue) -> list[int]:
    return [state.request.id for state in queue]


def test_first_come_first_served_ignores_priority_and_puts_back_at_the_front() -> None:
    queue = WAITING_QUEUES["fcfs"]()
    first, second, third, fourth = (make_state(order, priority=4 - order) for order in range(4))
    queue.submit(third)
    queue.submit(fourth)
    queue.put_back(second)
    queue.put_back(first)
    assert ids(queue) == [0, 1, 2, 3]


def test_most_urgent_first_orders_by_priority_then_submission_also_what_is_put_back() -> None:
    queue = WAITING_QUEUES["priority"]()
    for order, priority in ((0, 2), (1, 1), (2, 2), (3, 0)):
        queue.submit(make_state(order, priority))
    assert ids(queue) == [3, 1, 0, 2]
    queue.put_back(make_state(4, priority=1))
    assert ids(queue) == [3, 1, 4, 0, 2]


@pytest.mark.parametrize("policy", WAITING_QUEUES)
def test_any_queue_pops_its_head_in_the_order_it_shows(policy: str) -> None:
    queue = WAITING_QUEUES[policy]()
    for order, priority in enumerate((1, 0, 1, 2, 0)):
        queue.submit(make_state(order, priority))
    shown = list(queue)
    popped = []
    while len(queue):
        head = queue.head()
        popped.append(queue.pop())
        assert popped[-1] is head
    assert popped == shown
    assert len(shown) == 5


@pytest.mark.parametrize("policy", WAITING_QUEUES)
def test_any_queue_lets_go_of_one_in_the_middle(policy: str) -> None:
    queue = WAITING_QUEUES[policy]()
    states = [make_state(order) for order in range(3)]
    for state in states:
        queue.submit(state)
    queue.remove(states[1])
    assert ids(queue) == [0, 2]
