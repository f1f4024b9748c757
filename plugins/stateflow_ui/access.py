"""Who may look and who may act, by Airflow's own rules. Every route has one of these; a test counts them.

Airflow leaves a plugin's routes open to everybody. Reading needs access to plugins; acting needs, beside that, the right to
trigger the very DAG, and a header: the session's cookie comes along with requests of foreign pages too, a header of our own
does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.models.dag import DagModel
from fastapi import Depends, Header, HTTPException
from sqlalchemy import select

from stateflow_ui.settings import action_dags

HEADER, VALUE = "X-Stateflow-Action", "1"


def _header(value: Annotated[str, Header(alias=HEADER)] = "") -> None:
    if value != VALUE:
        raise HTTPException(400, f"an action needs the header {HEADER}: {VALUE}")


may_read: Callable[..., Any] = requires_access_view(AccessView.PLUGINS)
may_act: Callable[..., Any] = requires_access_dag(method="POST", access_entity=DagAccessEntity.RUN)
"""What Airflow's own trigger asks for."""

READING = [Depends(may_read)]
ACTING = [Depends(may_read), Depends(may_act), Depends(_header)]


def known_actions(session: SessionDep, user: GetUserDep) -> dict[str, Any]:
    """Which DAG each button would trigger, None where there is none that the user may see; whether they may."""
    action_dag_ids = action_dags()
    manager = get_auth_manager()
    existing = select(DagModel).where(DagModel.dag_id.in_(action_dag_ids.values()), ~DagModel.is_stale)
    dags = list(session.scalars(existing))
    teams = DagModel.get_dag_id_to_team_name_mapping([dag.dag_id for dag in dags], session=session)
    rights: dict[str, dict[str, bool]] = {}
    for dag in dags:
        details = DagDetails(id=dag.dag_id, team_name=teams.get(dag.dag_id))
        if manager.is_authorized_dag(method="GET", details=details, user=user):
            may = manager.is_authorized_dag(
                method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
            )
            rights[dag.dag_id] = {"may": may, "paused": bool(dag.is_paused)}
    return {
        "dags": {action: dag_id if dag_id in rights else None for action, dag_id in action_dag_ids.items()},
        "may": {
            action: rights.get(dag_id, {}).get("may", False) for action, dag_id in action_dag_ids.items()
        },
        "paused": {
            action: rights.get(dag_id, {}).get("paused", False) for action, dag_id in action_dag_ids.items()
        },
    }


KnownActionsDep = Annotated[dict[str, Any], Depends(known_actions)]
