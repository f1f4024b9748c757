"""Which partitions of a Delta table a run has written, read from the table's log without Spark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateflow.errors import UnavailableError
from stateflow.spark.sinks.fit import PHYSICAL
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sources.delta_log import log_beside

if TYPE_CHECKING:
    from stateflow.jobs.job import Job

_NOTHING = "__HIVE_DEFAULT_PARTITION__"
"""Of rows whose column is null: the name that the folder has."""


@dataclass(frozen=True, slots=True)
class WrittenPartitions:
    """What a run has changed in a table."""

    names: tuple[str, ...]
    """As Airflow names partitions: `2026-01-31`, or `day=2026-01-31/hour=7` where there are several columns."""
    unknown: tuple[int, ...]
    """Slots that the job has committed and the table's log does not have: Delta has deleted these commits, or they are still with a
    catalog."""


def written_partitions(job: Job, uuid: str, sink: str, target: str, since: int) -> WrittenPartitions:
    """The partitions that a sink of the job of this `uuid` has changed with slots above `since`. UnavailableError for a table whose log
    cannot be read from here."""
    log = log_beside(target, job.store, job.storage_options)
    if log is None:
        raise UnavailableError(
            f"the log of Delta table {target} cannot be read from here: it has to lie on a disk that this machine has mounted, or in the bucket of "
            f"the checkpoint root {job.store.url}"
        )
    app_id = SinkSlot(uuid, job.name, sink, 0, 0).app_id
    files: list[Mapping[str, str | None]] = []
    missing = {
        line.id
        for line in job.history()
        if line.id > since and line.sinks.get(sink) in ("committed", "already")
    }
    for commit in log.commits():
        slot = commit.slots.get(app_id)
        if slot is not None and slot <= since:
            break
        if slot is not None:
            missing.discard(slot)
            body = log.commit(commit.version) or b""
            files += filter(None, (_values(json.loads(line)) for line in body.splitlines()))
    # One column has no name in an event.
    columns = _columns(log.metadata()) if any(len(values) > 1 for values in files) else {}
    names = {_name(values, columns) for values in files}
    return WrittenPartitions(tuple(sorted(names)), tuple(sorted(missing)))


def _values(action: dict[str, Any]) -> Mapping[str, str | None]:
    """The partition of a file that comes or goes; empty for another action, and for a file that was only rewritten."""
    file = action.get("add") or action.get("remove")
    if file is None or not file.get("dataChange", True):
        return {}
    values: Mapping[str, str | None] = file.get("partitionValues") or {}
    return values


def _columns(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The columns of the partitions in their order, by the names that files have for them: with column mapping those are others."""
    fields = json.loads(metadata.get("schemaString") or "{}").get("fields", ())
    physical = {field["name"]: field["metadata"].get(PHYSICAL, field["name"]) for field in fields}
    return {physical.get(name, name): name for name in metadata.get("partitionColumns") or ()}


def _name(values: Mapping[str, str | None], columns: Mapping[str, str]) -> str:
    if len(values) == 1:
        return _text(*values.values())
    # A file of before the table was made anew with other partitions has the names of those.
    order = columns if columns.keys() == values.keys() else values
    return "/".join(f"{columns.get(name, name)}={_text(values[name])}" for name in order)


def _text(value: str | None) -> str:
    return value or _NOTHING
