"""Copying a Delta table as it was at a checkpoint of the job that writes it, for a fork of that job.

One commit makes the whole copy and names its origin and the fork: a crash leaves no table or all of it, and the same again finds it.
The files are written anew, so that VACUUM of the origin takes none of them.
"""

from __future__ import annotations

import json
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


def made_for(job: str) -> str:
    """Delta's name of a writer, for the fork with this UUID. No sink has it, so the fork's tables have no slot of it yet."""
    return f"stateflow-copy/{job}"


def is_copied(commits: Sequence[LoggedCommit], copy: TableCopy, job: str) -> bool:
    """Whether a table is this very copy, made for the fork with this UUID; False when there is none, and UsageError for any other. Pure."""
    if not commits:
        return False
    *later, first = commits
    untouched = not any(commit.changes_data or commit.reshapes or commit.slots for commit in later)
    if first.version == 0 and first.copied_from == (copy.source, copy.version) and untouched:
        # Another fork's copy is no less equal, and both would write to it.
        if made_for(job) in first.slots:
            return True
        whose = "of another job" if first.slots else "that does not say which job it was made for"
        raise UsageError(
            f"{copy.target} has a copy of version {copy.version} of {copy.source} {whose}: give the fork another output, such as "
            "-p output=/another/path"
        )
    raise UsageError(
        f"{copy.target} has a table that is not the copy of version {copy.version} of {copy.source}: give the fork another output, "
        "such as -p output=/another/path, or delete that table"
    )


def copy_table(spark: SparkSession, copy: TableCopy, job: str) -> None:
    """Makes the copy for the fork with this UUID, unless it is there."""
    check_log_store(spark, copy.target, "exactly_once")
    target = DeltaLog(spark, copy.target)
    if target.exists() and is_copied(list(target.commits()), copy, job):
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
    mark = json.dumps({"txn": {"appId": made_for(job), "version": 0, "lastUpdated": target.now()}})
    txn.commit_copy([mark, *txn.write(frame)], copy.source, copy.version)
