"""Finds outputs that somebody else took back with RESTORE: Delta then keeps the job's slot, but the rows of its last
checkpoints are gone."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from stateflow.spark.internals.delta_log import logged_commit
from stateflow.spark.sources.delta_restores import Read, restore_at

MOST_COMMITS = 1000
"""Commits of an output that are looked through for a RESTORE: 20 ms. Mostly the newest is the job's own, and the only one."""
MOST_COMMITS_ELSEWHERE = 50
"""The same for a table that is not on this machine's disk: reading a commit takes two milliseconds and two calls of the
store."""
_INCOMPARABLE = re.compile("map<|variant(?!:)")
"""Types that Spark's set operations refuse, wherever in a column they are."""


@dataclass(frozen=True, slots=True)
class UndoneOutput:
    """A RESTORE of another writer that undid commits of this job."""

    version: int
    """The version that the RESTORE made."""
    slot: int | None
    """The job's last slot whose rows the table still has; None if there is none, or if the log does not say."""


def undone_output(
    read: Read,
    newest: int,
    app_id: str,
    most: int,
    taken_back: Callable[[], Sequence[range]] = tuple,
    above: int = sys.maxsize,
) -> UndoneOutput | None:
    """Whether a table lost commits of `app_id` since its last one; only the last `most` commits are looked at. Those of the slots
    that `taken_back` tells are no loss: the job went back, too, and writes their rows again. `above`: the newest slot from before what the
    caller asks of; later ones hide nothing.

    It walks down from the newest version, and from a RESTORE on to the version that it brought back.
    """
    restored: int | None = None
    told: int | None = None
    stands: int | None = None
    standing, undone = newest, list[int]()
    for version in range(newest, max(-1, newest - most), -1):
        body = read(version)
        if body is None:
            break
        slot = logged_commit(version, body.splitlines()).slots.get(app_id) if b'"txn"' in body else None
        if version > standing:
            if slot is not None:
                undone.append(slot)
                told = restored if told is None else told
        elif slot is not None and (restored is not None or slot <= above):
            stands = slot
            break
        elif (restore := restore_at(read, version)) is not None:
            restored = version
            standing = -1 if restore.kept is None else restore.kept
        else:
            standing = version - 1
    if told is None:
        return None
    behind = taken_back()
    if all(any(slot in slots for slots in behind) for slot in undone):
        return None
    return UndoneOutput(told, stands)


def sentence(
    table: str,
    in_sql: str,
    job: str,
    sink: str,
    output: UndoneOutput,
    kept: Collection[int],
    columns: Iterable[tuple[str, str]],
    *,
    appends: bool,
) -> str:
    """The run's warning of it, with the step that brings the rows again. `kept` are the job's checkpoints, `columns` the names and types of
    the table's columns. `appends`: the sink only adds rows."""
    lost = "rows that this job had written to it are gone, and the job goes on behind them"
    back = (
        f"`stateflow restore {job} ... --from checkpoint:{output.slot}`, without --rewind-sinks; its plan tells which other outputs get rows a "
        "second time"
    )
    elsewhere = "let a new job write them into another table"
    if appends:
        # To restore the table to where it was would undo what the job writes from here on.
        at = f"SELECT * FROM {in_sql} VERSION AS OF"
        before, after = f"{at} {output.version - 1}", f"{at} {output.version}"
        step = "to have the rows again, add what the RESTORE took away "
        if unlike := [repr(name) for name, kind in columns if _INCOMPARABLE.search(kind)]:
            step += (
                f"(what `{before}` has and `{after}` lacks; EXCEPT ALL takes no maps and no variants, so let it compare {', '.join(unlike)} as "
                "text of to_json, and make them of the text again)"
            )
        else:
            step += f"(`INSERT INTO {in_sql} {before} EXCEPT ALL {after}`)"
        if output.slot in kept:
            # The run that warns writes on. A job that only goes back delivers those rows twice.
            step += (
                f", or, while the job keeps checkpoint {output.slot}, let it write them anew: take away what followed "
                f"(`RESTORE TABLE {in_sql} TO VERSION AS OF {output.version}`), and the job back, too ({back})"
            )
    elif output.slot in kept:
        step = (
            f"the table is at checkpoint {output.slot}: to have the rows again, while the job keeps it, take the job back to it, too, with "
            f"{back}; later, {elsewhere}"
        )
    else:
        step = f"the job keeps no checkpoint of that version: to have the rows again, {elsewhere}"
    return (
        f"{table} was restored to an earlier version by somebody else (version {output.version} of it), so {lost} (sink {sink!r}); "
        f"{step}"
    )
