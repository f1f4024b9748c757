"""How people name a checkpoint: `latest`, `42`, `checkpoint:42`, `tag:v1`. Any other text is the URL of a savepoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stateflow.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from stateflow.checkpoint.handle import JobHandle
    from stateflow.checkpoint.log import Log
    from stateflow.format.records import Outcome, Pin, Record

_WRITE = "write latest, 42, checkpoint:42 or tag:NAME"


@dataclass(frozen=True, slots=True)
class LatestCheckpoint:
    """The newest complete checkpoint."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class Slot:
    number: int

    def __str__(self) -> str:
        return f"checkpoint:{self.number}"


@dataclass(frozen=True, slots=True)
class Tag:
    name: str

    def __str__(self) -> str:
        return f"tag:{self.name}"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Any other text: the URL or folder of a savepoint, perhaps."""

    url: str

    def __str__(self) -> str:
        return self.url


Name = LatestCheckpoint | Slot | Tag | Elsewhere


def parse(text: str) -> Name:
    """What a text names. UsageError when it begins like the name of a checkpoint, but is none."""
    kind, _, rest = text.partition(":")
    if text == "latest":
        return LatestCheckpoint()
    if text.isdecimal():
        return Slot(int(text))
    if kind == "checkpoint" and rest:
        if not rest.isdecimal():
            raise UsageError(f"{text} does not name a checkpoint: write checkpoint:42")
        return Slot(int(rest))
    if kind in ("checkpoint", "tag") and not rest:
        raise UsageError(f"{kind!r} names no checkpoint: {_WRITE}")
    return Tag(rest) if kind == "tag" else Elsewhere(text)


def slot_of(name: Name, job: JobHandle, log: Log) -> int:
    """The slot of the complete checkpoint with this name. NotFoundError says which checkpoints exist."""
    match name:
        case LatestCheckpoint():
            return head_of(log).slot
        case Slot(slot):
            pass
        case Tag(tag):
            slot = tag_of(tag, job).slot
        case Elsewhere(url):
            raise UsageError(f"{url!r} names no checkpoint: {_WRITE}")
    require_checkpoint(log, slot)
    return slot


def tag_of(name: str, job: JobHandle) -> Pin:
    """The tag with this name. NotFoundError lists the tags of the job."""
    from stateflow.checkpoint.pins import (
        tags,  # loads the log, and a DAG file that names a checkpoint must not
    )

    pins = tags(job.store, job.layout)
    if name not in pins:
        known = ", ".join(sorted(pins)) or "none"
        raise NotFoundError(f"job {job.name!r} has no tag {name!r}; its tags are: {known}")
    return pins[name]


def head_of(log: Log) -> Record:
    """The newest complete record that carries state."""
    if log.head is None:
        raise NotFoundError(f"job {log.job!r} has no complete checkpoint yet: run it once")
    return log.head


def require_checkpoint(log: Log, slot: int) -> Outcome:
    """The outcome of a record that has state and was carried out. Raises for any other record."""
    record, facts = log.record(slot), log.slots[slot]
    if not record.carries_state or not facts.complete or facts.outcome is None:
        reason = f"a {record.kind}" if not record.carries_state else "not carried out yet"
        raise NotFoundError(
            f"record {slot} of job {log.job!r} is no complete checkpoint (it is {reason}): "
            f"`stateflow checkpoints {log.job}` lists those that are"
        )
    return facts.outcome
