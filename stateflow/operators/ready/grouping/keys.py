"""The key columns of rows, as state wants them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from stateflow.errors import UsageError
from stateflow.operators.ready.grouping.groups import Groups, grouped, whole
from stateflow.operators.ready.grouping.ordered_values import ranks
from stateflow.state.keys.arrow_types import ARROW, DECIMAL, wide

Key = Sequence[tuple[str, str]]


def key_columns(rows: pa.Table, key: Key) -> list[Any]:
    """Each key column as one array of the type that the key has, its wide one."""
    return [key_column(rows[name], name, kind) for name, kind in key]


def key_column(column: Any, name: str, kind: str) -> Any:
    """One key column; `name` is for the error about a decimal with too many digits."""
    try:
        return typed(column, wide(ARROW[kind]))
    except pa.ArrowInvalid:
        most = Decimal(10) ** (DECIMAL.precision - DECIMAL.scale)
        values = column.to_pylist() if kind == "decimal" else []
        far = next((value for value in values if value is not None and abs(value) >= most), None)
        if far is None:
            raise
        raise UsageError(
            f"the key column {name!r} holds {far}, and a key has at most {DECIMAL.precision - DECIMAL.scale} digits before the "
            "point: drop such rows before the operator, or key the stream by the column cast to a string with transform()"
        ) from None


def typed(column: Any, kind: Any) -> Any:
    """The column as one array of that type."""
    array = whole(column)
    return array if array.type == kind else array.cast(kind)


def columns_of(*tables: pa.Table) -> dict[str, Any]:
    """By name the columns of tables that have the same number of rows."""
    return {name: table[name] for table in tables for name in table.column_names}


def one_of_each(columns: Sequence[Any], key: Key, firsts: Any) -> pa.Table:
    """The keys of groups; `firsts` has a row of each."""
    at = pa.array(firsts)
    return pa.table({name: column.take(at) for (name, _), column in zip(key, columns, strict=True)})


def grouped_by_key(rows: pa.Table, key: Key, also: Any = None) -> tuple[Groups, pa.Table]:
    """The groups of rows with the same key, and with the same number in `also` if that is given; and the key of each group."""
    columns = key_columns(rows, key)
    groups = grouped(columns if also is None else [*columns, pa.array(also)], rows.num_rows)
    return groups, one_of_each(columns, key, groups.firsts)


def has_alike(table: pa.Table, others: pa.Table, names: Sequence[str]) -> Any:
    """For each row of `table` whether a row of `others` has the same values in the columns `names`. Nulls are equal here."""
    columns = [
        whole(pa.chunked_array([*mine.chunks, typed(others[name], mine.type)]))
        for name, mine in ((name, table[name]) for name in names)
    ]
    groups = grouped([pa.array(ranks(c)) if c.null_count else c for c in columns], len(table) + len(others))
    is_there = np.zeros(groups.size, dtype=bool)
    is_there[groups.ids[len(table) :]] = True
    return is_there[groups.ids[: len(table)]]
