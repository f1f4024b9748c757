"""Finds outputs that somebody else took back with RESTORE: Delta then keeps the job's slot, but the rows of its last
checkpoints are gone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stateflow.spark.internals.delta_log import logged_commit
from stateflow.spark.sources.delta_restores import Read, restore_at

MOST_COMMITS = 1000
"""Commits of an output that are looked through for a RESTORE: 20 ms. Mostly the newest is the job's own, and the only one."""
MOST_COMMITS_ELSEWHERE = 50
"""The same for a table that is not on this machine's disk: reading a commit takes two milliseconds and two calls of the
store."""


@dataclass(frozen=True, slots=True)
class UndoneOutput:
    """A RESTORE of another writer that undid commits of this job."""

    version: int
    """The version that the RESTORE made."""
    slot: int | None
    """The job's last slot whose rows the table still has; None if there is none, or if the log does not say."""


def undone_output(
    read: Read, newest: int, app_id: str, most: int, taken_back: Sequence[range] = ()
) -> UndoneOutput | None:
    """Whether a table lost commits of `app_id` since its last one; only the last `most` commits are looked at. Those of the slots
    in `taken_back` are no loss: the job went back, too, and writes their rows again.

    It walks down from the newest version, and from a RESTORE on to the version that it brought back.
    """
    restored: int | None = None
    standing, undone = newest, False
    for version in range(newest, max(-1, newest - most), -1):
        body = read(version)
        if body is None:
            break
        slot = logged_commit(version, body.splitlines()).slots.get(app_id) if b'"txn"' in body else None
        if version > standing:
            undone = undone or (slot is not None and not any(slot in slots for slots in taken_back))
        elif slot is not None:
            return UndoneOutput(restored, slot) if restored is not None and undone else None
        elif (restore := restore_at(read, version)) is not None:
            restored = version if restored is None else restored
            standing = -1 if restore.kept is None else restore.kept
        else:
            standing = version - 1
    return UndoneOutput(restored, None) if restored is not None and undone else None


def sentence(
    table: str,
    in_sql: str,
    job: str,
    sink: str,
    output: UndoneOutput,
    kept: Collection[int],
    *,
    appends: bool,
) -> str:
    """The run's warning of it, with the step that brings the rows again. `kept` are the job's checkpoints. `appends`: the sink
    only adds rows."""
    lost = "rows that this job had written to it are gone, and the job goes on behind them"
    if output.slot not in kept and appends:
        # To restore the table to where it was would undo what the job writes from here on.
        at = f"SELECT * FROM {in_sql} VERSION AS OF"
        step = (
            "the job keeps no checkpoint of that version: to have the rows again, add what the RESTORE took away (`INSERT INTO "
            f"{in_sql} {at} {output.version - 1} EXCEPT ALL {at} {output.version}`)"
        )
    elif output.slot not in kept:
        step = "the job keeps no checkpoint of that version: to have the rows again, let a new job write them into another table"
    else:
        step = (
            f"the table is at checkpoint {output.slot}: to have the rows again, take the job back to it, too, with `stateflow "
            f"restore {job} ... --from checkpoint:{output.slot}`, without --rewind-sinks"
        )
    return (
        f"{table} was restored to an earlier version by somebody else (version {output.version} of it), so {lost} (sink {sink!r}); "
        f"{step}"
    )
