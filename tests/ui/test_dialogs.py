"""The buttons: what each form sends, who may, and how a dialog behaves that is drawn in the page."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.ui.browser import Visit
from tests.ui.conftest import BASE, Served
from tests.ui.fixture_data import full_world, young_world
from tests.ui.fixture_server import application, serving

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.system


def opened(page: Page, button: str) -> Locator:
    page.get_by_role("group", name="Actions").get_by_role("button", name=button).click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    return dialog


def sent(served: Served) -> dict[str, Any]:
    return served.world.posted[-1]


def test_a_savepoint_is_asked_for_and_its_dag_run_followed_to_its_end(served: Served, visit: Visit) -> None:
    page = visit(served.job, clock=True).page
    dialog = opened(page, "Savepoint")
    dialog.get_by_label("Canonical").check()
    dialog.get_by_label("Note").fill('before <b>2.0</b> & "more"')
    dialog.get_by_role("button", name="Take savepoint").click()
    dialog.wait_for(state="detached")
    assert sent(served) == {
        "dag_id": "stateflow_savepoint",
        "conf": {
            "job": "orders",
            "conn_id": "stateflow_default",
            "kind": "canonical",
            "note": 'before <b>2.0</b> & "more"',
        },
    }
    started = page.locator(".started")
    assert "Savepoint" in started.inner_text()
    href = started.get_by_role("link").get_attribute("href") or ""
    assert href.startswith(
        f"{served.address}{BASE}/dags/stateflow_savepoint/runs/manual__2026-11-20T03%3A04%3A"
    )
    page.clock.fast_forward(4000)
    page.locator(".steps").get_by_text("running").wait_for()
    while not page.locator(".started-success").count():
        page.clock.fast_forward(4000)
        page.evaluate("fetch('static/icon.svg')")  # time for an answer
    assert "Savepoint done" in started.inner_text()
    # It is followed from wherever one looks at the job, until it is put away.
    page.get_by_role("link", name="Storage").click()
    started.get_by_role("button").click()
    assert page.locator(".started").count() == 0


def test_a_restore_begins_with_a_plan(served: Served, visit: Visit) -> None:
    page = visit(served.job).page
    dialog = opened(page, "Restore")
    assert "waits for a person's approval" in dialog.inner_text()
    dialog.get_by_label("Restore from").select_option(label="black-friday (#9400)")
    assert dialog.get_by_label("With the jobs that have read them").count() == 0
    dialog.get_by_label("Rewind the outputs too").check()
    dialog.get_by_label("With the jobs that have read them").check()
    dialog.get_by_role("button", name="Plan the restore").click()
    dialog.wait_for(state="detached")
    assert sent(served) == {
        "dag_id": "stateflow_recovery",
        "conf": {
            "job": "orders",
            "conn_id": "stateflow_default",
            "origin": "tag:black-friday",
            "rewind_sinks": True,
            "with_readers": True,
            "note": "",
        },
    }


def test_a_restore_from_a_checkpoint_and_from_a_savepoint(served: Served, visit: Visit) -> None:
    page = visit(f"{served.job}/checkpoints/{served.world.head - 3}").page
    page.get_by_role("region", name="Operator balance").wait_for()
    dialog = opened(page, "Restore")
    where = dialog.get_by_label("Checkpoint or savepoint")
    assert where.input_value() == str(served.world.head - 3)
    where.fill("some")
    assert dialog.get_by_role("button", name="Plan the restore").is_disabled()
    where.fill(" s3://backup/orders 1 ")
    dialog.get_by_role("button", name="Plan the restore").click()
    dialog.wait_for(state="detached")
    assert sent(served)["conf"]["origin"] == "s3://backup/orders 1"
    dialog = opened(page, "Restore")
    where.fill(" 10330 ")
    dialog.get_by_role("button", name="Plan the restore").click()
    dialog.wait_for(state="detached")
    assert sent(served)["conf"]["origin"] == "checkpoint:10330"

    page.goto(f"{served.job}/savepoints")
    page.get_by_role("row", name=re.compile("nightly-19")).get_by_role("button").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Plan the restore").click()
    dialog.wait_for(state="detached")
    assert sent(served)["conf"]["origin"] == "s3://lake/checkpoints/_savepoints/orders/nightly-19"


def test_a_job_without_operators_is_restored_from_the_checkpoint_that_is_shown(visit: Visit) -> None:
    world = full_world(300, 3)
    world.stateless = True
    with serving(application(world, BASE)) as address:
        page = visit(f"{Served(world, address).job}/checkpoints/{world.head - 3}").page
        page.get_by_role("heading", name="Sources").wait_for()
        dialog = opened(page, "Restore")
        assert dialog.get_by_label("Checkpoint or savepoint").input_value() == str(world.head - 3)


def test_a_stop_says_what_draining_means(served: Served, visit: Visit) -> None:
    page = visit(served.job).page
    dialog = opened(page, "Stop")
    dialog.get_by_label("Take a savepoint").check()
    assert dialog.get_by_role("status").count() == 0
    dialog.get_by_label("Drain").check()
    assert "not resumed as if nothing had happened" in dialog.get_by_role("status").inner_text()
    dialog.get_by_role("button", name="Drain and stop").click()
    dialog.wait_for(state="detached")
    assert sent(served)["conf"] == {
        "job": "orders", "conn_id": "stateflow_default", "savepoint": True, "drain": True, "note": "",
    }  # fmt: skip


def test_a_clean_up_only_reports_unless_told_otherwise(served: Served, visit: Visit) -> None:
    page = visit(served.job).page
    dialog = opened(page, "Clean up")
    dialog.get_by_text("Would free 701 MB and keep 5 checkpoints").wait_for()
    keep = dialog.get_by_label("Checkpoints to keep")
    keep.fill("0")
    assert dialog.get_by_role("button", name="Report").is_disabled()
    keep.fill("4")
    dialog.get_by_text("keep 6 checkpoints").wait_for()
    age = dialog.get_by_label("Keep all younger than")
    age.fill("a while")
    assert dialog.get_by_role("button", name="Report").is_disabled()
    age.fill(" 1 day ")
    dialog.get_by_text("keep 8 checkpoints, 2 of them only for being younger than 1 day").wait_for()
    dialog.get_by_role("button", name="Report").click()
    dialog.wait_for(state="detached")
    assert sent(served)["conf"] == {
        "job": "orders",
        "conn_id": "stateflow_default",
        "retained": 4,
        "age": "1 day",
        "dry_run": True,
    }
    dialog = opened(page, "Clean up")
    dialog.get_by_label("Only report").uncheck()
    dialog.get_by_role("button", name="Clean up").click()
    dialog.wait_for(state="detached")
    assert sent(served)["conf"]["dry_run"] is False


@pytest.mark.parametrize(
    ("button", "verb"),
    [
        ("Savepoint", "Take savepoint"),
        ("Restore", "Plan the restore"),
        ("Stop", "Stop"),
        ("Clean up", "Report"),
    ],
)
def test_a_viewer_looks_at_the_form_and_hears_why_it_is_not_sent(
    button: str, verb: str, served: Served, visit: Visit
) -> None:
    page = visit(served.job, cookies={"role": "viewer"}).page
    before = len(served.world.posted)
    of_bar = page.get_by_role("group", name="Actions").get_by_role("button", name=button)
    of_bar.and_(page.locator("[aria-disabled=true]")).wait_for()
    assert "You may not start the DAG" in (of_bar.get_attribute("title") or "")
    of_bar.click(force=True)
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert "You may not start the DAG" in dialog.inner_text()
    assert dialog.get_by_role("button", name=verb, exact=True).is_disabled()
    dialog.locator("form").dispatch_event("submit")
    assert len(served.world.posted) == before
    assert page.locator(".started").count() == 0


def test_a_long_tag_leaves_the_restore_dialog_whole(served: Served, visit: Visit) -> None:
    world = dataclasses.replace(served.world, tags={"before-" + "the-release-of-november-" * 5: 9400})
    with serving(application(world)) as address:
        page = visit(f"{address}/stateflow/#/jobs/stateflow_default/orders").page
        dialog = opened(page, "Restore")
        dialog.get_by_label("Restore from").wait_for()
        for part in ("dialog", "dialog .body", "dialog .field"):
            overflow = page.evaluate(
                f"(e => e.scrollWidth - e.clientWidth)(document.querySelector('{part}'))"
            )
            assert overflow <= 0, part
        box, frame = dialog.get_by_label("Restore from").bounding_box(), dialog.bounding_box()
        assert box is not None
        assert frame is not None
        assert box["x"] + box["width"] <= frame["x"] + frame["width"]


def test_a_dialog_takes_the_focus_keeps_it_and_gives_it_back(served: Served, visit: Visit) -> None:
    before = len(served.world.posted)
    page = visit(served.job).page
    button = page.get_by_role("group", name="Actions").get_by_role("button", name="Stop")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Stop orders")
    dialog.wait_for()
    focused = "document.activeElement.closest('dialog') !== null"
    page.wait_for_function("() => document.activeElement.type === 'checkbox'")
    seen = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        # The browser's own controls may have a turn between the last field and the first; the page behind never has.
        assert page.evaluate(f"document.activeElement === document.body || {focused}")
        seen.add(page.evaluate("document.activeElement.innerText || document.activeElement.type"))
    assert {"Cancel", "Stop", "checkbox", "text"} <= seen
    # By the key, by a button in it, by a click beside it: it goes, and one is where one was.
    for leave in (
        lambda: page.keyboard.press("Escape"),
        lambda: dialog.get_by_role("button", name="Cancel").click(),
        lambda: page.mouse.click(5, 400),
    ):
        leave()
        # A closed dialog is no dialog any more, a moment before its element goes and gives the focus back.
        page.wait_for_function(
            "() => document.querySelector('dialog') === null && document.activeElement.innerText === 'Stop'"
        )
        page.keyboard.press("Enter")
        dialog.wait_for()
    assert len(served.world.posted) == before


def test_without_a_dag_the_form_says_which_file_is_missing(visit: Visit) -> None:
    with serving(application(young_world())) as address:
        page = visit(f"{address}/stateflow/#/jobs/stateflow_default/orders").page
        dialog = opened(page, "Savepoint")
        assert "dags/stateflow_savepoint.py" in dialog.inner_text()
        assert "stateflow savepoint create orders" in dialog.locator(".command").inner_text()
        dialog.get_by_role("button", name="Close").last.click()
        dialog.wait_for(state="detached")
