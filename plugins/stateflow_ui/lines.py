"""The lines of a job's history, held small: a page shows a hundred of them and draws all of them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stateflow.checkpoint.statistics import HistoryLine
from stateflow.errors import NotFoundError
from stateflow.format.layout import JobLayout
from stateflow.format.records import decoder
from stateflow.observe.status import line_document
from stateflow.storage.store import Entry, Store

MOST_LINES = 50_000
"""Of one job, the newest ones."""
MOST_DETAILS = 5_000
"""Lines, the newest ones, of which everything that the run noted is held."""
_NEAR = 2
"""Segments that a look from afar reads."""
_SEGMENT = re.compile(r".*/e\d+-c(\d+)\.jsonl\Z")
_TEXTS = ("kind", "status", "origin", "run", "dag_run", "task", "user", "host", "note")

Columns = Mapping[str, NDArray[np.int64]]


class Slimmer:
    """Takes from a line what it would hold most memory with, and lets equal texts be one."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def slim(self, line: HistoryLine) -> tuple[HistoryLine, bytes]:
        """The line without what else the run noted, and that as JSON."""
        rest = msgspec.json.encode({"sinks": line.sinks, "metrics": line.metrics})
        if len(self._texts) > 10_000:
            self._texts.clear()
        shared = {
            name: self._texts.setdefault(text, text) for name in _TEXTS if (text := getattr(line, name))
        }
        return msgspec.structs.replace(line, sinks={}, metrics={}, **shared), rest


@dataclass(frozen=True)
class Lines:
    """Ascending by id."""

    held: Sequence[HistoryLine]
    details: Mapping[int, bytes] = field(default_factory=dict, repr=False)

    @cached_property
    def ids(self) -> list[int]:
        return [line.id for line in self.held]

    @cached_property
    def checkpoints(self) -> list[HistoryLine]:
        """Complete ones."""
        return [line for line in self.held if line.kind == "checkpoint" and line.status == "COMPLETED"]

    @cached_property
    def columns(self) -> Columns:
        """Of the complete checkpoints, as charts and percentiles want them; times are milliseconds."""
        names = {
            "id": "id",
            "t": "latest_ack_timestamp",
            "duration": "end_to_end_duration",
            "size": "checkpointed_size",
            "full": "state_size",
            "rows": "processed_rows",
            "timeline": "timeline",
        }
        found = self.checkpoints
        return {
            column: np.fromiter((getattr(line, name) for line in found), np.int64, len(found))
            for column, name in names.items()
        }

    def find(self, slot: int) -> HistoryLine | None:
        at = bisect_left(self.ids, slot)
        return self.held[at] if at < len(self.ids) and self.ids[at] == slot else None

    def document(self, line: HistoryLine) -> dict[str, Any]:
        rest = self.details.get(line.id)
        return {**plain(line), **(msgspec.json.decode(rest) if rest else {})}

    def page(
        self, before: int | None, limit: int, kind: str, dag_run: str
    ) -> tuple[list[HistoryLine], int | None]:
        """Newest first, below `before`, and where the next page begins. `dag_run`: a DAG, or `DAG/RUN`."""
        end = len(self.held) if before is None else bisect_left(self.ids, before)
        found: list[HistoryLine] = []
        for at in range(end - 1, -1, -1):
            line = self.held[at]
            if (not kind or line.kind == kind) and (not dag_run or of_dag_run(line.dag_run, dag_run)):
                if len(found) == limit:
                    return found, found[-1].id
                found.append(line)
        return found, None


def plain(line: HistoryLine) -> dict[str, Any]:
    """The line as the pages are told it; of all its times only the watermark is not in milliseconds."""
    watermark = None if line.watermark is None else line.watermark // 1000
    return {**line_document(line), "watermark": watermark}


def of_dag_run(written: str, wanted: str) -> bool:
    """Whether what a record notes of its DAG run (`DAG/RUN`) is that run, or one of that DAG."""
    return written == wanted or written.startswith(f"{wanted}/")


class SegmentReader:
    """The lines of records that were collected, from the job's own statistics; a segment is read once."""

    def __init__(self, store: Store, layout: JobLayout, slimmer: Slimmer) -> None:
        self._store, self._layout, self._slimmer = store, layout, slimmer
        self._read: dict[tuple[str, int], list[tuple[HistoryLine, bytes]]] = {}

    def read(self, *, whole: bool) -> tuple[list[tuple[HistoryLine, bytes]], bool]:
        """Lines in the order of their segments, and whether they are all there are."""
        entries = sorted(self._store.list(self._layout.statistics), key=lambda each: first_slot(each.path))
        wanted = newest(entries) if whole else entries[-_NEAR:]
        read = {(entry.path, entry.size): self._segment(entry) for entry in wanted}
        self._read = read
        return [line for lines in read.values() for line in lines], len(wanted) == len(entries)

    def _segment(self, entry: Entry) -> list[tuple[HistoryLine, bytes]]:
        key = (entry.path, entry.size)
        if key in self._read:
            return self._read[key]
        try:
            text = self._store.read(entry.path)
        except NotFoundError:
            return []  # taken over by a newer one since it was listed
        return [self._slimmer.slim(line) for line in decoded(text)]


def newest(entries: Sequence[Entry]) -> Sequence[Entry]:
    """As many of the last segments as may hold the most lines that are kept; each line takes 100 bytes or more."""
    at, budget = len(entries), MOST_LINES * 100
    while at > 0 and budget > 0:
        at -= 1
        budget -= max(1, min(entries[at].size, 256 * 100))
    return entries[at:]


def decoded(text: bytes) -> list[HistoryLine]:
    found = []
    for line in text.splitlines():
        try:
            found.append(decoder(HistoryLine).decode(line))
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue  # a damaged line costs a row on a page, nothing else
    return found


def first_slot(path: str) -> int:
    found = _SEGMENT.match(path)
    return int(found[1]) if found else 0


def lines_of(
    collected: Iterable[tuple[HistoryLine, bytes]], standing: Iterable[tuple[HistoryLine, bytes]]
) -> Lines:
    """What stands is told by its own record."""
    found = {line.id: (line, rest) for line, rest in collected}
    found.update({line.id: (line, rest) for line, rest in standing})
    ordered = [found[slot] for slot in sorted(found)][-MOST_LINES:]
    return Lines([line for line, _ in ordered], {line.id: rest for line, rest in ordered[-MOST_DETAILS:]})
