"""What a snapshot says of its job's outputs. A restore needs it of a checkpoint and of every savepoint, however that was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stateflow.checkpoint.log import Log
from stateflow.checkpoint.names import require_checkpoint
from stateflow.format.records import Savepoint, ShownState


@dataclass(frozen=True, kw_only=True)
class JobOutputs:
    """All by sink uid, but the feeds."""

    targets: Mapping[str, str] = field(default_factory=dict)
    """Where the job writes."""
    names: Mapping[str, str] = field(default_factory=dict)
    """What a catalog calls that place, if the pipeline named it so."""
    last_commits: Mapping[str, int] | None = None
    """The slot of the last output that the sink had at the snapshot; None: it is not known."""
    feeds: tuple[ShownState, ...] = ()
    """What the tables of feeds showed at the snapshot."""


def outputs_at(log: Log, slot: int) -> JobOutputs:
    """Those of a complete checkpoint. NotFoundError says which checkpoints exist."""
    outcome, newest = require_checkpoint(log, slot), log.newest_sinks
    return JobOutputs(
        targets={uid: prepared.target for uid, prepared in newest.items()},
        names={uid: prepared.name for uid, prepared in newest.items() if prepared.name},
        last_commits=outcome.last_commits,
        feeds=outcome.feeds,
    )


def outputs_of(savepoint: Savepoint) -> JobOutputs:
    """Those that a savepoint says."""
    return JobOutputs(
        targets=savepoint.targets,
        names=savepoint.names,
        last_commits=savepoint.last_commits,
        feeds=savepoint.feeds,
    )
