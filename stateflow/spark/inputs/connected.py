"""A connector's source as a stream of Spark: Spark asks for positions and plans in a process beside the driver, and reads in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from stateflow.errors import UsageError
from stateflow.pipelines.inputs.source import DeclaredSource, Position
from stateflow.spark.internals.frames import arrow_schema
from stateflow.spark.task.failures import through_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # before Spark 4.2
        SupportsTriggerAvailableNow = None


def stream_of(spark: SparkSession, declared: DeclaredSource) -> DataFrame:
    """The rows of a source as a stream."""
    if SupportsTriggerAvailableNow is None:
        raise UsageError(
            f"source {declared.uid!r}: a source of a connector needs Spark 4.2, whose streams tell it where a batch begins: upgrade Spark"
        )
    name = f"stateflow-source-{declared.uid}"
    kind = type("OpenedSource", (ConnectedSource,), {"declared": declared, "format": name})
    spark.dataSource.register(kind)
    return spark.readStream.format(name).load()


class ConnectedSource(DataSource):
    """Each source in a flow gets a subclass: Spark knows its sources by class."""

    declared: ClassVar[DeclaredSource]
    format: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls.format

    def schema(self) -> str:
        return self.declared.rows.ddl

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ConnectedReader(self.declared, schema)


class ConnectedReader(DataSourceStreamReader):
    """Asks a source for the rows between two positions."""

    def __init__(self, declared: DeclaredSource, schema: StructType) -> None:
        self.declared = declared
        self.schema = arrow_schema(schema)
        self._bounded = False
        self._bound: Position | None = None
        """Where a run ends that reads what there is."""
        self._planned = False

    def initialOffset(self) -> Position:
        with through_spark():
            return self.declared.beginning()

    def latestOffset(self, start: Position, limit: Any) -> Position:
        with through_spark():
            if self._bound is None or not self._bounded:
                self._bound = self.declared.newest(start)
            return self.declared.end(start, self._bound)

    def prepareForTriggerAvailableNow(self) -> None:
        self._bounded = True

    def partitions(self, start: Position, end: Position) -> Sequence[InputPartition]:
        if start == end:
            return []
        with through_spark():
            first, self._planned = not self._planned, True
            return [InputPartition(part) for part in self.declared.parts(start, end, twice=first)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with through_spark():
            yield from self.declared.batches(partition.value, self.schema)


if SupportsTriggerAvailableNow is not None:
    SupportsTriggerAvailableNow.register(ConnectedReader)
