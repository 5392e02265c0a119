"""The app's server: Bokeh's, on the loopback, for pages that were asked for by the name that it was given.

A page on another site may have its own name resolve to 127.0.0.1 and so read what this server says; therefore
only requests are answered whose Host is the one that was asked for, and whose Origin, if they have one, is the same.
"""

import logging
import socket
from collections.abc import Callable
from errno import EADDRINUSE
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

from bokeh.document import Document
from bokeh.embed.bundle import bundle_for_objs_and_resources
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from bokeh.server.views.session_handler import SessionHandler
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.netutil import bind_sockets
from tornado.web import RequestHandler, StaticFileHandler, authenticated

from kvsim.errors import KvsimError
from kvsim.rules import shown
from kvsim.view.app import AppPage, asked_in
from kvsim.view.pages import STATIC

MAX_MESSAGE_BYTES = 4 * 2**20
"""Of the websocket: an upload in base64 and what is around it."""

TOKEN_SECONDS = 24 * 3600
"""How long a page can be opened again without being loaded again."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self' 'unsafe-eval'",  # Bokeh compiles what charts do when they change
        "style-src 'self' 'unsafe-inline'",  # Bokeh styles what it draws by style elements
        "img-src 'self' data:",
        "connect-src 'self' ws://{host}",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy: nothing from elsewhere, no inline script, in no frame."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class AppServer(BaseServer):
    """Listens as soon as it is made; `start` and a running loop do the rest. Raises KvsimError where it cannot."""

    def __init__(self, folder: Path, host: str, port: int) -> None:
        sockets = _bound(host, port)
        self.host = host
        self.folder = folder
        application = _Application(self)
        http_server = HTTPServer(application)
        http_server.add_sockets(sockets)
        super().__init__(IOLoop.current(), application, http_server)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{_bracketed(self.host)}:{self.port}/"


def is_own(header: str, host: str, port: int | None) -> bool:
    """Whether a Host header names the server that listens on `host` and `port`.

    On the loopback all its names will do; on all interfaces any address will, and the name of this machine.
    """
    name, asked_port = _split(header)
    if asked_port != port:
        return False
    if is_loopback(host):
        return is_loopback(name)
    if host in ("0.0.0.0", "::"):
        return _is_address(name) or name in ("localhost", socket.gethostname().lower())
    return name == host.lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    return host.lower() == "localhost" or (_is_address(host) and ip_address(host).is_loopback)


class _Application(BokehTornado):
    """Bokeh's application with a page of our own, and without the ways in that this page does not use."""

    def __init__(self, server: AppServer) -> None:
        self._app_server = server
        static: Any = [(r"/page/(.*)", StaticFileHandler, {"path": str(STATIC)})]
        super().__init__(
            {"/": lambda document: _make_page(document, server.folder)},
            extra_patterns=static,
            extra_websocket_origins=["*"],  # find_handler is stricter: the Origin must be the Host
            use_index=False,
            websocket_max_message_size_bytes=MAX_MESSAGE_BYTES,
            session_token_expiration=TOKEN_SECONDS,
            include_headers=[],
            include_cookies=[],
            check_unused_sessions_milliseconds=5_000,
        )

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        host = request.headers.get("Host", "")
        origin = request.headers.get("Origin")
        if not is_own(host, self._app_server.host, self._app_server.port):
            return self._refusal(request, "The Host of this request is not the one that the app was started for.")
        if origin is not None and origin.lower() != f"http://{host}".lower():
            return self._refusal(request, "This request comes from another site.")
        if request.path == "/":
            if request.headers.get("Sec-Fetch-Dest", "document") != "document":
                return self._refusal(request, "This page is to be looked at, and not to be a part of another.")
            if request.headers.get("Sec-Fetch-Site") == "cross-site":
                request.arguments.pop("run", None)  # a link may show a scenario; to run it is for the reader
            context = {"application_context": self.applications["/"], "bokeh_websocket_path": "/ws"}
            return self.get_handler_delegate(request, _Page, context)
        if request.path == "/ws" or request.path.startswith(("/static/", "/page/")):
            return super().find_handler(request, **kwargs)
        return self._refusal(request, "There is no such page.", 404)

    def _refusal(self, request: HTTPServerRequest, sentence: str, status: int = 403) -> Any:
        return self.get_handler_delegate(request, _Refusal, {"sentence": sentence, "status": status})


class _Refusal(RequestHandler):
    """One plain sentence."""

    def initialize(self, sentence: str, status: int) -> None:
        self._sentence, self._status = sentence, status

    def prepare(self) -> None:
        self.set_status(self._status)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{self._sentence}\n")


class _Page(SessionHandler):
    """Makes a session, and the page that joins it."""

    @authenticated
    async def get(self) -> None:
        session = await cast(Any, self.get_session)()  # typed by what decorates it
        page: AppPage = session.document.template_variables["page"]
        resources = self.application.resources()
        scripts = bundle_for_objs_and_resources(list(session.document.roots), resources).js_files
        for name, value in HEADERS.items():
            self.set_header(name, value)
        self.set_header("Content-Security-Policy", POLICY.format(host=self.request.host))
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.write(page.html(session.token, [str(script) for script in scripts]))


def _make_page(document: Document, folder: Path) -> None:
    context = document.session_context
    assert context is not None, "a document of a server has a session"
    page = AppPage(folder, asked_in(cast(Any, context).request.arguments))
    page.add_to(document)
    document.on_session_destroyed(lambda _context: page.close())
    document.template_variables["page"] = page


def run(folder: Path, host: str, port: int, when_listening: Callable[[AppServer], None]) -> None:
    """Serve until Ctrl-C, which ends it and is no error; raises KvsimError if it cannot listen."""
    silence_left_pages()
    server = AppServer(folder, host, port)
    try:
        server.start()
        when_listening(server)
        server.io_loop.start()
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()


def silence_left_pages() -> None:
    """Keep out of the log what is no news."""
    logging.getLogger("bokeh.server.views.ws").addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Bokeh warns of each answer that was on its way when somebody closed or left the page, which happens all day."""
    return not record.getMessage().startswith("Failed sending message as connection was closed")


def _bound(host: str, port: int) -> list[socket.socket]:
    if not host.strip():
        raise KvsimError("--host must be an address or a name, got nothing: 0.0.0.0 is all addresses")
    if not 0 <= port < 2**16:
        raise KvsimError(f"--port must be between 0 and {2**16 - 1:,}, got {port}")
    try:
        return bind_sockets(port, host)
    except UnicodeError:
        raise KvsimError(f"--host must be an address or a name, got {shown(host)}") from None
    except OSError as error:
        if error.errno == EADDRINUSE:
            raise KvsimError(f"--port {port} is taken on {host}: give another, or 0 for any that is free") from None
        raise KvsimError(f"--host {host} --port {port} cannot be listened on: {error.strerror or error}") from None


def _split(host: str) -> tuple[str, int | None]:
    """The name and the port of a Host header: "localhost:80", "[::1]:80"."""
    name, _, port = host.rpartition(":")
    if not port.isdecimal() or len(port) > 5:
        return host.lower(), None
    return name.removeprefix("[").removesuffix("]").lower(), int(port)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
