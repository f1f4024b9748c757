"""Stateful pipelines on PySpark: exactly-once keyed state with incremental checkpoints.

    import stateflow as sf

This list is the whole public surface; everything else is private. A name is loaded when it is first used, so
that the command line and DAG files do not pay for Spark, Arrow and RocksDB.
"""

from __future__ import annotations

from importlib import import_module

# Before anything else is imported, which the working folder could replace: also before `typing`.
import_module("stateflow.working_folder").keep_out()
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from stateflow import testing
    from stateflow.connectors.iceberg.table import iceberg
    from stateflow.connectors.kafka.topic import kafka
    from stateflow.connectors.postgres.table import postgres
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
    from stateflow.jobs.job import Job
    from stateflow.pipelines.delivery import Delivery
    from stateflow.pipelines.flow import Flow
    from stateflow.pipelines.inputs.files import files
    from stateflow.pipelines.inputs.per_partition import per_partition
    from stateflow.pipelines.inputs.tables import delta, table
    from stateflow.pipelines.pipeline import Pipeline, pipeline
    from stateflow.pipelines.processes.columnar import ColumnarContext, ColumnarOperator
    from stateflow.pipelines.processes.process import (
        ConnectedProcess,
        Context,
        KeyedProcess,
        Output,
        PartitionProcess,
        output,
    )
    from stateflow.pipelines.ready.aggregates import (
        Aggregate,
        aggregate,
        collect,
        count,
        count_distinct,
        first,
        last,
        max,
        mean,
        min,
        quantile,
        stddev,
        sum,
        top_values,
        variance,
    )
    from stateflow.pipelines.ready.window_process import WindowBounds, WindowProcess
    from stateflow.pipelines.ready.windows import Window, count_window, cumulative, hopping, session, tumbling
    from stateflow.pipelines.streams import KeyedStream, Stream, WindowedStream
    from stateflow.spark.sinks.memory import memory
    from stateflow.state.columns.layout import columns
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
    from stateflow.state.expiry.ttl import ttl
    from stateflow.state.values.schema import field
    from stateflow.state.values.serializers import CustomSerializer

__all__ = [
    "Aggregate",
    "AggregatingState",
    "BroadcastState",
    "BusyError",
    "ColumnarContext",
    "ColumnarOperator",
    "ConnectedProcess",
    "Context",
    "CorruptError",
    "CustomSerializer",
    "Delivery",
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
    "PartitionProcess",
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
    "Window",
    "WindowBounds",
    "WindowProcess",
    "WindowedStream",
    "aggregate",
    "collect",
    "columns",
    "count",
    "count_distinct",
    "count_window",
    "cumulative",
    "delta",
    "field",
    "files",
    "first",
    "hopping",
    "iceberg",
    "kafka",
    "last",
    "max",
    "mean",
    "memory",
    "min",
    "output",
    "per_partition",
    "pipeline",
    "postgres",
    "quantile",
    "session",
    "stddev",
    "sum",
    "table",
    "testing",
    "top_values",
    "ttl",
    "tumbling",
    "variance",
]

_ROOMS = {
    "stateflow.errors": tuple(name for name in __all__ if name.endswith("Error")),
    "stateflow.pipelines.ready.aggregates": (
        "Aggregate",
        "aggregate",
        "collect",
        "count",
        "count_distinct",
        "first",
        "last",
        "max",
        "mean",
        "min",
        "quantile",
        "stddev",
        "sum",
        "top_values",
        "variance",
    ),
    "stateflow.pipelines.delivery": ("Delivery",),
    "stateflow.pipelines.inputs.files": ("files",),
    "stateflow.pipelines.inputs.per_partition": ("per_partition",),
    "stateflow.pipelines.flow": ("Flow",),
    "stateflow.pipelines.streams": ("KeyedStream", "Stream", "WindowedStream"),
    "stateflow.pipelines.pipeline": ("Pipeline", "pipeline"),
    "stateflow.pipelines.ready.window_process": ("WindowBounds", "WindowProcess"),
    "stateflow.pipelines.ready.windows": (
        "Window",
        "count_window",
        "cumulative",
        "hopping",
        "session",
        "tumbling",
    ),
    "stateflow.connectors.iceberg.table": ("iceberg",),
    "stateflow.connectors.kafka.topic": ("kafka",),
    "stateflow.connectors.postgres.table": ("postgres",),
    "stateflow.jobs.job": ("Job",),
    "stateflow.pipelines.processes.columnar": ("ColumnarContext", "ColumnarOperator"),
    "stateflow.pipelines.processes.process": (
        "ConnectedProcess",
        "Context",
        "KeyedProcess",
        "Output",
        "PartitionProcess",
        "output",
    ),
    "stateflow.spark.sinks.memory": ("memory",),
    "stateflow.pipelines.inputs.tables": ("delta", "table"),
    "stateflow.state.columns.layout": ("columns",),
    "stateflow.state.declare": (*(name for name in __all__ if name.endswith("State")), "Timer"),
    "stateflow.state.expiry.ttl": ("ttl",),
    "stateflow.state.values.schema": ("field",),
    "stateflow.state.values.serializers": ("CustomSerializer",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

if not TYPE_CHECKING:

    def _meant(name: str) -> str:
        names = import_module("stateflow.names")
        if name in names.MODULE:
            return f": it is called sf.{names.MODULE[name]} here"
        return "" if name.startswith("_") else str(names.suggestion(name, __all__))

    def __getattr__(name: str) -> Any:
        if name == "testing":
            return import_module("stateflow.testing")
        if name not in _ROOM_OF:
            if not name.startswith("_"):
                offers = import_module("stateflow.pipelines.offers")
                if offered := offers.claims(offers.SOURCES, {}).get(name):
                    return offers.only(offered).load()
            raise AttributeError(f"module 'stateflow' has no attribute {name!r}{_meant(name)}")
        value = getattr(import_module(_ROOM_OF[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
