"""Where results go. A sink prepares rows that nobody sees; `commit` makes those of a decided record visible."""

from __future__ import annotations

from stateflow.spark.sinks.base import BatchFunction, Committed, DeliveryMode, Sink
from stateflow.spark.sinks.kinds import commit
from stateflow.spark.sinks.slot import SinkSlot

__all__ = ["BatchFunction", "Committed", "DeliveryMode", "Sink", "SinkSlot", "commit"]
