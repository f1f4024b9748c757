"""Rows of data files as they are in them: PyIceberg 0.12 gives an empty list or map for a null one that has structs in it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table


def scan_of(table: Table, schema: Schema) -> ArrowScan:
    """Reads all rows of files in such columns."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    _keep_nulls()
    return ArrowScan(table.metadata, table.io, schema, AlwaysTrue())


@cache
def _keep_nulls() -> None:
    """Puts a visitor in the place of PyIceberg's, for the whole process: a scan takes no other. It changes nothing but nulls that get lost."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg.io import pyarrow as module

    def with_nulls(made: Any, there: Any) -> Any:
        if made is None or made.null_count == there.null_count:
            return made
        return pc.if_else(there.is_valid(), made, pa.nulls(len(made), made.type))

    class KeepingNulls(module.ArrowProjectionVisitor):  # type: ignore[misc]
        def list(self, list_type: Any, list_array: Any, value_array: Any) -> Any:
            return with_nulls(super().list(list_type, list_array, value_array), list_array)

        def map(self, map_type: Any, map_array: Any, key_result: Any, value_result: Any) -> Any:
            return with_nulls(super().map(map_type, map_array, key_result, value_result), map_array)

    module.ArrowProjectionVisitor = KeepingNulls
