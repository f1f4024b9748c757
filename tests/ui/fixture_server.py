"""A server that the pages can be designed and tried against without Airflow: the same addresses, made-up answers.

    .venv/bin/python -m tests.ui.fixture_server

It stands below a path, as Airflow does below that of `[api] base_url`. Who asks is told by the cookie `role`: admin, viewer or
anonymous.
"""

from __future__ import annotations

import hashlib
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import Cookie, FastAPI, Header, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles

from tests.ui import fixture_data as data
from tests.ui.fixture_data import World

STATIC = Path(__file__).resolve().parents[2] / "plugins" / "stateflow_ui" / "static"
SANDBOX = "allow-scripts allow-same-origin allow-forms allow-downloads"
"""What Airflow 3.3 allows the frame of a plugin's page."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""That of the real pages."""
STATES = ("queued", "running", "running", "success")

Role = Annotated[str, Cookie()]


def application(world: World, base: str = "") -> FastAPI:
    """Airflow as far as the pages see it, below `base`."""
    airflow = FastAPI(openapi_url=None)
    airflow.mount(f"{base}/stateflow", plugin(world))
    asked: Counter[str] = Counter()

    @airflow.post(f"{base}/api/v2/dags/{{dag_id}}/dagRuns")
    async def trigger(request: Request, dag_id: str) -> dict[str, Any]:
        world.posted.append({"dag_id": dag_id, "conf": (await request.json())["conf"]})
        return {"dag_id": dag_id, "dag_run_id": f"manual__2026-11-20T03:04:{len(world.posted):02d}+00:00"}

    @airflow.get(f"{base}/api/v2/dags/{{dag_id}}/dagRuns/{{run_id}}")
    def dag_run(dag_id: str, run_id: str) -> dict[str, Any]:
        asked[run_id] += 1
        return {"dag_id": dag_id, "dag_run_id": run_id, "state": STATES[min(asked[run_id], len(STATES)) - 1]}

    @airflow.get(f"{base}/api/v2/dags/{{dag_id}}/dagRuns/{{run_id}}/taskInstances")
    def tasks(dag_id: str, run_id: str) -> dict[str, Any]:
        state = STATES[max(0, min(asked[run_id], len(STATES)) - 1)]
        if state == "queued":
            return {"task_instances": [], "total_entries": 0}
        done = state == "success"
        states = ("success", "success") if done else ("success", "running")
        names = ("checked", "savepoint") if dag_id == "stateflow_savepoint" else ("plan", "approve")
        return {
            "task_instances": [{"task_id": n, "state": s} for n, s in zip(names, states, strict=True)],
            "total_entries": 2,
        }

    @airflow.get(f"{base}/plugin/stateflow", response_class=HTMLResponse)
    def framed() -> str:
        return (
            "<!doctype html><html><head><title>Airflow</title><link rel=icon href=data:,></head>"
            "<body style='margin:0'><div style='height:40px'>Airflow</div>"
            f"<iframe title=Stateflow sandbox='{SANDBOX}' src='{base}/stateflow/' "
            "style='border:0;display:block;width:100%;height:calc(100vh - 40px)'></iframe></body></html>"
        )

    @airflow.get(f"{base}/dags/{{rest:path}}", response_class=HTMLResponse)
    def dags(rest: str) -> str:
        return f"<!doctype html><html><head><title>Airflow</title><link rel=icon href=data:,></head><body><h1>DAG page {rest}</h1></body></html>"

    return airflow


def plugin(world: World) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, proceed: Any) -> Response:
        if "/stateflow/api/" in request.url.path:
            if request.cookies.get("role") == "anonymous":
                return JSONResponse({"detail": "Not authenticated"}, status_code=401)
            if world.fault:
                return JSONResponse({"detail": world.fault}, status_code=503)
        response: Response = await proceed(request)
        response.headers.setdefault("Cache-Control", "no-cache")
        response.headers["Content-Security-Policy"] = POLICY
        return response

    def row_of(conn_id: str, job: str) -> dict[str, Any]:
        for row in world.jobs:
            if (row["conn_id"], row["job"]) == (conn_id, job):
                return row
        raise HTTPException(
            404, f"there is no job {job!r} in the root of {conn_id!r}: `stateflow jobs` lists those there are"
        )

    def lines_of(conn_id: str, job: str) -> list[Any]:
        return data.lines_of(world, job) if row_of(conn_id, job)["head"] is not None else []

    @app.get("/api/jobs")
    def jobs(request: Request, dag_id: str = "", run_id: str = "") -> Response:
        wanted = f"{dag_id}/{run_id}" if run_id else dag_id
        shown = [
            row for row in world.jobs if not wanted or f"{row['dag_run'] or ''}/".startswith(f"{wanted}/")
        ]
        return tagged(request, {"now": world.now, "roots": world.roots, "jobs": shown, "problem": None})

    @app.get("/api/jobs/{conn_id}/{job}")
    def job(request: Request, conn_id: str, job: str, role: Role = "admin") -> Response:
        found = data.job_document(world, row_of(conn_id, job))
        may = dict.fromkeys(world.dags, role != "viewer")
        more = {"paused": dict.fromkeys(may, False), "reads_state": role != "viewer"}
        return tagged(request, {**found, "dags": world.dags, "may": may, **more})

    @app.get("/api/jobs/{conn_id}/{job}/timeline")
    def timeline(
        request: Request,
        conn_id: str,
        job: str,
        points: int = 600,
        since: int | None = None,
        until: int | None = None,
    ) -> Response:
        return tagged(request, data.timeline(lines_of(conn_id, job), points, since, until))

    @app.get("/api/jobs/{conn_id}/{job}/history")
    def history(
        request: Request, conn_id: str, job: str, before: int | None = None, limit: int = 100, kind: str = "", dag_id: str = "", run_id: str = ""
    ) -> Response:  # fmt: skip
        wanted = f"{dag_id}/{run_id}" if run_id else dag_id
        return tagged(request, data.history_page(lines_of(conn_id, job), before, limit, kind, wanted))

    @app.get("/api/jobs/{conn_id}/{job}/checkpoints/{slot}")
    def checkpoint(request: Request, conn_id: str, job: str, slot: int) -> Response:
        found = data.checkpoint_document(world, lines_of(conn_id, job), slot)
        if found is None:
            raise HTTPException(404, f"job {job!r} has no record {slot}: its history goes up to {world.head}")
        return tagged(request, found)

    @app.get("/api/jobs/{conn_id}/{job}/graph")
    def graph(request: Request, conn_id: str, job: str) -> Response:
        return tagged(request, data.graph(world, lines_of(conn_id, job)))

    @app.get("/api/jobs/{conn_id}/{job}/savepoints")
    def savepoints(request: Request, conn_id: str, job: str) -> Response:
        row_of(conn_id, job)
        return tagged(request, {"savepoints": world.savepoints})

    @app.get("/api/jobs/{conn_id}/{job}/storage")
    def storage(request: Request, conn_id: str, job: str, retained: int = 3, age: str = "") -> Response:
        row_of(conn_id, job)
        return tagged(request, data.storage_keeping(world, retained, age))

    @app.get("/api/jobs/{conn_id}/{job}/key")
    def key(request: Request, conn_id: str, job: str, key: str) -> Response:
        row_of(conn_id, job)
        if key == "anna":
            raise HTTPException(400, "'anna' is no key of operator 'balance': write a number")
        return tagged(request, data.key_history(world, key))

    @app.get("/api/jobs/{conn_id}/{job}/differences")
    def differences(request: Request, conn_id: str, job: str, before: str, after: str) -> Response:
        row_of(conn_id, job)
        return tagged(request, data.differences(world, before, after))

    @app.get("/api/jobs/{conn_id}/{job}/replays")
    def replays(request: Request, conn_id: str, job: str) -> Response:
        row_of(conn_id, job)
        return tagged(request, data.replays(world))

    @app.post("/api/actions/{dag_id}")
    async def act(
        request: Request, dag_id: str, role: Role = "admin", x_stateflow_action: Annotated[str, Header()] = ""
    ) -> dict[str, Any]:
        if x_stateflow_action != "1":
            raise HTTPException(400, "an action needs the header X-Stateflow-Action: 1")
        if role == "viewer":
            raise HTTPException(
                403, f"user 'viewer' may not trigger the DAG {dag_id!r}: ask for the permission to edit it"
            )
        body = {"logical_date": None, **await request.json()}
        return {"dag_id": dag_id, "path": f"api/v2/dags/{dag_id}/dagRuns", "body": body}

    @app.get("/")
    def index() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC))
    return app


def tagged(request: Request, document: dict[str, Any]) -> Response:
    body = json.dumps(document).encode()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    if request.headers.get("If-None-Match") == tag:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(body, media_type="application/json", headers={"ETag": tag})


@contextmanager
def serving(app: Any, lifespan: Literal["auto", "off"] = "auto") -> Iterator[str]:
    """The address that the application answers at, on loopback and a free port."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan=lifespan, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


def main() -> None:
    with serving(application(data.full_world(), "/team/airflow")) as address:
        sys.stdout.write(
            f"{address}/team/airflow/stateflow/\nin a frame: {address}/team/airflow/plugin/stateflow\n"
        )
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
