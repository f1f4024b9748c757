"""Which records must stay, and what a new record may announce of that. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from stateflow.config.retention_rule import NO_RULE, RetentionRule, RulePart
from stateflow.errors import UsageError
from stateflow.format.records import Micros, Pin, Record

if TYPE_CHECKING:
    from stateflow.checkpoint.log import Log
    from stateflow.config.options import Options


RETAINED = "retained"
"""Reason for a checkpoint that stays: it is one of the newest."""
YOUNG = "young"
"""Reason for a checkpoint beyond those that were asked for by number or by the rule: its age alone keeps it."""
BY_RULE = "rule: "
"""How the reason for a checkpoint begins that a part of the rule keeps."""

ERASED = "erasure"
"""Reason for the record of an erasure that has an older checkpoint below it, which a pin keeps."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What a job keeps of its past, as of one moment. It trusts the clocks of the runs that took the checkpoints, because only the
    length of the history depends on it."""

    checkpoints: int
    """So many of the newest."""
    age: Micros = 0
    """And all that are younger."""
    rule: RetentionRule = NO_RULE
    """And what the rule says."""
    now: Micros = 0

    def __post_init__(self) -> None:
        checked_retained(self.checkpoints)

    @classmethod
    def of(cls, options: Options, now: Micros) -> Retention:
        """What the options of a job say."""
        return cls.of_rule(options.retained_checkpoints, options.retained_age, options.retention, now)

    @classmethod
    def of_rule(cls, checkpoints: int, age: timedelta, rule: RetentionRule, now: Micros) -> Retention:
        return cls(checkpoints, age // timedelta(microseconds=1), rule, now)


def cleanup_rules(
    options: Options, checkpoints: int | None, age: timedelta | None, rule: RetentionRule | None
) -> tuple[int, timedelta, RetentionRule]:
    """What a clean-up keeps, for `Retention.of_rule`: each of the three as it says, and what it leaves out (None) as the options say.

    Each keeps what it says, beside the others: an age that somebody gives must not delete what the rule of the options keeps.
    """
    return (
        options.retained_checkpoints if checkpoints is None else checked_retained(checkpoints),
        options.retained_age if age is None else age,
        options.retention if rule is None else rule,
    )


def retention_of(retained: Retention | int) -> Retention:
    """A number means: so many of the newest, and no other."""
    return retained if isinstance(retained, Retention) else Retention(retained)


class Announcement(NamedTuple):
    """What a record says of the records below it."""

    floor: int
    """Nothing at or above it is deleted."""
    kept: tuple[int, ...] = ()
    """Nor are these, below it."""


def checked_retained(retained: int) -> int:
    """`retained`, if it is a number of checkpoints that a job can live with."""
    if retained < 1:
        raise UsageError(
            f"retained={retained} would collect the checkpoint that the job runs on: keep at least 1"
        )
    return retained


def roots(log: Log, pins: Iterable[Pin], retained: Retention | int) -> dict[int, str]:
    """Slots of the records that must stay, each with the reason."""
    retention = retention_of(retained)
    checkpoints = restorable(log)
    reasons = {record.slot: YOUNG for record in checkpoints[-_newest(checkpoints, retention) :]}
    # Also of what was let go and is still there: nobody shall delete by a rule what the rule keeps.
    reasons |= {slot: f"{BY_RULE}{part}" for slot, part in _by_rule(checkpoints, retention).items()}
    reasons |= {record.slot: RETAINED for record in checkpoints[-retention.checkpoints :]}
    members = {record.slot for record in log.chain}
    for pin in pins:
        # A pin on a doomed record came too late, and its maker died before it noticed.
        if pin.slot in members and not log.slots[pin.slot].doomed:
            reasons[pin.slot] = f"{pin.kind} {pin.name or pin.id}"
    erased = log.last_erasure
    if any(slot < erased for slot in reasons):
        # What a pin keeps below it still holds the erased key, and this record alone tells those who would restore or compare it.
        reasons.setdefault(erased, ERASED)
    if (head := log.head) is not None:
        reasons[head.slot] = "head"
    for record in log.pending:
        reasons[record.slot] = "pending"
    return reasons


def restorable(log: Log) -> list[Record]:
    """The complete checkpoints that retention counts, ascending: none from before an erasure."""
    erased = log.last_erasure
    return [record for record in log.checkpoints if record.slot > erased]


def announced_by(log: Log, kind: str, retained: Retention | int | None) -> Announcement:
    """What the record in the next slot announces. None repeats the announcement of the record before it.

    A decided record announces a floor before anything at or above the old floor is deleted, and what it keeps below it in the
    same body. So a missing record above the floor always means an incomplete listing, and there is no moment at which a collector
    finds a checkpoint below the floor that the rule keeps and nothing says so.
    """
    if kind == "erase":
        # Records below hold the erased key: only this record and later ones may stay.
        return Announcement(log.next_slot)
    if retained is None or log.decided is None:
        return Announcement(log.floor, log.kept)
    retention = retention_of(retained)
    checkpoints = restorable(log)
    newest = [record.slot for record in checkpoints]
    count = _newest(checkpoints, retention)
    if kind == "checkpoint":
        # It is carried out before anything is collected, so it will be the newest of the retained.
        newest.append(log.next_slot)
        count = max(retention.checkpoints, _young(checkpoints, retention) + 1)
    stay = [*(record.slot for record in log.pending), *newest[-count:]]
    if kind == "fence" and (head := log.head) is not None:
        stay.append(head.slot)
    # Nothing that an earlier record has let go: a collector may be deleting it.
    before = frozenset(log.kept)
    by_rule = _by_rule((r for r in checkpoints if r.slot >= log.floor or r.slot in before), retention)
    lowest = min(stay, default=log.floor)
    older = [record.slot for record in reversed(checkpoints) if record.slot < lowest]
    # Those that the rule keeps one after the other need no mention: the floor stays below them.
    lowest = min([lowest, *takewhile(by_rule.__contains__, older)])
    # Never lower than before: a missing record below the old floor would look like an incomplete listing.
    floor = max(log.floor, lowest)
    damaged = {slot for slot in log.lost if slot in log.slots}
    return Announcement(floor, tuple(sorted(slot for slot in {*by_rule, *damaged} if slot < floor)))


def _newest(checkpoints: list[Record], retention: Retention) -> int:
    """How many of the newest checkpoints stay, so that the young ones are among them."""
    return max(retention.checkpoints, _young(checkpoints, retention))


def _young(checkpoints: list[Record], retention: Retention) -> int:
    return (
        sum(record.at > retention.now - retention.age for record in checkpoints) if retention.age > 0 else 0
    )


def _by_rule(checkpoints: Iterable[Record], retention: Retention) -> dict[int, RulePart]:
    return retention.rule.kept(((record.slot, record.at) for record in checkpoints), retention.now)
