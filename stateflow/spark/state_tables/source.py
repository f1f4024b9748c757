"""State as a Spark table: `spark.read.format("stateflow")`.

    job, checkpoint_dir   a job's checkpoint; checkpoint_dir falls back to the configuration
    checkpoint            latest (the default), 42, checkpoint:42 or tag:NAME
    path                  or else a savepoint, of either kind
    operator, state       which table; `_timers` has the timers, operator state has its own columns
    key, keys             one key as text, or a JSON array of keys: only their shards are opened
    storage.<name>        settings of the object store's client, on top of the configuration's
    pushdown              true: `where` narrows what is read; for a DataFrame of one query alone, see below

The snapshot is chosen by `load()`: a DataFrame shows the same rows however often it is used.

**Nothing is pinned here.** The process that plans a read ends before it begins, and the tasks may die, so nobody could be
relied on to let go of a pin, and one that is never let go of keeps its checkpoint for ever. Nor could a read go wrong
without one: files are immutable and checked, so it is right, or it fails with 'was collected while it was read'. A tag keeps
a checkpoint for as long as it is wanted; `export_state`, which ends in this process, pins.

**`where` is not pushed down by a plain `load()`.** Spark 4.2 keeps the partitions of the last pushed-down filter in the
relation, so that `df.where(...)` followed by `df.count()` would count what the filter left: `read_state` gives every scan a
relation of its own, where that cannot happen, and `where` on the key opens only the shards of its keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from stateflow.errors import CorruptError, UsageError
from stateflow.spark.state_tables.selection import (
    EVERYTHING,
    Selection,
    both,
    of_groups,
    of_keys,
    of_values,
)
from stateflow.spark.state_tables.snapshots import Standing, snapshot_of
from stateflow.spark.state_tables.tables import Part, Table, cast, narrowed
from stateflow.state.keys.text import key_of_plain, key_of_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "stateflow"


def register(spark: SparkSession) -> None:
    """Makes the format known to a session."""
    spark.dataSource.register(StateDataSource)


class StateDataSource(DataSource):
    """Made, planned and read in processes of Spark's own: what is chosen travels with it."""

    _found: tuple[Table, list[Part], Standing] | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(self._chosen()[0].schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        table, parts, standing = self._chosen()
        wanted = spark_schema(table.schema)
        if [(f.name, f.dataType) for f in schema] != [(f.name, f.dataType) for f in wanted]:
            raise UsageError(
                f"state {table.state!r} of operator {table.uid!r} has the columns {wanted.simpleString()}: read it without "
                "a schema of your own, and cast"
            )
        kind = PushingReader if _yes(self.options.get("pushdown", "false")) else StateTableReader
        return kind(table, parts, arrow_of(schema), standing)

    def _chosen(self) -> tuple[Table, list[Part], Standing]:
        if self._found is None:
            given = {name: str(value) for name, value in self.options.items()}
            for name in ("operator", "state"):
                if name not in given:
                    raise UsageError(f"option {name} is missing: it names the {name} to read")
            snapshot = snapshot_of(given)
            table, parts = snapshot.table(given["operator"], given["state"])
            selection = _named_keys(given, table)
            if not selection.everything:
                table, parts = replace(table, selection=selection), narrowed(parts, selection)
            self._found = table, parts, snapshot.standing
        return self._found


class StateTableReader(DataSourceReader):
    """Reads the parts of a table, each in a task of its own."""

    def __init__(self, table: Table, parts: Sequence[Part], schema: pa.Schema, standing: Standing) -> None:
        self.table = table
        self.parts = parts
        self.schema = schema
        self.standing = standing

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in self.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # what Spark makes of no partitions
            return
        yield from rows_of(self.table, partition.value, self.schema, self.standing)


class PushingReader(StateTableReader):
    """Narrows itself to the filters of one query. Only for a relation that no other query shares: see above."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        if not self.table.elements:
            selection = both(self.table.selection, selected(filters, self.table))
            self.table = replace(self.table, selection=selection)
            self.parts = narrowed(self.parts, selection)
        # Spark looks at every row again, so that a filter need not be understood in full.
        return filters


def rows_of(table: Table, part: Part, schema: pa.Schema, standing: Standing) -> Iterator[pa.RecordBatch]:
    """The rows of a part with the types that Spark expects."""
    try:
        for batch in table.rows(part):
            yield cast(batch, schema)
    except CorruptError as error:
        found = standing.explained(error, table.place.storage_options)
        if found is error:
            raise
        raise found from error


def selected(filters: Iterable[Filter], table: Table) -> Selection:
    """What is left of a table under filters that all hold."""
    key, most = table.operator.key, table.operator.max_parallelism
    columns = {name for name, _ in key}
    equal: dict[str, list[Any]] = {}
    selection = EVERYTHING
    for each in filters:
        if isinstance(each, Not) and isinstance(each.child, EqualTo) and isinstance(each.child.value, bool):
            each = EqualTo(each.child.attribute, not each.child.value)  # how Spark writes `flag = false`
        path: tuple[str, ...] = getattr(each, "attribute", ())
        if len(path) != 1:
            continue
        name = path[0]
        if name == table.codec.names["key_group"]:
            selection = both(selection, _groups(each, most))
        values = _values(each)
        if name in columns and values is not None:
            known = equal.get(name)
            equal[name] = values if known is None else [v for v in known if v in values]
    return of_values(equal, key, most, selection)


def _values(condition: Filter) -> list[Any] | None:
    """The values of which a column has one; a null never equals anything."""
    match condition:
        case EqualTo() | EqualNullSafe():
            return [condition.value]
        case In():
            return [value for value in condition.value if value is not None]
    return None


_COMPARED: Mapping[type[Filter], Callable[[int, Any], bool]] = {
    LessThan: lambda group, value: group < value,
    LessThanOrEqual: lambda group, value: group <= value,
    GreaterThan: lambda group, value: group > value,
    GreaterThanOrEqual: lambda group, value: group >= value,
}


def _groups(condition: Filter, max_parallelism: int) -> Selection:
    values = _values(condition)
    if values is not None:
        return of_groups(group for group in range(max_parallelism) if group in values)
    holds = _COMPARED.get(type(condition))
    if holds is None:
        return EVERYTHING
    bound = getattr(condition, "value", None)
    return of_groups(group for group in range(max_parallelism) if holds(group, bound))


def _named_keys(given: Mapping[str, str], table: Table) -> Selection:
    """The options `key` and `keys`."""
    operator = table.operator
    if "key" not in given and "keys" not in given:
        return EVERYTHING
    if table.elements:
        raise UsageError(
            f"state {table.state!r} of operator {table.uid!r} belongs to subtasks: it has no keys"
        )
    if "key" in given and "keys" in given:
        raise UsageError("give one key with option key, or several with option keys, not both")
    if "key" in given:
        return of_keys([key_of_text(operator.key, given["key"])], operator.key, operator.max_parallelism)
    try:
        listed = json.loads(given["keys"])
    except ValueError:
        listed = None
    if not isinstance(listed, list):
        raise UsageError(f"option keys is {given['keys']!r}: write a JSON array of keys")
    return of_keys(
        (key_of_plain(operator.key, value) for value in listed), operator.key, operator.max_parallelism
    )


def spark_schema(schema: pa.Schema) -> StructType:
    """The table's columns as Spark has them."""
    return from_arrow_schema(schema)


def arrow_of(schema: StructType) -> pa.Schema:
    """What Spark expects of the batches it is given for these columns."""
    return to_arrow_schema(schema, timezone="UTC")


def _yes(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"option pushdown is {text!r}: write true or false")
    return text.lower() == "true"
