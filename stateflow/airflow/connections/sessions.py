"""Spark sessions that a task starts in its own process end with its work."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stateflow.airflow.internals.spark_contexts import active_context


@contextmanager
def own_session() -> Iterator[None]:
    """Stops a Spark session that was started inside the block. One that existed before goes on.

    Meanwhile what programs write to stderr goes to stdout: Java and Spark write all their lines there, and Airflow takes each line
    of a task's stderr for an error.
    """
    # py4j logs every connection that it closes: noise in a task's log.
    logging.getLogger("py4j").setLevel(logging.ERROR)
    before = active_context()
    try:
        with _stderr_in_stdout():
            yield
    finally:
        now = active_context()
        if now is not None and now is not before:
            with suppress(Exception):  # the block's own error must not be hidden
                now.stop()


@contextmanager
def _stderr_in_stdout() -> Iterator[None]:
    try:
        kept = os.dup(2)
    except OSError:  # the process has none
        yield
        return
    try:
        with suppress(OSError):
            os.dup2(1, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
