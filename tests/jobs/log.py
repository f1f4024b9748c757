"""Records and logs as values, in no store."""

from __future__ import annotations

from typing import Any

from stateflow.checkpoint.log import Log, SlotContent, assemble
from stateflow.format.records import FileRef, JobIdentity, Link, Outcome, Owner, Pin, Prepared, Record
from tests.jobs.operators import one_shard

JOB = "orders"
UUID = "11111111-1111-1111-1111-111111111111"
SOMEBODY = Owner(run="somebody")


def file(path: str, size: int = 10, base: str = "") -> FileRef:
    return FileRef(name=path.rpartition("/")[2], size=size, xxh3="0" * 16, path=path, base=base)


def record(
    slot: int = 7,
    *,
    writer: str | None = None,
    below: str | None = None,
    files: tuple[FileRef, ...] = (),
    staged: tuple[FileRef, ...] = (),
    **fields: Any,
) -> Record:
    """A checkpoint, or what the `fields` say; linked to `w<slot - 1>` unless told otherwise."""
    made = {
        "kind": "checkpoint",
        "job": UUID,
        "epoch": 1,
        "previous": Link(slot - 1, below or f"w{slot - 1}") if slot > 1 else None,
        "owner": SOMEBODY,
        "operators": {"op": one_shard(*files)} if files else {},
        "sinks": {"out": Prepared(kind="fake", target="t", files=staged)} if staged else {},
    }
    return Record(slot=slot, writer=writer or f"w{slot}", **{**made, **fields})  # type: ignore[arg-type]


def outcome(of: Record, **fields: Any) -> Outcome:
    return Outcome(slot=of.slot, record=of.writer, epoch=of.epoch, **{"writer": f"o{of.slot}", **fields})


def complete(of: Record, *marks: str) -> SlotContent:
    return SlotContent(of.slot, record=of, outcome=outcome(of), marks=marks)


def pending(of: Record) -> SlotContent:
    return SlotContent(of.slot, record=of)


def log(*slots: SlotContent, epochs: tuple[int, ...] = (1,), unreadable: tuple[str, ...] = ()) -> Log:
    identity = JobIdentity(uuid=UUID, name=JOB)
    return assemble(JOB, identity, epochs, {slot.number: slot for slot in slots}, unreadable)


def pin_of(slot: int, name: str = "v1") -> Pin:
    return Pin(id=f"pin-{slot}-{name}", slot=slot, kind="tag", name=name, owner=SOMEBODY)
