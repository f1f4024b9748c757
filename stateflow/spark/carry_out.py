"""Carries a decided record out: every sink commits. The run that decided it does so, or after a crash the next one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from stateflow.checkpoint.claim import StillOwner
from stateflow.checkpoint.handle import JobHandle
from stateflow.checkpoint.writer import CommitPermit
from stateflow.format.records import Prepared, Record
from stateflow.pipelines.flow import Flow
from stateflow.spark.sinks.base import BatchFunction, CommitRequest, logged
from stateflow.spark.sinks.kinds import commit
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sinks.staging import Stager
from stateflow.storage.roots import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


def functions_of(flow: Flow) -> dict[str, BatchFunction]:
    """The user's own sinks of a pipeline, by uid."""
    return {sink.uid: sink.target for sink in flow.sinks if sink.sink_kind.calls_function}


@dataclass(frozen=True)
class Sinks:
    """Carries out the records of one job. It asks for Spark when the first sink needs it."""

    job: str
    spark: Callable[[], SparkSession]
    stager: Stager
    functions: Mapping[str, BatchFunction] = field(default_factory=dict)
    """The user's own sinks by uid; empty when the pipeline is not known."""
    warn: Callable[[str, str], None] = logged
    """Where sinks tell of what is no error."""

    @classmethod
    def of(
        cls,
        job: JobHandle,
        spark: Callable[[], SparkSession],
        functions: Mapping[str, BatchFunction] | None = None,
    ) -> Sinks:
        """For a verb that changes a job outside a run, such as a restore."""
        stager = Stager(partial(open_store, job.root, job.storage_options), job.new_id)
        return cls(job.name, spark, stager, functions or {})

    def carry_out_pending(self, record: Record, still_owner: StillOwner) -> dict[str, str]:
        """For `claim`: carries out the record that an earlier run decided and did not finish."""
        _log.info("carrying out record %d, which an earlier run had decided", record.slot)
        return self.carry_out(CommitPermit.to_carry_out(record), still_owner)

    def carry_out(self, permit: CommitPermit, still_owner: StillOwner) -> dict[str, str]:
        """Commits every sink of the record; per sink uid, what became of it."""
        record = permit.record
        return {
            uid: commit(self._request(record, uid, prepared, still_owner), permit)
            for uid, prepared in record.sinks.items()
        }

    def _request(
        self, record: Record, uid: str, prepared: Prepared, still_owner: StillOwner
    ) -> CommitRequest:
        at = SinkSlot(
            record.job, self.job, uid, record.slot, record.epoch, prepared.late, record.writer, prepared.prev,
            prepared.back_to,
        )  # fmt: skip
        function = self.functions.get(uid)
        return CommitRequest(prepared, at, self.spark(), self.stager, still_owner, function, self.warn)
