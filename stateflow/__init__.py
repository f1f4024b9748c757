"""Stateful pipelines on PySpark: exactly-once keyed state with incremental checkpoints.

    import stateflow as sf

This list is the whole public surface; everything else is private.
"""

from stateflow import testing
from stateflow.errors import (
    BusyError,
    CorruptError,
    DisagreementError,
    FencedError,
    IncompatibleError,
    NotFoundError,
    StateflowError,
    StateTypeError,
    UnavailableError,
    UsageError,
)
from stateflow.flow import Flow, KeyedStream, Pipeline, Stream, pipeline
from stateflow.job import Job
from stateflow.process import ConnectedProcess, Context, KeyedProcess, Output, output
from stateflow.spark.sinks.memory import memory
from stateflow.spark.tables import delta
from stateflow.state.declare import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    OperatorListState,
    ReducingState,
    Timer,
    UnionListState,
    ValueState,
)
from stateflow.state.serializers import CustomSerializer

__all__ = [
    "AggregatingState",
    "BroadcastState",
    "BusyError",
    "ConnectedProcess",
    "Context",
    "CorruptError",
    "CustomSerializer",
    "DisagreementError",
    "FencedError",
    "Flow",
    "IncompatibleError",
    "Job",
    "KeyedProcess",
    "KeyedStream",
    "ListState",
    "MapState",
    "NotFoundError",
    "OperatorListState",
    "Output",
    "Pipeline",
    "ReducingState",
    "StateTypeError",
    "StateflowError",
    "Stream",
    "Timer",
    "UnavailableError",
    "UnionListState",
    "UsageError",
    "ValueState",
    "delta",
    "memory",
    "output",
    "pipeline",
    "testing",
]
