"""What the pages' server uses of Airflow that has no public name: who asks, what they may do, and where Airflow keeps it.

Everything of that kind is in here, so that a new minor of Airflow is tried in one place: `tests/ui/test_internals.py` holds each of
these against the Airflow that is installed. Only the API server loads this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
    TeamDetails,
)
from airflow.api_fastapi.common.db.common import SessionDep as SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep as GetUserDep
from airflow.api_fastapi.core_api.security import requires_access_dag, requires_access_view
from airflow.models.connection import Connection as Connection
from airflow.models.dag import DagModel as DagModel
from airflow.sdk._shared.secrets_masker import redact as redact
from airflow.utils.session import create_session as create_session
from sqlalchemy import select

may_read: Callable[..., Any] = requires_access_view(AccessView.PLUGINS)
may_act: Callable[..., Any] = requires_access_dag(method="POST", access_entity=DagAccessEntity.RUN)
"""The rights that Airflow's own trigger asks for."""


def visible_connections(conn_ids: set[str], user: Any, team: str | None) -> set[str]:
    """The connections of one team, or of none, that the user may read."""
    return get_auth_manager().filter_authorized_connections(
        conn_ids=conn_ids, user=user, method="GET", team_name=team
    )


def may_edit_connection(conn_id: str, user: Any, team: str | None) -> bool:
    details = ConnectionDetails(conn_id=conn_id, team_name=team)
    return get_auth_manager().is_authorized_connection(method="PUT", details=details, user=user)


def is_member(user: Any, team: str) -> bool:
    try:
        return get_auth_manager().is_authorized_team(method="GET", details=TeamDetails(name=team), user=user)
    except NotImplementedError:  # an auth manager that knows no teams
        return False


def team_of_connections(session: Any) -> dict[str, str]:
    """By connection, those of the database that belong to a team."""
    owned = select(Connection.conn_id, Connection.team_name).where(Connection.team_name.is_not(None))
    return {row.conn_id: row.team_name for row in session.execute(owned)}


def rights_on_dags(dag_ids: Collection[str], user: Any, session: Any) -> dict[str, dict[str, bool]]:
    """Of the DAGs that there are and that the user may see: whether they may trigger it, and whether it is paused."""
    manager = get_auth_manager()
    dags = list(session.scalars(select(DagModel).where(DagModel.dag_id.in_(dag_ids), ~DagModel.is_stale)))
    teams = DagModel.get_dag_id_to_team_name_mapping([dag.dag_id for dag in dags], session=session)
    rights: dict[str, dict[str, bool]] = {}
    for dag in dags:
        details = DagDetails(id=dag.dag_id, team_name=teams.get(dag.dag_id))
        if manager.is_authorized_dag(method="GET", details=details, user=user):
            may = manager.is_authorized_dag(
                method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
            )
            rights[dag.dag_id] = {"may": may, "paused": bool(dag.is_paused)}
    return rights
