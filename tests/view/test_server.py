"""Whom the server answers, and with what."""

import logging
import re
import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from bokeh.util.token import get_token_payload

from kvsim.errors import KvsimError
from kvsim.view.app import asked_in
from kvsim.view.server import AppServer, is_loopback, is_own, silence_left_pages
from tests.view.served import served


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with served(tmp_path_factory.mktemp("folder")) as address:
        found = urlsplit(address).port
        assert found is not None
        yield found


def asked(port: int, path: str = "/", **headers: str) -> HTTPResponse:
    """An answer that is read; dashes of header names are written as underscores."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_the_page_comes_with_a_strict_policy(port: int) -> None:
    answer = asked(port)
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert policy == (
        "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        f"connect-src 'self' ws://127.0.0.1:{port}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_all_names_of_the_loopback_will_do(port: int, name: str) -> None:
    assert asked(port, Host=f"{name}:{port}").status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", "", ":"],
)
@pytest.mark.parametrize("path", ["/", "/ws", "/static/js/bokeh.min.js", "/page/app.js"])
def test_another_host_is_refused(port: int, host: str, path: str) -> None:
    assert asked(port, path, Host=host.format(port=port)).status == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "null"])
@pytest.mark.parametrize("path", ["/", "/ws"])
def test_another_origin_is_refused(port: int, origin: str, path: str) -> None:
    assert asked(port, path, Origin=origin.format(port=port), **joining(port)).status == 403


@pytest.mark.parametrize("dest", ["image", "iframe", "script", "empty"])
def test_the_page_is_no_part_of_another(port: int, dest: str) -> None:
    assert asked(port, "/?tab=scenario&run=1", Sec_Fetch_Dest=dest, Sec_Fetch_Site="cross-site").status == 403


@pytest.mark.parametrize(("site", "runs"), [("cross-site", False), ("same-origin", True), ("none", True), (None, True)])
def test_a_link_from_another_site_shows_a_scenario_and_does_not_run_it(port: int, site: str | None, runs: bool) -> None:
    """A page of another site could have it opened; what somebody opens by hand is run."""
    sent = {"Sec-Fetch-Site": site} if site else {}
    request = Request(f"http://127.0.0.1:{port}/?tab=scenario&run=1", headers={"Sec-Fetch-Dest": "document", **sent})
    with urlopen(request, timeout=10) as answer:
        token = re.search(r'"token": ?"([^"]+)"', answer.read().decode())
    assert token is not None
    assert set(get_token_payload(token[1])["arguments"]) == ({"tab", "run"} if runs else {"tab"})


def test_the_page_itself_may_join_its_session(port: int) -> None:
    assert asked(port, "/ws", Origin=f"http://127.0.0.1:{port}", **joining(port)).status == 101


def joining(port: int) -> dict[str, str]:
    """What a browser says to open the websocket of a page, with its token."""
    with urlopen(f"http://127.0.0.1:{port}/") as page:
        found = re.search(r'"token": "([^"]+)"', page.read().decode())
    assert found is not None
    return {
        "Upgrade": "websocket", "Connection": "Upgrade", "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec_WebSocket_Protocol": f"bokeh, {found[1]}",
    }  # fmt: skip


@pytest.mark.parametrize(
    "path",
    ["/autoload.js", "/metadata", "/favicon.ico", "/page/../server.py", "/page/%2e%2e/server.py", "/page/", "/x"],
)
def test_there_are_no_other_ways_in(port: int, path: str) -> None:
    assert asked(port, path).status in (403, 404)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("no.such.host.invalid", 0, "--host no.such.host.invalid --port 0 cannot be listened on"),
        ("127.0.0.1", 65536, "--port must be between 0 and 65,535, got 65536"),
        (300 * "a", 0, "--host must be an address or a name, got 'aaa"),
        ("", 0, "--host must be an address or a name, got nothing"),
        ("127.0.0.1", -1, "--port must be between 0 and 65,535, got -1"),
    ],
)
def test_where_it_cannot_listen_is_said(tmp_path: Path, host: str, port: int, message: str) -> None:
    with pytest.raises(KvsimError, match=message):
        AppServer(tmp_path, host, port)


def test_a_page_that_is_left_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    silence_left_pages()
    bokeh_log = logging.getLogger("bokeh.server.views.ws")
    bokeh_log.warning("Failed sending message as connection was closed")
    bokeh_log.warning("Something else")
    assert caplog.messages == ["Something else"]


def test_the_loopback_is_this_machine_alone() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "192.168.0.2", "example.org"))


def test_on_all_interfaces_addresses_and_the_machines_name_will_do() -> None:
    for host in ("0.0.0.0", "::"):
        for name in ("192.168.0.2", "[fe80::1]", "localhost", socket.gethostname()):
            assert is_own(f"{name}:80", host, 80)
        assert not is_own("evil.example:80", host, 80)
        assert not is_own("192.168.0.2:81", host, 80)


def test_elsewhere_only_the_name_that_was_asked_for_will_do() -> None:
    assert is_own("Big.example:80", "big.EXAMPLE", 80)
    assert not is_own("localhost:80", "big.example", 80)
    assert not is_own("192.168.0.3:80", "192.168.0.2", 80)


def test_of_a_name_in_an_address_the_last_counts_but_of_set_all() -> None:
    arguments = {"tab": [b"a", b"b"], "set": [b"seed=1", b"memory.block_size=8"], "bokeh-token": [b"x"], "file": []}
    assert asked_in(arguments) == {"tab": "b", "set": "seed=1\nmemory.block_size=8"}
