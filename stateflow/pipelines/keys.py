"""Checks whether streams can be grouped by a key, and brought together by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.graph import GroupedRows, NodeRows
from stateflow.pipelines.rows.row_type import RowType, key_advice, key_type


def check_key(rows: RowType | None, columns: Sequence[str], order: Sequence[str]) -> None:
    """Whether rows can be grouped by these columns, in this order."""
    if not columns:
        raise UsageError("key_by() needs at least one column")
    for name in (*columns, *order):
        if not isinstance(name, str):
            raise UsageError(
                f"key_by takes names of columns, not {name!r}: say key_by('user', 'sku', order_by='ts'); what is computed is made a "
                "column with .transform() before"
            )
    lowered = [name.lower() for name in columns]
    if twice := next((name for name in columns if lowered.count(name.lower()) > 1), ""):
        raise UsageError(f"key_by: column {twice!r} is named twice: name each column of the key once")
    refuse_own_names("key_by", (*columns, *(each.removeprefix("-") for each in order)))
    if rows is None:
        return
    check_columns("key_by", rows, (*columns, *(o.removeprefix("-") for o in order)))
    for name in columns:
        field = rows.field(name)
        if field is not None and key_type(field.type) is None:
            raise UsageError(
                f"key_by: column {name!r} is a {field.type}, which cannot be a key: {key_advice(field.type)}"
            )


_OWN = "_sf_"
"""How the columns begin that the library adds to rows on their way."""


def refuse_own_names(where: str, names: Iterable[str]) -> None:
    """Whether columns of users can stand beside those that the library adds."""
    for name in names:
        if name.lower().startswith(_OWN):
            raise UsageError(
                f"{where}: column {name!r} begins with {_OWN!r}, as columns do that Stateflow adds to the rows: rename it before, such as "
                f".transform(lambda frame: frame.withColumnRenamed({name!r}, {name[len(_OWN) :] or 'other'!r}), type=...)"
            )


def check_columns(step: str, rows: RowType | None, names: Sequence[str]) -> None:
    """Whether the rows have these columns, as far as their type is known."""
    for name in names:
        if rows is not None and rows.field(name) is None:
            raise UsageError(no_column(step, rows, name))


def no_column(step: str, rows: RowType, name: str) -> str:
    column, _, order = name.rpartition(" ")
    if rows.field(column) is not None and order.lower() in ("asc", "desc"):
        written = column if order.lower() == "asc" else f"-{column}"
        return f"{step}: write {written!r} in place of {name!r}"
    return f"{step}: {rows.name} has no column {name!r}; it has {', '.join(rows.names)}"


def _unkeyed(left: GroupedRows, right: Any) -> str:
    """The advice for a right input that is no keyed stream."""
    if isinstance(right, NodeRows):
        columns = ", ".join(map(repr, left.columns))
        return (
            f"the right input has no key: give it .key_by({columns}), or what these columns are called there"
        )
    if isinstance(getattr(right, "keyed", None), GroupedRows):
        return "the right input is cut into windows: leave its .window(...) out, for that of the left input cuts both"
    return f"the right input is {right!r}: give a keyed stream, such as flow.source(...).key_by('column')"


def check_streams(what: str, given: Iterable[Any]) -> None:
    """Whether each of these is a stream, neither keyed nor cut into windows."""
    for each in given:
        if not isinstance(each, NodeRows):
            called = "a keyed stream" if isinstance(each, GroupedRows) else repr(each)
            raise UsageError(f"{what}: {called} is no stream of rows: give what stands before .key_by()")


def check_same_key(what: str, left: GroupedRows, right: GroupedRows) -> None:
    """Whether two inputs are keyed by columns of the same types."""
    if not isinstance(right, GroupedRows):
        raise UsageError(f"{what}: {_unkeyed(left, right)}")
    if len(left.columns) != len(right.columns):
        raise UsageError(
            f"{what}: the left input has {len(left.columns)} key columns and the right one {len(right.columns)}"
        )
    for mine, theirs in zip(left.columns, right.columns, strict=True):
        one = left.stream.rows.field(mine) if left.stream.rows else None
        other = right.stream.rows.field(theirs) if right.stream.rows else None
        if one is not None and other is not None and key_type(one.type) != key_type(other.type):
            raise UsageError(
                f"{what}: the left input is keyed by {mine} ({one.type}) and the right one by {theirs} ({other.type}): "
                "a key has one type, so cast one of them"
            )
