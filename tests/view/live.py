"""Documents of a Bokeh server in a thread of this process, so that a test can change what a page shows."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers import FunctionHandler
from bokeh.document import Document
from bokeh.server.server import Server

Call = Callable[[Callable[[], object]], object]
"""Has a function called by the server's thread."""


@contextmanager
def live(fill: Callable[[Document], None]) -> Iterator[tuple[str, Call]]:
    """The address of a server whose documents `fill` makes, and how to have something done by it."""
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        server = Server({"/": Application(FunctionHandler(fill))}, port=0, address="127.0.0.1")
        server.start()
        found["port"], found["done"], found["loop"] = server.port, asyncio.Event(), asyncio.get_running_loop()
        ready.set()
        await found["done"].wait()
        server.stop()
        await server._http.close_all_connections()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{found['port']}/", found["loop"].call_soon_threadsafe
    finally:
        found["loop"].call_soon_threadsafe(found["done"].set)
        thread.join(30)
    assert not thread.is_alive()
