"""How people name a checkpoint: `latest`, `42`, `checkpoint:42`, `tag:v1`, or a time, `2026-11-20T10:00`.

Any other text is the URL of a savepoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from stateflow.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from stateflow.checkpoint.handle import JobHandle
    from stateflow.checkpoint.log import Log
    from stateflow.checkpoint.statistics import HistoryLine
    from stateflow.format.records import Outcome, Pin, Record

_WRITE = "write latest, 42, checkpoint:42, tag:NAME or a time such as 2026-11-20T10:00"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?P<second>:\d\d(?P<fraction>[.,]\d)?)?")
_SECOND, _MINUTE = 1_000_000, 60_000_000
_MOST_DIGITS = 15
"""Of a slot: with one checkpoint each microsecond, a job would reach it in thirty years."""


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
class Time:
    """The state that the job had then: the newest checkpoint that was decided by the end of this time."""

    micros: int
    """Its begin."""
    length: int = 1
    """In microseconds: a time without fractions is its whole second, or minute. Commands show times cut to seconds, and whoever gives
    one back means the checkpoint beside which it stood."""

    @property
    def last(self) -> int:
        """Its last microsecond."""
        return self.micros + self.length - 1

    def __str__(self) -> str:
        from stateflow.format.instants import instant  # few DAG files name a time

        unit = {_MINUTE: "minutes", _SECOND: "seconds"}.get(self.length, "microseconds")
        return instant(self.micros).isoformat(timespec=unit).replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Any other text: the URL or folder of a savepoint, perhaps."""

    url: str

    def __str__(self) -> str:
        return self.url


Name = LatestCheckpoint | Slot | Tag | Time | Elsewhere


def parse(text: str) -> Name:
    """What a text names. UsageError when it begins like the name of a checkpoint, but is none."""
    kind, _, rest = text.partition(":")
    if text == "latest":
        return LatestCheckpoint()
    if text.isdecimal():
        return _slot(text)
    if kind == "checkpoint" and rest:
        if not rest.isdecimal():
            raise UsageError(f"{text} does not name a checkpoint: write checkpoint:42")
        return _slot(rest)
    if kind in ("checkpoint", "tag") and not rest:
        raise UsageError(f"{kind!r} names no checkpoint: {_WRITE}")
    if written := _TIME.match(text):
        length = 1 if written["fraction"] else _SECOND if written["second"] else _MINUTE
        return Time(_micros(text), length)
    return Tag(rest) if kind == "tag" else Elsewhere(text)


def _slot(digits: str) -> Slot:
    if len(digits) > _MOST_DIGITS:
        raise UsageError(
            f"{digits[:_MOST_DIGITS]}... has {len(digits)} digits, as no checkpoint of a job has: {_WRITE}"
        )
    return Slot(int(digits))


def _micros(text: str) -> int:
    """Of a time without a zone: in UTC, in which the command line shows times."""
    from stateflow.format.instants import micros_since_epoch  # as above

    try:
        time = datetime.fromisoformat(text)
        time = time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
    except OverflowError:
        raise UsageError(f"{text!r} is outside of the years 1 to 9999 in UTC: write a time in them") from None
    except ValueError:
        raise UsageError(
            f"{text!r} is no time: write 2026-11-20T10:00 (UTC), 2026-11-20T10:00:30Z or 2026-11-20T10:00+01:00"
        ) from None
    return micros_since_epoch(time)


def slot_of(name: Name, job: JobHandle, log: Log) -> int:
    """The slot of the complete checkpoint with this name. NotFoundError says which checkpoints exist; UsageError: an erasure came since."""
    match name:
        case LatestCheckpoint():
            slot = head_of(log).slot
        case Slot(slot):
            pass
        case Tag(tag):
            slot = tag_of(tag, job).slot
        case Time():
            slot = slot_at(name, job, log)
        case Elsewhere(url):
            raise UsageError(f"{url!r} names no checkpoint: {_WRITE}")
    require_checkpoint(log, slot)
    refuse_erased(log, slot)
    return slot


def refuse_erased(log: Log, slot: int) -> None:
    """UsageError for a checkpoint from before an erasure, which a pin may have kept: it still holds the erased key."""
    erased = log.last_erasure
    if slot < erased:
        raise UsageError(
            f"checkpoint {slot} of job {log.job!r} still holds a key that record {erased} has erased: name a newer one"
        )


def slot_at(time: Time, job: JobHandle, log: Log) -> int:
    """The checkpoint that was the newest then. NotFoundError names those around it if that one was collected."""
    from stateflow.checkpoint.statistics import history  # loads the log, as below

    kept = complete_records(log)
    _refuse_future(time, job, kept[-1].at if kept else 0)
    held = max((record.slot for record in kept if record.at <= time.last), default=0)
    later = min((record.slot for record in kept if record.slot > held), default=0)
    present = {record.slot for record in log.chain if not log.slots[record.slot].marks}
    if held and (not later or present.issuperset(range(held, later))):
        return held
    # A checkpoint between the two may have been collected, and the one below it was not the state of then.
    then = slot_by(time, job, history(job.store, job.layout, log=log))
    if held and then <= held:
        return held
    around = " and ".join(f"{r.slot} of {Time(r.at)}" for r in kept if r.slot in (held, later)) or "none"
    if not then:
        raise NotFoundError(
            f"job {log.job!r} had no checkpoint yet at {time}: the first one that it keeps is {around}"
        )
    raise NotFoundError(
        f"at {time} the newest checkpoint of job {log.job!r} was {then}, which has been collected: next to it the job keeps {around}"
    )


def slot_by(time: Time, job: JobHandle, lines: Iterable[HistoryLine]) -> int:
    """The checkpoint that was the newest then, also a collected one; 0 for none."""
    done = [line for line in lines if line.kind != "fence" and line.status != "IN_PROGRESS"]
    newest = max(done, key=lambda line: line.id, default=None)
    _refuse_future(time, job, newest.latest_ack_timestamp * 1000 if newest is not None else 0)
    return max((line.id for line in done if line.latest_ack_timestamp <= time.last // 1000), default=0)


def _refuse_future(time: Time, job: JobHandle, newest: int) -> None:
    """`newest` is the time of the newest checkpoint: a run on a host whose clock is ahead of this one's may have taken it."""
    if time.micros > max(job.clock(), newest):
        raise UsageError(f"{time} has not come yet: write latest for the newest checkpoint")


def complete_records(log: Log) -> list[Record]:
    """The records whose state can be read, ascending: complete checkpoints, and restores and other edits. None from before an erasure."""
    erased = log.last_erasure
    return [
        record
        for record in log.chain
        if record.carries_state
        and record.slot >= erased
        and log.slots[record.slot].complete
        and not log.slots[record.slot].marks
    ]


def newest_up_to(log: Log, slot: int) -> int | None:
    """The newest record up to this slot whose state can be read: the ones between may have been collected."""
    return max((record.slot for record in complete_records(log) if record.slot <= slot), default=None)


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
        raise no_checkpoint(log)
    return log.head


def no_checkpoint(log: Log) -> NotFoundError:
    return NotFoundError(log.half_deleted or f"job {log.job!r} has no complete checkpoint yet: run it once")


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
