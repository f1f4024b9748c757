"""Where results go. A sink prepares rows invisibly; `commit` makes those of a decided record visible."""

from __future__ import annotations

from stateflow.spark.sinks.base import BatchFunction, Committed, Delivery, Place, Sink, commit

__all__ = ["BatchFunction", "Committed", "Delivery", "Place", "Sink", "commit"]
