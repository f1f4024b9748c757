"""How long micro-batches take, read the same way for every side: Spark's own report of each trigger.

`triggerExecution` covers everything from planning the offsets to the commit of Spark's log, so that nobody's
bookkeeping is left out: not the state commits of Spark's operators, not this library's records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener


@dataclass
class Timed:
    """The micro-batches of a query that had input, in order."""

    rows: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of this process, its JVM and its Python workers, from the end of the batch before: what a busy machine
    changes least."""


class _Listener(StreamingQueryListener):
    """Takes two figures of an event. PySpark would copy all of it, field by field: a thousand calls into the JVM beside the
    next batch, and half of its Python time."""

    def __init__(self, timed: Timed, each: Any) -> None:
        self._timed = timed
        self._each = each
        self._spent = cpu_of_tree(os.getpid())

    @property
    def _jlistener(self) -> Any:
        if not hasattr(self, "_wrapped"):
            jvm: Any = SparkContext._jvm
            self._wrapped = jvm.PythonStreamingQueryListenerWrapper(_Unread(self))
        return self._wrapped

    def progressed(self, event: Any) -> None:
        progress = event.progress()
        if rows := int(progress.numInputRows()):
            self._timed.rows.append(rows)
            self._timed.seconds.append(progress.durationMs().get("triggerExecution") / 1000)
            spent = cpu_of_tree(os.getpid())
            self._timed.cpu.append(spent - self._spent)
            self._spent = spent
            self._each(self._timed)

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass


class _Unread(JStreamingQueryListener):
    """Hears of events as the JVM has them."""

    pylistener: _Listener

    def onQueryStarted(self, jevent: Any) -> None:
        pass

    def onQueryProgress(self, jevent: Any) -> None:
        self.pylistener.progressed(jevent)

    def onQueryIdle(self, jevent: Any) -> None:
        pass

    def onQueryTerminated(self, jevent: Any) -> None:
        pass


def cpu_of_tree(pid: int) -> float:
    """CPU seconds of a process and all below it, also of those that have ended; 0 where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(cpu_of_tree, children(pid)))


def children(pid: int) -> Iterator[int]:
    """A thread that ends meanwhile hides no other's children."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            yield from map(int, children.read_text().split())


@contextmanager
def timed(spark: SparkSession, each: Any = lambda timed: None) -> Iterator[Timed]:
    """Collects the batches of the queries that run in the block. They are complete at its end."""
    batches = Timed()
    listener = _Listener(batches, each)
    spark.streams.addListener(listener)
    try:
        yield batches
        # Ten seconds, which Spark waits by itself, are too few on a machine that has other work.
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(120_000)
    finally:
        spark.streams.removeListener(listener)
