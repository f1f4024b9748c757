"""The checkpoint roots that the pages show: those of all connections of type `stateflow`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from stateflow.errors import StateflowError, UnavailableError
from stateflow.masking import without_secrets
from stateflow_ui.internals import Connection, create_session
from stateflow_ui.root import Root
from stateflow_ui.settings import named_connections

CONN_TYPE, DEFAULT = "stateflow", "stateflow_default"
_VARIABLE = "AIRFLOW_CONN_"


def read_roots() -> list[Root]:
    """Asks Airflow's database and the environment; what a secrets backend holds has to be named."""
    try:
        with create_session(scoped=False) as session:
            of_type = select(Connection.conn_id, Connection.team_name).where(
                Connection.conn_type == CONN_TYPE
            )
            stored = {row.conn_id: row.team_name for row in session.execute(of_type)}
    except SQLAlchemyError as error:
        raise UnavailableError(
            f"Airflow's database did not list its connections ({type(error).__name__}): see the API server's log"
        ) from error
    named = named_connections()
    conn_ids = dict.fromkeys([*sorted(stored), *in_environment(os.environ), *named])
    roots = [root_of(conn_id, stored.get(conn_id) or "") for conn_id in conn_ids]
    if DEFAULT not in conn_ids:
        default = root_of(DEFAULT)
        # It need not exist; nobody has named it.
        roots += [default] if not default.problem else []
    return sorted(roots, key=lambda each: (each.conn_id != DEFAULT, each.conn_id))


def in_environment(environment: Mapping[str, str]) -> list[str]:
    """Connections of this type that environment variables define, by the ids that Airflow gives them."""
    conn_ids = []
    for variable, value in sorted(environment.items()):
        conn_id = variable.removeprefix(_VARIABLE).lower()
        # Two underscores begin a team's own connections.
        if not variable.startswith(_VARIABLE) or conn_id.startswith("_"):
            continue
        try:
            connection = (
                Connection.from_json(value, conn_id=conn_id)
                if value.lstrip().startswith("{")
                else Connection(conn_id=conn_id, uri=value)
            )
        except Exception:  # whatever is wrong with it, its value must not be repeated
            continue
        if connection.conn_type == CONN_TYPE:
            conn_ids.append(conn_id)
    return conn_ids


def root_of(conn_id: str, team: str = "") -> Root:
    """The root of a connection, or why it has none. `team`: whose connection it is."""
    from stateflow.airflow.connections.stateflow import StateflowHook

    hook = StateflowHook(conn_id)
    if team:
        # Airflow gives a team's connection to a task of that team; asked without a team it knows none of that name.
        hook.get_connection = lambda conn_id: Connection.get_connection_from_secrets(conn_id, team_name=team)  # type: ignore[method-assign]
    address = ""
    try:
        address = shown(hook.root)
        options = hook.options()
        source = Root(
            conn_id,
            address,
            hook.root,
            hook.storage_options,
            options.heartbeat_timeout.total_seconds(),
            options,
            team=team,
        )
        return replace(source, shown=source.store().url)
    except StateflowError as error:
        return Root(conn_id, address, problem=without_secrets(str(error)), team=team)
    except Exception as error:
        # The secrets backend's message may tell more than the kind of its error should.
        return Root(
            conn_id,
            address,
            problem=f"connection {conn_id!r} could not be read ({type(error).__name__}): check it in Airflow's connections",
            team=team,
        )


def shown(root: str) -> str:
    """A root as a page may show it: whatever looks like a user, a password or a query is missing."""
    root = without_secrets(root)
    if "://" not in root:
        return root
    try:
        parts = urlsplit(root)
    except ValueError:
        return f"{root.partition('://')[0]}://..."
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
