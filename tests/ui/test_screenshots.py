"""The pictures of the pages that the documents show; made when asked for: `make screenshots`."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.ui.browser import PHONE, Visit
from tests.ui.conftest import BASE, Served

if TYPE_CHECKING:
    from playwright.sync_api import Page

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "img" / "ui"
MOST_BYTES = 200_000
DESK = {"viewport": {"width": 1280, "height": 800}}
JOB = "#/jobs/stateflow_default/orders"

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        os.environ.get("STATEFLOW_SCREENSHOTS") != "1", reason="pictures are made by `make screenshots`"
    ),
]


@pytest.mark.parametrize(
    ("name", "path", "scheme", "device"),
    [
        ("jobs", "#/jobs", "light", DESK),
        ("jobs-dark", "#/jobs", "dark", DESK),
        ("jobs-phone", "#/jobs", "light", PHONE),
        ("job", JOB, "light", {"viewport": {"width": 1280, "height": 1120}}),
        ("job-dark", JOB, "dark", {"viewport": {"width": 1280, "height": 1120}}),
        ("job-phone", JOB, "dark", PHONE),
        ("history", f"{JOB}/history", "light", DESK),
        ("graph", f"{JOB}/graph", "light", DESK),
        ("savepoints", f"{JOB}/savepoints", "light", {"viewport": {"width": 1280, "height": 560}}),
        ("storage", f"{JOB}/storage", "light", {"viewport": {"width": 1280, "height": 480}}),
        ("checkpoint", f"{JOB}/checkpoints/10330", "light", {"viewport": {"width": 1280, "height": 1000}}),
    ],
)
def test_picture(
    name: str, path: str, scheme: Any, device: dict[str, Any], served: Served, visit: Visit
) -> None:
    page = visit(served.pages + path, scheme=scheme, device=device).page
    page.locator("table, .graph li").first.wait_for()
    if path == JOB:
        page.locator(".timeline .u-over").first.wait_for()
        page.get_by_role("table", name="Sinks").wait_for()
    keep(page, name)


@pytest.mark.parametrize(
    ("name", "button", "scheme"),
    [("restore", "Restore", "light"), ("stop", "Stop", "dark"), ("cleanup", "Clean up", "light")],
)
def test_picture_of_a_dialog(name: str, button: str, scheme: Any, served: Served, visit: Visit) -> None:
    page = visit(f"{served.pages}{JOB}", scheme=scheme, device=DESK).page
    page.locator(".timeline .u-over").first.wait_for()
    page.get_by_role("button", name=button, exact=True).click()
    page.get_by_role("dialog").wait_for()
    if name == "cleanup":
        page.get_by_text("Would free").wait_for()
    keep(page, f"dialog-{name}")


def test_picture_of_what_was_started(served: Served, visit: Visit) -> None:
    page = visit(f"{served.address}{BASE}/stateflow/{JOB}", device=DESK, clock=True).page
    page.get_by_role("button", name="Savepoint", exact=True).click()
    page.get_by_role("button", name="Take savepoint").click()
    while not page.locator(".step-running").count():
        page.clock.fast_forward(4000)
        page.evaluate("fetch('static/icon.svg')")  # time for an answer
    page.locator(".timeline .u-over").first.wait_for()
    keep(page, "started")


def keep(page: Page, name: str) -> None:
    from PIL import Image

    page.wait_for_timeout(400)  # what fades in has come
    taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    IMAGES.mkdir(parents=True, exist_ok=True)
    path = IMAGES / f"{name}.png"
    few = taken.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    assert path.stat().st_size < MOST_BYTES
