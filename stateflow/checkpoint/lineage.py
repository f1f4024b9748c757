"""What a run reads and writes, and which application of Spark it is: for programs that follow data from table to table, and
for people who look for its pages and logs.

Nothing in the protocol depends on it: a run that cannot write it goes on. How many rows there were is in the history, which
also knows the batches of a driver that was killed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from stateflow.checkpoint.log import read_if_there
from stateflow.checkpoint.statistics import HistoryLine
from stateflow.format.layout import JobLayout
from stateflow.format.records import FORMAT, Owner, encode
from stateflow.storage.store import Store


class Dataset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table, topic or folder."""

    kind: str
    """delta, kafka, file; of a connector what it says of itself, such as postgres"""
    place: str
    """Its path; of Kafka the topic; of a connector a URL."""
    servers: str = ""
    """Of Kafka: the bootstrap servers."""
    version: int | None = None
    """Of a Delta table: the newest version that was read, or the table's when the run ended."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source or a sink of the pipeline."""

    uid: str
    datasets: tuple[Dataset, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    """Names and types of its columns."""
    before: tuple[str, ...] = ()
    """Of a source: where it was when the task's first run began, as Spark writes offsets."""
    after: tuple[str, ...] = ()
    """Of a source: where it is."""


class RunLineage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of `control/lineage-<epoch>`: written when a run begins, and again when it ends."""

    format: int = FORMAT
    epoch: int
    owner: Owner
    began_from: int = 0
    """The newest checkpoint before the task's first run; 0 when there was none."""
    application: str = ""
    """Spark's id of the run."""
    pages: str = ""
    """Where Spark shows it while it runs; empty when its pages are off."""
    inputs: tuple[Endpoint, ...] = ()
    outputs: tuple[Endpoint, ...] = ()


def report_lineage(store: Store, layout: JobLayout, lineage: RunLineage) -> None:
    store.put(layout.lineage(lineage.epoch), encode(lineage))


def read_lineage(store: Store, layout: JobLayout, epoch: int) -> RunLineage | None:
    return read_if_there(store, layout.lineage(epoch), RunLineage)


def rows_read(lines: Iterable[HistoryLine]) -> dict[str, int]:
    """Rows that these batches have read, by source."""
    return _summed(lines, "source_rows")


def rows_written(lines: Iterable[HistoryLine]) -> dict[str, int]:
    """Rows that these batches have written, by sink."""
    return _summed(lines, "sink_rows")


def _summed(lines: Iterable[HistoryLine], name: str) -> dict[str, int]:
    """Whoever writes records may have noted anything."""
    rows: dict[str, int] = {}
    for line in lines:
        noted = line.metrics.get(name)
        for uid, count in noted.items() if isinstance(noted, dict) else ():
            if isinstance(uid, str) and isinstance(count, int):
                rows[uid] = rows.get(uid, 0) + count
    return rows
