"""What the pages use of Airflow without a public name: in one module, and held against the Airflow that is installed."""

from __future__ import annotations

import ast
import inspect

from tests.ui.airflow_app import PLUGINS, AirflowApp, airflow_app, press

__all__ = ["airflow_app"]

PUBLIC = {"airflow.configuration", "airflow.plugins_manager"}


def test_one_module_of_the_pages_knows_airflow() -> None:
    wrong = [
        f"{path.name}:{node.lineno} imports {node.module}"
        for path in (PLUGINS / "stateflow_ui").glob("*.py")
        if path.name != "internals.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] == "airflow"
        and node.module not in PUBLIC
    ]
    assert not wrong


def test_what_the_pages_use_is_there(airflow_app: AirflowApp) -> None:
    from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager

    from stateflow_ui import internals

    wanted = {
        "is_authorized_dag": {"method", "user", "access_entity", "details"},
        "is_authorized_connection": {"method", "user", "details"},
        "is_authorized_team": {"method", "user", "details"},
        "filter_authorized_connections": {"conn_ids", "user", "method", "team_name"},
    }
    for name, arguments in wanted.items():
        assert arguments <= set(inspect.signature(getattr(BaseAuthManager, name)).parameters), name
    assert {"conn_id", "conn_type", "team_name"} <= set(internals.Connection.__mapper__.columns.keys())
    assert {"dag_id", "is_paused", "is_stale"} <= set(internals.DagModel.__mapper__.columns.keys())
    assert str(internals.redact("hush-hush", "password")) == "***"


def test_airflows_public_api_takes_what_a_button_sends(airflow_app: AirflowApp) -> None:
    answer = press(airflow_app.admin, "stateflow_stop", {"conf": {}})
    assert answer.status_code in (200, 409), answer.text
    assert answer.status_code == 409 or {"dag_id", "dag_run_id", "state"} <= set(answer.json())
