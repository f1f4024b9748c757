"""One deed over several tries: what a try that was killed has done already, or has left behind.

A deed is named by `Owner.run`. A process makes one up, so every call is a deed of its own; a scheduler gives the same one to
each retry of a task, and what a try has done is then found and not done again.
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
"""Kinds of records that no run makes. A deed makes one of a kind."""


def made_by(log: Log, run: str, kind: Kind) -> Record | None:
    """The record that the deed has made. Certain for who has claimed the job: nobody else can decide another."""
    return next((r for r in reversed(log.chain) if r.kind == kind and r.owner.run == run), None)


def history_line_of(lines: Iterable[HistoryLine], run: str, kind: Kind) -> HistoryLine | None:
    """The same from a job's history, where it stands when its record has been collected since."""
    return next((line for line in reversed(list(lines)) if line.kind == kind and line.run == run), None)


def pins_of(store: Store, layout: JobLayout, run: str) -> list[Pin]:
    """Pins that tries of the deed hold, or held when they were killed."""
    return [pin for pin in list_pins(store, layout) if pin.owner.run == run and pin.kind != "tag"]


def release_others(store: Store, layout: JobLayout, mine: Pin) -> None:
    """Lets go of what earlier tries have pinned: this one, which does the same again, holds a pin of its own."""
    for pin in pins_of(store, layout, mine.owner.run):
        if pin.id != mine.id:
            release(store, layout, pin.id)
