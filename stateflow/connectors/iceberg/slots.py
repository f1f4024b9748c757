"""What a table says of the jobs that write to it: their slots, in its properties, and the snapshots that they made.

A commit writes both. The property is what counts: snapshots expire. The snapshot's summary has the slot for people, and for a way back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from stateflow.connectors import DisagreementError, SinkSlot

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

SINK, SLOT = "stateflow.sink", "stateflow.slot"
_PREFIX = "stateflow/"
_EXPIRED = "the snapshot to go back to, or one on the way, has expired"


def slot_of(metadata: TableMetadata, app_id: str) -> tuple[int | None, int | None]:
    """Slot and mark of a sink's last commit."""
    text = metadata.properties.get(app_id)
    if text is None:
        return None, None
    try:
        found = json.loads(text)
        return int(found["slot"]), int(found["mark"])
    except (ValueError, TypeError, KeyError) as error:
        raise DisagreementError(
            f"the property {app_id!r} of an Iceberg table is {text!r}, which no sink has written: give it the value that it had (older metadata of "
            "the table has it), or give the sink a new uid"
        ) from error


def slot_property(at: SinkSlot) -> dict[str, str]:
    return {at.app_id: json.dumps({"slot": at.slot, "mark": at.mark, "job": at.job_name})}


def summary_of(at: SinkSlot) -> dict[str, str]:
    return {SINK: at.app_id, SLOT: str(at.slot), "stateflow.job": at.job_name}


def writers(metadata: TableMetadata) -> Mapping[str, str]:
    """Names of jobs by the `app_id` of the sinks that have written to the table; none for a table without rows."""
    newest = metadata.current_snapshot()
    if newest is None or newest.summary is None or newest.summary["total-records"] == "0":
        return {}
    return {
        name: _job_in(text)
        for name, text in metadata.properties.items()
        if name.startswith(_PREFIX) and text.startswith("{")
    }


def _job_in(text: str) -> str:
    """The job's name; empty where somebody has damaged the property."""
    try:
        return str(json.loads(text)["job"])
    except (ValueError, KeyError):
        return ""


def lineage(metadata: TableMetadata, newest: Snapshot | None = None) -> Iterator[Snapshot | None]:
    """The snapshots from `newest` back, by default from the current one; None at the end if an older one has expired."""
    snapshot = newest or metadata.current_snapshot()
    while snapshot is not None:
        yield snapshot
        if snapshot.parent_snapshot_id is None:
            if not _is_first(snapshot):
                yield None
            return
        snapshot = metadata.snapshot_by_id(snapshot.parent_snapshot_id)
        if snapshot is None:
            yield None


def _is_first(snapshot: Snapshot) -> bool:
    """Whether the table was empty before. PyIceberg takes the parent away from a snapshot whose parent has expired."""
    summary = snapshot.summary
    if summary is None or summary["total-records"] is None:
        return False
    # An upsert that writes anew all files of the table adds as many rows as it has then.
    if any(int(summary[removed] or 0) for removed in ("deleted-records", "deleted-data-files")):
        return False
    return int(summary["total-records"]) == int(summary["added-records"] or 0)


def slot_in(snapshot: Snapshot, app_id: str) -> int | None:
    """The slot that made a snapshot, if a sink did."""
    summary = snapshot.summary
    if summary is None or summary[SINK] != app_id:
        return None
    return int(str(summary[SLOT]))


def taken_back(metadata: TableMetadata, app_id: str) -> Snapshot | None:
    """The snapshot of a sink's last commit, if somebody has rolled the table back behind it."""
    slot, _ = slot_of(metadata, app_id)
    if slot is None:
        return None
    made = next((each for each in metadata.snapshots if slot_in(each, app_id) == slot), None)
    if made is None:
        return None
    for snapshot in lineage(metadata):
        if snapshot is None or snapshot.snapshot_id == made.snapshot_id:
            return None  # of what has expired nobody can tell
        # Numbers fall on the way down, so what is behind this one is older. In a table of version 1 all are 0.
        if (snapshot.sequence_number or 0) < (made.sequence_number or 0):
            return made
    return made


def written_beside(metadata: TableMetadata, made: Snapshot) -> Snapshot | None:
    """The newest snapshot with rows that the table would lose if it went to the one that was `made`."""
    stay = {each.snapshot_id for each in lineage(metadata, made) if each is not None}
    for snapshot in lineage(metadata):
        if snapshot is None or snapshot.snapshot_id in stay:
            return None
        if not _keeps_rows(snapshot):
            return snapshot
    return None


def way_back(metadata: TableMetadata, app_id: str, last_slot: int | None) -> tuple[int | None, str]:
    """The snapshot that a sink's slot left, or that was there before the sink's first; None for an empty table. The text says why there
    is no way, and is empty if there is one."""
    if last_slot is None:
        return _before_the_first(metadata, app_id)
    # An earlier way back may have left it beside the line: then this one leads forward.
    goal = next((each for each in reversed(metadata.snapshots) if slot_in(each, app_id) == last_slot), None)
    if goal is None:
        return None, f"the snapshot of slot {last_slot} has expired"
    stay = {each.snapshot_id for each in lineage(metadata, goal) if each is not None}
    for snapshot in lineage(metadata):
        if snapshot is None:
            return None, _EXPIRED
        if snapshot.snapshot_id in stay:
            break
        if slot_in(snapshot, app_id) is None and not _keeps_rows(snapshot):
            return None, _by_others(snapshot)
    return goal.snapshot_id, ""


def _before_the_first(metadata: TableMetadata, app_id: str) -> tuple[int | None, str]:
    oldest: Snapshot | None = None
    others: Snapshot | None = None
    for snapshot in lineage(metadata):
        if snapshot is None:
            return None, _EXPIRED
        if slot_in(snapshot, app_id) is not None:
            if others is not None:
                return None, _by_others(others)
            oldest = snapshot
        elif others is None and not _keeps_rows(snapshot):
            others = snapshot
    if oldest is None:
        return None, "no snapshot of this sink is left"
    # That it is there is known: no snapshot before the first of all has expired.
    return oldest.parent_snapshot_id, ""


def _keeps_rows(snapshot: Snapshot) -> bool:
    """As a compaction does."""
    return snapshot.summary is not None and snapshot.summary.operation.value == "replace"


def _by_others(snapshot: Snapshot) -> str:
    return f"others have written since (snapshot {snapshot.snapshot_id}), and their rows would go, too"
