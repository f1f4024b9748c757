"""Positions of a Delta source: where it begins, where its batches end, and whether the table still has them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from stateflow.errors import DisagreementError, UsageError
from stateflow.format.source_offsets import UNDER_NEW_UIDS, decode
from stateflow.spark.internals.read_limits import Limited, unlimited
from stateflow.spark.internals.sources import DeltaSource, PlanRefused
from stateflow.spark.sources.delta_log import local_log
from stateflow.spark.sources.delta_offset import BEGINNING, DeltaOffset

APPENDED_TWICE = "an output that appends has the rows a second time then: give it another target and uid, too"
"""What reading a table anew does to outputs."""


def start_offset(source: DeltaSource, until: int | datetime | None = None) -> DeltaOffset | None:
    """The source's first position as a version: that of its starting option, or else the table's first snapshot.

    With `until` the first snapshot is the table as of that bound. None when there was no table at that time. A table whose
    few commits only append begins at its first commit: the rows are the same, and Delta sorts no snapshot for them, which
    takes longer than the rest of a small first batch.
    """
    if (starting := source.starting_version()) is not None:
        return DeltaOffset(source.table_id, starting)
    version = source.log.version() if until is None else bound_version(source, until)
    if version < 0:
        return None
    if until is not None and version < (earliest := source.earliest_commit()):
        raise UsageError(
            f"the log of the Delta table {source.log.path} now begins at version {earliest}, which is later than "
            f"{until}: choose a later bound"
        )
    if _replays(source, version):
        return DeltaOffset(source.table_id, 0)
    return DeltaOffset(source.table_id, version, snapshot=True)


def _replays(source: DeltaSource, version: int) -> bool:
    """Whether the table's commits give the rows of its snapshot. A table of another file system is not looked at."""
    log = local_log(source.log.path)
    if log is None or log.table != source.table_id:
        return False
    # A change feed tells each row's version, which would be another one.
    return not source.reads_changes() and log.only_appends(version)


def lies_behind(source: DeltaSource, start: DeltaOffset, until: int | datetime) -> bool:
    """Whether the source has been read beyond `until`."""
    return start.position > (bound_version(source, until) + 1, BEGINNING)


def bound_version(source: DeltaSource, until: int | datetime) -> int:
    """The last version that `until` includes: `until` itself, or the last commit at or before that time.

    For a time before the whole log it is the version before the log's first, so -1 for a table that is younger.
    """
    latest = source.log.version()
    if not isinstance(until, datetime):
        if until > latest:
            raise UsageError(
                f"the Delta table {source.log.path} has no version {until} yet, its newest is {latest}: "
                f"choose a version up to {latest}, or run without a bound"
            )
        return until
    version = source.version_at(until)
    return source.earliest_commit() - 1 if version is None else version


def end_offsets(
    source: DeltaSource, start: DeltaOffset, until: int | datetime, limit: Limited = unlimited
) -> Iterator[DeltaOffset]:
    """The end of each batch when a run reads the source from `start` through `until`.

    The source plans the batches under its own rate limit. So they are those of a run without a bound, except that the
    last one is cut.
    """
    target = DeltaOffset(source.table_id, bound_version(source, until) + 1)
    while start.position < target.position:
        try:
            end = DeltaOffset.parse(source.planned_end(start.line(), limit()))
        except PlanRefused:
            # Planning reads one commit ahead and refuses a commit that deletes rows, even behind the bound. Then less
            # than one batch is left. If the commit lies before the bound, running the batch raises the error.
            end = target
        start = end if start.position < end.position < target.position else target
        yield start


def check_offset(source: DeltaSource, uid: str, offset: DeltaOffset) -> None:
    """Refuses an offset whose commits the table no longer has."""
    path = source.log.path
    if offset.table != source.table_id:
        position = decode(offset.line(), "delta")["position"]
        raise DisagreementError(
            f"source {uid!r} is recorded in Delta table {offset.table} ({position}), but {path} is table {source.table_id}: it was recreated, "
            "or the source is given another table's place; bring the old table back, or give the source its place again, or give it "
            f"{UNDER_NEW_UIDS} to read this one from its beginning ({APPENDED_TWICE})"
        )
    latest = source.log.version()
    if offset.version > latest + 1:
        raise DisagreementError(
            f"source {uid!r} has read the Delta table {path} up to version {offset.version - 1}, but its "
            f"newest version is {latest}: an older copy was put in its place; bring the newer one back, "
            "or restore the job to a checkpoint of that time"
        )
    earliest = source.earliest_snapshot() if offset.snapshot else source.earliest_commit()
    if offset.version <= latest and offset.version < earliest:
        raise DisagreementError(
            f"source {uid!r} has to go on at version {offset.version} of the Delta table {path}, but its log "
            f"now starts at version {earliest}: rows are lost between them; restore the job to a later "
            f"checkpoint, or give the source {UNDER_NEW_UIDS} to read the table anew "
            f"({APPENDED_TWICE})"
        )


def pending_files(source: DeltaSource, offset: DeltaOffset) -> list[str]:
    """The data files of the next batch after `offset`.

    Empty when Spark refuses the range: the run will raise Spark's own message.
    """
    target = DeltaOffset(offset.table, source.log.version() + 1)
    if offset.position >= target.position:
        return []
    try:
        return source.files_of_next_batch(offset.line())
    except PlanRefused:
        return []
