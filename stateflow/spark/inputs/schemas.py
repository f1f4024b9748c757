"""The schema of every stream of a flow, planned without running it, so that a misfit shows before a run begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from stateflow.compatibility.states import check_another_key, check_key
from stateflow.errors import IncompatibleError, StateflowError, UsageError, without_exit
from stateflow.format.keygroups import default_assignment
from stateflow.format.records import Record
from stateflow.pipelines.changes import filters, upserted_by
from stateflow.pipelines.flow import Flow
from stateflow.pipelines.graph import KeyedNode, NodeRows, SourceNode, TransformNode, declared_columns
from stateflow.pipelines.processes.operator_spec import MAIN
from stateflow.pipelines.rows.row_type import row_type
from stateflow.pipelines.step_checks import aggregates
from stateflow.spark.inputs.open_inputs import OpenInputs, unioned
from stateflow.spark.internals.gateway import first_line
from stateflow.spark.internals.plans import PlanNode, plan_of
from stateflow.spark.shuffle.exchange import LATE, KeyedInput, exchanged, same_key_types, spread
from stateflow.spark.sources.leaves import STATEFUL

_AGGREGATING = {**STATEFUL, "Aggregate": "an aggregation"}


class Outline:
    """The flow over empty frames."""

    def __init__(self, spark: SparkSession, flow: Flow, inputs: OpenInputs) -> None:
        self._spark = spark
        self._flow = flow
        self._empty = inputs.empty(spark)
        self._frames: dict[tuple[int, str], DataFrame] = {}

    def check(self, record: Record | None) -> None:
        """Plans every operator's exchange, and raises the first misfit."""
        for node in self._flow.operators:
            inputs = []
            for keyed, rows in zip(node.keyed, node.rows, strict=True):
                frame = self.frame(keyed.stream)
                columns = ", ".join(f"{n} {t}" for n, t in frame.dtypes if not n.startswith("_sf_"))
                inputs.append(KeyedInput(frame, keyed.columns, keyed.order_by, rows or row_type(columns)))
            types = same_key_types(node.uid, inputs)
            before = record.operators.get(node.uid) if record else None
            if before is not None:
                check_key(node.uid, types, before)
                check_another_key(node, inputs[0].rows, before)
            try:
                if node.has_key:
                    _ = exchanged(node.uid, inputs, types, 128, default_assignment(1, 128)).schema
                else:
                    _ = spread(node.uid, inputs[0], 1).schema
            except StateflowError:
                raise
            except Exception as error:
                raise IncompatibleError(
                    f"operator {node.uid!r}: its input does not fit: {first_line(error)}"
                ) from error

    def schema(self, stream: NodeRows) -> Any:
        """The schema of the rows that a sink on this stream gets."""
        frame = self.frame(stream)
        return (frame.drop(LATE) if LATE in frame.columns else frame).schema

    def frame(self, stream: NodeRows) -> DataFrame:
        key = (id(stream.node), stream.output)
        if key not in self._frames:
            self._frames[key] = self._outlined(stream)
        return self._frames[key]

    def _outlined(self, stream: NodeRows) -> DataFrame:
        node = stream.node
        if isinstance(node, SourceNode):
            frame = self._empty[node.uid]
            return (
                frame.withColumn(LATE, F.lit(False)) if node.event_time and stream.output == MAIN else frame
            )
        if isinstance(node, KeyedNode):
            rows = node.outputs[stream.output]
            assert rows is not None
            return self._spark.createDataFrame([], rows.ddl)
        frames = [self.frame(s) for s in node.inputs]
        if isinstance(node, TransformNode):
            try:
                with without_exit(node.uid):
                    out = node.function(frames[0])
                _ = out.schema
            except StateflowError:
                raise
            except Exception as error:
                raise UsageError(f"{node.uid} fails on its input: {first_line(error)}") from error
            # A lookup table that it joins may be aggregated.
            if found := _between(out, frames[0], lambda step: _AGGREGATING.get(step.kind, "")):
                raise UsageError(aggregates(node.uid, found))
            if (sink := upserted_by(self._flow, node)) and (found := _between(out, frames[0], _filters)):
                raise UsageError(filters(node.uid, found, sink))
            return out  # type: ignore[no-any-return]
        return unioned(frames, declared_columns(node))


def _filters(node: PlanNode) -> str:
    """A step that leaves out some rows, in words; empty for any other."""
    if node.kind == "Join":
        return f"a {node.join.lower()} join" if node.join in ("LEFT SEMI", "LEFT ANTI") else ""
    return {"Filter": "a filter", "Sample": "a sample"}.get(node.kind, "")


def _between(frame: DataFrame, given: DataFrame, what: Callable[[PlanNode], str]) -> str:
    """The text in `what` for the first node in `frame`'s plan that `what` has and through which rows of `given` pass."""
    leaves = [node for node in plan_of(given).walk() if not node.children]
    for node in plan_of(frame).walk():
        found = what(node)
        if found and any(below == leaf for below in node.walk() for leaf in leaves):
            return found
    return ""
