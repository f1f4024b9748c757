"""The site as a reader has it: files in a folder, opened without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts import browser
from scripts.docsite.links import ROOT

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "scripts.docsite", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_search_and_diagrams_work_in_pages_that_are_opened_as_files(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    asked: list[str] = []

    def ask(route: Any) -> None:
        asked.append(route.request.url)
        route.abort()

    with sync_playwright() as playwright:
        program = playwright.chromium.launch(
            executable_path=str(browser.ensure()), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = program.new_page()
        page.route("http*://**", ask)
        page.goto((site / "architecture.html").as_uri())
        # Material draws into a closed shadow root: an element without a tag of its own, with a height.
        page.wait_for_function(
            "[...document.querySelectorAll('div.mermaid')].some(d => d.clientHeight > 50)", timeout=30_000
        )
        page.click("input.md-search__input")
        page.keyboard.type("subsumed")
        page.wait_for_selector(".md-search-result__item", timeout=30_000)
        page.goto((site / "reference" / "pipelines.html").as_uri())
        assert page.locator("h2#stateflow\\.Flow").count() == 1
        program.close()
    assert asked == [], "a reader's browser asks other sites for something"
