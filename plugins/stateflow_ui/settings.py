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


def action_dags(conn_id: str = "") -> dict[str, str]:
    """The DAG behind each button, for jobs of this connection. Without one: what holds for connections in general.

    `savepoint_dag = their_savepoint, lake=lake_savepoint` gives jobs of connection `lake` a DAG of their own.
    """
    return {
        action: _of_connection(_text(f"{action}_dag"), conn_id) or dag_id
        for action, dag_id in ACTIONS.items()
    }


def needs_connection() -> bool:
    """Whether a root is for those alone who may read its connection in Airflow.

    Whoever misspells the value meant to narrow what is seen, so only the wide word widens it.
    """
    return _text("visible_to").strip().lower() not in ("", "team")


def stale_after() -> StaleAfter:
    return StaleAfter(_text("stale_after"))


def _of_connection(text: str, conn_id: str) -> str:
    general, own = "", ""
    for entry in text.split(","):
        of, equals, dag_id = entry.partition("=")
        if not equals:
            general = of.strip() or general
        elif of.strip() == conn_id:
            own = dag_id.strip()
    return own or general


def _text(name: str) -> str:
    return str(conf.get(SECTION, name, fallback="") or "")
