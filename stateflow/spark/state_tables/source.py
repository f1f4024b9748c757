"""State as a Spark table: `spark.read.format("stateflow")`.

    job, checkpoint_dir   a job's checkpoint; checkpoint_dir falls back to the configuration
    checkpoint, or at     latest (the default), 42, checkpoint:42, tag:NAME or a time
    path                  a savepoint of either kind, instead of a job
    operator, state       which table; `_timers` has the timers, operator state has its own columns
    key, keys             one key as text, or a JSON array of keys: only their shards are opened
    storage.<name>        settings of the object store's client, on top of the configuration's
    diff, with            the two points of a job that are compared, instead of a table: see `changes`
    versions              which versions of the job's outputs belong together, instead of a table: see `versions`
    pushdown              true: `where` narrows what is read; for a DataFrame of one query alone, see below

`load()` chooses the snapshot: a DataFrame shows the same rows however often it is used.

**The data source pins nothing.** The process that plans a read ends before the read begins, and the tasks may die. So
nobody could be relied on to release a pin, and a forgotten pin keeps its checkpoint for ever. A read without a pin is
safe: files are immutable and checked, so the read is right or fails with 'was collected while it was read'. To keep a
checkpoint longer, tag it. `export_state` does pin, because it begins and ends in this process.

**A plain `load()` does not push `where` down.** Spark keeps the partitions of the last pushed-down filter in the
relation. So `df.where(...)` followed by `df.count()` would count only the filtered rows. `read_state` gives every scan a
relation of its own, so that `where` on the key safely opens only the shards of its keys. Spark 4.0 pushes no conditions down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from stateflow.errors import CorruptError, UsageError
from stateflow.spark.internals.frames import arrow_schema, spark_schema
from stateflow.spark.state_tables.changes import ChangesReader, compared_points
from stateflow.spark.state_tables.selection import EVERYTHING, Selection, both, of_keys
from stateflow.spark.state_tables.snapshots import SnapshotOrigin, check_names, configured, snapshot_of
from stateflow.spark.state_tables.tables import Part, Table, cast, narrowed
from stateflow.spark.state_tables.versions import VersionsReader, versions_reader
from stateflow.state.keys.text import key_of_plain, key_of_text, plain_of_json

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

FORMAT = "stateflow"


def register(spark: SparkSession) -> None:
    """Registers the format with a session, unless Spark has found it by itself, by the package beside this one.

    Spark 4.0 refuses to replace a source that it has found, later ones replace it.
    """
    try:
        spark.dataSource.register(StateDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


class StateDataSource(DataSource):
    """Spark creates, plans and reads it in processes of its own, so it takes the chosen table along."""

    _table: tuple[Table, list[Part], SnapshotOrigin] | None = None
    _reader: ChangesReader | VersionsReader | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        other = self._other_table()
        return spark_schema((other if other is not None else self._resolve()[0]).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        if (other := self._other_table()) is not None:
            if schema != spark_schema(other.schema):
                raise UsageError(
                    "a table of changes or versions has columns of its own: read it without a schema of your own, and cast"
                )
            return other
        table, parts, origin = self._resolve()
        own = spark_schema(table.schema)
        if [(f.name, f.dataType) for f in schema] != [(f.name, f.dataType) for f in own]:
            raise UsageError(
                f"state {table.state!r} of operator {table.uid!r} has the columns {own.simpleString()}: read it without "
                "a schema of your own, and cast"
            )
        kind = PushingReader if _yes(self.options.get("pushdown", "false")) else StateTableReader
        return kind(table, parts, arrow_schema(schema), origin)

    def _other_table(self) -> ChangesReader | VersionsReader | None:
        """The reader of what is no table of state; None if the options name one."""
        settings = {name: str(value) for name, value in self.options.items()}
        if self._reader is None and ("diff" in settings or "versions" in settings):
            check_names(settings)
            options = configured(settings)
            self._reader = (
                versions_reader(settings, options)
                if "versions" in settings
                else ChangesReader(compared_points(settings, options))
            )
        return self._reader

    def _resolve(self) -> tuple[Table, list[Part], SnapshotOrigin]:
        if self._table is None:
            settings = {name: str(value) for name, value in self.options.items()}
            for name in ("operator", "state"):
                if name not in settings:
                    raise UsageError(f"option {name} is missing: it names the {name} to read")
            snapshot = snapshot_of(settings)
            table, parts = snapshot.table(settings["operator"], settings["state"])
            selection = _named_keys(settings, table)
            if not selection.everything:
                table, parts = replace(table, selection=selection), narrowed(parts, selection)
            self._table = table, parts, snapshot.origin
        return self._table


class StateTableReader(DataSourceReader):
    """Reads the parts of a table, each in a task of its own."""

    def __init__(
        self, table: Table, parts: Sequence[Part], schema: pa.Schema, origin: SnapshotOrigin
    ) -> None:
        self.table = table
        self.parts = parts
        self.schema = schema
        self.origin = origin

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in self.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark passes None when there are no partitions
            return
        yield from rows_of(self.table, partition.value, self.schema, self.origin)


class PushingReader(StateTableReader):
    """Narrows itself to the filters of one query. Only for a relation that no other query shares: see the module."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        from stateflow.spark.state_tables.pushed_filters import selected

        if not self.table.elements:
            selection = both(self.table.selection, selected(filters, self.table))
            self.table = replace(self.table, selection=selection)
            self.parts = narrowed(self.parts, selection)
        # All filters go back to Spark, which checks every row again. So a filter need not be understood in full.
        return filters


def rows_of(table: Table, part: Part, schema: pa.Schema, origin: SnapshotOrigin) -> Iterator[pa.RecordBatch]:
    """The rows of a part with the types that Spark expects."""
    try:
        for batch in table.rows(part):
            yield cast(batch, schema)
    except CorruptError as error:
        explanation = origin.explained(error, table.storage.storage_options)
        if explanation is error:
            raise
        raise explanation from error


def _named_keys(settings: Mapping[str, str], table: Table) -> Selection:
    """The options `key` and `keys`."""
    operator = table.operator
    if "key" not in settings and "keys" not in settings:
        return EVERYTHING
    if table.elements:
        raise UsageError(
            f"state {table.state!r} of operator {table.uid!r} belongs to subtasks: it has no keys"
        )
    if "key" in settings and "keys" in settings:
        raise UsageError("give one key with option key, or several with option keys, not both")
    if "key" in settings:
        return of_keys([key_of_text(operator.key, settings["key"])], operator.key, operator.max_parallelism)
    try:
        values = plain_of_json(settings["keys"])
    except ValueError:
        values = None
    if not isinstance(values, list):
        raise UsageError(f"option keys is {settings['keys']!r}: write a JSON array of keys")
    return of_keys(
        (key_of_plain(operator.key, value) for value in values), operator.key, operator.max_parallelism
    )


def _yes(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"option pushdown is {text!r}: write true or false")
    return text.lower() == "true"
