"""Rows by the partition of a table that they belong to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a table."""

    key: tuple[Any, ...]
    record: Any
    """Its values, as a manifest has them."""
    folder: str
    """Where its files are, below the data; empty without partitions."""


def parted(
    rows: pa.Table, columns: Schema, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[Partition, pa.Table]]:
    """The rows of each partition. `columns` are those of the rows, `schema` those of the table."""
    import numpy as np
    import pyarrow as pa
    from pyiceberg.typedef import Record

    if spec.is_unpartitioned():
        yield Partition((), Record(), ""), rows
        return
    places = {field.field_id: place for place, field in enumerate(columns.fields)}
    values: list[list[Any]] = []
    codes = np.zeros(len(rows), np.int64)
    for field in spec.fields:
        place = places.get(field.source_id)
        column = None if place is None else rows.column(place)
        found, own = _transformed(
            column, len(rows), field.transform, schema.find_field(field.source_id).field_type
        )
        values.append(found)
        codes = codes * len(found) + own
    for code in np.unique(codes).tolist():
        some = rows.filter(pa.array(codes == code))
        key: list[Any] = []
        rest = code
        for found in reversed(values):
            rest, place = divmod(rest, len(found))
            key.append(found[place])
        record = Record(*reversed(key))
        yield Partition(tuple(reversed(key)), record, f"{spec.partition_to_path(record, schema)}/"), some


def _transformed(column: Any, count: int, transform: Any, kind: Any) -> tuple[list[Any], Any]:
    """The values of a partition's field, each once, and the place of each row's."""
    import numpy as np

    act = transform.transform(kind)
    if column is None:
        return [act(None)], np.zeros(count, np.int64)
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    known: dict[Any, int] = {}
    places = np.array(
        [known.setdefault(act(value), len(known)) for value in _internal(encoded.dictionary)], np.int64
    )
    return list(known), places[encoded.indices.to_numpy(zero_copy_only=False)]


def _internal(values: pa.Array) -> list[Any]:
    """Values as Iceberg's transforms take them: days and microseconds as numbers."""
    import pyarrow as pa

    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    return list(values.to_pylist())
