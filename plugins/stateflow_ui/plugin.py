"""What Airflow knows of these pages. Every Airflow process loads this module: it imports nothing that only the API server
needs."""

from __future__ import annotations

from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin

PREFIX = "/stateflow"


class StateflowPlugin(AirflowPlugin):
    """Pages under Browse, and as a tab on DAGs and DAG runs."""

    name = "stateflow"

    def __init__(self) -> None:
        self.external_views = views(urlsplit(conf.get("api", "base_url", fallback="") or "").path)

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Made when the API server asks; a worker or a DAG's parser never does."""
        from stateflow_ui.app import create_app

        return [{"app": create_app(), "url_prefix": PREFIX, "name": "Stateflow"}]


def views(base: str) -> list[dict[str, Any]]:
    """`base` is the path of `[api] base_url`, below which all of Airflow is served."""
    page = f"{base.rstrip('/')}{PREFIX}/"
    shared = {"name": "Stateflow", "icon": f"{page}static/icon.svg"}
    return [
        {**shared, "href": page, "destination": "nav", "category": "browse", "url_route": "stateflow"},
        {**shared, "href": f"{page}?dag_id={{DAG_ID}}", "destination": "dag", "url_route": "stateflow-dag"},
        {
            **shared,
            "href": f"{page}?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "stateflow-dag-run",
        },
    ]
