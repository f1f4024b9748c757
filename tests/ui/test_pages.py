"""The pages in a real browser, against a server that makes its answers up: what is there, and what is seen of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.ui.browser import Visit
from tests.ui.conftest import BASE, Served
from tests.ui.fixture_data import (
    ACCOUNT,
    NOW,
    SHADOW,
    World,
    bare_world,
    empty_world,
    full_world,
    young_world,
)
from tests.ui.fixture_server import application, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.system


def rows(page: Page) -> Locator:
    return page.locator("table.jobs tbody tr:not(.more-row)")


def names(page: Page) -> list[str]:
    return [text.strip() for text in page.locator("table.jobs .job-name a").all_inner_texts()]


def settled(page: Page) -> None:
    page.locator("table.jobs, .facts, .empty").first.wait_for()


def test_all_jobs_with_the_unwell_ones_first_and_why(served: Served, visit: Visit) -> None:
    page = visit(served.pages).page
    settled(page)
    assert rows(page).count() == 100
    words = [text.strip() for text in page.locator("td.col-health").all_inner_texts()]
    assert words[:6] == ["Lost", "Blocked", "Stale", "Stale", "New", "Healthy"]
    lost = page.locator("tr.more-row").first
    assert "Has lost its run (epoch 12" in lost.inner_text()
    assert "start the next run, it carries on from checkpoint 411" in lost.inner_text()
    assert page.locator("tr.more-row").count() == 4
    # A root that cannot be read hides no other, and says why.
    assert (
        "stateflow_lab the root /mnt/lab/checkpoints does not exist" in page.locator(".notice").inner_text()
    )
    orders = rows(page).filter(has=page.get_by_role("link", name="orders", exact=True)).inner_text()
    assert re.search(r"Running\s+\d+ s ago", orders), orders
    assert "1.5 GB" in orders
    assert rows(page).filter(has_text="orders").locator("svg.spark path").count() > 1


def test_warm_hosts_are_there_with_the_runs_that_they_carry_out(served: Served, visit: Visit) -> None:
    page = visit(served.pages).page
    settled(page)
    hosts = page.locator(".warm-hosts li")
    assert [text.split(":")[0] for text in hosts.all_inner_texts()] == [
        "team on worker-1",
        "team on worker-2",
    ]
    on_one = [job for job in served.world.jobs if (job["warm_host"], job["machine"]) == ("team", "worker-1")]
    running = {job["job"] for job in on_one if job["running"]}
    assert set(hosts.first.get_by_role("link").all_inner_texts()) == running
    assert f"the newest run of {len(on_one)} jobs" in hosts.first.inner_text()
    hosts.first.get_by_role("link", name="orders", exact=True).click()
    page.locator(".facts").first.wait_for()
    page.go_back()
    settled(page)
    page.get_by_label("Filter jobs").fill("team orders")
    page.wait_for_function("() => document.querySelectorAll('.warm-hosts li').length >= 1")
    assert all(name for name in names(page))


def test_jobs_are_sorted_by_any_column_both_ways(served: Served, visit: Visit) -> None:
    page = visit(served.pages).page
    settled(page)
    state = page.get_by_role("columnheader", name="State")
    state.get_by_role("button").click()
    assert state.get_attribute("aria-sort") == "descending"
    wanted = sorted(served.world.jobs, key=lambda row: -(row["state_size"] or -1))
    assert names(page)[:5] == [row["job"] for row in wanted[:5]]
    # Who has none comes last, whichever way is up.
    state.get_by_role("button").click()
    assert state.get_attribute("aria-sort") == "ascending"
    assert names(page)[-1] == "risk_alerts"
    page.get_by_role("columnheader", name="Job").get_by_role("button").click()
    assert names(page) == sorted(names(page))


def test_the_filter_finds_jobs_and_is_kept_in_the_address(served: Served, visit: Visit) -> None:
    page = visit(served.pages, hasty=True).page
    settled(page)
    page.keyboard.press("/")
    page.keyboard.type("fraud stateflow_eu")
    page.wait_for_function(
        "() => document.querySelectorAll('table.jobs tbody tr:not(.more-row)').length < 10"
    )
    assert all(name.startswith("fraud_") for name in names(page))
    page.reload()
    settled(page)
    assert page.get_by_label("Filter jobs").input_value() == "fraud stateflow_eu"
    assert 0 < rows(page).count() < 10
    page.get_by_label("Filter jobs").press("Escape")
    assert rows(page).count() == 100
    page.get_by_role("button", name="Stale").click()
    assert names(page) == ["fraud_features", "loyalty_dedup"]
    page.get_by_label("Filter jobs").fill("nonsense")
    assert "No job matches" in page.locator(".empty").inner_text()
    page.get_by_role("button", name="Show all jobs").click()
    assert rows(page).count() == 100


def test_the_source_that_holds_the_watermark_is_named_with_its_last_rows(visit: Visit) -> None:
    world = full_world()
    world.held = {"source": "clicks", "since": NOW}
    with serving(application(world, BASE)) as address:
        page = visit(Served(world, address).job).page
        settled(page)
        held = page.locator(".facts .held")
        assert re.fullmatch(
            r"held back by source clicks, without rows since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
            held.inner_text(),
        )
        assert held.locator("time").count() == 1


def test_nothing_is_said_of_a_watermark_that_nobody_holds(served: Served, visit: Visit) -> None:
    page = visit(served.job).page
    settled(page)
    assert page.locator(".facts .held").count() == 0


def test_a_row_opens_its_job_and_back_comes_back(served: Served, visit: Visit) -> None:
    page = visit(f"{served.pages}#/jobs?q=orders&sort=-job").page
    settled(page)
    rows(page).filter(has=page.get_by_role("link", name="orders", exact=True)).locator("td.col-age").click()
    page.get_by_role("heading", name="orders").wait_for()
    assert page.evaluate("location.hash") == "#/jobs/stateflow_default/orders"
    page.go_back()
    settled(page)
    assert page.get_by_label("Filter jobs").input_value() == "orders"


def test_one_job_at_one_glance(served: Served, visit: Visit) -> None:
    page = visit(served.job).page
    settled(page)
    facts = page.locator(".facts").inner_text()
    for said in ("Healthy", "Running", f"#{served.world.head}", "1.5 GB", "stateflow_orders", "run_orders"):
        assert said in facts
    summary = page.get_by_role("region", name="Percentiles").inner_text()
    assert "Median" in summary
    assert "99 %" in summary
    assert page.locator(".counted").first.inner_text().split() == [
        "9,996", "completed", "0", "in", "progress", "1", "abandoned", "last", "restore", "2026-11-18", "14:20:24",
    ]  # fmt: skip
    for name in ("Sources", "Operators", "Sinks"):
        assert page.get_by_role("table", name=name).is_visible()


def test_sizes_of_batches_who_waits_and_hot_keys_are_told_where_they_are(
    served: Served, visit: Visit
) -> None:
    page = visit(served.job).page
    settled(page)
    last = served.world.lines[-1]
    facts = " ".join(page.locator(".facts").inner_text().split())
    assert f"of 3.00 s {last.processed_rows:,} rows" in facts
    assert page.locator(".panel-name .target").inner_text() == "of 3.00 s"
    sources = page.get_by_role("table", name="Sources")
    assert sources.locator(".waits").all_inner_texts() == ["waits for events, which is behind"]
    assert sources.locator(".limit").all_inner_texts() == [
        "at most 48.0 MB a batch, took 47.0 MB",
        "at most 120,000 rows a batch, took 0 rows",
    ]
    hot = page.get_by_role("table", name="Operators").locator(".hot").all_inner_texts()
    assert hot == ["hot key: about 52 % of the rows, subtask 3 of 8"]

    # The dashed line of the target is painted in the panel of durations.
    drawn = """() => {
        const panels = [...document.querySelectorAll('.timeline .panel-chart')];
        return panels.map((panel) => panel.querySelectorAll('.u-cursor-pt').length);
    }"""
    assert page.evaluate(drawn) == [1, 1, 2, 1]


def test_a_job_without_a_target_says_nothing_of_sizes(served: Served, visit: Visit) -> None:
    page = visit(f"{served.pages}#/jobs/stateflow_default/orders_features").page
    settled(page)
    assert "Batch size" not in page.locator(".facts").inner_text()
    assert page.locator(".waits").count() == 0


def test_what_expires_is_told_of_each_operator(served: Served, visit: Visit) -> None:
    page = visit(served.job).page
    settled(page)
    operators = page.get_by_role("table", name="Operators")
    told = operators.locator("td.col-expired").last.inner_text().split()
    assert told[0] == "12,408+"
    assert " ".join(told[1:]) == "~1.1 MB wait, ~45.8 MB live"
    assert operators.locator("td.col-expired span").count() == 1, "nothing of the other operator expires"
    assert "by_page: 7 days after it was written" in (
        operators.locator("td.col-expired span").get_attribute("title") or ""
    )


def test_why_the_last_run_failed_is_said_first(served: Served, visit: Visit) -> None:
    page = visit(f"{served.pages}#/jobs/stateflow_default/orders_features").page
    settled(page)
    assert "Blocked" in page.locator(".verdict").first.inner_text()
    failure = page.locator(".failure").inner_text()
    assert "Last run failed" in failure
    assert "table s3://lake/totals was recreated" in failure
    assert "exit code 7, 2 h ago" in failure


def test_the_timeline_is_drawn_read_zoomed_and_opened(served: Served, visit: Visit) -> None:
    page = visit(served.job).page
    over = page.locator(".timeline .u-over")
    over.first.wait_for()
    assert over.count() == 4
    painted = page.evaluate(
        """() => [...document.querySelectorAll('.timeline canvas')].map((canvas) => {
            const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            return new Set(new Uint32Array(data.buffer)).size;
        })"""
    )
    assert all(colours > 20 for colours in painted)
    newest = page.locator(".timeline .readout").inner_text()
    assert f"#{served.world.head}" in newest

    box = over.nth(1).bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.wait_for_function(
        "(text) => (document.querySelector('.timeline .readout')?.innerText ?? text) !== text", arg=newest
    )
    # What is brushed in one panel is what all of them show, asked again in full.
    with page.expect_response(re.compile(r"/timeline\?points=\d+&since=\d+&until=\d+$")):
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.4, middle, steps=4)
        page.mouse.up()
    assert re.fullmatch(r"2026-11-1\d .* to 2026-11-1\d .*", page.locator(".range").inner_text())
    page.get_by_role("button", name="All", exact=True).click()
    assert page.locator(".range").inner_text() == ""
    page.get_by_role("button", name="24 h").click()
    assert page.locator(".range").inner_text().startswith("2026-11-19 03:04:01")
    page.get_by_role("button", name="By number").click()
    page.get_by_role("button", name="Last 100", exact=True).click()
    assert page.locator(".range").inner_text() == f"#{served.world.head - 100} to #{served.world.head}"


def test_the_timeline_is_used_by_keys_alone(served: Served, visit: Visit) -> None:
    page = visit(served.job).page
    page.locator(".timeline .u-over").first.wait_for()
    page.locator(".timeline").focus()
    page.keyboard.press("End")
    page.keyboard.press("+")
    page.wait_for_function("() => document.querySelector('.range')?.innerText.includes(' to ')")
    page.keyboard.press("Escape")
    assert page.locator(".range").inner_text() == ""
    page.keyboard.press("Home")
    assert page.locator(".timeline .readout").inner_text().splitlines()[0] == "#5"
    page.keyboard.press("End")
    assert f"Checkpoint {served.world.head}:" in page.locator(".timeline [aria-live]").inner_text()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=f"Checkpoint {served.world.head}").wait_for()


def test_ten_thousand_checkpoints_are_paged_and_only_those_in_view_are_rows(
    served: Served, visit: Visit
) -> None:
    page = visit(f"{served.job}/history").page
    page.get_by_role("table", name="Records of the job").wait_for()
    asked = "document.querySelector('.more span').innerText"
    assert page.evaluate(asked) == "100 of 10,334 records"
    for _ in range(12):
        before = page.evaluate(asked)
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_function(f"(before) => {asked} !== before", arg=before)
    assert int(page.evaluate(asked).split()[0].replace(",", "")) >= 1300
    assert page.locator("table.history tr[data-row]").count() < 90
    loaded = int(page.evaluate(asked).split()[0].replace(",", ""))
    page.evaluate(
        "scrollTo(0, document.querySelector('.more').getBoundingClientRect().top + scrollY - innerHeight)"
    )
    page.get_by_role("link", name=f"#{served.world.head - loaded + 1}", exact=True).wait_for()
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_function(
        f"() => document.querySelector('tr[data-row] a')?.innerText === '#{served.world.head}'"
    )
    first = page.locator("table.history tr[data-row]").first
    # The run id has a slash, a colon and a plus: it is one part of the address.
    href = first.get_by_role("link", name="stateflow_orders").get_attribute("href") or ""
    assert re.fullmatch(
        rf"{served.address}{BASE}/dags/stateflow_orders/runs/scheduled__2026[^/+]*%2B00%3A00", href
    )


def test_the_history_of_one_kind_and_a_checkpoint_by_its_number(served: Served, visit: Visit) -> None:
    page = visit(f"{served.job}/history").page
    page.get_by_label("Show").select_option("restore")
    page.wait_for_function("() => document.querySelectorAll('tr[data-row]').length === 2")
    assert "from checkpoint" not in page.locator("tr[data-row]").first.inner_text()
    assert "checkpoint:9076" in page.locator("tr[data-row]").first.inner_text()
    page.get_by_label("Show").select_option("erase")
    assert "Nothing of this kind" in page.locator(".empty").inner_text()
    page.get_by_label("Checkpoint", exact=True).fill("10300")
    page.get_by_role("button", name="Open").click()
    page.get_by_role("heading", name="Checkpoint 10300").wait_for()


def test_the_history_as_a_graph(served: Served, visit: Visit) -> None:
    page = visit(f"{served.job}/graph").page
    items = page.locator(".graph li")
    items.first.wait_for()
    assert "3 timelines" in page.locator(".counted").inner_text()
    texts = items.all_inner_texts()
    assert "head" in texts[0]
    restored = [text for text in texts if "Restore" in text]
    assert len(restored) == 2
    assert "from checkpoint:9076 by anna: prices of 11 November were wrong" in restored[0]
    assert any("black-friday" in text for text in texts)
    assert any("savepoint before-2.0" in text for text in texts)
    # Two lanes: one that goes on, one for what was left behind at each restore.
    assert page.locator(".graph path.lane-1").count() == 2
    assert page.locator(".graph .node").count() == len(texts)
    assert page.locator(".graph .node-gone").count() == sum("collected" in text for text in texts)
    page.get_by_role("link", name="#9400").click()
    page.get_by_role("heading", name="Checkpoint 9400").wait_for()
    assert "black-friday" in page.locator(".checkpoint-title").inner_text()


def test_savepoints_tags_storage_and_audit(served: Served, visit: Visit) -> None:
    page = visit(f"{served.job}/savepoints").page
    saved = page.get_by_role("table", name="Savepoints")
    saved.wait_for()
    assert "before-2.0 canonical" in saved.inner_text()
    assert "expired" in saved.inner_text()
    assert "#9400" in page.get_by_role("table", name="Tags").inner_text()

    page.get_by_role("link", name="Storage").click()
    storage = page.get_by_role("table", name="What a clean-up would free")
    storage.wait_for()
    assert "640 MB" in storage.inner_text()
    assert "61.0 MB" in storage.inner_text()
    page.get_by_text("The connection's retention keeps hourly for 2 days, beside the newest 3.").wait_for()
    assert "701 MB can go" in page.locator(".counted").inner_text()

    page.get_by_role("link", name="Audit").click()
    trail = page.get_by_role("table", name="Audit trail")
    trail.wait_for()
    assert trail.locator("tbody tr").count() == 4
    assert "Rescale" in trail.inner_text()
    assert "4 -> 8 for the sale" in trail.inner_text()
    assert "output of totals" in trail.inner_text()


def test_a_restore_says_that_other_jobs_went_back_with_it(served: Served, visit: Visit) -> None:
    [*_, restore] = [line for line in served.world.lines if line.kind == "restore"]
    page = visit(f"{served.job}/checkpoints/{restore.id}").page
    said = page.get_by_text("Restored from").first
    said.wait_for()
    assert (
        f"Restored from {restore.origin}, one of several jobs that went back together. prices"
        in said.inner_text()
    )


def test_a_checkpoint_down_to_its_key_groups(served: Served, visit: Visit) -> None:
    page = visit(f"{served.job}/checkpoints/{served.world.head}").page
    sessions = page.get_by_role("region", name="Operator sessions")
    sessions.wait_for()
    assert "with orders.py 0123456789ab of team@1a2b" in page.locator(".after").first.inner_text()
    assert re.search(r"heaviest subtask 2\.\d . the average", sessions.inner_text())
    assert "subtask 5" in sessions.locator(".readout").inner_text()
    assert sessions.get_by_role("table", name="States of sessions").locator("tbody tr").count() == 2
    assert sessions.get_by_role("table", name="Shards of sessions").locator("tbody tr").count() == 8
    strip = sessions.get_by_role("slider")
    strip.focus()
    page.keyboard.press("Home")
    assert (strip.get_attribute("aria-valuetext") or "").startswith("Key group 0: ")
    page.keyboard.press("ArrowRight")
    assert "Key group 1" in sessions.locator(".readout").inner_text()
    assert "evaluate and upload" in page.locator(".legend-line").inner_text()
    page.get_by_role("link", name=f"← {served.world.head - 1}").click()
    page.get_by_role("heading", name=f"Checkpoint {served.world.head - 1}").wait_for()


def test_what_changed_is_asked_since_the_newest_checkpoint_that_is_kept(served: Served, visit: Visit) -> None:
    older, newer = sorted(served.world.tags.values())
    page = visit(f"{served.job}/checkpoints/{newer}").page
    link = page.get_by_role("link", name=f"What changed in the state since #{older}")
    link.wait_for()
    assert (link.get_attribute("href") or "").endswith(f"before={older}&after={newer}")
    assert f"#{newer - 1} has been collected" in page.locator("p.after", has=link).inner_text()
    page.goto(f"{served.job}/checkpoints/{older}")
    page.get_by_role("heading", name=f"Checkpoint {older}").wait_for()
    page.get_by_role("region", name="Operator balance").wait_for()
    assert page.get_by_role("link", name="What changed in the state").count() == 0
    page.goto(f"{served.job}/keys?operator=balance&state=total&key=42")
    page.locator("table.past").wait_for()
    others = page.locator("td.col-diff").all_inner_texts()
    assert len([text for text in others if "since #" in text]) == 1
    assert others[-1] == ""


def test_what_is_left_of_a_collected_checkpoint_and_of_none(served: Served, visit: Visit) -> None:
    page = visit(f"{served.job}/checkpoints/9000", expected={404}).page
    page.locator(".empty").wait_for()
    assert "Its files were collected" in page.locator(".empty").inner_text()
    page.evaluate("location.hash = '#/jobs/stateflow_default/orders/checkpoints/777777'")
    page.locator(".notice").wait_for()
    assert "has no record 777777" in page.locator(".notice").inner_text()
    page.evaluate("location.hash = '#/jobs/stateflow_default/nobody'")
    page.get_by_text("there is no job 'nobody'").wait_for()
    page.evaluate("location.hash = '#/elsewhere'")
    page.get_by_role("heading", name="There is no such page").wait_for()


WATCH_FOR_AN_EMPTY_TABLE = """() => {
  window.stoodEmpty = false;
  new MutationObserver(() => {
    const table = document.querySelector("table.history");
    if (table && !table.querySelector("tr[data-row]")) window.stoodEmpty = true;
  }).observe(document.body, { childList: true, subtree: true });
}"""


def test_the_tab_on_a_dag_shows_its_jobs_and_lines(served: Served, visit: Visit) -> None:
    run = next(line.dag_run for line in reversed(served.world.lines)).partition("/")[2]
    query = "?dag_id=stateflow_orders&run_id=" + run.replace("+", "%2B")
    page = visit(f"{served.pages}{query}").page
    settled(page)
    assert names(page) == ["orders"]
    assert f"Only what DAG stateflow_orders, run {run} wrote" in page.locator(".filtered").inner_text()
    rows(page).get_by_role("link", name="orders", exact=True).click()
    page.evaluate(WATCH_FOR_AN_EMPTY_TABLE)
    page.get_by_role("link", name="History").click()
    page.get_by_role("table", name="Records of the job").wait_for()
    written = sum(line.dag_run.endswith(run) for line in served.world.lines)
    assert page.locator("tr[data-row]").count() == written < 40
    assert not page.evaluate("window.stoodEmpty"), "the table was shown before its rows"
    page.get_by_role("button", name="Show everything").click()
    page.wait_for_function("() => document.querySelector('.more span')?.innerText.startsWith('100 of')")
    assert "dag_id" not in page.url


def test_the_tab_on_an_older_dag_run_says_where_its_records_are(served: Served, visit: Visit) -> None:
    page = visit(f"{served.pages}?dag_id=stateflow_orders&run_id=long_ago").page
    said = page.locator(".empty").inner_text()
    assert "of this DAG run among its newest records" in said
    assert "the job's history" in said


def test_a_page_keeps_itself_fresh_and_nothing_flickers(visit: Visit) -> None:
    world = full_world(checkpoints=300, jobs=3)
    with serving(application(world, BASE)) as address:
        watched = visit(f"{address}{BASE}/stateflow/#/jobs/stateflow_default/orders/history", clock=True)
        page = watched.page
        page.locator("tr[data-row]").first.wait_for()
        page.get_by_label("Show").focus()
        page.evaluate("document.querySelector('table.history').dataset.mine = 'the same'")
        before = world.head
        world.tick()
        page.clock.fast_forward(6000)
        page.get_by_role("link", name=f"#{before + 1}").first.wait_for()
        # The table is the same one, and the focus has not moved.
        assert page.locator("table.history").get_attribute("data-mine") == "the same"
        assert page.evaluate("document.activeElement.tagName") == "SELECT"
        with page.expect_response(lambda answer: answer.status == 304):
            page.clock.fast_forward(6000)
        page.get_by_role("button", name="Live").click()
        page.get_by_role("button", name="Paused").wait_for()
        asked = len(watched.asked)
        world.tick()
        page.clock.fast_forward(60_000)
        page.evaluate(
            "fetch('static/icon.svg')"
        )  # whatever had been asked for before this one is in the list now
        assert watched.asked[asked:] == [f"{address}{BASE}/stateflow/static/icon.svg"]
        page.get_by_role("button", name="Paused").click()
        page.get_by_role("link", name=f"#{before + 2}").first.wait_for()


def test_a_server_in_trouble_is_heard_and_what_was_there_stays(served: Served, visit: Visit) -> None:
    page = visit(served.job, expected={503, 401}, clock=True).page
    settled(page)
    served.world.fault = "the store did not answer: try `stateflow doctor`"
    page.clock.fast_forward(6000)
    page.locator(".notice").first.wait_for()
    assert page.locator(".notice").first.inner_text() == "the store did not answer: try stateflow doctor"
    assert page.locator(".notice code").first.inner_text() == "stateflow doctor"
    assert page.locator(".facts").is_visible()
    served.world.fault = ""
    page.clock.fast_forward(60_000)
    page.wait_for_function("() => !document.querySelector('.notice')")
    page.context.add_cookies([{"name": "role", "value": "anonymous", "url": served.address}])
    page.clock.fast_forward(60_000)
    page.get_by_text("You are not signed in to Airflow").first.wait_for()
    href = page.get_by_role("link", name="Sign in").first.get_attribute("href") or ""
    assert href.startswith(
        f"{served.address}{BASE}/api/v2/auth/login?next=%2Fteam%2Fairflow%2Fstateflow%2F%23%2Fjobs"
    )


@pytest.mark.parametrize(
    ("world", "title", "said"),
    [
        (
            empty_world(),
            "No checkpoint root is known",
            "airflow connections add stateflow_default --conn-type stateflow",
        ),
        (bare_world(), "No job yet", "stateflow run pipeline.py:orders"),
    ],
)
def test_where_nothing_is_yet_stands_what_to_do(world: World, title: str, said: str, visit: Visit) -> None:
    with serving(application(world)) as address:
        page = visit(f"{address}/stateflow/").page
        page.get_by_role("heading", name=title).wait_for()
        assert said in page.locator(".command").inner_text()


def test_a_job_without_a_checkpoint_has_pages_too(visit: Visit) -> None:
    with serving(application(young_world())) as address:
        page = visit(f"{address}/stateflow/#/jobs/stateflow_default/orders").page
        page.get_by_role("heading", name="No checkpoint yet").wait_for()
        for tab, title in (
            ("History", "Nothing of this kind"),
            ("Graph", "No history yet"),
            ("Savepoints", "No savepoint"),
            ("Storage", "Nothing to clean up"),
            ("Audit", "Nobody has intervened"),
        ):
            page.get_by_role("link", name=tab).click()
            page.get_by_role("heading", name=title).wait_for()


def test_a_key_s_past_is_a_curve_and_a_list_from_which_each_checkpoint_opens(
    served: Served, visit: Visit
) -> None:
    page = visit(f"{served.job}/keys", hasty=True).page
    page.locator("form.asking label.grows input").fill("42")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url("**/keys?operator=balance&state=total&key=42")
    page.locator(".curve").wait_for()
    assert page.locator(".curve-point").count() == 40
    assert set(page.locator(".curve-point.marked span").all_inner_texts()) == {"deleted", "restore"}
    cut, renamed = page.locator(".notice").all_inner_texts()
    assert "the newest 200 of 10,004 kept checkpoints" in cut
    assert "the state is called 'sum'" in renamed
    assert page.locator("table.past tbody tr").count() == 40
    words = [text.strip() for text in page.locator("td.col-what").all_inner_texts()]
    assert words[-1] == "had it already"
    assert {text.split()[0] for text in words[:-1]} == {"changed", "deleted", "set"}
    newest = page.locator("table.past tbody tr").first.get_by_role("link").first
    number = newest.inner_text().lstrip("#")
    newest.click()
    page.get_by_role("heading", name=f"Checkpoint {number}").wait_for()
    page.go_back()
    page.locator(".curve-point").last.click()
    page.get_by_role("heading", name=f"Checkpoint {number}").wait_for()


def test_a_value_with_fields_has_a_curve_of_each_number_and_a_text_has_none(
    served: Served, visit: Visit
) -> None:
    asked = f"{served.job}/keys?operator=balance&state=total&key="
    page = visit(f"{asked}fields").page
    page.locator(".curve").wait_for()
    curve = page.locator(".curve-line").get_attribute("d")
    page.get_by_label("Curve of").select_option("seen")
    page.wait_for_function("(d) => document.querySelector('.curve-line').getAttribute('d') !== d", arg=curve)
    page.goto(f"{asked}text")
    page.get_by_text("a text of 39").wait_for()
    assert page.locator(".curve").count() == 0
    page.goto(f"{asked}nobody")
    page.get_by_role("heading", name="Nothing was ever set for this key").wait_for()
    page.get_by_text("a key of operator 'balance' is ").wait_for()


def test_a_number_is_shown_with_all_its_digits(served: Served, visit: Visit) -> None:
    page = visit(f"{served.job}/keys?operator=balance&state=total&key=large", hasty=True).page
    page.locator(".curve").wait_for()
    numbers = [str(ACCOUNT - k) for k in range(40) if k != 24]
    shown = page.locator("table.past td.col-value code").all_inner_texts()
    assert [text.strip() for text in shown] == numbers[::-1]
    assert page.locator(".curve-scale span").all_text_contents() == [numbers[0], numbers[-1]]
    assert (page.locator(".curve-point").first.get_attribute("title") or "").endswith(f": {numbers[0]}")
    page.goto(f"{served.job}/differences?before={served.world.head - 1}&after={served.world.head}")
    first = page.get_by_role("table", name="First changes of balance total")
    assert str(ACCOUNT) in first.locator("tbody tr").first.inner_text()
    page.goto(f"{served.job}/replays/{SHADOW}")
    row = page.get_by_role("table", name="First differences").locator("tbody tr").first
    assert row.inner_text().count(str(ACCOUNT)) == 3


def test_what_is_no_key_is_refused_in_the_server_s_words(served: Served, visit: Visit) -> None:
    page = visit(f"{served.job}/keys?operator=balance&state=total&key=anna", expected={400}).page
    page.locator(".notice").wait_for()
    assert page.locator(".notice").inner_text() == "'anna' is no key of operator 'balance': write a number"


def test_any_two_points_are_compared_state_by_state(served: Served, visit: Visit) -> None:
    page = visit(f"{served.job}/checkpoints/{served.world.head}", hasty=True).page
    page.get_by_role("link", name="What changed in the state since").click()
    page.wait_for_url("**/differences?before=*&after=*")
    changes = page.get_by_role("table", name="Changes by state")
    changes.wait_for()
    assert "1,204" in changes.inner_text()
    first = page.get_by_role("table", name="First changes of balance total")
    assert first.locator("tbody tr").count() == 4
    assert "the first 4 of 1,206 changes" in page.get_by_label("Changes of balance total").inner_text()
    assert "operator 'sessions' is only in checkpoint 10334" in page.locator(".notice").inner_text()
    first.get_by_role("link", name="42").click()
    page.locator(".curve").wait_for()
    page.goto(f"{served.job}/differences")
    page.get_by_label("From").fill("#10330")
    page.get_by_label("To", exact=False).first.fill("10330")
    page.locator("form.asking label:nth-of-type(2) input").fill("10330")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("heading", name="No entry differs").wait_for()


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("2026-11-19 22:04:05", "2026-11-20T03:04:05Z"),
        ("2026-11-19T22:04", "2026-11-20T03:04Z"),
        ("2026-07-01 00:00:00.5", "2026-07-01T04:00:00.5Z"),
        ("2026-03-08 03:30", "2026-03-08T07:30Z"),
        ("2026-11-01 00:30", "2026-11-01T04:30Z"),
        ("2026-11-20T03:04:05Z", "2026-11-20T03:04:05Z"),
        ("2026-11-20T03:04+01:00", "2026-11-20T03:04+01:00"),
        ("2026-02-30 10:00", "2026-02-30 10:00"),
        ("0001-01-01 10:00", "0001-01-01 10:00"),
        ("tag:2026-11-19 22:04", "tag:2026-11-19 22:04"),
        ("10330", "10330"),
    ],
)
def test_a_time_means_what_the_pages_show_it_for(new_yorker: Page, typed: str, sent: str) -> None:
    assert new_yorker.evaluate(IN_UTC, typed) == sent


@pytest.mark.parametrize(
    ("zone", "typed", "sent"),
    [
        ("America/New_York", "2026-11-01 01:30", "2026-11-01T05:30Z"),
        ("America/New_York", "2026-11-01 02:00", "2026-11-01T07:00Z"),
        ("Europe/Berlin", "2026-10-25 01:59", "2026-10-24T23:59Z"),
        ("Europe/Berlin", "2026-10-25 02:30", "2026-10-25T00:30Z"),
        ("Europe/Berlin", "2026-10-25 03:00", "2026-10-25T02:00Z"),
        ("Europe/Berlin", "2026-03-29 03:00", "2026-03-29T01:00Z"),
        ("Pacific/Kiritimati", "2026-11-20 01:00", "2026-11-19T11:00Z"),
    ],
)
def test_a_time_that_comes_twice_is_the_first_one_in_every_zone(
    browser: Browser, served: Served, zone: str, typed: str, sent: str
) -> None:
    page = browser.new_page(timezone_id="UTC")
    page.add_init_script(f"localStorage.setItem('timezone', '\"{zone}\"')")
    page.goto(served.pages)
    assert page.evaluate(IN_UTC, typed) == sent
    page.close()


IN_UTC = "async (text) => (await import(new URL('static/js/format.js', document.baseURI))).timeInUtc(text)"
NEW_YORK = {"timezone": '"America/New_York"'}


@pytest.fixture(scope="module")
def new_yorker(browser: Browser, served: Served) -> Iterator[Page]:
    """A page that shows times of New York."""
    page = browser.new_page(timezone_id="UTC")
    page.add_init_script(f"localStorage.setItem('timezone', {NEW_YORK['timezone']!r})")
    page.goto(served.pages)
    yield page
    page.close()


def test_what_a_page_shows_as_a_time_can_be_asked_for(served: Served, visit: Visit) -> None:
    visited = visit(f"{served.job}/differences", storage=NEW_YORK, hasty=True)
    page = visited.page
    page.locator("form.asking label:nth-of-type(1) input").fill("2026-11-19 22:04:05")
    page.locator("form.asking label:nth-of-type(2) input").fill("latest")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/differences?before=2026-11-20T03%3A04%3A05Z&after=latest")
    page.goto(f"{served.job}/keys")
    page.locator("form.asking label.grows input").fill("42")
    page.get_by_label("Since").fill("2026-11-19 22:04:05")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_url("**/keys?*&since=2026-11-20T03%3A04%3A05Z")


def test_reports_of_replays_say_what_would_be_otherwise(served: Served, visit: Visit) -> None:
    page = visit(f"{served.job}/replays", hasty=True).page
    table = page.get_by_role("table", name="Reports of replays, newest first")
    table.wait_for()
    verdicts = [text.strip() for text in table.locator("td.col-verdict").all_inner_texts()]
    assert verdicts == ["beyond the limit", "the same"]
    table.get_by_role("link", name="shadow-manual").click()
    outputs = page.get_by_role("table", name="Outputs")
    outputs.wait_for()
    assert "20,411" in outputs.inner_text()
    assert "would be others, and max_changed=0.01 lets 410 pass" in page.locator(".notice-error").inner_text()
    assert page.get_by_role("table", name="First differences").locator("tbody tr").count() == 5
    page.goto(f"{served.job}/replays/gone")
    page.get_by_text("There is no report gone any more").wait_for()


def test_who_may_not_read_state_is_told_whom_to_ask_and_nothing_is_asked_for(
    served: Served, visit: Visit
) -> None:
    seen = visit(f"{served.job}/keys?operator=balance&state=total&key=42", cookies={"role": "viewer"})
    for tab in ("keys", "differences", "replays"):
        seen.page.goto(f"{served.job}/{tab}")
        seen.page.get_by_role("heading", name="Only for those who may edit the connection").wait_for()
    asked = [url.rpartition("/")[2] for url in seen.asked if "/api/" in url]
    assert not [name for name in asked if name.startswith(("key?", "differences?", "replays"))]
