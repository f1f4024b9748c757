"""What a button does. The page asks here whether it may, and then triggers the DAG run through Airflow's own public API.

So Airflow itself checks the user, the form's fields and the DAG, and writes its audit log. What is asked here is what only these pages
know: which DAG is meant for a button, and which roots the user may see.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Request

from stateflow_ui.access import ACTING, SightDep
from stateflow_ui.connections import DEFAULT
from stateflow_ui.internals import DagModel, SessionDep
from stateflow_ui.settings import action_dags

MOST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ActionForm:
    conf: dict[str, Any]
    note: str | None


async def action_form(request: Request) -> ActionForm:
    """Read by hand: FastAPI would look at a body before it looks at who sends it."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"the body is too long: a form has {MOST_BYTES} bytes at most")
    try:
        form = json.loads(body)
    except (ValueError, RecursionError):
        form = None
    if not isinstance(form, dict) or not set(form) <= {"conf", "note"}:
        raise HTTPException(
            422, 'the body has to be a JSON object: {"conf": {...}}, with a "note" if you like'
        )
    conf, note = form.get("conf", {}), form.get("note")
    if not isinstance(conf, dict):
        raise HTTPException(422, '"conf" has to be an object: the fields of the DAG\'s form')
    if not (note is None or isinstance(note, str)):
        raise HTTPException(422, '"note" has to be a text')
    if not isinstance(conf.get("conn_id") or "", str):
        raise HTTPException(
            422, '"conn_id" in "conf" has to be a text: the id of a connection of type stateflow'
        )
    try:
        json.dumps(form, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise HTTPException(
            422,
            'the body has a text with half of a character in it (a surrogate, "\\ud800"), or a number that JSON has not: leave that out',
        ) from None
    return ActionForm(conf, note or None)


router = APIRouter()


@router.post("/api/actions/{dag_id}", dependencies=[*ACTING, Depends(action_form)])
def act(
    dag_id: str, form: Annotated[ActionForm, Depends(action_form)], session: SessionDep, seen: SightDep
) -> dict[str, Any]:
    """The request that the page makes of Airflow then, relative to Airflow's own path. Nothing has happened yet."""
    # A form without a connection means the one that the DAGs take then.
    conn_id = form.conf.get("conn_id") or DEFAULT
    seen.require(conn_id)
    if dag_id not in action_dags(conn_id).values():
        raise HTTPException(
            404,
            f"no button of these pages starts DAG {dag_id!r} for connection {conn_id!r}: start it in "
            "Airflow, or name it in section [stateflow] of Airflow's configuration",
        )
    dag = session.get(DagModel, dag_id)
    if dag is None or dag.is_stale:
        raise HTTPException(
            404,
            f"there is no DAG {dag_id!r} in Airflow (any more): copy it into the DAGs folder, or name another one",
        )
    if dag.is_paused:
        # A run would be made and wait: and act on the day when somebody turns the DAG on.
        raise HTTPException(
            409, f"DAG {dag_id!r} is paused, so nothing would happen: turn it on in Airflow first"
        )
    return {
        "dag_id": dag_id,
        "path": f"api/v2/dags/{quote(dag_id, safe='')}/dagRuns",
        "body": {"logical_date": None, "conf": form.conf, "note": form.note},
    }


def first_sentence(detail: Any) -> str:
    """What a person can mend, without the schema that follows it."""
    if isinstance(detail, dict):
        detail = detail.get("message") or detail.get("reason") or ""
    text = str(detail).strip()
    return (
        text.splitlines()[0].rstrip()
        if text
        else "Airflow refused without saying why: see the API server's log"
    )
