"""Taking a Delta table back to what it held at an older checkpoint, in one transaction that later slots build on.

The table's own log says which of its commits are this job's: each carries the slot as a transaction version. What
somebody else has written since would be lost by going back, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stateflow.errors import DisagreementError, NotFoundError
from stateflow.format.records import Prepared
from stateflow.spark.sinks.base import BatchFunction, Committed, decide, disagreement
from stateflow.spark.sinks.delta_append import ATTEMPTS, conflicted, fence, stuck
from stateflow.spark.sinks.delta_log import DeltaLog, LoggedCommit
from stateflow.spark.sinks.slot import SinkSlot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stateflow.spark.sinks.staging import Stager

KIND = "delta_rewind"


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


def found_rewind(
    commits: Iterable[LoggedCommit], app_id: str, wanted: int | None, target: str
) -> tuple[int, int]:
    """The version to go back to and how many commits that undoes; `commits` newest first. Pure."""
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
        if slot == wanted:
            _refuse_foreign(foreign, commit.version, target)
            return commit.version, undone
        if wanted is not None and slot < wanted:
            break
        undone += 1
        oldest_own = commit.version
        if wanted is None:
            # Only what came after the first own commit would be undone.
            _refuse_foreign(foreign, commit.version, target)
            foreign = None
    if wanted is not None:
        raise DisagreementError(
            f"Delta table {target} has no commit of slot {wanted} in its log any more: go back to a later checkpoint, or "
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


def plan_rewind(spark: SparkSession, prepared: Prepared, place: SinkSlot, wanted: int | None) -> Rewind:
    """What going back would mean for the table of a sink; raises when it cannot be done."""
    log = DeltaLog(spark, prepared.target)
    if not log.exists():
        raise NotFoundError(f"{prepared.target} is not a Delta table (any more), so it cannot be taken back")
    version, undone = found_rewind(log.commits(), place.app_id, wanted, prepared.target)
    return Rewind(prepared.target, wanted, version, undone)


def prepare_rewind(
    spark: SparkSession, prepared: Prepared, place: SinkSlot, prev: int | None, wanted: int | None
) -> Prepared:
    """The rewind as a record names it. What can fail for a reason of its own fails here."""
    found = plan_rewind(spark, prepared, place, wanted)
    log = DeltaLog(spark, prepared.target)
    txn = log.begin()
    version = txn.slot_of(place.app_id)
    if decide(version, prev, place.slot, place.late) == "disagree":
        raise disagreement(place, f"Delta table {prepared.target}", version, prev)
    if found.version >= 0 and found.undone and (gone := log.missing(log.files_at(found.version))):
        raise DisagreementError(
            f"Delta table {prepared.target} cannot be taken back to version {found.version}: {len(gone)} of its files are "
            f"gone ({gone[0]}; was it vacuumed?); choose a later checkpoint, or restore without --rewind-sinks"
        )
    return Prepared(
        kind=KIND,
        target=prepared.target,
        prev=prev,
        payload={"table": txn.shape().id, "wanted": wanted, "version": found.version},
    )


def carry_out(
    spark: SparkSession,
    prepared: Prepared,
    place: SinkSlot,
    still_owner: Callable[[], None],
    functions: Mapping[str, BatchFunction],
    stage: Stager,
) -> Committed:
    payload = prepared.payload
    log = DeltaLog(spark, prepared.target)
    for attempt in range(ATTEMPTS):
        txn = log.begin()
        version = txn.slot_of(place.app_id)
        verdict = decide(version, prepared.prev, place.slot, place.late)
        if verdict == "already":
            return "already"
        if verdict == "disagree":
            raise disagreement(place, f"Delta table {prepared.target}", version, prepared.prev)
        if txn.shape().id != payload["table"]:
            raise stuck(place, f"Delta table {prepared.target} was recreated since its rewind was decided")
        # Looked at again: what others have committed since would be lost.
        to, undone = found_rewind(log.commits(), place.app_id, payload["wanted"], prepared.target)
        # Also when nothing is undone: a zombie of a lower slot must find that it came too late.
        actions = [*(txn.going_back(to) if undone else ()), fence(log, place)]
        try:
            txn.commit_restore(actions, to)
        except Exception as error:
            if not conflicted(error) or attempt == ATTEMPTS - 1:
                raise
            still_owner()
            continue
        return "committed"
    raise AssertionError("unreachable: the last attempt returns or raises")


def rewindable(prepared: Prepared) -> bool:
    """Whether what the sink has can be taken back."""
    return prepared.kind in ("delta_append", "delta_upsert", KIND) and bool(
        prepared.payload.get("exactly_once", prepared.kind == KIND)
    )
