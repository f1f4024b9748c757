"""Copying a Delta table as it was at a checkpoint of the job that writes it, for a fork of that job.

One commit makes the whole copy and names its origin: a crash leaves no table or all of it, and the same again finds it. The
files are written anew, so that VACUUM of the origin takes none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stateflow.errors import DisagreementError, NotFoundError, UsageError
from stateflow.spark.internals.delta_log import DeltaLog, LoggedCommit
from stateflow.spark.sinks.delta_versions import TableVersion, version_up_to
from stateflow.spark.sinks.log_stores import check_log_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class TableCopy:
    """A copy: its origin and its target."""

    source: str
    version: int
    target: str


def version_at(
    commits: Sequence[LoggedCommit], app_id: str, last_slot: int | None, table: str
) -> TableVersion:
    """The version of a table that belongs to a checkpoint of a job.

    `commits` come newest first, `last_slot` is the job's last output in the table up to the checkpoint. Pure.
    """
    if not commits:
        raise NotFoundError(
            f"{table} is not a Delta table (any more), or its log cannot be read from here: restore without --clone-sinks"
        )
    # Below every slot is what the table had before this job first wrote to it, such as the copy that the job began with.
    found = version_up_to(commits, app_id, -1 if last_slot is None else last_slot)
    if found is not None and found.slot == last_slot:
        return found
    what = f"no commit of slot {last_slot}" if last_slot is not None else "no first commits"
    raise DisagreementError(
        f"Delta table {table} has {what} in its log any more, so which version belongs to the checkpoint is not known: fork a "
        "later checkpoint, or restore without --clone-sinks"
    )


def is_copied(commits: Sequence[LoggedCommit], copy: TableCopy) -> bool:
    """Whether a table is this very copy; False when there is none, and UsageError for any other. Pure."""
    if not commits:
        return False
    *later, first = commits
    untouched = not any(commit.changes_data or commit.reshapes or commit.slots for commit in later)
    if first.version == 0 and first.copied_from == (copy.source, copy.version) and untouched:
        return True
    raise UsageError(
        f"{copy.target} has a table that is not the copy of version {copy.version} of {copy.source}: give the fork another output, "
        "such as -p output=/another/path, or delete that table"
    )


def copy_table(spark: SparkSession, copy: TableCopy) -> None:
    """Makes the copy, unless it is there."""
    check_log_store(spark, copy.target, "exactly_once")
    target = DeltaLog(spark, copy.target)
    if target.exists() and is_copied(list(target.commits()), copy):
        return
    source = DeltaLog(spark, copy.source)
    if missing := source.missing(source.files_at(copy.version)):
        raise DisagreementError(
            f"version {copy.version} of Delta table {copy.source} cannot be copied: {len(missing)} of its files are gone "
            f"({missing[0]}; was it vacuumed?); fork a later checkpoint, or restore without --clone-sinks"
        )
    frame = spark.read.format("delta").option("versionAsOf", copy.version).load(copy.source)
    txn = target.begin()
    txn.create_as(source.metadata_at(copy.version))
    txn.commit_copy(txn.write(frame), copy.source, copy.version)
