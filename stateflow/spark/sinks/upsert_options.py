"""What an upsert is told, whatever its target: the columns of the key, which of several rows counts, and which rows delete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stateflow.errors import UsageError
from stateflow.pipelines.sink_kinds import names_of
from stateflow.spark.sinks.duplicates import refuse_duplicates, refuse_null_keys, refuse_null_operations

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

    from stateflow.pipelines.conditions.expression import Expression
    from stateflow.spark.sinks.slot import SinkSlot
    from stateflow.spark.sinks.staging import Staged, Stager


@dataclass(frozen=True, slots=True)
class UpsertOptions:
    """The options that all upserts share. An append has the target, and to Kafka the keys of its messages."""

    target: object = ""
    keys: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    operation: str = ""
    """The column of the rows that says whether a row is an upsert or a delete; the target does not have it."""
    delete_when: str | None = None
    """A condition in SQL over the columns: a row that fulfils it is a delete, too."""

    @classmethod
    def of(cls, target: object, options: Mapping[str, Any]) -> UpsertOptions:
        return cls(
            target,
            names_of(options.get("keys")),
            names_of(options.get("order_by")),
            str(options.get("operation") or ""),
            options.get("delete_when"),
        )

    @property
    def deletes(self) -> bool:
        return bool(self.operation) or self.delete_when is not None

    def columns(self, schema: StructType) -> StructType:
        """The columns that the target has."""
        if self.operation and self.operation not in schema.names:
            raise UsageError(
                f"the rows for {self.target} have no column {self.operation!r}, which says what is deleted: let transform() keep it"
            )
        return type(schema)([field for field in schema.fields if field.name != self.operation])

    def refuse_unknown(self, columns: Sequence[str]) -> None:
        """UsageError for a key or an order that is not among the columns, in whatever letters."""
        known = {name.lower() for name in columns}
        for column in (*self.keys, *self.order_by):
            if column.lower() not in known:
                raise UsageError(
                    f"the upsert into {self.target} names {column!r}, which is not among the columns {[*columns]}"
                )

    def refuse_incomparable(self, schema: StructType) -> None:
        """UsageError for a key or an order whose values Spark does not compare: the commit would fail on it, once the record is decided."""
        types = {field.name.lower(): field.dataType for field in schema}
        for option, columns, what in (
            ("keys", self.keys, "that tells rows apart"),
            ("order_by", self.order_by, "that says which row is newer"),
        ):
            for column in columns:
                kind = types.get(column.lower())
                if kind is not None and not _is_compared(kind):
                    raise UsageError(
                        f"the upsert into {self.target} has {option}={column!r}, which is {kind.simpleString()}, and maps and variants are not "
                        f"compared: let transform() add a column of text or numbers {what}, and name that"
                    )

    def refuse_nested_order(self, schema: StructType) -> None:
        """UsageError for an order of a column that holds several values, which the target would compare otherwise than Spark, or not at all."""
        types = {field.name.lower(): field.dataType.simpleString() for field in schema}
        for column in self.order_by:
            kind = types.get(column.lower(), "")
            if kind.startswith(("array<", "map<", "struct<", "variant")):
                raise UsageError(
                    f"the upsert into {self.target} has order_by={column!r}, which is {kind}: let transform() add a column with the one value that "
                    "says which row is newer, and name that"
                )

    def deletion(self, schema: StructType) -> Expression | None:
        """The condition of rows that delete, checked against the rows."""
        if self.delete_when is None:
            return None
        from stateflow.spark.sinks.deletion import deletion

        return deletion(f"the upsert into {self.target}, delete_when", self.delete_when, schema)

    def marked(self, frame: DataFrame) -> tuple[DataFrame, UpsertOptions]:
        """The rows as they are staged, with a column that says which of them delete; `operation` names it from then on. So whoever commits needs
        neither the condition nor the code of this release."""
        condition = self.deletion(frame.schema)
        if condition is None:
            return frame, self
        from stateflow.spark.sinks.deletion import marked

        rows, operation = marked(frame, condition, self.operation)
        return rows, replace(self, operation=operation)

    def refuse(self, staged: Staged, frame: DataFrame, at: SinkSlot, stager: Stager) -> None:
        """Refuses staged rows without a key or of which nobody knows whether they delete, and several of one key if no `order_by` picks one: IncompatibleError."""
        if not staged.files:
            return
        refuse_null_keys(staged, self.keys, at, self.target)
        if self.operation:
            refuse_null_operations(staged, self.operation, at, self.target)
        if self.keys and not self.order_by:
            refuse_duplicates(frame.sparkSession, staged, frame.schema, self.keys, stager, at, self.target)


def _is_compared(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType, StructType, VariantType

    if isinstance(kind, ArrayType):
        return _is_compared(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_compared(field.dataType) for field in kind.fields)
    return not isinstance(kind, MapType | VariantType)
