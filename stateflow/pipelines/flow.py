"""The flow that a pipeline function gets, to declare sources and chain steps to them, still without Spark."""

from __future__ import annotations

from typing import Any

from stateflow.errors import UsageError
from stateflow.names import with_options
from stateflow.pipelines.feeds import feed_of
from stateflow.pipelines.graph import Graph, SourceNode
from stateflow.pipelines.inputs.per_partition import PerPartition
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.processes.process import Output
from stateflow.pipelines.ready.windows import not_negative
from stateflow.pipelines.rows.row_type import row_type
from stateflow.pipelines.step_checks import declared_input
from stateflow.pipelines.streams import Stream


class Flow(Graph):
    """Collects what a pipeline function declares."""

    @with_options
    def source(
        self,
        uid: str,
        factory: Any,
        type: Any = None,
        *,
        event_time: str | None = None,
        watermark: Any = None,
        late: Output[Any] | None = None,
    ) -> Stream:
        """A streaming input, opened only when the pipeline runs.

        `factory` is a table such as `sf.delta(path)`, files such as `sf.files(path, "json")`, topics such as `sf.kafka("orders",
        bootstrap="broker:9092")`, or a function from SparkSession to a streaming DataFrame. With `event_time` and `watermark` rows at or behind the watermark go to
        `late`, or are marked `ctx.late`.
        """
        self.claim("source", uid)
        declared = row_type(type) if type is not None else None
        read = declared_input(uid, factory, declared)
        rows = read.columns(declared)
        if (event_time is None) != (watermark is None):
            raise UsageError(f"source {uid!r}: give both event_time and watermark, or neither")
        if event_time is not None and rows is not None:
            column = rows.field(event_time)
            if column is None:
                times = ", ".join(field.name for field in rows.fields if field.type == "timestamp")
                others = f", or name one that it has: {times}" if times else ""
                raise UsageError(
                    f"source {uid!r}: {rows.name} has no event-time column {event_time!r}: declare it there, {event_time}: datetime{others}"
                )
            if column.type != "timestamp":
                raise UsageError(
                    f"source {uid!r}: event-time column {event_time!r} is a {column.type}, not a datetime"
                )
        if late is not None and not isinstance(late, Output):
            raise UsageError(
                f"source {uid!r}: late is {late!r}: give it an output, such as sf.output('late', Order)"
            )
        if late is not None and event_time is None:
            raise UsageError(f"source {uid!r}: late rows need event_time and watermark")
        per_partition = isinstance(watermark, PerPartition)
        if per_partition and not read.has_partitions:
            raise UsageError(
                f"source {uid!r}: watermark=sf.per_partition(...) goes by the partitions of topics that sf.kafka(...) reads, and {read.named} "
                "tells of none: read the topic with sf.kafka(...), or say watermark='10 minutes'"
            )
        delay = watermark.delay if per_partition else watermark
        bound = None if watermark is None else not_negative(f"source {uid!r}", "watermark", delay)
        node = SourceNode(uid, (), rows, event_time, bound, per_partition, late, factory=read)
        self.nodes.append(node)
        return Stream(self, node, MAIN, rows)

    @with_options
    def state_changes(self, operator: str, *, state: str = "") -> Stream:
        """What changes in a state of a keyed operator, as rows: one per entry and batch, with its value before the batch and after.

        `state` may be left out when the operator has one. The operator stands before its feed. The columns are the key's, those that
        tell the entries of a key apart, then state, kind (put, delete, expire), before, after, slot and time.
        """
        node, output = feed_of(self, operator, state)
        return Stream(self, node, output, node.feeds[output].rows)
