"""How the pages look: light and dark, on a phone, in the frame that Airflow puts them into, for weak eyes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.ui.browser import PHONE, Visit
from tests.ui.conftest import BASE, Served
from tests.ui.fixture_data import SHADOW

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

pytestmark = pytest.mark.system

PATHS = (
    "#/jobs",
    "#/jobs/stateflow_default/orders",
    "#/jobs/stateflow_default/orders/history",
    "#/jobs/stateflow_default/orders/graph",
    "#/jobs/stateflow_default/orders/savepoints",
    "#/jobs/stateflow_default/orders/storage",
    "#/jobs/stateflow_default/orders/audit",
    "#/jobs/stateflow_default/orders/keys",
    "#/jobs/stateflow_default/orders/keys?operator=balance&state=total&key=42",
    "#/jobs/stateflow_default/orders/differences?before=10330&after=10334",
    f"#/jobs/stateflow_default/orders/replays/{SHADOW}",
    "#/jobs/stateflow_default/orders/checkpoints/10334",
)
READY = "table, .graph li, .empty, form.asking"

# Colours as the browser mixes them, whatever notation the style sheet has.
MEASURE = """
(names) => {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const ctx = canvas.getContext('2d', { willReadFrequently: true });
  const probe = document.body.appendChild(document.createElement('i'));
  const light = (name) => {
    probe.style.color = `var(${name})`;
    ctx.fillStyle = getComputedStyle(probe).color;
    ctx.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...ctx.getImageData(0, 0, 1, 1).data].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return Object.fromEntries(names.map((name) => [name, light(name)]));
}
"""


def lightness(page: Page | Frame) -> float:
    found: dict[str, float] = page.evaluate(MEASURE, ["--page"])
    return found["--page"]


def test_light_and_dark_follow_the_system_airflow_and_the_address(served: Served, visit: Visit) -> None:
    light, dark = visit(served.pages).page, visit(served.pages, scheme="dark").page
    assert lightness(light) > 0.9
    assert lightness(dark) < 0.05
    # Airflow's own switch wins over the system, and what the address says over both.
    chosen = visit(served.pages, scheme="light", storage={"theme": "dark"}).page
    assert lightness(chosen) < 0.05
    assert (
        lightness(visit(f"{served.pages}?theme=light", scheme="dark", storage={"theme": "dark"}).page) > 0.9
    )
    assert lightness(visit(served.pages, scheme="dark", storage={"theme": "system"}).page) < 0.05
    chart = visit(served.job).page
    chart.locator(".timeline canvas").first.wait_for()
    before = chart.locator(".timeline canvas").first.evaluate("(canvas) => canvas.toDataURL()")
    chart.emulate_media(color_scheme="dark")
    chart.wait_for_function(
        "(before) => document.querySelector('.timeline canvas').toDataURL() !== before", arg=before
    )
    assert lightness(chart) < 0.05


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(scheme: Any, served: Served, visit: Visit) -> None:
    page = visit(served.pages, scheme=scheme).page
    texts = [
        "--text",
        "--muted",
        "--faint",
        "--accent",
        "--ok",
        "--stale",
        "--lost",
        "--blocked",
        "--new",
        "--mark",
    ]
    grounds = ["--page", "--raised", "--sunk", "--hover"]
    found: dict[str, float] = page.evaluate(
        MEASURE, [*texts, *grounds, "--on-accent", "--accent-fill", "--danger-fill"]
    )

    def contrast(one: str, other: str) -> float:
        low, high = sorted((found[one], found[other]))
        return (high + 0.05) / (low + 0.05)

    weak = {(text, ground): contrast(text, ground) for text in texts for ground in grounds}
    weak |= {
        ("--on-accent", fill): contrast("--on-accent", fill) for fill in ("--accent-fill", "--danger-fill")
    }
    assert {pair: round(value, 2) for pair, value in weak.items() if value < 4.5} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_never_scrolls_sideways(scheme: Any, served: Served, visit: Visit) -> None:
    page = visit(served.pages, scheme=scheme, device=PHONE).page
    for path in PATHS:
        page.goto(served.pages + path)
        page.locator(READY).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 390, path
    page.goto(served.job)
    page.locator(".timeline .u-over").first.wait_for()
    narrow = page.evaluate(
        "[...document.querySelectorAll('.timeline .uplot')].every((chart) => chart.clientWidth <= 390)"
    )
    assert narrow
    page.get_by_role("button", name="Restore").click()
    box = page.get_by_role("dialog").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    small = page.evaluate(
        "[...document.querySelectorAll('dialog button, dialog select, dialog input[type=text]')].filter((each) => each.offsetHeight < 36).length"
    )
    assert small == 0


@pytest.mark.parametrize("width", [720, 1024, 1920])
def test_no_window_scrolls_sideways(width: int, served: Served, visit: Visit) -> None:
    page = visit(served.pages, device={"viewport": {"width": width, "height": 800}}).page
    for path in PATHS:
        page.goto(served.pages + path)
        page.locator(READY).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def test_in_airflows_frame_dialogs_open_the_theme_follows_and_links_lead_out(
    served: Served, visit: Visit
) -> None:
    page = visit(f"{served.address}{BASE}/plugin/stateflow").page
    page.wait_for_function("frames.length === 1")
    frame = page.frames[1]
    frame.locator("table.jobs").wait_for()
    # The bar's own way to Airflow would be Airflow within Airflow.
    assert frame.get_by_role("link", name="Airflow", exact=True).count() == 0
    page.evaluate("document.documentElement.className = 'dark'")
    frame.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    assert lightness(frame) < 0.05
    frame.locator("table.jobs").get_by_role("link", name="orders", exact=True).click()
    frame.get_by_role("button", name="Savepoint").click()
    frame.get_by_role("dialog").wait_for()
    frame.get_by_role("button", name="Take savepoint").click()
    frame.locator(".started").get_by_role("link").click()
    page.wait_for_url(f"{served.address}{BASE}/dags/stateflow_savepoint/runs/**")
    page.get_by_role("heading", name="DAG page stateflow_savepoint/runs/manual__2026-11-20T03:04:").wait_for()


def test_everything_has_a_name_and_every_control_is_reached(served: Served, visit: Visit) -> None:
    page = visit(served.pages).page
    for path in PATHS:
        page.goto(served.pages + path)
        page.locator(READY).first.wait_for()
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('button, a, input, select, canvas[tabindex], [role=region]')]
                .filter((each) => !(each.innerText?.trim() || each.ariaLabel || each.labels?.[0]?.innerText.trim()))
                .map((each) => each.outerHTML.slice(0, 120))"""
        )
        assert nameless == [], path
        assert page.evaluate("document.querySelectorAll('h1').length") == 1, path
        doubled = page.evaluate(
            "() => { const ids = [...document.querySelectorAll('[id]')].map((each) => each.id); return ids.filter((id, k) => ids.indexOf(id) !== k); }"
        )
        assert doubled == [], path
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
