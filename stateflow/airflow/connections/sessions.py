"""Spark sessions that a task starts in its own process end with its work."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def own_session() -> Iterator[None]:
    """Stops a Spark session that was started inside the block. One that existed before goes on."""
    # py4j logs every connection that it closes: noise in a task's log.
    logging.getLogger("py4j").setLevel(logging.ERROR)
    before = _active()
    try:
        yield
    finally:
        now = _active()
        if now is not None and now is not before:
            with suppress(Exception):  # the block's own error must not be hidden
                now.stop()


def _active() -> Any:
    """The SparkContext of this process, without importing Spark to find that there is none."""
    module = sys.modules.get("pyspark.core.context")
    return module.SparkContext._active_spark_context if module is not None else None
