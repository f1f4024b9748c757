"""How long micro-batches take, read the same way for every side: Spark's own report of each trigger.

`triggerExecution` covers everything from planning the offsets to the commit of Spark's log, so that nobody's
bookkeeping is left out: not the state commits of Spark's operators, not this library's records.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


@dataclass
class Timed:
    """The micro-batches of a query that had input, in order."""

    rows: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class _Listener(StreamingQueryListener):
    def __init__(self, timed: Timed, each: Any) -> None:
        self._timed = timed
        self._each = each

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        if progress.numInputRows:
            self._timed.rows.append(progress.numInputRows)
            self._timed.seconds.append(progress.durationMs["triggerExecution"] / 1000)
            self._each(self._timed)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass


@contextmanager
def timed(spark: SparkSession, each: Any = lambda timed: None) -> Iterator[Timed]:
    """Collects the batches of the queries that run in the block. They are complete at its end."""
    batches = Timed()
    listener = _Listener(batches, each)
    spark.streams.addListener(listener)
    try:
        yield batches
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(listener)
