"""Streams whose rows replace each other: what may follow them, and making rows of them."""

from __future__ import annotations

from typing import Any

from stateflow.errors import UsageError
from stateflow.pipelines.rows import RowType, row_type


def refuse_changes(step: str, changes: tuple[str, ...] | None, uid: str) -> None:
    """Whether a step that takes each row for a new one may follow."""
    if changes is not None:
        keys = f" by {', '.join(changes)}" if changes else ""
        raise UsageError(
            f"{step}: the rows of {uid!r} replace each other{keys}: take them with .upsert(), or make them rows with "
            ".changes_as_rows(op='op')"
        )


def operation_rows(rows: RowType, op: str) -> RowType:
    """The rows with a column that says what each change is."""
    if rows.field(op) is not None:
        raise UsageError(f"changes_as_rows: {rows.name} has a column {op!r} already: give op= another name")
    return row_type(f"{rows.ddl}, `{op}` string")


def with_operation(op: str, frame: Any) -> Any:
    """A DataFrame with that column."""
    return frame.selectExpr("*", f"'upsert' as `{op}`")
