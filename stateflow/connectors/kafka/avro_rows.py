"""Values of Avro as columns, in Arrow batches: each message by the schema of its writer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from stateflow.connectors import NotFoundError, StateflowError, UsageError, arrow_type, task_error
from stateflow.connectors.kafka.avro import AvroMisfit, AvroSchema
from stateflow.connectors.kafka.columns import MESSAGE, with_parsed
from stateflow.connectors.kafka.registry import OtherSchemaType, SchemaRegistry

if TYPE_CHECKING:
    import pyarrow as pa

_UNFIT = (TypeError, ValueError, OverflowError)
"""Arrow's errors for a value that a type does not hold."""
_SHOWN = 100
_MAGIC = 5
"""Bytes before a value that say its schema: a zero, and the id."""


@dataclass(frozen=True, slots=True)
class AvroRows:
    """What tasks do with messages: it goes to them by value."""

    columns: Mapping[str, str]
    """Spark's types of the fields."""
    wanted: tuple[tuple[str, ...], ...] = ()
    """Of each field that always has a value the names of today and before: a writer's schema has one of them."""
    registry: SchemaRegistry | None = None
    schema: str = ""
    """Where there is no registry."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with two more columns: the fields of the value, and why there are none."""
        import pyarrow as pa

        of = pa.struct([(name, arrow_type(type)) for name, type in self.columns.items()])
        for batch in batches:
            found = [self._row(value) for value in batch.column(MESSAGE).field("value").to_pylist()]
            reasons = [reason for _, reason in found]
            yield with_parsed(batch, self._fitting([row for row, _ in found], of, reasons), reasons)

    def names(self, values: Iterable[bytes]) -> frozenset[str]:
        """The paths of the fields in the schemas of values; one that nobody can read has none."""
        if self.registry is None:
            return _given(self.schema).names()
        found: set[str] = set()
        for id in {int.from_bytes(each[1:_MAGIC], "big") for each in values if each[:1] == b"\0"}:
            try:
                found |= _registered(self.registry, id).names()
            except (NotFoundError, UsageError):
                continue
        return frozenset(found)

    def _fitting(
        self, rows: Sequence[Any], of: pa.DataType, reasons: list[str | None], first: int = 0
    ) -> pa.Array:
        """All rows at once; where one does not fit, the halves, until it is alone. Then it is null, and has a reason: a writer may have written
        a value that its own schema has no room for."""
        import pyarrow as pa

        try:
            return pa.array(rows, of)
        except _UNFIT as error:
            if len(rows) == 1:
                reasons[first] = self._unfit(rows[0], error)
                return pa.nulls(1, of)
        middle = len(rows) // 2
        halves = ((rows[:middle], first), (rows[middle:], first + middle))
        return pa.concat_arrays([self._fitting(half, of, reasons, begin) for half, begin in halves])

    def _unfit(self, row: Any, error: Exception) -> str:
        import pyarrow as pa

        for name, type in self.columns.items():
            try:
                pa.array([row.get(name)], arrow_type(type))
            except _UNFIT:
                return f"{name!r} has a value that is no {type}, though its schema says so: {str(row[name])[:_SHOWN]}"
        return f"a value in it is not of its schema ({error})"

    def _row(self, value: bytes | None) -> tuple[Any, str | None]:
        if value is None:
            return None, None
        try:
            columns = tuple(self.columns.items())
            if self.registry is None:
                if misfit := _misfit(None, self.schema, columns, self.wanted):
                    return None, misfit
                return _given(self.schema).decode(value), None
            if len(value) < _MAGIC or value[0] != 0:
                return (
                    None,
                    "it does not begin with the id of a schema, as a writer with a registry writes it",
                )
            id = int.from_bytes(value[1:_MAGIC], "big")
            schema = _registered(self.registry, id)
            if misfit := _misfit(self.registry, id, columns, self.wanted):
                return None, misfit
            return schema.decode(value, _MAGIC), None
        except AvroMisfit as error:
            return None, str(error)
        except (NotFoundError, OtherSchemaType) as error:
            # Its bytes say a schema that nobody has registered, or one of Protobuf: a message that came to this topic by mistake.
            return None, str(error)
        except StateflowError as error:
            raise task_error(error) from error


@cache
def _registered(registry: SchemaRegistry, id: int) -> AvroSchema:
    found = registry.schema(id, "AVRO")
    try:
        return AvroSchema(found.text, (text for _, text in found.references))
    except (AvroMisfit, KeyError, TypeError) as error:
        raise UsageError(f"{found.what} cannot be read ({error}): register it anew") from error


@cache
def _given(text: str) -> AvroSchema:
    return AvroSchema(text)


@cache
def _misfit(
    registry: SchemaRegistry | None,
    schema: int | str,
    columns: tuple[tuple[str, str], ...],
    wanted: tuple[tuple[str, ...], ...],
) -> str:
    """Why values of a schema, told by its id or as it is, do not fit; empty if they do."""
    found = _registered(registry, int(schema)) if registry is not None else _given(str(schema))
    try:
        found.require(dict(columns), wanted)
    except AvroMisfit as error:
        return f"{error} (schema {schema})" if registry is not None else str(error)
    return ""
