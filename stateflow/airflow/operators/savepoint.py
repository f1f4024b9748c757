"""Savepoints, periodic or by hand."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any

from stateflow.airflow.operators.arguments import Count, Kind, Name, Snapshot, SomeTime, Text
from stateflow.airflow.operators.base import StateflowOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.jobs.savepoints import MadeSavepoint


class StateflowSavepointOperator(StateflowOperator):
    """Copies a complete checkpoint into a folder of its own, beside a run or without one.

    A task that is killed leaves no visible savepoint, and its retry deletes the files.
    """

    def __init__(
        self,
        *,
        kind: Annotated[
            Kind, "`native` copies files; `canonical` writes typed tables, for which Spark is started"
        ] = "native",
        to: Annotated[Text, "URL or folder for it; else `_savepoints/<job>/<name>` in the root"] = "",
        name: Annotated[Text, "else made from kind and date of the DAG run"] = "",
        checkpoint: Annotated[Snapshot, "`latest`, `checkpoint:N` or `tag:NAME`"] = "latest",
        expires: Annotated[SomeTime | None, "time after which a cleanup may dispose of it"] = None,
        max_files: Annotated[Count | None, "native: pack small files until so many objects are left"] = None,
        spark_conn_id: Annotated[Name | None, "canonical: where Spark is; else on this worker"] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.accept(locals())

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            job = self.job_for(context)
            self.linked(context)
            made = job.savepoint(
                self.given("kind"),
                options=self.hook.options(),
                progress=self.progress(),
                checkpoint=self.given("checkpoint"),
                to=self.given("to"),
                name=self.given("name") or default_name(self.given("kind"), context, job.owner().run),
                note=self.given("note"),
                expires=self.given("expires"),
                max_files=self.given("max_files") or 0,
                conf=self.spark_conf(),
            )
            facts = savepoint_facts(made)
            self.log.info(
                "%s holds checkpoint %d of job %s: %d files, %d bytes",
                made.url, made.savepoint.record.slot, job.name, facts["files"], facts["bytes"],
            )  # fmt: skip
            self.linked(context, made.savepoint.record.slot)
            return self.result(made.savepoint.record.slot, **facts)


def default_name(kind: str, context: Context, idempotency_key: str) -> str:
    """One name for all retries of a task, and for no other task: `native-20260131T000000-1a2b3c4d`."""
    dag_run = context["dag_run"]
    when = dag_run.logical_date or dag_run.run_after
    return f"{kind}-{when:%Y%m%dT%H%M%S}-{hashlib.sha256(idempotency_key.encode()).hexdigest()[:8]}"


def savepoint_facts(made: MadeSavepoint) -> dict[str, Any]:
    """The facts about a savepoint that go into XCom."""
    from stateflow.format.references import state_bytes  # as all that works, a DAG file must not load it
    from stateflow.savepoints.format import expected_files

    return {
        "savepoint": made.url,
        "kind": made.savepoint.kind,
        "files": len({each.path for each in expected_files(made.savepoint) if each.path}),
        "bytes": state_bytes(made.savepoint),
        "expires": made.savepoint.expires,
        "note": made.savepoint.note,
    }
