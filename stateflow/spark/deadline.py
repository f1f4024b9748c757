"""How long a batch may take (`batch_deadline`)."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING

from stateflow.errors import StateflowError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CANCEL_EVERY = 0.5


class BatchDeadlineError(StateflowError):
    """A batch took longer than it may."""


class Deadline:
    """Cancels the Spark jobs of a block that takes too long, and fails the block."""

    def __init__(self, spark: SparkSession, seconds: float) -> None:
        self._context = spark.sparkContext
        self._seconds = seconds
        self._tag = f"stateflow-{uuid.uuid4().hex}"
        self._expired = False
        self._over = threading.Event()
        self._watch: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._seconds > 0:
            self._context.addJobTag(self._tag)
            self._watch = threading.Thread(target=self._cancel, name="stateflow-deadline", daemon=True)
            self._watch.start()

    def _cancel(self) -> None:
        # Again and again: at the deadline the driver may be between two jobs, and Spark cancels none that begins later.
        left = self._seconds
        while not self._over.wait(left):
            self._expired = True
            self._context.cancelJobsWithTag(self._tag)
            left = _CANCEL_EVERY

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._watch is None:
            return
        self._over.set()
        self._watch.join()
        self._context.removeJobTag(self._tag)
        if self._expired:
            raise BatchDeadlineError(
                f"the batch took longer than batch_deadline={self._seconds:g} s and was cancelled: give it more time or "
                "smaller batches"
            ) from error
