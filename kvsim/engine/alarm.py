"""An event of the simulated clock that calls a function."""

from collections.abc import Callable

import simpy
from simpy.events import EventPriority


class Alarm(simpy.Event):
    """Calls one function after a delay, with the priority given; it may be set again when it has gone off.

    A simpy process would do the same at twice the cost.
    """

    def __init__(self, env: simpy.Environment, call: Callable[[simpy.Event], None]) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self._call = call

    def set(self, delay_ns: int, priority: EventPriority) -> None:
        self.callbacks = [self._call]
        self.env.schedule(self, priority, delay_ns)
