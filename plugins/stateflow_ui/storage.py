"""What a job takes in its store, and what a clean-up would free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from stateflow.checkpoint.collection import plan
from stateflow.checkpoint.log import read_log
from stateflow.checkpoint.pins import list_pins
from stateflow.checkpoint.retention import Retention
from stateflow.config.retention_rule import NO_RULE, RetentionRule
from stateflow.format.layout import JobLayout
from stateflow.format.references import references
from stateflow.storage.store import Store


@dataclass(frozen=True, slots=True)
class Amount:
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """As of one reading; a run that goes on makes it old at once."""

    retained: int
    age: timedelta
    """Checkpoints that are younger stay as well."""
    rule: RetentionRule
    """And those that it keeps."""
    kept_checkpoints: int
    staying: Amount
    """State and staged files that stay; what records hold inside themselves is not counted."""
    freed: dict[str, Amount]
    """By reason: subsumed, orphan."""
    freed_records: int
    elsewhere: Amount
    """Files of claimed savepoints, which lie outside the job's folder."""
    roots: dict[str, int]
    """Why records stay, and how many for each reason."""


def read_storage(
    store: Store,
    layout: JobLayout,
    retained: int,
    age: timedelta = timedelta(0),
    rule: RetentionRule = NO_RULE,
    clock: Callable[[], int] = lambda: 0,
) -> StorageFacts:
    """By the rules of a collection, with nothing marked or deleted. Reads every record, and lists every file."""
    pins = list_pins(store, layout)
    log = read_log(store, layout)
    log.require_sound()
    files = [*store.list(layout.shared), *store.list(layout.staged)]
    retention = Retention.of_rule(retained, age, rule, clock())
    collection = plan(log, pins, retention, files=files)
    listed = {entry.path: entry.size for entry in files}
    freed: dict[str, Amount] = {}
    for garbage in collection.files:
        # A file that a record names and that is gone already frees nothing.
        if garbage.path in listed:
            before = freed.get(garbage.reason, Amount(0, 0))
            freed[garbage.reason] = Amount(before.files + 1, before.bytes + garbage.size)
    going = {garbage.path for garbage in collection.files}
    stays = [size for path, size in listed.items() if path not in going]
    claimed = {
        (ref.base, ref.path): ref.size
        for record in log.chain
        if record.slot not in collection.records
        for ref in references(record)
        if ref.base
    }
    return StorageFacts(
        retained=retained,
        age=age,
        rule=rule,
        kept_checkpoints=sum(record.slot not in collection.records for record in log.checkpoints),
        staying=Amount(len(stays), sum(stays)),
        freed=freed,
        freed_records=len(collection.records),
        elsewhere=Amount(len(claimed), sum(claimed.values())),
        roots=dict(Counter(collection.kept.values())),
    )
