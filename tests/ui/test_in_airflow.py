"""The pages where they live: in Airflow's own UI, behind its login, with its two kinds of users, over a real store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from stateflow.jobs.job import Job
from tests.jobs.records import Made, make_job
from tests.ui.airflow_app import PASSWORDS, AirflowApp, airflow_app
from tests.ui.browser import Visit, Watched
from tests.ui.fixture_server import serving
from tests.ui.test_looks import lightness

if TYPE_CHECKING:
    from playwright.sync_api import Frame, Page

__all__ = ["airflow_app"]

pytestmark = pytest.mark.system

RUN = "stateflow_savepoint/scheduled__2026-01-01T00:00:00+00:00"
HEAD = 10_000


@pytest.fixture(scope="module")
def live(airflow_app: AirflowApp) -> Iterator[str]:
    """Airflow's API server with its pages and ours, ten thousand checkpoints, a hundred jobs; nothing that runs DAGs."""
    now = time.time_ns() // 1000
    make_job(airflow_app.root, Made("orders", collected=HEAD - 5, dag_run=RUN), now)
    for number in range(99):
        make_job(airflow_app.root, Made(f"job_{number:02d}", standing=3), now)
    Job(str(airflow_app.root), "orders").tag("before-prices", f"checkpoint:{HEAD - 2}", note="new prices")
    # Its own start and end are the test client's affair.
    with serving(airflow_app.admin.app, lifespan="off") as address:
        yield address


def signed_in(visit: Visit, address: str, user: str, expected: set[int] | None = None) -> Watched:
    """Through the login that a person meets who was given the address of the pages."""
    watched = visit(address, expected=expected, hasty=True)
    page = watched.page
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(PASSWORDS[user])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{address}**")
    return watched


def framed(page: Page) -> Frame:
    """The pages within Airflow's."""
    page.locator("iframe[title=Stateflow]").wait_for()
    page.wait_for_function("() => frames.length === 1 && frames[0].location.pathname.endsWith('/stateflow/')")
    return next(frame for frame in page.frames if frame != page.main_frame)


def test_a_stranger_signs_in_and_is_where_they_wanted_to_be(live: str, visit: Visit) -> None:
    page = signed_in(visit, f"{live}/stateflow/", "viewer").page
    page.locator("table.jobs").wait_for()
    assert page.locator("table.jobs tbody tr:not(.more-row)").count() == 100
    assert "nowhere the checkpoint root" in page.locator(".notice").filter(has_text="nowhere").inner_text()


def test_the_pages_are_found_under_browse_and_look_like_a_part_of_airflow(live: str, visit: Visit) -> None:
    page = signed_in(visit, f"{live}/stateflow/", "admin").page
    page.goto(f"{live}/")
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("menuitem", name="Stateflow").click()
    frame = framed(page)
    frame.get_by_role("link", name="orders", exact=True).click()
    frame.get_by_role("heading", name="orders").wait_for()
    # What was collected long ago is read while one looks.
    frame.get_by_role("link", name="History").click()
    frame.get_by_text("of 10,000 records").wait_for(timeout=60_000)
    frame.get_by_role("link", name=f"#{HEAD - 2}", exact=True).click()
    frame.get_by_role("region", name="Operator balance").wait_for()
    assert "before-prices" in frame.locator(".checkpoint-title").inner_text()
    # A watermark of a plausible year: units agree from the record to the page.
    assert frame.locator(".factlist").inner_text().count("2026-") == 2

    page.evaluate("localStorage.setItem('theme', 'dark')")
    page.reload()
    frame = framed(page)
    frame.wait_for_function("() => document.documentElement.dataset.theme === 'dark'")
    # The theme is there before the style sheets are.
    frame.wait_for_load_state("load")
    # Airflow fades from one to the other.
    page.wait_for_function(
        """(ours) => { const ctx = document.createElement('canvas').getContext('2d');
        ctx.fillStyle = getComputedStyle(document.documentElement).backgroundColor; ctx.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...ctx.getImageData(0, 0, 1, 1).data].map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
        return Math.abs(0.2126 * r + 0.7152 * g + 0.0722 * b - ours) < 0.003; }""",
        arg=lightness(frame),
    )


def test_an_admin_presses_and_is_led_to_the_dag_run(live: str, visit: Visit) -> None:
    page = signed_in(visit, f"{live}/stateflow/", "admin").page
    page.goto(f"{live}/plugin/stateflow")
    frame = framed(page)
    frame.get_by_role("link", name="orders", exact=True).click()
    frame.get_by_role("button", name="Savepoint").click()
    dialog = frame.get_by_role("dialog")
    dialog.get_by_label("Note").fill("from the pages")
    dialog.get_by_role("button", name="Take savepoint").click()
    dialog.wait_for(state="detached")
    started = frame.locator(".started")
    started.get_by_text("queued").wait_for()  # nothing here runs DAGs
    started.get_by_role("link", name="stateflow_savepoint").click()
    page.wait_for_url(f"{live}/dags/stateflow_savepoint/runs/manual__*")
    page.get_by_text("Queued").first.wait_for()


def test_a_viewer_hears_airflows_own_refusal(live: str, visit: Visit) -> None:
    page = signed_in(visit, f"{live}/stateflow/", "viewer", expected={403}).page
    page.get_by_role("link", name="orders", exact=True).click()
    # It looks as if it were disabled, and says why when it is pressed all the same.
    page.get_by_role("button", name="Savepoint").click(force=True)
    dialog = page.get_by_role("dialog")
    assert "You may not start the DAG stateflow_savepoint" in dialog.inner_text()
    take = dialog.get_by_role("button", name="Take savepoint")
    assert take.is_disabled()
    # Who gets round that is refused by Airflow.
    status = page.evaluate(
        """url => fetch(url, {
            method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify({logical_date: null, conf: {}}),
        }).then(answer => answer.status)""",
        f"{live}/api/v2/dags/stateflow_savepoint/dagRuns",
    )
    assert status == 403


def test_the_tabs_of_a_dag_and_its_run_show_what_they_wrote(live: str, visit: Visit) -> None:
    page = signed_in(visit, f"{live}/stateflow/", "viewer").page
    page.goto(f"{live}/dags/stateflow_savepoint")
    page.get_by_role("link", name="Stateflow", exact=True).click()
    frame = framed(page)
    frame.locator("table.jobs").wait_for()
    assert frame.locator("table.jobs .job-name").all_inner_texts() == ["orders"]
    assert "Only what DAG stateflow_savepoint wrote" in frame.locator(".filtered").inner_text()
    frame.get_by_role("button", name="Show everything").click()
    frame.get_by_text("100 jobs").wait_for()
