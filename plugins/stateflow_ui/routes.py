"""What the pages ask. Nothing here reads a store: the catalog knows, or says that it does not know yet."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

from stateflow.errors import NotFoundError
from stateflow.jobs.job import COLLECTED_RETAINED
from stateflow.quantities import duration
from stateflow.reading.past_states import KeyOfState
from stateflow_ui import details, documents, metrics, state_documents
from stateflow_ui.access import (
    READING,
    READING_STATE,
    SEEING,
    KnownActionsDep,
    ReadsStateDep,
    Sight,
    SightDep,
)
from stateflow_ui.catalog import Catalog, JobState, RootState
from stateflow_ui.charts import timeline as timeline_columns
from stateflow_ui.responses import HEADERS, json_response
from stateflow_ui.settings import stale_after

router = APIRouter(dependencies=READING)

JOB = "/api/jobs/{conn_id}/{job}"
Name = Annotated[str, Path(max_length=250)]
Slot = Annotated[int, Path(ge=1, le=1 << 53)]
Millis = Annotated[int | None, Query(ge=0, le=1 << 53)]
Text = Annotated[str, Query(max_length=250)]
Word = Annotated[str, Query(min_length=1, max_length=250)]


@router.get("/api/jobs")
async def all_jobs(request: Request, seen: SightDep, dag_id: Text = "", run_id: Text = "") -> Response:
    """All roots and jobs that the user may see; with `dag_id` (and `run_id`) those jobs that have a record of that DAG (run)."""
    catalog = _catalog(request)
    roots, jobs = await _overview(catalog, seen)
    return await _answered(
        request,
        lambda: documents.overview(roots, jobs, catalog.clock(), stale_after(), _dag_run(dag_id, run_id)),
    )


@router.get(JOB, dependencies=SEEING)
async def one_job(
    request: Request, conn_id: Name, job: Name, actions: KnownActionsDep, reads_state: ReadsStateDep
) -> Response:
    """A job's status, summary and percentiles, and what the user may do with it."""
    catalog = _catalog(request)
    facts = await catalog.job(conn_id, job)
    error = catalog.error_of(conn_id, job)
    return await _answered(
        request,
        lambda: {
            **documents.job(facts, catalog.clock(), stale_after(), error),
            **actions,
            "reads_state": reads_state,
        },
    )


@router.get(JOB + "/timeline", dependencies=SEEING)
async def timeline(
    request: Request,
    conn_id: Name,
    job: Name,
    points: Annotated[int, Query(ge=10, le=5000)] = 600,
    since: Millis = None,
    until: Millis = None,
) -> Response:
    """Columns for charts, thinned so that no peak is lost; `since` and `until` zoom in."""
    facts = await _catalog(request).job(conn_id, job)
    return await _answered(
        request, lambda: {**timeline_columns(facts.lines, points, since, until), "partial": not facts.whole}
    )


@router.get(JOB + "/history", dependencies=SEEING)
async def history(
    request: Request,
    conn_id: Name,
    job: Name,
    before: Annotated[int | None, Query(ge=1, le=1 << 53)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    kind: Annotated[str, Query(pattern="^(|checkpoint|fence|restore|rescale|erase)$")] = "",
    dag_id: Text = "",
    run_id: Text = "",
) -> Response:
    """Lines, newest first; the next page is asked for with `before` set to `next`."""
    facts = await _catalog(request).job(conn_id, job)
    return await _answered(
        request, lambda: documents.history(facts, before, limit, kind, _dag_run(dag_id, run_id))
    )


@router.get(JOB + "/checkpoints/{slot}", dependencies=SEEING)
async def checkpoint(request: Request, conn_id: Name, job: Name, slot: Slot) -> Response:
    """One record: operators, states, shards and key groups, sources and sinks."""
    facts, body = await _catalog(request).checkpoint(conn_id, job, slot)
    line = facts.lines.find(slot)
    if line is None:
        raise NotFoundError(
            f"job {job!r} has no checkpoint {slot}"
            + ("" if facts.whole else " among those that have been read so far: ask again in a moment")
        )
    return await _answered(request, lambda: details.checkpoint(facts, line, body))


@router.get(JOB + "/graph", dependencies=SEEING)
async def graph(request: Request, conn_id: Name, job: Name) -> Response:
    """The history as a graph of timelines, tags, savepoints, and what people did."""
    catalog = _catalog(request)
    facts = await catalog.job(conn_id, job)
    listed = await catalog.savepoints(conn_id, job)
    return await _answered(request, lambda: details.graph(facts, listed, catalog.clock()))


@router.get(JOB + "/savepoints", dependencies=SEEING)
async def savepoints(request: Request, conn_id: Name, job: Name) -> Response:
    """Savepoints in the default place of the root."""
    catalog = _catalog(request)
    facts = await catalog.job(conn_id, job)
    listed = await catalog.savepoints(conn_id, job)
    return await _answered(
        request, lambda: {"savepoints": details.savepoints(facts.status.root, listed, catalog.clock())}
    )


@router.get(JOB + "/storage", dependencies=SEEING)
async def storage(
    request: Request,
    conn_id: Name,
    job: Name,
    retained: Annotated[int, Query(ge=1, le=10_000)] = COLLECTED_RETAINED,
    age: Annotated[str, Query(max_length=40)] = "",
) -> Response:
    """What the job stores, and what a clean-up that keeps so many checkpoints would free.

    `age`: those that are younger stay as well; without it as the connection's options say.
    """
    catalog = _catalog(request)
    await catalog.job(conn_id, job)  # says so if there is none
    facts = await catalog.storage(conn_id, job, retained, _length(age))
    return await _answered(request, lambda: details.storage(facts))


@router.get(JOB + "/key", dependencies=READING_STATE)
async def key(
    request: Request,
    conn_id: Name,
    job: Name,
    operator: Word,
    state: Word,
    key: Annotated[str, Query(min_length=1, max_length=2000)],
    map_key: Annotated[str, Query(max_length=2000)] = "",
    namespace: Annotated[str, Query(max_length=2000)] = "",
    since: Text = "",
) -> Response:
    """What a state held for a key, after each kept checkpoint in which that changed."""
    asked = KeyOfState(operator, state, key, map_key or None, namespace or None)
    found = await _catalog(request).key_history(conn_id, job, asked, since)
    return await _answered(request, lambda: state_documents.history(found))


@router.get(JOB + "/differences", dependencies=READING_STATE)
async def differences(
    request: Request,
    conn_id: Name,
    job: Name,
    before: Word,
    after: Word,
    operator: Text = "",
    state: Text = "",
) -> Response:
    """Which entries of which state came, went or changed between two checkpoints."""
    found = await _catalog(request).differences(conn_id, job, before, after, operator, state)
    return await _answered(request, lambda: state_documents.differences(found))


@router.get(JOB + "/replays", dependencies=READING_STATE)
async def replays(request: Request, conn_id: Name, job: Name) -> Response:
    """Reports of replays that were kept beside the job."""
    found = await _catalog(request).replays(conn_id, job)
    return await _answered(request, lambda: state_documents.replays(found))


@router.get("/metrics")
async def prometheus(request: Request, seen: SightDep) -> Response:
    """All jobs that the user may see in Prometheus' text format."""
    catalog = _catalog(request)
    roots, jobs = await _overview(catalog, seen)
    text = await run_in_threadpool(metrics.page, roots, jobs, catalog.clock(), stale_after())
    return PlainTextResponse(text, media_type=metrics.CONTENT_TYPE, headers=HEADERS)


def _catalog(request: Request) -> Catalog:
    catalog: Catalog = request.app.state.catalog
    return catalog


async def _overview(catalog: Catalog, seen: Sight) -> tuple[list[RootState], list[JobState]]:
    """What is known of the roots that the user may see."""
    roots, jobs = await catalog.overview()
    visible = await run_in_threadpool(seen.among, {root.conn_id: root.team for root in roots})
    return [root for root in roots if root.conn_id in visible], [
        job for job in jobs if job.conn_id in visible
    ]


async def _answered(request: Request, document: Callable[[], Any]) -> Response:
    """Made in a thread: a large answer must not hold up everybody else's."""
    return await run_in_threadpool(lambda: json_response(request, document()))


def _dag_run(dag_id: str, run_id: str) -> str:
    """As records note it."""
    return f"{dag_id}/{run_id}" if dag_id and run_id else dag_id


def _length(age: str) -> timedelta | None:
    try:
        return duration(age) if age else None
    except (ValueError, OverflowError) as error:
        raise HTTPException(422, f"age: {error}") from None
