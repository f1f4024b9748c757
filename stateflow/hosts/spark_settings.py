"""What Spark and Java of an application with many small runs are started with. The user's own settings win."""

from __future__ import annotations

import os
from collections.abc import Mapping

from stateflow.quantities import size
from stateflow.spark.session.settings import DRIVER_JAVA, STATIC, one_process

LASTING = (
    # What it has needed for a moment it gives back when it has nothing to do.
    "-XX:G1PeriodicGCInterval=30000",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=30",
    # It collects garbage more often before it takes more: with runs in a row it is never idle, and gave nothing back.
    "-XX:GCTimeRatio=4",
    # G1 looks through the whole heap when an array of more than half a region is made, and each run makes some of a megabyte.
    "-XX:G1HeapRegionSize=8m",
)
"""Options of Java for an application that stays."""
SMALL_ARRAYS = {
    # A sort of two thousand rows took a page of 64 MB. A page and its head are half a region of G1.
    "spark.buffer.pageSize": f"{(4 << 20) - 16}b",
    # Each stage's task is written into buffers of this size, by default 4 MB.
    "spark.broadcast.blockSize": "256k",
}
"""Settings for an application whose tasks run in its own JVM, so that a small run leaves little garbage."""
MOST_FOR_SMALL_ARRAYS = 32 << 30
"""A task may have 8,192 pages. What one sorts in a larger memory than this could be more, and would fail."""


def host_settings(given: Mapping[str, str], master: str | None) -> dict[str, str]:
    """Settings of Spark for an application with many runs."""
    alone = one_process(master or given.get("spark.master") or os.environ.get("MASTER"))
    return {
        **(SMALL_ARRAYS if alone and _has_pages_enough({**STATIC, **given}["spark.driver.memory"]) else {}),
        # Executors of a cluster give a Python worker to whichever run is next: it would find the modules of the one before.
        **({} if alone else {"spark.python.worker.reuse": "false"}),
        "spark.scheduler.mode": "FAIR",
        "spark.locality.wait": "3000ms",
        # What Spark keeps of jobs that are over, for pages that nobody looks at.
        "spark.ui.retainedJobs": "100",
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.ui.retainedExecutions": "50",
        "spark.sql.streaming.ui.retainedQueries": "10",
        **given,
        DRIVER_JAVA: " ".join((*LASTING, given.get(DRIVER_JAVA, ""))).strip(),
    }


def _has_pages_enough(memory: str) -> bool:
    """Whether small pages are enough for a task that takes all of this memory."""
    try:
        return size(memory) <= MOST_FOR_SMALL_ARRAYS
    except ValueError:
        return False  # Java says what is wrong with it
