import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
"""A browser of a test asks nobody for anything, and may be started by root."""


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    """A headless Chromium of this machine."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium is installed: pages are not tried in a browser")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        yield launched
        launched.close()


class Opened:
    """A page, and what it has said that it should not have said."""

    def __init__(self, page: "Page", context: "BrowserContext") -> None:
        self.page = page
        self.context = context
        self.complaints: list[str] = []
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")


@contextmanager
def opened(
    browser: "Browser", *, width: int = 1280, height: int = 800, dark: bool = False, offline: bool = False
) -> Iterator[Opened]:
    """An empty page of a size; at the end it has complained of nothing."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", offline=offline
    )
    try:
        open_page = Opened(context.new_page(), context)
        yield open_page
        assert open_page.complaints == []
    finally:
        context.close()
