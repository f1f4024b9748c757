"""Looks whether somebody else has taken an output back with RESTORE, which keeps the job's slots and not its rows: when a run begins, with
each batch, and at its end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from stateflow.pipelines.graph import SinkNode
from stateflow.spark.internals.delta_log import DeltaLog
from stateflow.spark.sinks.base import Sink
from stateflow.spark.sinks.delta_rewind import TableSink
from stateflow.spark.sinks.slot import SinkSlot
from stateflow.spark.sources import undone_output
from stateflow.spark.sources.delta_log import local_log_of
from stateflow.spark.sources.delta_restores import Read, restores_in

_log = logging.getLogger(__name__)


@dataclass
class _WatchedTable:
    node: SinkNode
    sink: TableSink
    log: DeltaLog
    read: Read
    most: int
    """Commits that are looked through at once."""
    seen: int
    """The version up to which it was looked through."""
    slot: int | None = None
    """The job's slot in the version that the newest batch was prepared for."""

    @classmethod
    def of(cls, spark: SparkSession, node: SinkNode, sink: TableSink) -> _WatchedTable:
        log = DeltaLog(spark, sink.target.path, sink.target.managed_as)
        local = local_log_of(log)
        if local is None:
            return cls(node, sink, log, log.read, undone_output.MOST_COMMITS_ELSEWHERE, log.version())
        return cls(node, sink, log, local.read, undone_output.MOST_COMMITS, log.version())


@dataclass
class OutputWatch:
    """The tables of one run. A batch costs what others have committed since the last one. What fails here fails no run."""

    spark: SparkSession
    nodes: Sequence[SinkNode]
    sinks: Mapping[str, Sink]
    """The open ones, by uid."""
    job: SinkSlot
    """Any slot of the job."""
    last_commits: Mapping[str, int]
    """By uid the slot that each output had before this run carried out what was pending."""
    taken_back: Callable[[], Sequence[range]]
    """Gives the slots that the job went back behind."""
    kept: Callable[[], Collection[int]]
    """Gives its checkpoints."""
    warn: Callable[[str, str], None]
    _tables: dict[str, _WatchedTable] = field(default_factory=dict)
    """By uid of its sink."""

    def begin(self) -> None:
        """Looks through what came since the job's last commits."""
        for node in self.nodes:
            sink = self.sinks[node.uid]
            if isinstance(sink, TableSink):
                table = self._tables[node.uid] = _WatchedTable.of(self.spark, node, sink)
                if node.uid in self.last_commits:
                    self._tell(table, table.seen)

    def look(self) -> None:
        """Looks through what came since the last look, as far as the newest batch's preparation has seen the tables."""
        for table in self._tables.values():
            slot, before = table.sink.slot_there, table.slot
            table.slot = slot
            # The only commit since is the job's own. What the table had before the first batch is not known.
            if before is not None and slot != before and table.sink.prepared_at == table.seen + 1:
                table.seen += 1
                continue
            self._look(table, table.sink.prepared_at)

    def end(self) -> None:
        """The last look."""
        for table in self._tables.values():
            self._look(table)

    def _look(self, table: _WatchedTable, newest: int | None = None) -> None:
        """As far as a version; None: the newest. What goes wrong is told, and the next look asks again."""
        try:
            newest = table.log.version() if newest is None else newest
            if newest <= table.seen:
                return
            if restores_in(table.read, max(table.seen + 1, newest - table.most), newest):
                self._tell(table, newest)
            table.seen = newest
        except Exception as error:
            _log.warning("whether somebody else has taken %s back is not known: %s", table.sink.target, error)

    def _tell(self, table: _WatchedTable, newest: int) -> None:
        node = table.node
        app_id = replace(self.job, sink=node.uid).app_id
        above = self.last_commits.get(node.uid, 0)
        undone = undone_output.undone_output(table.read, newest, app_id, table.most, self.taken_back, above)
        if undone is None:
            return
        sentence = undone_output.sentence(
            str(node.target),
            node.target.in_sql,
            self.job.job_name,
            node.uid,
            undone,
            self.kept(),
            [(field.name, field.dataType.simpleString()) for field in table.log.begin().shape().schema],
            appends=node.sink_kind.changes != "replace",
        )
        self.warn(f"{node.uid} went back at {undone.version}", sentence)
