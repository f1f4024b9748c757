"""Two teams on one Airflow: each sees its own roots, and starts the DAGs that are meant for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import delete, select

from tests.jobs.records import Made, make_job
from tests.ui.airflow_app import AirflowApp, airflow_app, pause
from tests.ui.airflow_app import press as pressed

__all__ = ["airflow_app"]

NOW = 1_800_000_000_000_000
DENIED = "there is no connection 'lake' of type stateflow, or none whose root you may see"


@pytest.fixture(scope="module", autouse=True)
def connections(airflow_app: AirflowApp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`lake` belongs to team lake, `shop` to team shop, `stateflow_default` to nobody."""
    from airflow.models.connection import Connection
    from airflow.models.team import Team
    from airflow.utils.session import create_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
        folder = tmp_path_factory.mktemp("roots")
        with create_session(scoped=False) as session:
            for team in ("lake", "shop"):
                session.add(Team(name=team))
                session.flush()
                (folder / team).mkdir()
                make_job(folder / team, Made(f"{team}_orders"), NOW)
                extra = json.dumps({"checkpoint_dir": str(folder / team)})
                session.add(Connection(conn_id=team, conn_type="stateflow", extra=extra, team_name=team))
        make_job(airflow_app.root, Made("orders"), NOW)
        yield
        pause("stateflow_stop", True)  # other modules' tests have the same database
        with create_session(scoped=False) as session:
            session.execute(delete(Connection).where(Connection.conn_id.in_(("lake", "shop"))))
            session.execute(delete(Team))


@pytest.fixture
def people(airflow_app: AirflowApp) -> dict[str, Any]:
    """Ann of team lake and Bob of team shop, who run DAGs; Otto of team lake, who may read its connections."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    def headers(name: str, role: str, team: str) -> dict[str, str]:
        user = SimpleAuthManagerUser(username=name, role=role, teams=[team])
        return {"Authorization": f"Bearer {get_auth_manager().generate_jwt(user)}"}

    return {
        "ann": headers("ann", "user", "lake"),
        "bob": headers("bob", "user", "shop"),
        "otto": headers("otto", "op", "lake"),
    }


def roots(app: AirflowApp, who: dict[str, str]) -> tuple[set[str], set[str]]:
    """The connections and the jobs that the first page names."""
    said = app.viewer.get("/stateflow/api/jobs", headers=who).json()
    return {root["conn_id"] for root in said["roots"]}, {job["job"] for job in said["jobs"]}


@pytest.mark.slow
def test_the_first_page_names_the_roots_of_ones_own_team_and_those_of_no_team(
    airflow_app: AirflowApp, people: dict[str, Any]
) -> None:
    everybody = {"stateflow_default", "nowhere"}
    assert roots(airflow_app, people["ann"]) == ({"lake", *everybody}, {"lake_orders", "orders"})
    assert roots(airflow_app, people["bob"]) == ({"shop", *everybody}, {"shop_orders", "orders"})
    of_admin = dict(airflow_app.admin.headers)
    assert roots(airflow_app, of_admin)[1] == {"lake_orders", "shop_orders", "orders"}


def test_every_page_of_a_job_is_closed_to_another_team_as_if_it_did_not_exist(
    airflow_app: AirflowApp, people: dict[str, Any]
) -> None:
    pages = [route.path for route in airflow_app.plugin.routes if "{conn_id}" in route.path]
    assert len(pages) == 10
    for page in pages:
        address = "/stateflow" + page.format(conn_id="lake", job="lake_orders", slot="3")
        of_state = address.endswith(
            ("/key", "/differences", "/replays")
        )  # for those who may edit the connection
        status = airflow_app.viewer.get(address, headers=people["ann"]).status_code
        assert status == (403 if of_state else 200), address
        assert airflow_app.viewer.get(address, headers=people["otto"]).status_code in (200, 422), address
        for query in ("", "?points=no"):
            closed = airflow_app.viewer.get(address + query, headers=people["bob"])
            assert (closed.status_code, closed.json()) == (404, {"detail": DENIED}), address
    nowhere = airflow_app.viewer.get("/stateflow/api/jobs/no_such/orders", headers=people["bob"])
    assert nowhere.json()["detail"] == DENIED.replace("'lake'", "'no_such'")


@pytest.mark.parametrize("later_team", [None, "shop"])
def test_a_root_stays_its_teams_own_while_the_pages_know_it_without_its_connection(
    airflow_app: AirflowApp,
    people: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    later_team: str | None,
) -> None:
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    monkeypatch.setattr("stateflow_ui.catalog.ROOTS_EVERY", 1e6)  # on a slow machine the root would go
    page = "/stateflow/api/jobs/lake/lake_orders"
    assert airflow_app.viewer.get(page, headers=people["ann"]).status_code == 200
    with create_session(scoped=False) as session:
        extra = session.scalars(select(Connection).where(Connection.conn_id == "lake")).one().extra
        session.execute(delete(Connection).where(Connection.conn_id == "lake"))
        if later_team:
            session.add(Connection(conn_id="lake", conn_type="stateflow", extra="{}", team_name=later_team))
    try:
        assert ("lake" in roots(airflow_app, people["ann"])[0]) is (later_team is None)
        for name in ("bob", "otto"):
            status = airflow_app.viewer.get(f"{page}/replays", headers=people[name]).status_code
            assert status == (404 if name == "bob" or later_team else 200), name
        assert roots(airflow_app, people["bob"])[1] == {"shop_orders", "orders"}
        assert airflow_app.viewer.get(page, headers=people["bob"]).status_code == 404
        assert "lake_orders" not in airflow_app.viewer.get("/stateflow/metrics", headers=people["bob"]).text
    finally:
        with create_session(scoped=False) as session:
            session.execute(delete(Connection).where(Connection.conn_id == "lake"))
            session.add(Connection(conn_id="lake", conn_type="stateflow", extra=extra, team_name="lake"))


def test_metrics_hold_what_the_scraping_user_may_see(airflow_app: AirflowApp, people: dict[str, Any]) -> None:
    of_ann = airflow_app.viewer.get("/stateflow/metrics", headers=people["ann"]).text
    assert "lake_orders" in of_ann
    assert "shop" not in of_ann


def test_where_roots_need_their_connection_only_who_may_read_it_sees_them(
    airflow_app: AirflowApp, people: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in ("connection", "conection"):
        monkeypatch.setenv("AIRFLOW__STATEFLOW__VISIBLE_TO", word)
        assert roots(airflow_app, people["ann"]) == (set(), set())
        assert roots(airflow_app, people["otto"])[1] == {"lake_orders", "orders"}
        closed = airflow_app.viewer.get("/stateflow/api/jobs/stateflow_default/orders", headers=people["ann"])
        assert closed.status_code == 404


def test_an_auth_manager_that_knows_no_teams_shows_a_teams_root_to_who_may_read_the_connection(
    airflow_app: AirflowApp, people: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_team", BaseAuthManager.is_authorized_team)
    assert "lake" not in roots(airflow_app, people["ann"])[0]
    assert "lake" in roots(airflow_app, people["otto"])[0]


def press(app: AirflowApp, who: dict[str, str], dag_id: str, **conf: str) -> Any:
    return pressed(app.viewer, dag_id, {"conf": conf}, **who)


def test_a_button_starts_only_the_dag_that_is_meant_for_it(
    airflow_app: AirflowApp, people: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pause("stateflow_savepoint", False)
    pause("stateflow_stop", False)
    assert press(airflow_app, people["ann"], "stateflow_stop", conn_id="lake").status_code == 200
    monkeypatch.setenv("AIRFLOW__STATEFLOW__STOP_DAG", "lake=stateflow_savepoint, their_stop")
    refused = press(airflow_app, people["ann"], "stateflow_stop", conn_id="lake", job="lake_orders")
    assert refused.status_code == 404
    assert refused.json()["detail"].startswith(
        "no button of these pages starts DAG 'stateflow_stop' for connection 'lake'"
    )
    of_lake = airflow_app.viewer.get("/stateflow/api/jobs/lake/lake_orders", headers=people["ann"]).json()
    assert of_lake["dags"]["stop"] == "stateflow_savepoint"
    general = airflow_app.viewer.get("/stateflow/api/jobs/stateflow_default/orders", headers=people["ann"])
    assert general.json()["dags"]["stop"] is None, "their_stop does not exist"


def test_a_button_without_a_connection_acts_on_the_default_one_and_so_for_its_people_alone(
    airflow_app: AirflowApp, people: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__STATEFLOW__VISIBLE_TO", "connection")
    forms: list[dict[str, Any]] = [{"job": "orders", "conn_id": conn_id} for conn_id in (None, "", 0)]
    for conf in [{"job": "orders"}, {"job": "orders", "conn_id": "stateflow_default"}, *forms]:
        closed = pressed(airflow_app.viewer, "stateflow_savepoint", {"conf": conf}, **people["bob"])
        assert (closed.status_code, closed.json()["detail"]) == (
            404,
            DENIED.replace("'lake'", "'stateflow_default'"),
        ), conf


def test_a_button_acts_on_no_root_that_its_user_may_not_see(
    airflow_app: AirflowApp, people: dict[str, Any]
) -> None:
    refused = press(airflow_app, people["bob"], "stateflow_savepoint", conn_id="lake", job="lake_orders")
    assert (refused.status_code, refused.json()["detail"]) == (404, DENIED)
