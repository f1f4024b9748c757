"""Savepoints, periodic or by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stateflow.airflow.operators.arguments import (
    Reader,
    named,
    number,
    one_of,
    optional,
    snapshot,
    some,
    text,
)
from stateflow.airflow.operators.base import StateflowOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.jobs.savepoints import MadeSavepoint


class StateflowSavepointOperator(StateflowOperator):
    """Copies a complete checkpoint into a folder of its own, beside a run or without one.

    Killed, it leaves nothing that anybody sees, and its retry deletes what nobody sees.

    :param kind: `native` copies files; `canonical` writes typed tables, for which Spark is started.
    :param to: URL or folder for it; else `_savepoints/<job>/<name>` in the root.
    :param name: else made from kind and date of the DAG run.
    :param checkpoint: `latest`, `checkpoint:N` or `tag:NAME`.
    :param expires: time after which a cleanup may dispose of it.
    :param max_files: native: pack small files until so many objects are left.
    :param spark_conn_id: canonical: where Spark is; else on this worker.
    """

    template_fields: Sequence[str] = (
        *StateflowOperator.template_fields,
        "kind",
        "to",
        "name",
        "checkpoint",
        "expires",
        "max_files",
        "spark_conn_id",
    )
    readers: Mapping[str, Reader[Any]] = {
        **StateflowOperator.readers,
        "kind": one_of("native", "canonical"),
        "to": text,
        "name": text,
        "checkpoint": snapshot,
        "expires": optional(some),
        "max_files": optional(number(1)),
        "spark_conn_id": optional(named),
    }

    def __init__(
        self,
        *,
        kind: str = "native",
        to: str = "",
        name: str = "",
        checkpoint: str | int = "latest",
        expires: timedelta | str | None = None,
        max_files: int | str | None = None,
        spark_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.to = to
        self.name = name
        self.checkpoint = checkpoint
        self.expires = expires
        self.max_files = max_files
        self.spark_conn_id = spark_conn_id
        self.check("kind", "to", "name", "checkpoint", "expires", "max_files", "spark_conn_id")

    def execute(self, context: Context) -> dict[str, Any]:
        with self.at_work():
            job = self.job_for(context)
            self.linked(context)
            made = job.savepoint(
                self.given("kind"),
                options=self.hook.options(),
                progress=self.told(),
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


def default_name(kind: str, context: Context, deed: str) -> str:
    """The same for every retry of a task, and no other task's: `native-20260131T000000-1a2b3c4d`."""
    dag_run = context["dag_run"]
    when = dag_run.logical_date or dag_run.run_after
    return f"{kind}-{when:%Y%m%dT%H%M%S}-{hashlib.sha256(deed.encode()).hexdigest()[:8]}"


def savepoint_facts(made: MadeSavepoint) -> dict[str, Any]:
    """What XCom says of a savepoint."""
    from stateflow.format.references import state_bytes
    from stateflow.savepoints.format import expected_files

    return {
        "savepoint": made.url,
        "kind": made.savepoint.kind,
        "files": len({each.path for each in expected_files(made.savepoint) if each.path}),
        "bytes": state_bytes(made.savepoint),
        "expires": made.savepoint.expires,
        "note": made.savepoint.note,
    }
