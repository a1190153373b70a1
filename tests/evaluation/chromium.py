"""Find a Chromium and open pages in it, with what they logged and what they asked the network for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = "BOUNDED_RETRIEVAL_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str:
    """The browser to start; skips the test where there is none."""
    given = os.environ.get(CHROMIUM)
    found = given or next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip(f"none of {', '.join(NAMES)} is on PATH (set {CHROMIUM})")
    if not Path(found).is_file():
        pytest.skip(f"{CHROMIUM}: there is no file {found}")
    return found


@contextmanager
def started() -> Iterator[Browser]:
    """Start a browser, with a profile of its own that goes with it."""
    path = find_chromium()
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Opened:
    """One page in a fresh context.

    Attributes:
        page: the page.
        complaints: errors and warnings that it logged, and what it threw.
        requests: addresses that it asked for, besides files and data inside itself.
    """

    def __init__(self, browser: Browser, path: Path, fragment: str = "", **options: Any) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.address = path.as_uri()
        context = browser.new_context(**options)
        context.on("request", self._requested)
        self.page: Page = context.new_page()
        self.page.on("console", self._logged)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.set_default_timeout(10_000)
        self.page.goto(self.address + fragment)

    def _requested(self, request: Any) -> None:
        if request.url.split("#")[0] != self.address and not request.url.startswith("data:"):
            self.requests.append(request.url)

    def _logged(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def close(self) -> None:
        """Close the context, and the page with it."""
        self.page.context.close()
