"""One request over several tries: what an earlier try has done, and what it left behind when it was killed.

The idempotency key of a request is `Owner.run`; records, claims and pins hold it under that name. A process makes up a new
key for every call. A scheduler gives the same key to each retry of a task, so that a retry finds what an earlier try has
done and does not do it again.
"""

from __future__ import annotations

from collections.abc import Iterable

from stateflow.checkpoint.log import Log
from stateflow.checkpoint.pins import list_pins, release
from stateflow.checkpoint.statistics import HistoryLine
from stateflow.format.layout import JobLayout
from stateflow.format.records import Kind, Pin, Record
from stateflow.storage.store import Store

EDITS = ("restore", "rescale", "erase")
"""Kinds of records that no run makes. One idempotency key makes at most one record of each kind."""


def made_by(log: Log, run: str, kind: Kind) -> Record | None:
    """The record that was made with this idempotency key. Certain after a claim: nobody else can decide one any more."""
    return next((r for r in reversed(log.chain) if r.kind == kind and r.owner.run == run), None)


def history_line_of(lines: Iterable[HistoryLine], run: str, kind: Kind) -> HistoryLine | None:
    """The line of that record in the job's history, which outlives the record."""
    return next((line for line in reversed(list(lines)) if line.kind == kind and line.run == run), None)


def pins_of(store: Store, layout: JobLayout, run: str) -> list[Pin]:
    """Pins made with this idempotency key, by tries that still run or that were killed."""
    return [pin for pin in list_pins(store, layout) if pin.owner.run == run and pin.kind != "tag"]


def release_others(store: Store, layout: JobLayout, mine: Pin) -> None:
    """Releases the pins of earlier tries with the same idempotency key. `mine` is the pin of this try."""
    for pin in pins_of(store, layout, mine.owner.run):
        if pin.id != mine.id:
            release(store, layout, pin.id)
