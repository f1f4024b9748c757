"""What the DAGs of this folder have in common: which jobs there are, how they are run, and the fields of their forms.

Change the defaults here, or leave the file alone and set the Airflow Variable `stateflow` (Admin, Variables; or
`AIRFLOW_VAR_STATEFLOW` in the environment) to a JSON object with any of the fields of `Settings`:

    {"conn_id": "stateflow_default", "schedule": "@hourly", "pipeline_folders": ["/opt/pipelines"],
     "jobs": {"orders": {"pipeline": "/opt/pipelines/orders.py:orders", "dag_id": "stateflow_orders",
                         "parameters": {"input": "s3a://lake/orders", "output": "s3a://lake/totals"}}}}

Airflow reads the DAGs every few seconds, so nothing here asks a checkpoint root for anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from airflow.sdk import Param, Variable

from stateflow.airflow.operators.upgrades import pipeline_variable

VARIABLE = "stateflow"
DAGS = Path(__file__).resolve().parent
EXAMPLES = DAGS.parent / "examples"
NAME = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
"""What names a job, a tag or a connection."""


class Pipeline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a job is run."""

    pipeline: str
    """FILE:PIPELINE, as the workers see it."""
    dag_id: str = ""
    """The DAG that runs it, which the recovery runbook triggers when it is done."""
    parameters: Mapping[str, str] = {}
    """What the form of that DAG shows to begin with."""
    host: str = ""
    """The warm host that its runs go to, if the worker has one; else, and without it, each starts a Spark of its own."""


ORDERS = Pipeline(
    pipeline=f"{EXAMPLES / 'orders.py'}:orders",
    dag_id="stateflow_orders",
    parameters={"input": "/data/orders", "output": "/data/totals"},
)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that differs between one team and the next."""

    conn_id: str = "stateflow_default"
    """The connection that holds the checkpoint root and its credentials."""
    conn_ids: Sequence[str] = ()
    """Further connections that the forms may name. They take no others."""
    spark_conn_id: str = "spark_default"
    """Where Spark runs: pipelines, canonical savepoints and restores that rewind tables need it."""
    schedule: str | None = "*/15 * * * *"
    """When the pipeline runs; null for a DAG that is only triggered."""
    retry_seconds: int = 30
    """How long a failed run of a pipeline waits for its first retry; later ones wait longer."""
    approval_minutes: int = 60
    """How long a recovery or an upgrade waits for a person."""
    approvers: Sequence[str] = ()
    """Ids of those who may approve one; empty: everybody whom Airflow lets answer."""
    four_eyes: bool = False
    """Whether somebody else than whoever triggered it has to approve it."""
    host: str = "team"
    """The warm host that the DAG `stateflow_host` keeps on its worker."""
    host_runs: int = 4
    """How many runs it carries out at once."""
    host_memory: str = "2g"
    """Of its Spark."""
    jobs: Mapping[str, Pipeline] = msgspec.field(default_factory=lambda: {"orders": ORDERS})
    """By name. One of another connection than `conn_id` is written `CONNECTION/JOB`."""
    pipeline_folders: Sequence[str] = ()
    """Where pipelines may lie, as the workers see it; empty: the folders of the pipelines in `jobs`.

    Loading a pipeline runs its file. Only who may add code for the workers should be able to write to these folders.
    """

    @property
    def approval_time(self) -> timedelta:
        return timedelta(minutes=self.approval_minutes)

    @property
    def connections(self) -> list[str]:
        """Those that a form may name."""
        return list(dict.fromkeys([self.conn_id, *self.conn_ids]))

    def jobs_of(self, conn_id: str) -> dict[str, Pipeline]:
        """Those of a connection, by name."""
        found = {}
        for key, pipeline in self.jobs.items():
            connection, _, job = key.rpartition("/")
            if (connection or self.conn_id) == conn_id:
                found[job] = pipeline
        return found

    @property
    def folders(self) -> list[Path]:
        """Those that a pipeline may be loaded from. A relative one begins beside this file."""
        named = self.pipeline_folders or [str(Path(job.pipeline).parent) for job in self.jobs.values()]
        return [DAGS / Path(name).expanduser() for name in named]


def read_settings(text: str) -> Settings:
    """Of the Variable's text."""
    try:
        return msgspec.json.decode(text, type=Settings)
    except msgspec.DecodeError as error:
        raise ValueError(
            f"the Airflow Variable {VARIABLE!r} is not usable ({error}): dags/stateflow_settings.py shows what it may hold"
        ) from None


SETTINGS = read_settings(Variable.get(VARIABLE, default="{}"))


def pipeline_template(conn_id: str, job: str, otherwise: Pipeline) -> str:
    """FILE:PIPELINE that the job runs when the task does, as a template: no DAG file reads a Variable for it."""
    return f"{{{{ var.value.get({pipeline_variable(conn_id, job)!r}, {otherwise.pipeline!r}) }}}}"


def running_pipeline(conn_id: str, job: str) -> str:
    """The same for the code of a task; empty for a job that is not known."""
    known = SETTINGS.jobs_of(conn_id).get(job)
    return switched_to(conn_id, job) or (known.pipeline if known else "")


def switched_to(conn_id: str, job: str) -> str:
    """What an upgrade has switched the job to; empty if none has."""
    return str(Variable.get(pipeline_variable(conn_id, job), default=""))


def text_field(default: str, title: str, description: str, **schema: Any) -> Param:
    """A text that may stay empty, which Airflow's form sends as null."""
    return Param(default, title=title, description=description, type=["null", "string"], **schema)


def job_field(description: str, *, optional: bool = False) -> Param:
    """A drop-down of the known jobs that takes any other name, too."""
    names = list(dict.fromkeys(key.rpartition("/")[2] for key in SETTINGS.jobs))
    if optional:
        return text_field("", "Job", description, pattern=f"^({NAME})?$", examples=names)
    return Param(
        names[0] if names else "job",
        title="Job",
        description=description,
        type="string",
        pattern=f"^{NAME}$",
        examples=names,
    )


def conn_field() -> Param:
    """For teams that have several checkpoint roots: Airflow refuses a connection that the settings do not list."""
    return Param(
        SETTINGS.conn_id,
        title="Connection",
        description="The Airflow connection that holds the checkpoint root: `conn_ids` in the Variable stateflow lists more.",
        type="string",
        enum=SETTINGS.connections,
    )


def note_field() -> Param:
    return text_field("", "Note", "Why: kept in the job's history.", maxLength=500)


def flag_field(title: str, description: str, *, default: bool = False) -> Param:
    return Param(default, title=title, description=description, type="boolean")
