"""Steps that several of the DAGs take. Each calls the library and does nothing of its own."""

from __future__ import annotations

import re
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING

from airflow.sdk import task
from airflow.sdk.exceptions import AirflowFailException
from stateflow_settings import DAGS, SETTINGS, running_pipeline, switched_to

from stateflow.airflow import StateflowHook
from stateflow.airflow.connections.failures import spoken
from stateflow.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from stateflow.jobs.job import Job

LONGEST = 128
"""Characters of a tag's name."""


@task
def living_jobs(conn_id: str) -> list[str]:
    """Every job of the root that has a checkpoint. A team that cares for some of them only returns their names here."""
    hook = StateflowHook(conn_id)
    with spoken():
        return [name for name in hook.jobs() if _is_living(hook.job(name))]


def _is_living(job: Job) -> bool:
    try:
        return job.log().head is not None
    except CorruptError:
        return True  # its own task says what is wrong with it


@task
def known_job(conn_id: str, job: str, pipeline: str = "") -> dict[str, str]:
    """What the form leaves open: the file that the job runs, and the DAG that runs it. No file is loaded here."""
    return known(conn_id, job, pipeline)


@task
def known_pipeline(conn_id: str, job: str, pipeline: str = "") -> str:
    """The file alone, where nothing starts or pauses the job's DAG. A form that names it needs no settings of the job."""
    running = pipeline or running_pipeline(conn_id, job)
    if not running:
        raise _unknown("pipeline", conn_id, job, "name it in the form's field Pipeline, or")
    refuse_pipeline_elsewhere(running)
    return running


def known(conn_id: str, job: str, pipeline: str = "") -> dict[str, str]:
    """File and DAG for the code of a task, and what an upgrade has switched the job to."""
    settings = SETTINGS.jobs_of(conn_id).get(job)
    switched = switched_to(conn_id, job)
    running = pipeline or switched or (settings.pipeline if settings else "")
    if not running or settings is None or not settings.dag_id:
        raise _unknown("DAG" if running else "pipeline", conn_id, job)
    refuse_pipeline_elsewhere(running)
    return {"pipeline": running, "dag_id": settings.dag_id, "switched_to": switched}


def _unknown(what: str, conn_id: str, job: str, first: str = "") -> AirflowFailException:
    return AirflowFailException(
        f"which {what} runs job {job!r} of connection {conn_id!r} is not known: {first}{' ' if first else ''}say so in the Airflow Variable "
        f"'stateflow' (dags/stateflow_settings.py shows how); its jobs are: {', '.join(SETTINGS.jobs) or 'none'}"
    )


def refuse_pipeline_elsewhere(pipeline: str) -> None:
    """Whoever may press a button names a file, and loading it runs it: nothing outside the settings' folders is loaded."""
    from stateflow.pipelines.loading import refuse_outside  # loads pyarrow, and a DAG file must not

    try:
        refuse_outside(pipeline, DAGS, SETTINGS.folders)
    except UsageError as error:
        raise AirflowFailException(
            f"{error}; `pipeline_folders` in the Airflow Variable 'stateflow' lists the folders (dags/stateflow_settings.py)"
        ) from None


def tag_name(purpose: str, run_id: str) -> str:
    """The same each time that a DAG run asks for it, and another for every DAG run."""
    name = f"{purpose}-{re.sub('[^A-Za-z0-9._-]+', '-', run_id)}"
    return (
        name if len(name) <= LONGEST else f"{name[: LONGEST - 13]}-{sha256(run_id.encode()).hexdigest()[:12]}"
    )


def keep(conn_id: str, job: str, checkpoint: str, tag: str, note: str) -> str:
    """Tags a checkpoint, so that retention leaves it alone. A second time, or before there is any, it does nothing."""
    with spoken():
        found = StateflowHook(conn_id).job(job)
        status = found.status()
        if tag not in status.tags and status.head is not None:
            found.tag(tag, checkpoint, note=note)
    return tag


def keep_latest(conn_id: str, jobs: list[str], purpose: str, run_id: str, note: str) -> str:
    """Tags where the jobs stand. A DAG run that was cleared finds them elsewhere: it then uses a name with a number."""
    with spoken():
        statuses = {job: StateflowHook(conn_id).job(job).status() for job in jobs}
    for number in count(1):
        tag = tag_name(purpose, run_id if number == 1 else f"{run_id}-{number}")
        if all(status.tags.get(tag, status.head) == status.head for status in statuses.values()):
            break
    for job in jobs:
        keep(conn_id, job, "latest", tag, note)
    return tag


@task
def let_go(conn_id: str, jobs: list[str], purpose: str, run_id: str) -> None:
    """Removes the tags that this DAG run has set."""
    tag = tag_name(purpose, run_id)
    with spoken():
        for found in map(StateflowHook(conn_id).job, jobs):
            if tag in found.status().tags:
                found.untag(tag)
