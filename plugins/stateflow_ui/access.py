"""Who may look and who may act, by Airflow's own rules. Every route has one of these; a test counts them.

Airflow leaves a plugin's routes open to everybody. Reading needs access to plugins, and to the root: to its connection's team
or to the connection itself. Acting needs, beside that, the right to trigger the very DAG, and a header: the session's cookie
comes along with requests of foreign pages too, a header of our own does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, HTTPException, Request

from stateflow.errors import NotFoundError
from stateflow_ui import internals
from stateflow_ui.internals import GetUserDep, SessionDep, may_act, may_read
from stateflow_ui.root import no_root
from stateflow_ui.settings import action_dags, needs_connection

HEADER, VALUE = "X-Stateflow-Action", "1"


def _header(value: Annotated[str, Header(alias=HEADER)] = "") -> None:
    if value != VALUE:
        raise HTTPException(400, f"an action needs the header {HEADER}: {VALUE}")


READING = [Depends(may_read)]
ACTING = [Depends(may_read), Depends(may_act), Depends(_header)]


@dataclass(frozen=True, slots=True)
class Sight:
    """The roots and jobs that one user may see, by Airflow's word at this request."""

    user: Any
    teams: Mapping[str, str]
    """By connection, those that belong to a team."""
    read_teams: Mapping[str, str]
    """By connection, whose it was when the catalog read its root: the root stays known for a while after the connection is gone, or
    is another team's."""

    def among(self, read_teams: Mapping[str, str]) -> set[str]:
        """Of these connections, each with the team that it was read for, those whose roots the user may see.

        An auth manager may ask another server for it.
        """
        by_team: dict[str | None, set[str]] = defaultdict(set)
        for conn_id, read_team in read_teams.items():
            for team in self._teams_of(conn_id, read_team):
                by_team[team].add(conn_id)
        hidden: set[str] = set()
        for team, ids in by_team.items():
            if not self._may_see_roots_of(team):
                hidden |= ids - internals.visible_connections(ids, self.user, team)
        return set(read_teams) - hidden

    def require(self, conn_id: str) -> None:
        """Raises for a root that the user may not see, with the words for one that does not exist."""
        if not self.among({conn_id: self.read_teams.get(conn_id, "")}):
            raise NotFoundError(no_root(conn_id))

    def reads_state(self, conn_id: str) -> bool:
        """Whether the user may read what is in the state of a root's jobs: whoever may edit its connection could get at it
        anyway."""
        teams = self._teams_of(conn_id, self.read_teams.get(conn_id, ""))
        return all(internals.may_edit_connection(conn_id, self.user, team) for team in teams)

    def _teams_of(self, conn_id: str, read_team: str) -> set[str | None]:
        """The teams of all of which the user has to be: today's, and the one of the root that the catalog knows."""
        teams: set[str | None] = {team for team in (self.teams.get(conn_id), read_team) if team}
        return teams or {None}

    def _may_see_roots_of(self, team: str | None) -> bool:
        """True if the user may see the connections of a team without a look at each."""
        if needs_connection():
            return False
        return team is None or internals.is_member(self.user, team)


def sight(request: Request, session: SessionDep, user: GetUserDep) -> Sight:
    # In this order: a connection that goes in between is still known by the first of them.
    read_teams = request.app.state.catalog.teams()
    return Sight(user, internals.team_of_connections(session), read_teams)


SightDep = Annotated[Sight, Depends(sight)]


def may_see(conn_id: str, seen: SightDep) -> None:
    seen.require(conn_id)


SEEING = [Depends(may_see)]
"""For what lies in one root, beside `READING`."""


def may_read_state(conn_id: str, seen: SightDep) -> None:
    seen.require(conn_id)
    if not seen.reads_state(conn_id):
        raise HTTPException(
            403,
            f"what the state of a job holds is shown to those who may edit the connection {conn_id!r}: ask Airflow's administrators "
            "for that right",
        )


READING_STATE = [Depends(may_read_state)]
"""For values of state and rows, in place of `SEEING`."""


def reads_state(conn_id: str, seen: SightDep) -> bool:
    return seen.reads_state(conn_id)


ReadsStateDep = Annotated[bool, Depends(reads_state)]


def known_actions(conn_id: str, session: SessionDep, user: GetUserDep) -> dict[str, Any]:
    """Which DAG each button would trigger, None where there is none that the user may see; whether they may."""
    action_dag_ids = action_dags(conn_id)
    rights = internals.rights_on_dags(set(action_dag_ids.values()), user, session)
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
