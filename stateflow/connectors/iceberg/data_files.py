"""Descriptions of data files as a record keeps them, in JSON."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")


def described(file: DataFile, spec: PartitionSpec, schema: Schema) -> dict[str, Any]:
    """What `data_file` takes."""
    return {
        "content": file.content.value,
        "format": file.file_format.value,
        "path": file.file_path,
        "rows": file.record_count,
        "bytes": file.file_size_in_bytes,
        "spec": file.spec_id,
        "partition": _partition(file, spec, schema),
        "splits": file.split_offsets,
        **{name: _texts(getattr(file, name)) for name in _COUNTS},
        **{
            name: {id: b64encode(value).decode() for id, value in _texts(getattr(file, name)).items()}
            for name in _BOUNDS
        },
    }


def data_file(description: Mapping[str, Any], spec: PartitionSpec, schema: Schema) -> DataFile:
    from pyiceberg.conversions import from_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    kinds = [field.field_type for field in spec.partition_type(schema).fields]
    partition = [
        None if value is None or _is_dropped(kind) else from_bytes(kind, b64decode(value))
        for value, kind in zip(description["partition"], kinds, strict=True)
    ]
    made = DataFile.from_args(
        content=DataFileContent(description["content"]),
        file_path=description["path"],
        file_format=FileFormat(description["format"]),
        partition=Record(*partition),
        record_count=description["rows"],
        file_size_in_bytes=description["bytes"],
        split_offsets=description["splits"],
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **{name: {int(id): value for id, value in description[name].items()} for name in _COUNTS},
        **{name: {int(id): b64decode(value) for id, value in description[name].items()} for name in _BOUNDS},
    )
    made.spec_id = description["spec"]
    return made


def _partition(file: DataFile, spec: PartitionSpec, schema: Schema) -> list[str | None]:
    from pyiceberg.conversions import to_bytes

    kinds = [field.field_type for field in spec.partition_type(schema).fields]
    values = [file.partition[place] for place in range(len(kinds))]
    return [
        None if value is None or _is_dropped(kind) else b64encode(to_bytes(kind, value)).decode()
        for value, kind in zip(values, kinds, strict=True)
    ]


def _is_dropped(kind: IcebergType) -> bool:
    """Whether the table has no more the column that a file was once partitioned by: nobody needs its value, or knows its type."""
    from pyiceberg.types import UnknownType

    return isinstance(kind, UnknownType)


def _texts(by_id: Mapping[int, Any] | None) -> dict[str, Any]:
    return {str(id): value for id, value in (by_id or {}).items() if value is not None}
