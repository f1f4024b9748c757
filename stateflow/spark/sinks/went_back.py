"""A table that somebody else took back: Delta keeps the job's slot then, and the rows of its last checkpoints are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stateflow.spark.sinks.delta_log import LoggedCommit


@dataclass(frozen=True, slots=True)
class WentBack:
    """A RESTORE of another writer that undid commits of this job."""

    version: int
    """The version that the RESTORE made."""
    slot: int | None
    """The job's last slot whose rows the table still has; None where there is none, or where the log does not say."""


def went_back(commits: Iterable[LoggedCommit], app_id: str) -> WentBack | None:
    """Whether a table lost commits of `app_id` since its last one; `commits` come newest first. Pure."""
    restore: LoggedCommit | None = None
    floor = -1
    undone = 0
    for commit in commits:
        slot = commit.slots.get(app_id)
        if restore is None:
            if slot is not None:
                return None
            if commit.operation == "RESTORE":
                restore = commit
                floor = -1 if commit.restored_to is None else commit.restored_to
        elif slot is not None:
            if commit.version <= floor:
                return WentBack(restore.version, slot) if undone else None
            undone += 1
        elif commit.operation == "RESTORE" and commit.version <= floor and commit.restored_to is not None:
            # What came back had itself been taken back before.
            floor = commit.restored_to
    return WentBack(restore.version, None) if restore is not None and undone else None


def sentence(table: str, job: str, sink: str, back: WentBack, kept: Collection[int]) -> str:
    """What the run says of it, and the step that brings the rows again. `kept` are the job's checkpoints."""
    lost = "rows that this job had written to it are gone, and the job goes on behind them"
    if back.slot not in kept:
        step = "the job keeps no checkpoint of that version: to have the rows again, restore the table to where it was"
    else:
        step = (
            f"the table is at checkpoint {back.slot}: to have the rows again, take the job back to it, too, with `stateflow "
            f"restore {job} ... --from checkpoint:{back.slot}`, without --rewind-sinks"
        )
    return f"{table} was restored to an earlier version by somebody else (version {back.version} of it), so {lost} (sink {sink!r}); {step}"
