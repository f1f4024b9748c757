"""Who may look and who may act: asked as people who exist, of every route that there is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.jobs.records import Made, make_job
from tests.ui.airflow_app import AirflowApp, airflow_app, pause, press

__all__ = ["airflow_app"]

ACTION = {"X-Stateflow-Action": "1"}
BODY = {"conf": {"job": "orders", "kind": "native"}}
FILLED = {
    "conn_id": "stateflow_default",
    "job": "orders",
    "slot": "3",
    "dag_id": "stateflow_savepoint",
    "path": "index.html",
}


@pytest.fixture(scope="module", autouse=True)
def jobs(airflow_app: AirflowApp) -> None:
    make_job(airflow_app.root, Made("orders"), 1_800_000_000_000_000)


def routes(app: Any) -> list[tuple[str, str]]:
    """Method and address of every route, with something in the place of each parameter."""
    found = []
    for route in app.plugin.routes:
        for method in sorted(route.methods):
            path = route.path.replace(":path", "")
            found.append((method, "/stateflow" + path.format(**FILLED)))
    return found


@pytest.mark.slow
def test_the_list_of_routes_is_what_it_should_be(airflow_app: AirflowApp) -> None:
    # FastAPI adds pages of its own unless it is told not to; they would be open to everybody.
    assert sorted({route.path for route in airflow_app.plugin.routes}) == [
        "/",
        "/api/actions/{dag_id}",
        "/api/jobs",
        "/api/jobs/{conn_id}/{job}",
        "/api/jobs/{conn_id}/{job}/checkpoints/{slot}",
        "/api/jobs/{conn_id}/{job}/differences",
        "/api/jobs/{conn_id}/{job}/graph",
        "/api/jobs/{conn_id}/{job}/history",
        "/api/jobs/{conn_id}/{job}/key",
        "/api/jobs/{conn_id}/{job}/replays",
        "/api/jobs/{conn_id}/{job}/savepoints",
        "/api/jobs/{conn_id}/{job}/storage",
        "/api/jobs/{conn_id}/{job}/timeline",
        "/metrics",
        "/static/{path:path}",
    ]


def test_every_route_refuses_whoever_is_not_signed_in(airflow_app: AirflowApp) -> None:
    for method, address in routes(airflow_app):
        answer = airflow_app.anonymous.request(method, address, json=BODY, headers=ACTION)
        assert answer.status_code == 401, (method, address, answer.status_code)
        assert answer.json() == {"detail": "Not authenticated"}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"conf": 1}'])
def test_who_is_not_signed_in_is_not_told_what_is_wrong_with_the_request(
    airflow_app: AirflowApp, body: bytes
) -> None:
    answer = airflow_app.anonymous.post(
        "/stateflow/api/actions/stateflow_savepoint",
        content=body,
        headers={**ACTION, "Content-Type": "application/json"},
    )
    assert answer.status_code == 401
    assert airflow_app.anonymous.get("/stateflow/api/jobs/a/b/timeline?points=no").status_code == 401


def test_a_forged_token_is_refused(airflow_app: AirflowApp) -> None:
    answer = airflow_app.anonymous.get("/stateflow/api/jobs", headers={"Authorization": "Bearer forged"})
    assert answer.status_code == 403


STATE = ("/key", "/differences", "/replays")


def test_a_viewer_reads_everything_but_what_is_in_the_state(airflow_app: AirflowApp) -> None:
    for method, address in routes(airflow_app):
        if method == "GET":
            answer = airflow_app.viewer.request(method, address)
            assert answer.status_code == (403 if address.endswith(STATE) else 200), (address, answer.text)


def test_a_viewer_cannot_act_and_no_run_is_made(airflow_app: AirflowApp) -> None:
    before = runs(airflow_app)
    answer = airflow_app.viewer.post("/stateflow/api/actions/stateflow_savepoint", json=BODY, headers=ACTION)
    assert answer.status_code == 403
    # Airflow itself refuses, too: whoever leaves the pages out gets no further.
    body = {"logical_date": None, **BODY}
    assert airflow_app.viewer.post("/api/v2/dags/stateflow_savepoint/dagRuns", json=body).status_code == 403
    assert runs(airflow_app) == before


def test_asking_whether_a_button_may_act_does_nothing(airflow_app: AirflowApp) -> None:
    before = runs(airflow_app)
    answer = airflow_app.admin.post("/stateflow/api/actions/stateflow_savepoint", json=BODY, headers=ACTION)
    assert answer.json() == {
        "dag_id": "stateflow_savepoint",
        "path": "api/v2/dags/stateflow_savepoint/dagRuns",
        "body": {"logical_date": None, "conf": BODY["conf"], "note": None},
    }
    assert runs(airflow_app) == before


def test_an_action_needs_the_header_that_foreign_pages_cannot_send(airflow_app: AirflowApp) -> None:
    before = runs(airflow_app)
    for headers in ({}, {"X-Stateflow-Action": "0"}):
        answer = airflow_app.admin.post(
            "/stateflow/api/actions/stateflow_savepoint", json=BODY, headers=headers
        )
        assert answer.status_code == 400
        assert answer.json()["detail"] == "an action needs the header X-Stateflow-Action: 1"
    assert runs(airflow_app) == before


def test_an_admin_acts_and_airflow_knows_who_it_was(airflow_app: AirflowApp) -> None:
    before = runs(airflow_app)
    answer = press(airflow_app.admin, "stateflow_savepoint", BODY)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    made = runs(airflow_app) - before
    assert made == {said["dag_run_id"]}
    assert said["dag_id"] == "stateflow_savepoint"
    run = airflow_app.admin.get(f"/api/v2/dags/stateflow_savepoint/dagRuns/{said['dag_run_id']}").json()
    assert (run["triggering_user_name"], run["conf"], run["run_type"]) == ("admin", BODY["conf"], "manual")
    audit = airflow_app.admin.get("/api/v2/eventLogs?event=trigger_dag_run").json()["event_logs"]
    assert [(each["owner"], each["dag_id"]) for each in audit][-1] == ("admin", "stateflow_savepoint")


def test_whoever_may_not_see_plugins_sees_nothing(
    airflow_app: AirflowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    monkeypatch.setattr(
        SimpleAuthManager,
        "is_authorized_view",
        lambda self, *, access_view, user: access_view is not AccessView.PLUGINS,
    )
    for method, address in routes(airflow_app):
        answer = airflow_app.admin.request(method, address, json=BODY, headers=ACTION)
        assert answer.status_code == 403, (method, address)


def test_a_dag_that_the_user_may_not_see_is_not_named(
    airflow_app: AirflowApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    seen = airflow_app.viewer.get("/stateflow/api/jobs/stateflow_default/orders").json()
    assert seen["dags"]["savepoint"] == "stateflow_savepoint"
    assert seen["may"] == dict.fromkeys(("savepoint", "cleanup", "stop", "recovery"), False)
    assert airflow_app.admin.get("/stateflow/api/jobs/stateflow_default/orders").json()["may"]["savepoint"]
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", lambda self, **asked: False)
    hidden = airflow_app.viewer.get("/stateflow/api/jobs/stateflow_default/orders").json()
    assert hidden["dags"] == dict.fromkeys(("savepoint", "cleanup", "stop", "recovery"))


def test_a_person_who_opens_the_page_is_sent_to_the_login(airflow_app: AirflowApp) -> None:
    opened = {"Accept": "text/html,application/xhtml+xml", "Sec-Fetch-Dest": "document"}
    answer = airflow_app.anonymous.get("/stateflow/?dag_id=a", headers=opened, follow_redirects=False)
    assert answer.status_code == 302
    assert answer.headers["location"] == "/api/v2/auth/login?next=%2Fstateflow%2F%3Fdag_id%3Da"
    # A frame inside Airflow's own page, a script and a program are told, not sent away.
    for headers in ({**opened, "Sec-Fetch-Dest": "iframe"}, {"Accept": "*/*"}):
        assert airflow_app.anonymous.get("/stateflow/", headers=headers).status_code == 401
    assert airflow_app.anonymous.get("/stateflow/api/jobs", headers=opened).status_code == 401


def test_the_sessions_cookie_opens_the_pages_too(airflow_app: AirflowApp) -> None:
    token = airflow_app.viewer.headers["Authorization"].removeprefix("Bearer ")
    answer = airflow_app.anonymous.get("/stateflow/api/jobs", headers={"Cookie": f"_token={token}"})
    assert answer.status_code == 200


def test_files_outside_the_pages_folder_are_not_served(airflow_app: AirflowApp) -> None:
    for path in ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "js/../../app.py", "/etc/passwd", "js", ""):
        answer = airflow_app.admin.get(f"/stateflow/static/{path}")
        assert not {"create_app", "root:"} & set(answer.text.replace("(", " ").split()), path
        assert answer.status_code == 404 or "text/html" in answer.headers["content-type"], path


def test_pages_may_load_nothing_from_elsewhere(airflow_app: AirflowApp) -> None:
    answer = airflow_app.viewer.get("/stateflow/")
    policy = answer.headers["content-security-policy"]
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'self'"} <= set(policy.split("; "))
    assert "<script>" not in answer.text, "the policy forbids scripts inside the page"
    again = airflow_app.viewer.get("/stateflow/", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


def runs(app: AirflowApp) -> set[str]:
    found = app.admin.get("/api/v2/dags/~/dagRuns").json()["dag_runs"]
    return {run["dag_run_id"] for run in found}


@pytest.fixture(autouse=True)
def savepoint_dag_is_on(airflow_app: AirflowApp) -> None:
    pause("stateflow_savepoint", False)
