"""Which version of a Delta table has the output of a job up to a slot. The table's own log says so. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stateflow.spark.internals.delta_log import LoggedCommit


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table, for one of the sinks that write to it."""

    version: int
    """-1: there was no table yet."""
    slot: int | None
    """What the sink had committed last by then; None for nothing."""


def version_up_to(commits: Iterable[LoggedCommit], app_id: str, slot: int) -> TableVersion | None:
    """The version with what a sink had committed up to a slot; None when the log does not reach back so far.

    `commits` come newest first. Of slots that a rewind has undone the log keeps the commits, so these are found, too: slots are never
    reused.
    """
    newest = oldest = own = -1
    for commit in commits:
        newest = max(newest, commit.version)
        oldest = commit.version
        committed = commit.slots.get(app_id)
        if committed is None:
            continue
        if committed <= slot:
            return TableVersion(commit.version, committed)
        own = commit.version
    if oldest > 0:
        return None
    # Before the sink first wrote the table had what others had put there, such as the copy that a fork begins with.
    return TableVersion(own - 1 if own >= 0 else newest, None)


def common_version(found: Collection[TableVersion]) -> int:
    """The version for all sinks of a job that write to one table. Those that had committed nothing by then do not matter, unless no
    other had."""
    begun = [each.version for each in found if each.slot is not None]
    return max(begun) if begun else min(each.version for each in found)
