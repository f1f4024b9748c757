"""What a retention keeps of the checkpoints there are, and what that costs. Pure, but for the reading."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stateflow.checkpoint.log import Log
from stateflow.checkpoint.names import complete_records
from stateflow.checkpoint.pins import list_pins, read_with_pins
from stateflow.checkpoint.retention import BY_RULE, RETAINED, YOUNG, Retention, announced_by, roots
from stateflow.format.layout import JobLayout, slot_of
from stateflow.format.records import Micros, Pin, Record
from stateflow.format.references import job_files
from stateflow.storage.store import Store

NEWEST, OTHERS, EDITS = "newest", "others", "edits"
"""Groups beside the parts of a rule: the newest checkpoints; those that tags, other pins and pending output keep; restores,
rescales and erasures that stay."""


@dataclass(frozen=True, slots=True)
class KeptGroup:
    """Checkpoints that stay for one reason."""

    name: str
    """`newest`, `young`, a part of the rule, `others`, `edits`."""
    slots: tuple[int, ...]
    bytes: int
    """What nothing else that stays holds: it would go with them."""


@dataclass(frozen=True, slots=True)
class KeptPast:
    """What stays of a job's past, what goes, and the bytes of both. Files in claimed savepoints are not counted."""

    now: Micros
    times: Mapping[int, Micros]
    """When each checkpoint was taken, by slot, ascending."""
    live_bytes: int
    """What the job runs on: the files of its newest record, and the record."""
    groups: tuple[KeptGroup, ...]
    rule_bytes: int
    """What only the parts of the rule keep, all together."""
    going: tuple[int, ...]
    going_edits: tuple[int, ...]
    """Restores, rescales and erasures that go."""
    going_bytes: int
    """Of both."""

    @property
    def staying(self) -> frozenset[int]:
        return frozenset(self.times) - frozenset(self.going)

    @property
    def by_rule(self) -> int:
        return sum(
            len(group.slots) for group in self.groups if group.name not in (NEWEST, YOUNG, OTHERS, EDITS)
        )


def kept_past(
    log: Log, pins: Iterable[Pin], retention: Retention, record_sizes: Mapping[int, int]
) -> KeptPast:
    """`record_sizes`: the bytes of each record's own objects, by slot: small state travels in them."""
    reasons = roots(log, pins, retention)
    edits = [record.slot for record in complete_records(log) if record.kind != "checkpoint"]
    # No retention counts them: they stay while they lie above the oldest checkpoint that the next record announces to keep.
    floor = announced_by(log, "fence", retention).floor
    reasons |= {slot: EDITS for slot in edits if slot not in reasons and slot >= floor}
    groups: dict[str, list[int]] = {NEWEST: [], YOUNG: [], **{str(part): [] for part in retention.rule.parts}}
    counted = {record.slot for record in log.chain if record.kind == "checkpoint"}
    for slot, reason in sorted(reasons.items()):
        name = NEWEST if reason in (RETAINED, "head") else reason.removeprefix(BY_RULE)
        groups.setdefault(EDITS if slot not in counted else name if name in groups else OTHERS, []).append(
            slot
        )
    records = {record.slot: record for record in log.chain}
    going = tuple(record.slot for record in log.checkpoints if record.slot not in reasons)
    going_edits = tuple(slot for slot in edits if slot not in reasons)

    def only(chosen: Iterable[int], others: Iterable[int]) -> int:
        return _bytes(_records(records, chosen), record_sizes, without=job_files(_records(records, others)))

    parts = [slot for part in retention.rule.parts for slot in groups[str(part)]]
    return KeptPast(
        now=retention.now,
        times={record.slot: record.at for record in log.checkpoints},
        live_bytes=_bytes([log.head] if log.head else [], record_sizes),
        groups=tuple(
            KeptGroup(name, tuple(slots), only(slots, reasons.keys() - set(slots)))
            for name, slots in groups.items()
        ),
        rule_bytes=only(parts, reasons.keys() - set(parts)),
        going=going,
        going_edits=going_edits,
        going_bytes=only((*going, *going_edits), reasons),
    )


def read_kept_past(store: Store, layout: JobLayout, retention: Retention) -> KeptPast:
    """Of the job as it is now. It decides and deletes nothing."""
    pins = list_pins(store, layout)
    log, _ = read_with_pins(store, layout, pins)
    log.require_sound()
    sizes: dict[int, int] = {}
    for entry in store.list(layout.log):
        if (parts := slot_of(entry.path)) is not None:
            sizes[parts[0]] = sizes.get(parts[0], 0) + entry.size
    return kept_past(log, pins, retention, sizes)


def _records(records: Mapping[int, Record], slots: Iterable[int]) -> list[Record]:
    return [records[slot] for slot in slots if slot in records]


def _bytes(
    records: Iterable[Record], record_sizes: Mapping[int, int], without: Mapping[str, int] | None = None
) -> int:
    records = list(records)
    files = {path: size for path, size in job_files(records).items() if path not in (without or {})}
    return sum(files.values()) + sum(record_sizes.get(record.slot, 0) for record in records)
