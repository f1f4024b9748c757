"""A real browser for tests: each page that it opens is watched, and a test fails for what went wrong behind its back.

Import the fixtures `browser` and `visit` where they are needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest

from scripts.browser import NoBrowser, ensure

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Request, Response

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
DESK = {"viewport": {"width": 1360, "height": 860}}


@dataclass
class Watched:
    """What happened in one page. `expected` are the statuses of answers that the test provokes."""

    page: Page
    origin: str
    expected: set[int] = field(default_factory=set)
    hasty: bool = False
    """Whether the test leaves pages while they are being loaded, which breaks requests off."""
    wrong: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """URLs, in the order of the requests."""

    def listen(self) -> None:
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error in a script: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("request", self._asked)
        self.page.on("response", self._answered)

    def _said(self, message: Any) -> None:
        # The browser notes every refused request by itself; whether one was expected is decided in _answered.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrong.append(f"console: {message.text}")

    def _failed(self, request: Request) -> None:
        if not (self.hasty and request.failure == "net::ERR_ABORTED"):
            self.wrong.append(f"failed: {request.url} {request.failure}")

    def _asked(self, request: Request) -> None:
        self.asked.append(request.url)
        if not request.url.startswith((self.origin, "data:", f"blob:{self.origin}")):
            self.wrong.append(f"left the server: {request.url}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.wrong.append(f"{response.status} {response.url}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one file: while Playwright runs, its thread has a running event loop, which other tests do not expect."""
    try:
        program = ensure()
    except NoBrowser as reason:
        pytest.skip(str(reason))
    from playwright.sync_api import sync_playwright

    # Chromium refuses its own sandbox to root, and a container's /dev/shm is small.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=arguments)
        yield chromium
        chromium.close()


Visit = Callable[..., Watched]


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """Opens an address as somebody; at the end of the test all that was opened must have gone well."""
    contexts: list[BrowserContext] = []
    opened: list[Watched] = []

    def open_page(
        url: str,
        *,
        cookies: dict[str, str] | None = None,
        storage: dict[str, str] | None = None,
        scheme: Literal["light", "dark"] = "light",
        expected: set[int] | None = None,
        device: dict[str, Any] = DESK,
        clock: bool = False,
        hasty: bool = False,
        **options: Any,
    ) -> Watched:
        origin = "/".join(url.split("/")[:3])
        context = browser.new_context(
            color_scheme=scheme, timezone_id="UTC", locale="en-GB", **{**device, **options}
        )
        contexts.append(context)
        context.set_default_timeout(60_000)  # a busy machine is no failure
        context.add_cookies(
            [{"name": name, "value": value, "url": origin} for name, value in (cookies or {}).items()]
        )
        for name, value in (storage or {}).items():
            context.add_init_script(f"localStorage.setItem({name!r}, {value!r})")
        watched = Watched(context.new_page(), origin, expected or set(), hasty)
        watched.listen()
        opened.append(watched)
        if clock:
            watched.page.clock.install()  # it goes on by itself, and can be put forward
        watched.page.goto(url)
        return watched

    yield open_page
    # Before they are closed: that breaks off whatever is being asked for at the moment.
    wrong = [what for each in opened for what in each.wrong]
    for context in contexts:
        context.close()
    assert wrong == [], wrong
