"""Takes a Delta table back to its rows at an older checkpoint, in one transaction that later slots build on.

The table's own log says which of its commits are this job's: each carries the slot as a transaction version. Going back
would lose what another writer has committed since, so the rewind is refused then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stateflow.errors import DisagreementError, NotFoundError
from stateflow.format.records import Prepared
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.spark.internals.delta_log import DeltaLog, LoggedCommit, TableShape, Transaction
from stateflow.spark.sinks.base import (
    CommitRequest,
    Committed,
    Sink,
)
from stateflow.spark.sinks.delta_table import called, committed, log_of
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Rewind:
    """What a rewind would do to one table."""

    target: str
    slot: int | None
    """The slot whose output is the last one kept; None keeps none of this job's."""
    version: int
    """The table's version that comes back."""
    undone: int
    """Commits of this job that go."""


def find_rewind(
    commits: Iterable[LoggedCommit], app_id: str, last_slot: int | None, target: str
) -> tuple[int, int]:
    """The version to go back to, and how many commits that undoes. `commits` come newest first. Pure."""
    undone = 0
    oldest_own: int | None = None
    foreign: LoggedCommit | None = None
    for commit in commits:
        slot = commit.slots.get(app_id)
        if slot is None:
            reshaped = commit.reshapes and commit.version > 0
            if reshaped or (commit.changes_data and foreign is None):
                foreign = commit
            continue
        if slot == last_slot:
            _refuse_foreign(foreign, commit.version, target)
            return commit.version, undone
        if last_slot is not None and slot < last_slot:
            break
        undone += 1
        oldest_own = commit.version
        if last_slot is None:
            # Going back undoes only what came after this job's first commit.
            _refuse_foreign(foreign, commit.version, target)
            foreign = None
    if last_slot is not None:
        raise DisagreementError(
            f"Delta table {target} has no commit of slot {last_slot} in its log any more: go back to a later checkpoint, or "
            "restore without --rewind-sinks and put the table right by hand"
        )
    return (oldest_own - 1 if oldest_own is not None else -1), undone


def _refuse_foreign(foreign: LoggedCommit | None, after: int, target: str) -> None:
    if foreign is not None and foreign.version > after:
        what = "changed its schema or properties" if foreign.reshapes else "wrote to it"
        raise DisagreementError(
            f"Delta table {target} cannot be taken back to version {after}: version {foreign.version} "
            f"({foreign.operation or 'unknown operation'}), not of this job, {what} since; restore without --rewind-sinks, or "
            "undo that commit first"
        )


def plan_rewind(spark: SparkSession, prepared: Prepared, at: SinkSlot, last_slot: int | None) -> Rewind:
    """What a rewind would do to the table of a sink. Raises if the table cannot go back."""
    log = log_of(spark, prepared)
    if not log.exists():
        raise NotFoundError(f"{prepared.target} is not a Delta table (any more), so it cannot be taken back")
    version, undone = find_rewind(log.commits(), at.app_id, last_slot, prepared.target)
    return Rewind(prepared.target, last_slot, version, undone)


class TableSink(Sink):
    """A sink into a Delta table, which says what slot it has, and whose output can be taken back."""

    target: DeltaTable

    def writers(self, spark: SparkSession) -> Mapping[str, str]:
        return dict.fromkeys(DeltaLog(spark, self.target.path, self.target.managed_as).begin().app_ids(), "")

    @classmethod
    def last_slot(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot) -> int | None:
        log = log_of(spark, prepared)
        return log.begin().slot_of(at.app_id) if log.exists() else None

    @classmethod
    def rewind(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot, last_slot: int | None) -> Prepared:
        """The rewind as a record names it. A rewind that the table cannot do fails here, before the record is decided."""
        planned = plan_rewind(spark, prepared, at, last_slot)
        log = log_of(spark, prepared)
        txn = log.begin()
        at.refuse_disagreement(f"Delta table {prepared.target}", txn.slot_of(at.app_id))
        if (
            planned.version >= 0
            and planned.undone
            and (missing := log.missing(log.files_at(planned.version)))
        ):
            raise DisagreementError(
                f"Delta table {prepared.target} cannot be taken back to version {planned.version}: {len(missing)} of its files are "
                f"gone ({missing[0]}; was it vacuumed?); choose a later checkpoint, or restore without --rewind-sinks"
            )
        return Prepared(
            kind=cls.declared.rewound_as,
            target=prepared.target,
            prev=at.prev,
            payload={
                "table": txn.shape().id,
                "last_slot": last_slot,
                "version": planned.version,
                **called(prepared.name, prepared.is_managed),
            },
        )

    @staticmethod
    def commit_rewind(request: CommitRequest) -> Committed:
        prepared, at = request.prepared, request.at

        def go_back(log: DeltaLog, txn: Transaction, shape: TableShape, marks: list[str]) -> None:
            # Asked again: another writer may have committed since, and the rewind would lose it.
            to, undone = find_rewind(log.commits(), at.app_id, prepared.payload["last_slot"], prepared.target)
            # Marks the slot also when nothing is undone: a zombie with a lower slot must find that it came too late.
            txn.commit_restore([*(txn.going_back(to) if undone else ()), *marks], to)

        return committed(request, go_back, "its rewind was decided")
