"""Takes a Delta table back to its rows at an older checkpoint, in one transaction that later slots build on.

The table's own log says which of its commits are this job's: each carries the slot as a transaction version. Going back
would lose what another writer has committed since, so the rewind is refused then, unless a RESTORE has undone it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stateflow.errors import DisagreementError, IncompatibleError, NotFoundError
from stateflow.format.records import Prepared
from stateflow.pipelines.inputs.tables import DeltaTable
from stateflow.pipelines.sink_kinds import is_table
from stateflow.spark.internals.delta_log import DeltaLog, LoggedCommit, TableShape, Transaction, logged_commit
from stateflow.spark.sinks.base import CommitRequest, Committed, Sink
from stateflow.spark.sinks.delta_table import APPEND_ONLY, UNMARKED, called, committed, in_sql, log_of
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sources.delta_restores import Read, restore_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class NoWayBack(DisagreementError):
    """The table cannot go back. `why` is the reason, and `undo` what may be done to the table first, empty where nothing helps."""

    def __init__(self, why: str, instead: str, undo: str = "") -> None:
        super().__init__(f"{why}; {instead}")
        self.why, self.undo = why, undo


def find_rewind(
    read: Read, newest: int, app_id: str, last_slot: int | None, prepared: Prepared
) -> tuple[int, int]:
    """The version to go back to, and how many commits that undoes. It walks down from the newest version, and from a RESTORE of
    somebody else on to the version that this brought back: what lies between is undone already. Pure."""
    undone, standing = 0, newest
    oldest_own: int | None = None
    wrote: LoggedCommit | None = None
    reshaped: LoggedCommit | None = None
    restored: LoggedCommit | None = None
    lost: tuple[LoggedCommit | None, LoggedCommit | None] = (None, None)
    reaches = newest + 1
    for version in range(newest, -1, -1):
        body = read(version)
        if body is None:
            break
        reaches = version
        commit = logged_commit(version, body.splitlines())
        slot = commit.slots.get(app_id)
        if slot is None:
            if commit.reshapes and version > 0:
                reshaped = commit
            if version <= standing and commit.changes_data:
                restore = restore_at(read, version)
                if restore is not None and restore.kept is not None:
                    standing, restored = restore.kept, commit
                elif wrote is None:
                    wrote = commit
            continue
        if last_slot is not None and slot == last_slot:
            lost = (wrote if version <= standing else wrote or restored, reshaped)
            _refuse_foreign(read, newest, lost, version, prepared)
            return version, undone
        if last_slot is not None and slot < last_slot:
            if not undone:
                raise NoWayBack(
                    f"Delta table {prepared.target} has slot {slot} of this job, and cannot go to slot {last_slot}, which came later (was it put back "
                    "from a copy?)",
                    f"restore with `--from checkpoint:{slot} --rewind-sinks`, or from an older checkpoint",
                )
            break
        if version > standing:
            continue
        undone += 1
        oldest_own = version
        # With no slot to go back to, what came before this job's first commit stays.
        lost = (wrote, reshaped)
    if last_slot is not None:
        raise NoWayBack(
            f"Delta table {prepared.target} has no commit of slot {last_slot} in its log any more",
            "go back to a later checkpoint, or restore without --rewind-sinks and put the table right by hand",
        )
    if reaches > 0:
        # Older commits of this job may be among those that Delta has cleaned away.
        raise NoWayBack(
            f"the log of Delta table {prepared.target} begins at version {reaches} by now, so what the table had before this job's first output is not "
            "known",
            "go back to a later checkpoint, or restore without --rewind-sinks and put the table right by hand",
        )
    if oldest_own is None:
        return -1, undone
    _refuse_foreign(read, newest, lost, oldest_own - 1, prepared)
    return oldest_own - 1, undone


def _refuse_foreign(
    read: Read,
    newest: int,
    since: tuple[LoggedCommit | None, LoggedCommit | None],
    after: int,
    prepared: Prepared,
) -> None:
    """DisagreementError if the way back would lose what others did. `since`: a commit that wrote rows, and one that reshaped."""
    wrote, reshaped = since
    if reshaped is not None and not _fits(_shape(read, newest), _shape(read, after)):
        foreign, what = reshaped, "changed its schema or properties"
    elif wrote is not None:
        foreign, what = wrote, "wrote to it"
    else:
        return
    undo = f"undo all that came since, with `RESTORE TABLE {in_sql(prepared)} TO VERSION AS OF {after}`,"
    raise NoWayBack(
        f"Delta table {prepared.target} cannot be taken back to version {after}: version {foreign.version} "
        f"({foreign.operation or 'unknown operation'}), not of this job, {what} since",
        f"restore without --rewind-sinks, or first {undo} and restore again",
        undo,
    )


_Shape = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Metadata and protocol of a table, as its log has them; empty where the log does not reach back so far."""


def _shape(read: Read, version: int) -> _Shape:
    found: dict[str, Mapping[str, Any]] = {}
    for older in range(version, -1, -1):
        body = read(older)
        if body is None or len(found) == 2:
            break
        if b'"metaData"' in body or b'"protocol"' in body:
            for action in map(json.loads, body.splitlines()):
                for name in {"metaData", "protocol"} & action.keys():
                    found.setdefault(name, action[name])
    return found.get("metaData", {}), found.get("protocol", {})


def _fits(now: _Shape, then: _Shape) -> bool:
    """Whether a table may have again, as they are, the files that it had. RESTORE brings the metadata back and leaves a protocol
    that has grown: a table need not use all that its protocol lets it."""
    if not all((*now, *then)):
        return False
    had, has = then[1], now[1]
    return _what_files_have(now[0]) == _what_files_have(then[0]) and all(
        has.get(least, 0) >= had.get(least, 0) and set(had.get(listed) or ()) <= set(has.get(listed) or ())
        for least, listed in (("minReaderVersion", "readerFeatures"), ("minWriterVersion", "writerFeatures"))
    )


def _what_files_have(metadata: Mapping[str, Any]) -> list[Any]:
    """What has to be as it was, for the files of then."""
    configuration = (metadata.get("configuration") or {}).items()
    kept = {name: value for name, value in configuration if name not in _NOT_OF_FILES}
    return [*(metadata.get(part) for part in ("id", "schemaString", "partitionColumns")), kept]


_NOT_OF_FILES = frozenset({
    "delta.columnMapping.maxColumnId", "delta.rowTracking.materializedRowIdColumnName", "delta.rowTracking.materializedRowCommitVersionColumnName",
    APPEND_ONLY,
})  # fmt: skip
"""Names that only files to come are given by, which no RESTORE takes back, and what keeps files from being taken out."""


def _gone(log: DeltaLog, version: int, prepared: Prepared) -> str:
    """That files of the version to go back to are gone, empty if none is. The commit would leave a table that nobody can read."""
    missing = log.missing(log.files_at(version)) if version >= 0 else []
    if not missing:
        return ""
    return (
        f"Delta table {prepared.target} cannot be taken back to version {version}: {len(missing)} of its files are gone ({missing[0]}; was it "
        "vacuumed?)"
    )


def _unset(prepared: Prepared) -> str:
    return f"`ALTER TABLE {in_sql(prepared)} UNSET TBLPROPERTIES ('{APPEND_ONLY}')`"


def _left_no_slot(newest: Prepared, committed: int | None) -> bool:
    """Whether the slot last committed to a table is not in it, by the newest output that was prepared: that was delivered at least once, or
    such a one came before, and it has put no slot there itself."""
    if newest.payload.get("exactly_once") is False:
        return True
    return bool(newest.payload.get(UNMARKED)) and newest.prev == committed


class TableSink(Sink):
    """A sink into a Delta table, which says what slot it has, and whose output can be taken back."""

    target: DeltaTable
    prepared_at: int = -1
    """The version of the table for which the newest batch was prepared."""
    slot_there: int | None = None
    """The slot of this sink in that version."""
    _table: str = ""
    """The id of the table that the job writes to, once that is known."""
    _first: SinkSlot | None = None
    """The first that this run prepared exactly once."""

    def prepare_for(self, shape: TableShape, at: SinkSlot, slot: int | None) -> dict[str, Any]:
        """Refuses a table that has another slot than the log says, or is another one than the job has written to: CREATE OR REPLACE TABLE
        keeps the slots. Gives what the record says of the slots before it."""
        last = self.last_prepared
        self._first = self._first or at
        unmarked = last is not None and at.prev == self._first.prev and _left_no_slot(last, at.prev)
        replace(at, unmarked=unmarked).refuse_disagreement(str(self.target), slot, at.restore_to(slot))
        written = self._table or (str(last.payload["table"]) if last and is_table(last.kind) else "")
        if at.prev is not None and written not in ("", shape.id):
            raise DisagreementError(
                f"sink and log disagree: {self.target} was replaced by another table (CREATE OR REPLACE TABLE) since {at} wrote to it: put it "
                f"back as it was, with `RESTORE TABLE {self.target.in_sql} TO VERSION AS OF` the version before, or give a new table, at a path of its own, a new sink uid"
            )
        self._table, self.prepared_at, self.slot_there = shape.id, shape.version, slot
        return {UNMARKED: True} if unmarked else {}

    def writers(self, spark: SparkSession) -> Mapping[str, str]:
        return dict.fromkeys(DeltaLog(spark, self.target.path, self.target.managed_as).begin().app_ids(), "")

    @classmethod
    def last_slot(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot) -> int | None:
        log = log_of(spark, prepared)
        return log.begin().slot_of(at.app_id) if log.exists() else None

    @classmethod
    def rewind(cls, spark: SparkSession, prepared: Prepared, at: SinkSlot, last_slot: int | None) -> Prepared:
        """The rewind as a record names it. A rewind that the table cannot do fails here, before the record is decided."""
        log = log_of(spark, prepared)
        if not log.exists():
            raise NotFoundError(
                f"{prepared.target} is not a Delta table (any more), so it cannot be taken back"
            )
        version, undone = find_rewind(log.read, log.version(), at.app_id, last_slot, prepared)
        txn = log.begin()
        slot = txn.slot_of(at.app_id)
        at.refuse_disagreement(f"Delta table {prepared.target}", slot, at.restore_to(slot))
        if undone and txn.shape().is_on(APPEND_ONLY):
            raise IncompatibleError(
                f"Delta table {prepared.target} cannot be taken back to version {version}: it only takes appends ({APPEND_ONLY}); "
                f"unset that, with {_unset(prepared)}, and restore again, or restore without --rewind-sinks"
            )
        if undone and (gone := _gone(log, version, prepared)):
            raise DisagreementError(f"{gone}; choose a later checkpoint, or restore without --rewind-sinks")
        return Prepared(
            kind=cls.declared.rewound_as,
            target=prepared.target,
            payload={
                "table": txn.shape().id,
                "last_slot": last_slot,
                "version": version,
                **called(prepared.name, prepared.is_managed),
            },
        )

    @staticmethod
    def commit_rewind(request: CommitRequest) -> Committed:
        prepared, at = request.prepared, request.at

        def go_back(log: DeltaLog, txn: Transaction, shape: TableShape, marks: list[str]) -> None:
            # Asked again: another writer may have committed since, and the rewind would lose it.
            try:
                to, undone = find_rewind(
                    log.read, log.version(), at.app_id, prepared.payload["last_slot"], prepared
                )
            except NoWayBack as refused:
                raise request.stuck(
                    f"{refused.why}: {refused.undo or 'put back what is missing'} and run again"
                ) from refused
            if undone and shape.is_on(APPEND_ONLY):
                raise request.stuck(
                    f"{prepared.target} only takes appends now ({APPEND_ONLY}), so it cannot go back: unset that, with {_unset(prepared)}, and "
                    "run again"
                )
            if undone and (gone := _gone(log, to, prepared)):
                raise request.stuck(f"{gone}; put them back and run again")
            # Marks the slot also when nothing is undone: a zombie with a lower slot must find that it came too late.
            txn.commit_restore([*(txn.going_back(to) if undone else ()), *marks], to)

        return committed(request, go_back, "its rewind was decided")
