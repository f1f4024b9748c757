"""What Airflow's configuration says of these pages: section `[stateflow]`, or `AIRFLOW__STATEFLOW__...`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from airflow.configuration import conf

from stateflow_ui.stale_after import StaleAfter

SECTION = "stateflow"
ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "savepoint": "stateflow_savepoint",
        "cleanup": "stateflow_cleanup",
        "stop": "stateflow_stop",
        "recovery": "stateflow_recovery",
    }
)
"""What the pages' buttons do, and the DAG that does it unless `[stateflow] <action>_dag` names another."""


def base_path() -> str:
    """The path below which Airflow is served, without a slash at its end."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/")


def named_connections() -> list[str]:
    """`conn_ids`: connections that Airflow cannot list, since a secrets backend has them."""
    return [each.strip() for each in _text("conn_ids").split(",") if each.strip()]


def action_dags() -> dict[str, str]:
    return {action: _text(f"{action}_dag") or dag_id for action, dag_id in ACTIONS.items()}


def stale_after() -> StaleAfter:
    return StaleAfter(_text("stale_after"))


def _text(name: str) -> str:
    return str(conf.get(SECTION, name, fallback="") or "")
